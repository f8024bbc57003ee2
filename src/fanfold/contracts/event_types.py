"""The types of events that there are, and how an event from elsewhere is read (notes 7.1 and 7.2)."""

import msgspec

from fanfold.contracts.events import EVENT_VERSION, AgentEvent
from fanfold.errors import UsageError

EVENT_TYPES: tuple[str, ...] = (
    # of a run
    "agent_start",
    "planning_start",
    "planning_end",
    "task_updated",
    "goal_extracted",
    "goal_judging",
    "goal_progress",
    "goal_achieved",
    "goal_warning",
    "turn_start",
    "text_delta",
    "reasoning_delta",
    "turn_end",
    "tool_start",
    "permission_denied",
    "tool_execution_start",
    "tool_end",
    "confirmation_required",
    "confirmation_received",
    "confirmation_timeout",
    "user_question",
    "auto_compact",
    "context_compacted",
    "run_control_applied",
    "log_repaired",
    "persistence_failed",
    "events_left_out",
    "agent_end",
    "error",
    "question_answered",
    # of children
    "subagent_start",
    "subagent_progress",
    "subagent_end",
    "structured_partial",
    # of fan-outs
    "step_retry",
    "step_cached",
    "step_changed",
    "step_recorded",
    "pipeline_warning",
    "item_end",
    "parallel_end",
    "map_end",
    "workflow_end",
    "phase_start",
    "phase_end",
    "log",
    "budget_exhausted",
    # of workflow runs (seed 004)
    "async_launched",
    "task_started",
    "task_progress",
    "task_notification",
    # of a cluster (seed 003): fanfold itself tells the first one only, hosts send the others
    "budget_threshold_hit",
    "passivation_requested",
    "peer_invocation",
)
"""In a fixed order. More may come: a consumer keeps a branch for what it does not know."""

_decoder = msgspec.json.Decoder(AgentEvent)


def decode_event(data: bytes | str) -> AgentEvent:
    """An event from its JSON. A type that this version does not know keeps its payload and metadata as they are.

    Raises:
        UsageError: no event, or one of another version of the envelope.
    """
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"no event: {error}") from error
    if found.version != EVENT_VERSION:
        raise UsageError(f"an event of version {found.version}, expected {EVENT_VERSION}")
    return found
