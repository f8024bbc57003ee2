"""Each row of the tables of seeds 002 and 003, by its name."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, MemorySessionStore, Session, SessionOptions
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.errors import BudgetExhaustedError
from fanfold.testing import ScriptedModel, echo
from fanfold.testing.scripted import Script

TAGS = ("tenant_id", "principal", "agent_template_id", "correlation_id")


@asynccontextmanager
async def opened(directory: Path, script: Script = echo, **options: Any) -> AsyncGenerator[Session]:
    async with (
        await Agent.create_async(models={"a/b": ScriptedModel(script)}) as agent,
        await agent.session_async(directory, **options) as session,
    ):
        yield session


# ---- seed 002 and 003: identity tags --------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_a_property_of_its_session_and_none_when_not_set(tag: str, tmp_path: Path) -> None:
    async def main() -> None:
        options = SessionOptions()
        setattr(options, tag, "example")
        async with await Agent.create_async(models={"a/b": ScriptedModel(echo)}) as agent:
            session = await agent.session_async(tmp_path, options)
            assert {each: getattr(session, each) for each in TAGS} == {**dict.fromkeys(TAGS), tag: "example"}
            with pytest.raises(AttributeError):
                setattr(session, tag, "other")

    asyncio.run(main())


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_saved_and_restored_and_the_callers_value_wins(tag: str, tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        one, two = SessionOptions().merged(**{tag: "one"}), SessionOptions().merged(**{tag: "two"})
        async with await Agent.create_async(models={"a/b": ScriptedModel(echo)}) as agent:
            async with await agent.session_async(tmp_path, one, session_id="s", session_store=store) as session:
                await session.save_async()
            async with await agent.resume_session_async("s", session_store=store) as session:
                assert getattr(session, tag) == "one"
            async with await agent.resume_session_async("s", two, session_store=store) as session:
                assert getattr(session, tag) == "two"

    asyncio.run(main())


@pytest.mark.parametrize("tag", TAGS)
def test_hooks_are_told_the_tag(tag: str, tmp_path: Path) -> None:
    async def main() -> None:
        told: list[JsonObject] = []
        async with opened(tmp_path, **{tag: "example"}) as session:
            session.register_hook("look", "pre_prompt", handler=told.append)
            await session.send_async("go")
        assert told[0][tag] == "example"

    asyncio.run(main())


# ---- seed 003: budget decisions -------------------------------------------------------------------------------------


class Guard:
    def __init__(self, decision: object) -> None:
        self._decision = decision
        self.recorded: list[JsonObject] = []

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> object:
        assert session_id
        assert estimated_tokens > 0
        return self._decision

    def record_after_llm(self, session_id: str, usage: JsonObject) -> None:
        self.recorded.append(usage)


async def _sent(directory: Path, guard: object) -> tuple[list[AgentEvent], ScriptedModel, BaseException | None]:
    model = ScriptedModel(["an answer", "another"])
    async with await Agent.create_async(models={"a/b": model}) as agent:
        session = await agent.session_async(directory, budget_guard=guard)
        stream = await session.stream_async("go")
        events = [each async for each in stream]
        try:
            await stream.result_async()
        except RuntimeError as error:
            session.set_budget_guard(None)
            assert (await session.send_async("again")).text == "an answer"  # the session stays open
            return events, model, error
        return events, model, None


@pytest.mark.parametrize("decision", [None, {"decision": "allow"}], ids=["None", "allow"])
def test_row_none_or_allow_goes_on_without_an_event(decision: object, tmp_path: Path) -> None:
    guard = Guard(decision)
    events, model, error = asyncio.run(_sent(tmp_path, guard))
    assert (error, len(model.requests)) == (None, 1)
    assert [each for each in events if each.type == "budget_threshold_hit"] == []
    assert [usage["total_tokens"] for usage in guard.recorded] == [15]


def test_row_soft_tells_and_goes_on(tmp_path: Path) -> None:
    guard = Guard({"decision": "soft", "resource": "tokens", "consumed": 81, "limit": 100, "message": "near"})
    events, model, error = asyncio.run(_sent(tmp_path, guard))
    assert (error, len(model.requests)) == (None, 1)
    [hit] = [each for each in events if each.type == "budget_threshold_hit"]
    assert hit.payload == {"resource": "tokens", "kind": "soft", "consumed": 81, "limit": 100, "message": "near"}


def test_row_deny_tells_and_fails_the_call(tmp_path: Path) -> None:
    guard = Guard({"decision": "deny", "resource": "tokens", "reason": "monthly cap reached"})
    events, model, error = asyncio.run(_sent(tmp_path, guard))
    assert isinstance(error, BudgetExhaustedError)
    assert (error.code, str(error)) == ("BUDGET_EXHAUSTED", "Budget exhausted on 'tokens': monthly cap reached")
    [hit] = [each for each in events if each.type == "budget_threshold_hit"]
    assert (hit.payload["kind"], hit.payload["message"]) == ("hard", "monthly cap reached")
    assert len(model.requests) == 1  # of the second prompt, without the guard
    assert guard.recorded == []


# ---- seed 003: retention --------------------------------------------------------------------------------------------

DEFAULTS = {
    "max_runs_retained": 64,
    "max_events_per_run": 2_048,
    "max_event_bytes_per_run": 8 * 1024 * 1024,
    "max_trace_events": 8_192,
    "max_terminal_subagent_tasks": 512,
}


@pytest.mark.parametrize(("field", "value"), DEFAULTS.items())
def test_a_retention_limit_that_is_left_out_keeps_its_default(field: str, value: int) -> None:
    others = {name: 7 for name in DEFAULTS if name != field}
    options = SessionOptions().merged(retention_limits=others)
    limits = options.retention_limits or SessionRetentionLimits()
    assert {name: getattr(limits, name) for name in DEFAULTS} == {**others, field: value}
    assert not limits.unbounded


async def _two_runs(session: Session) -> int:
    await session.send_async("one")
    await session.send_async("two")
    return len(await session.runs_async())


async def _events_kept(session: Session) -> int:
    result = await session.send_async("one")
    return len(await session.run_events_async(result.run_id))


async def _children_kept(session: Session) -> int:
    await session.parallel_async([{"task_id": name, "agent": "answer", "prompt": name} for name in "abc"])
    return len(session.subagent_tasks())


async def _earlier_events_kept(session: Session) -> int:
    first = (await session.send_async("one")).run_id
    await session.send_async("two")
    return len(await session.run_events_async(first))


KEPT: dict[str, tuple[int, Callable[[Session], Any]]] = {
    "max_runs_retained": (1, _two_runs),
    "max_events_per_run": (2, _events_kept),
    "max_event_bytes_per_run": (0, _events_kept),
    "max_trace_events": (1, _earlier_events_kept),
    "max_terminal_subagent_tasks": (2, _children_kept),
}


@pytest.mark.parametrize("field", KEPT)
def test_what_is_beyond_a_retention_limit_drops_the_oldest(field: str, tmp_path: Path) -> None:
    most, kept = KEPT[field]

    async def main() -> None:
        async with opened(tmp_path, retention_limits={field: most}) as session:
            assert await kept(session) == most
        async with opened(tmp_path, retention_limits={field: most, "unbounded": True}) as session:
            assert await kept(session) > most

    asyncio.run(main())


# ---- seed 003: cluster events ---------------------------------------------------------------------------------------

CLUSTER_EVENTS: Sequence[tuple[str, JsonObject]] = [
    ("budget_threshold_hit", {"resource": "tokens", "kind": "hard", "consumed": 0.0, "limit": 0.0, "message": "no"}),
    ("passivation_requested", {"reason": "node_drain", "deadline_ms": 1_700_000_000_000}),
    ("peer_invocation", {"from_session_id": "s", "from_tenant_id": "t", "correlation_id": "c"}),
]


@pytest.mark.parametrize(("kind", "payload"), CLUSTER_EVENTS, ids=[kind for kind, _ in CLUSTER_EVENTS])
def test_a_cluster_event_is_no_kind_of_hook(kind: str, payload: JsonObject, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as session:
            with pytest.raises(ValueError, match=f"Invalid hook event type: '{kind}'"):
                session.register_hook("h", kind, handler=print)

    asyncio.run(main())
