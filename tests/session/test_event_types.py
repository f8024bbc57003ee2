"""The catalogue of events: complete, in a fixed order, and open to what comes later."""

import ast
from pathlib import Path

import pytest

import fanfold
from fanfold.contracts.codec import encode_json
from fanfold.contracts.event_types import EVENT_TYPES, decode_event
from fanfold.contracts.events import AgentEvent
from fanfold.errors import UsageError

SENT_BY_HOSTS = {"passivation_requested", "peer_invocation"}
SENDERS = {"event", "tell", "_emit", "_tell", "emit", "write_event"}


def told() -> set[str]:
    """Every literal type of an event in the source."""
    found: set[str] = set()
    for path in Path(fanfold.__file__).parent.rglob("*.py"):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            types = (
                [keyword.value for keyword in node.keywords if keyword.arg == "type"] if name == "AgentEvent" else []
            )
            types += node.args[:1] if name in SENDERS else []
            found |= {each.value for each in types if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return found


def test_the_catalogue_has_each_type_that_is_told_and_no_other() -> None:
    assert told() - set(EVENT_TYPES) == set()
    assert set(EVENT_TYPES) - told() == SENT_BY_HOSTS
    assert len(set(EVENT_TYPES)) == len(EVENT_TYPES)


IN_ORDER = """
    agent_start planning_start planning_end task_updated goal_extracted goal_judging goal_progress goal_achieved
    goal_warning turn_start text_delta reasoning_delta turn_end tool_start permission_denied
    tool_execution_start tool_end confirmation_required confirmation_received confirmation_timeout user_question
    auto_compact context_compacted run_control_applied log_repaired persistence_failed events_left_out agent_end error
    question_answered
    subagent_start subagent_progress subagent_end structured_partial step_retry step_cached step_changed
    step_recorded pipeline_warning item_end parallel_end map_end workflow_end phase_start phase_end log budget_exhausted
    async_launched task_started task_progress task_notification
    budget_threshold_hit passivation_requested peer_invocation
"""
"""Also written down here, so that nobody reorders it without meaning to; a new type goes to the end of its group."""


def test_the_catalogue_keeps_its_order() -> None:
    assert list(EVENT_TYPES) == IN_ORDER.split()


@pytest.mark.parametrize("kind", [*EVENT_TYPES, "of_the_future"])
def test_an_event_of_any_type_survives_its_json(kind: str) -> None:
    event = AgentEvent(type=kind, payload={"text": "a", "new": [1, {"deep": None}]}, metadata={"sequence": 3})
    assert decode_event(encode_json(event)) == event


def test_an_event_without_metadata_or_version_is_read() -> None:
    assert decode_event('{"type": "text_delta", "payload": {"text": "a"}}').text == "a"


def test_an_envelope_of_another_version_is_refused() -> None:
    with pytest.raises(UsageError, match="an event of version 2, expected 1"):
        decode_event('{"version": 2, "type": "text_delta", "payload": {}}')


@pytest.mark.parametrize("data", ["", "[]", '{"type": 1}', '{"type": "a"}', "[" * 100_000])
def test_what_is_no_event_is_refused(data: str) -> None:
    with pytest.raises(UsageError, match="no event"):
        decode_event(data)
