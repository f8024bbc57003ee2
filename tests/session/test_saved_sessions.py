"""Laws of `save`, `auto_save` and `resume_session`: a session as it was, here or on another node, or not at all."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold import (
    Agent,
    AgentEvent,
    FileSessionStore,
    MemorySessionStore,
    PermissionPolicy,
    Session,
    SessionOptions,
    SessionStore,
    SqliteSessionStore,
)
from fanfold.contracts.agents import WorkerAgentSpec
from fanfold.contracts.messages import ModelRequest, ToolMessage
from fanfold.contracts.policy import ConfirmationPolicy
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import (
    AlreadyActiveError,
    ConfigError,
    FencedError,
    ProviderError,
    RunCancelledError,
    RunControlError,
    SessionBusyError,
    SessionClosedError,
    SessionNotFoundError,
    StorageError,
    StoreConflictError,
    UsageError,
)
from fanfold.options import AutoDelegation
from fanfold.protocols import Lease
from fanfold.session.saved_session import NOT_SAVED
from fanfold.testing import FaultyStore, ScriptedModel, SimulatedCrashError, StoreFaults, as_json, calls, echo
from fanfold.testing.faulty_store import Crash
from fanfold.testing.scripted import Answer
from tests.support.nodes import (
    STORES,
    in_rounds,
    node,
    open_store,
    round_tools,
    stored_facts,
    stored_session,
    workspace_facts,
)
from tests.support.open_session import until


@asynccontextmanager
async def opened(
    folder: Path, store: SessionStore | None, script: Any = echo, **options: Any
) -> AsyncIterator[Session]:
    """The session `s` on a node of its own, as it is opened anew."""
    async with node(folder, script) as (agent, _):
        yield await agent.session_async(folder, session_id="s", session_store=store, **options)


@asynccontextmanager
async def resumed(
    folder: Path, store: SessionStore, script: Any = echo, ids: str = "other", **options: Any
) -> AsyncIterator[Session]:
    """The session `s` as it was saved, on another node."""
    async with node(folder, script, ids=ids) as (agent, _):
        yield await agent.resume_session_async("s", session_store=store, workspace=folder, **options)


def said(session: Session) -> list[str]:
    return [part["text"] for message in session.history() for part in message["content"]]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- saving ---------------------------------------------------------------------------------------------------------


def test_saving_without_a_store_does_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, None, auto_save=True) as session:
            await session.save_async()
            assert (await session.send_async("go")).text == "go"
            await session.save_async()

    asyncio.run(main())
    assert {path.name for path in tmp_path.iterdir()} == {".a3s"}


def test_a_busy_session_and_a_closed_one_are_not_saved(tmp_path: Path) -> None:
    async def main() -> None:
        store, wait = MemorySessionStore(), asyncio.Event()
        tools = round_tools(wait=wait)
        async with node(tmp_path, in_rounds, *tools) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store)
            run = asyncio.create_task(session.send_async("go"))
            await until(lambda: tools[0].running)
            with pytest.raises(SessionBusyError):
                await session.save_async()
            wait.set()
            await run
            await session.save_async()
            await session.close_async()
            with pytest.raises(SessionClosedError):
                await session.save_async()
        assert (await stored_session(store)).runs[0].snapshot.status == "completed"

    asyncio.run(main())


@pytest.mark.parametrize("kind", STORES)
def test_a_resumed_session_is_as_it_was(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with open_store(kind, tmp_path) as store:
            async with node(tmp_path / "a", in_rounds, *round_tools(), now_ms=5_000) as (agent, _):
                first = await agent.session_async(tmp_path / "a", session_id="s", session_store=store)
                await first.send_async("go")
                await first.parallel_async([{"task_id": "t1", "agent": "answer", "prompt": "x"}])
                await first.save_async()
                expected = first.history()
                [run] = await first.runs_async()
                events = await first.run_events_async(run.id)
                tasks = first.subagent_tasks()
                assert (len(expected), len(tasks)) == (8, 1)
                assert {"agent_start", "tool_end", "agent_end"} <= {event.type for event in events}
            async with node(tmp_path / "b", ["and on"], ids="other", now_ms=9_000) as (agent, model):
                second = await agent.resume_session_async("s", session_store=store, workspace=tmp_path / "b")
                assert second.history() == expected
                assert await second.runs_async() == [run]
                assert second.current_run() == run
                assert await second.run_events_async(run.id) == events
                assert second.subagent_tasks() == tasks
                assert (await second.send_async("more")).text == "and on"
                assert len(list(model.requests[0].transcript)) == 9
                await second.save_async()
            saved = await stored_session(store)
            assert (saved.created_at_ms, saved.updated_at_ms) == (5_000, 9_000)
            assert saved.total_usage.total_tokens == 5 * 15
            assert [each.snapshot.id for each in saved.runs] == ["run-id-0", "run-other-0"]
            assert saved.workspace == str(tmp_path / "b")
            assert await store.logs("facts") == ["s"]
            assert await stored_facts(store, saved.facts) == workspace_facts(tmp_path / "b")

    asyncio.run(main())


def test_usage_accumulates_over_saves_and_the_time_of_the_first_one_stays(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with node(tmp_path, echo) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store)
            await session.save_async()
            for number in range(1, 4):
                await session.send_async("go")
                await session.save_async()
                saved = await stored_session(store)
                assert (saved.total_usage.total_tokens, saved.created_at_ms) == (15 * number, 1_000)
        for number in range(4, 6):
            async with node(tmp_path, echo, ids=f"n{number}", now_ms=1_000 * number) as (agent, _):
                session = await agent.resume_session_async("s", session_store=store)
                await session.send_async("go")
                await session.save_async()
                saved = await stored_session(store)
                assert (saved.total_usage.total_tokens, saved.created_at_ms) == (15 * number, 1_000)
                assert saved.updated_at_ms == 1_000 * number

    asyncio.run(main())


def test_usage_that_no_fact_tells_of_accumulates_too(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Answer:
        return as_json({"steps": ["one", "two"]}) if request.output_schema is not None else "done"

    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path / "a", store, script, planning_mode="enabled") as session:
            await session.send_async("go")
            await session.save_async()
        for number in range(2):
            async with resumed(tmp_path / f"b{number}", store, script, ids=f"b{number}") as again:
                assert (await stored_session(store)).total_usage.total_tokens == 30 * (number + 1)
                await again.send_async("go")
                await again.save_async()

    asyncio.run(main())


def test_what_a_run_told_after_its_end_is_saved_with_the_rest(tmp_path: Path) -> None:
    async def main() -> None:
        store, tools = MemorySessionStore(), round_tools()
        async with node(tmp_path, in_rounds, *tools) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store, auto_save=True)
            run_id = (await session.send_async("go")).run_id or ""
            for number in range(3):
                tools[0].calls[0][1].emit(AgentEvent(type="late", payload={"number": number}))
                await session.save_async()
            events = await session.run_events_async(run_id)
            assert [event.type for event in events[-4:]] == ["agent_end", "late", "late", "late"]
        async with resumed(tmp_path / "b", store) as again:
            assert await again.run_events_async(run_id) == events

    asyncio.run(main())


def test_nothing_that_was_not_asked_for_is_saved(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path, store) as session:
            await session.send_async("go")
            assert await store.documents("session") == []

    asyncio.run(main())


# ---- saving by itself -----------------------------------------------------------------------------------------------


def test_each_operation_that_changed_the_conversation_is_saved_with_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path / "a", store, auto_save=True) as session:
            for number in range(1, 4):
                result = await session.send_async(f"go {number}")
                async with resumed(tmp_path / f"b{number}", store) as again:
                    assert said(again) == said(session)
                    runs = await again.runs_async()
                    assert runs == await session.runs_async()
                    assert runs[-1].status == "completed"
                    events = await again.run_events_async(result.run_id or "")
                    assert events == await session.run_events_async(result.run_id or "")
                    assert events[-1].type == "agent_end"
            await session.send_async("/clear")
            async with resumed(tmp_path / "cleared", store) as again:
                assert again.history() == session.history() == []

    asyncio.run(main())


def test_an_interrupted_run_is_saved_as_interrupted(tmp_path: Path) -> None:
    async def main() -> None:
        store, wait = MemorySessionStore(), asyncio.Event()
        tools = round_tools(wait=wait)
        async with node(tmp_path, in_rounds, *tools) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store, auto_save=True)
            run = asyncio.create_task(session.send_async("go"))
            await until(lambda: tools[0].running)
            await session.cancel_async()
            with pytest.raises(RunCancelledError):
                await run
            async with resumed(tmp_path / "b", store) as again:
                assert again.history() == session.history() != []
                assert await again.runs_async() == await session.runs_async()
                assert [each.status for each in await again.runs_async()] == ["cancelled"]

    asyncio.run(main())


def test_a_run_that_failed_saves_nothing_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        script = ["fine", ProviderError("gone", kind="server", retryable=False)]
        async with opened(tmp_path, store, script, auto_save=True) as session:
            await session.send_async("one")
            before = await store.load("session/s")
            with pytest.raises(ProviderError):
                await session.send_async("two")
            assert await store.load("session/s") == before

    asyncio.run(main())


@pytest.mark.parametrize("limits", [None, SessionRetentionLimits(max_events_per_run=4)])
def test_pages_of_events_go_on_over_a_restart_without_a_gap_or_a_repetition(
    tmp_path: Path, limits: SessionRetentionLimits | None
) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with node(tmp_path / "a", in_rounds, *round_tools()) as (agent, _):
            session = await agent.session_async(
                tmp_path / "a", session_id="s", session_store=store, auto_save=True, retention_limits=limits
            )
            run_id = (await session.send_async("go")).run_id or ""
            every = await session.run_events_async(run_id)
            page = await session.run_event_page_async(run_id, limit=3)
            assert page is not None
        async with resumed(tmp_path / "b", store) as again:
            events, more = list(page.events), page
            while more.has_more:
                found = await again.run_event_page_async(run_id, more.next_after_sequence, 3)
                assert found is not None
                events += found.events
                more = found
            assert events == every
            snapshot = await again.run_snapshot_async(run_id)
            assert snapshot is not None
            assert snapshot.event_count == more.latest_sequence_exclusive
            assert len(every) == (4 if limits else snapshot.event_count)

    asyncio.run(main())


# ---- what is restored -----------------------------------------------------------------------------------------------

_OPTIONS: dict[str, Any] = {
    "model": "scripted/model",
    "max_parallel_tasks": 3,
    "max_tool_rounds": 7,
    "permission_policy": PermissionPolicy(allow=("read",), deny=("bash(rm:*)",), default_decision="deny"),
    "confirmation_policy": ConfirmationPolicy(timeout_ms=5, yolo_lanes=("query",), timeout_action="auto_approve"),
    "approvals": "refuse",
    "duplicate_tool_call_threshold": 4,
    "auto_save": True,
    "retention_limits": SessionRetentionLimits(max_runs_retained=2),
    "planning_mode": "disabled",
    "planning": False,
    "goal_tracking": False,
    "auto_compact": False,
    "auto_compact_threshold": 0.5,
    "max_context_tokens": 9_000,
    "tool_timeout_ms": 800,
    "llm_api_timeout_ms": 90_000,
    "stream_partials": True,
    "instructions": "be kind",
    "temperature": 0.3,
    "max_output_tokens": 99,
    "wake_on_notice": False,
    "worker_agents": (WorkerAgentSpec(name="w", kind="reviewer"),),
    "manual_delegation_enabled": False,
    "workflow_tool": False,
    "inline_workflows": True,
    "workflow_limits": WorkflowLimits(concurrency=2),
    "auto_delegation": AutoDelegation(max_tasks=2),
    "auto_parallel": False,
}


def test_every_option_is_saved_or_left_out_on_purpose(tmp_path: Path) -> None:
    assert set(_OPTIONS) | NOT_SAVED == set(SessionOptions.__struct_fields__)
    assert not set(_OPTIONS) & NOT_SAVED

    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path / "a", store, **_OPTIONS) as session:
            await session.save_async()
        options = (await stored_session(store)).options
        assert msgspec.json.decode(msgspec.json.encode(options)) == options
        assert SessionOptions().filled(options) == SessionOptions(**_OPTIONS)
        async with resumed(tmp_path / "b", store) as again:
            await again.save_async()
        assert (await stored_session(store)).options == options

    asyncio.run(main())


def test_saved_options_hold_in_the_resumed_session_and_the_callers_win(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        policy = PermissionPolicy(deny=("first",), default_decision="allow")
        async with opened(tmp_path / "a", store, permission_policy=policy, temperature=0.3, tenant_id="t1") as session:
            await session.save_async()
        given: dict[str, Any] = {}
        for runs in range(2):
            tool = round_tools()[0]
            script: list[Answer] = [calls(("first", {"round": 0})), "done"]
            async with node(tmp_path / f"b{runs}", script, tool, ids=f"b{runs}") as (agent, model):
                again = await agent.resume_session_async(
                    "s", session_store=store, workspace=tmp_path / f"b{runs}", temperature=0.9, **given
                )
                await again.send_async("go")
                assert (len(tool.calls), model.requests[0].temperature, again.tenant_id) == (runs, 0.9, "t1")
            given["permission_policy"] = PermissionPolicy(default_decision="allow")

    asyncio.run(main())


def test_a_tag_that_was_changed_on_resume_is_the_one_that_is_saved_next(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path / "a", store, tenant_id="t1", principal="p1") as session:
            await session.save_async()
        async with resumed(tmp_path / "b", store, tenant_id="t2") as again:
            assert (again.tenant_id, again.principal, again.correlation_id) == ("t2", "p1", None)
            await again.save_async()
        async with resumed(tmp_path / "c", store) as third:
            assert (third.tenant_id, third.principal) == ("t2", "p1")

    asyncio.run(main())


def test_a_session_of_a_named_agent_keeps_what_narrows_it(tmp_path: Path) -> None:
    async def main() -> None:
        store, tools = MemorySessionStore(), round_tools()
        worker = WorkerAgentSpec(
            name="careful",
            kind="custom",
            prompt="Be careful.",
            tools=("first", "second"),
            permissions=PermissionPolicy(deny=("first",), default_decision="allow"),
        )
        async with node(tmp_path, echo, *tools) as (agent, _):
            session = await agent.session_for_worker_async(tmp_path, worker, session_id="s", session_store=store)
            await session.save_async()
        async with node(tmp_path, [calls(("first", {"round": 0})), "done"], *tools, ids="b") as (agent, model):
            again = await agent.resume_session_async("s", session_store=store)
            await again.send_async("go")
            assert "Be careful." in model.requests[0].system
            assert {tool.name for tool in model.requests[0].tools} == {"second"}
            assert tools[0].calls == []

    asyncio.run(main())


def test_a_control_that_is_asked_again_after_the_restart_gets_its_receipt_and_is_not_sent_twice(
    tmp_path: Path,
) -> None:
    def script(request: ModelRequest) -> Answer:
        return (
            in_rounds(request)
            if any(isinstance(each, ToolMessage) for each in request.transcript)
            else calls(("first", {"round": 0}))
        )

    async def main() -> None:
        store, wait = MemorySessionStore(), asyncio.Event()
        tools = round_tools(wait=wait)
        async with node(tmp_path, script, *tools) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store, auto_save=True)
            run = asyncio.create_task(session.send_async("go"))
            await until(lambda: tools[0].running)
            await session.steer_async("look left", {"request_id": "r1"})
            wait.set()
            await run
            [receipt] = await session.run_control_receipts_async("run-id-0")
            assert receipt.state == "applied"
        async with node(tmp_path, echo, ids="other") as (agent, model):
            again = await agent.resume_session_async("s", session_store=store)
            assert await again.steer_async("look left", {"request_id": "r1"}) == receipt
            with pytest.raises(RunControlError, match="was already used for a different command"):
                await again.steer_async("look right", {"request_id": "r1"})
            with pytest.raises(RunControlError) as idle:
                await again.steer_async("look left", {"request_id": "r2"})
            assert idle.value.code == "NO_ACTIVE_RUN"
            assert await again.run_control_receipts_async("run-id-0") == [receipt]
            assert model.requests == []

    asyncio.run(main())


def test_children_that_ran_when_it_was_saved_are_cancelled_when_it_is_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        store, wait = MemorySessionStore(), asyncio.Event()

        async def waiting(_: ModelRequest) -> str:
            await wait.wait()
            return "late"

        async with opened(tmp_path, store, waiting) as session:
            fan_out = asyncio.create_task(session.parallel_async([{"task_id": "t1", "agent": "answer", "prompt": "x"}]))
            await until(session.pending_subagent_tasks)
            await session.save_async()
            wait.set()
            await fan_out
        async with resumed(tmp_path / "b", store) as again:
            assert [(task.task_id, task.status) for task in again.subagent_tasks()] == [("t1", "cancelled")]
            assert again.pending_subagent_tasks() == []

    asyncio.run(main())


# ---- retention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unbounded", "kept"), [(False, 64), (True, 65)])
def test_of_65_runs_the_default_keeps_64_and_unbounded_all_over_a_resume(
    tmp_path: Path, unbounded: bool, kept: int
) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        limits = SessionRetentionLimits(unbounded=True) if unbounded else None
        async with opened(tmp_path / "a", store, retention_limits=limits) as session:
            for number in range(64):
                await session.send_async(f"{number}")
            await session.save_async()
            assert len(await store.logs("run-events")) == 64
            await session.send_async("64")
            await session.save_async()
            ids = [run.id for run in await session.runs_async()]
            assert (len(ids), ids[-1]) == (kept, "run-id-64")
        assert sorted(await store.logs("run-events")) == sorted(f"s {run_id}" for run_id in ids)
        async with resumed(tmp_path / "b", store) as again:
            assert [run.id for run in await again.runs_async()] == ids
            assert len(await again.run_events_async("run-id-64")) > 2
            assert len(said(again)) == 2 * 65  # the conversation is not the runs

    asyncio.run(main())


def test_narrower_limits_hold_for_what_is_restored_and_the_rest_leaves_the_store_at_the_next_save(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path / "a", store) as session:
            for number in range(4):
                await session.send_async(f"{number}")
            await session.save_async()
        limits = SessionRetentionLimits(max_runs_retained=2, max_events_per_run=3)
        async with resumed(tmp_path / "b", store, retention_limits=limits) as again:
            assert [run.id for run in await again.runs_async()] == ["run-id-2", "run-id-3"]
            assert len(await again.run_events_async("run-id-3")) == 3
            assert len(await store.logs("run-events")) == 4
            await again.save_async()
            assert await store.logs("run-events") == ["s run-id-2", "s run-id-3"]

    asyncio.run(main())


# ---- where ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_an_unknown_session_is_not_found_and_nothing_is_made(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with open_store(kind, tmp_path) as store, opened(tmp_path / "a", store) as session:
            await session.save_async()
        async with open_store(kind, tmp_path) as store:
            before = {path for path in tree(tmp_path) if "sqlite-" not in path}
            async with node(tmp_path / "a", echo, ids="other") as (agent, _):
                with pytest.raises(SessionNotFoundError, match="no session 'never' was saved in this session store"):
                    await agent.resume_session_async("never", session_store=store)
                assert agent.list_sessions() == []
            assert {path for path in tree(tmp_path) if "sqlite-" not in path} == before

    asyncio.run(main())


def test_resuming_needs_a_store_an_id_that_is_not_live_and_an_open_agent(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with node(tmp_path, echo) as (agent, _):
            with pytest.raises(UsageError, match="'session_store': resume_session requires a configured"):
                await agent.resume_session_async("s")
            with pytest.raises(UsageError, match="'session_id': it is empty"):
                await agent.resume_session_async("", session_store=store)
            session = await agent.session_async(tmp_path, session_id="s", session_store=store)
            await session.save_async()
            with pytest.raises(UsageError, match="'session_id': session 's' is already live"):
                await agent.resume_session_async("s", session_store=store)
            assert (await session.send_async("still there")).text == "still there"
            await session.close_async()
            options = SessionOptions(session_id="another", session_store=store)
            assert (await agent.resume_session_async("s", options)).session_id == "s"
        with pytest.raises(SessionClosedError):
            await agent.resume_session_async("never", session_store=store)

    asyncio.run(main())


def test_a_folder_that_is_not_here_is_named_with_the_argument_that_helps(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path / "a", store) as session:
            await session.send_async("go")
            await session.save_async()
        (tmp_path / "a").rename(tmp_path / "moved")
        async with node(tmp_path / "moved", echo, ids="other") as (agent, _):
            with pytest.raises(UsageError, match=r"for 'workspace': .*/a, is not here; .*workspace=\.\.\."):
                await agent.resume_session_async("s", session_store=store)
            assert agent.list_sessions() == []
            again = await agent.resume_session_async("s", session_store=store, workspace=tmp_path / "moved")
            assert said(again) == ["go", "go"]
            await again.save_async()
        async with node(tmp_path / "moved", echo, ids="third") as (agent, _):
            assert (await agent.resume_session_async("s", session_store=store)).workspace == str(tmp_path / "moved")

    asyncio.run(main())


def test_a_log_of_the_node_that_has_more_than_was_saved_wins(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path, store) as session:
            await session.send_async("one")
            await session.save_async()
            await session.send_async("two")
        async with resumed(tmp_path, store) as again:
            assert said(again) == ["one", "one", "two", "two"]
            await again.save_async()
        assert (await stored_session(store)).facts.last_seq == 4

    asyncio.run(main())


def test_a_log_of_the_node_that_went_another_way_is_set_aside(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path / "a", store) as session:
            await session.send_async("one")
            await session.save_async()
        async with opened(tmp_path / "b", None) as other:
            await other.send_async("other")
        log = tmp_path / "b/.a3s/effect-log/s.jsonl"
        before = log.read_bytes()
        async with resumed(tmp_path / "b", store) as again:
            assert said(again) == ["one", "one"]
        assert log.with_name("s.jsonl.aside-1").read_bytes() == before

    asyncio.run(main())


def test_facts_of_another_past_are_saved_beside_the_old_ones(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path / "a", store) as session:
            await session.send_async("one")
            await session.save_async()
        old = await stored_session(store)
        facts = await stored_facts(store, old.facts)
        async with node(tmp_path / "b", echo, ids="other") as (agent, _):
            other = await agent.session_async(tmp_path / "b", session_id="s", session_store=store)
            await other.send_async("another past")
            await other.save_async()
            # Whoever replaces a generation keeps the record of its runs.
            assert [run.id for run in await other.runs_async()] == ["run-id-0", "run-other-0"]
        new = await stored_session(store)
        assert (old.facts.log, new.facts.log) == ("facts/s", "facts/s~2")
        assert await stored_facts(store, old.facts) == facts
        assert (new.created_at_ms, len(new.runs)) == (old.created_at_ms, 2)
        async with resumed(tmp_path / "c", store, ids="third") as again:
            assert said(again) == ["another past", "another past"]
            await again.send_async("on")
            await again.save_async()
        assert (await stored_session(store)).facts == msgspec.structs.replace(new.facts, last_seq=4)
        assert await store.logs("facts") == ["s", "s~2"]

    asyncio.run(main())


def test_a_session_that_is_opened_anew_goes_on_with_what_was_saved_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path, store, auto_save=True) as session:
            await session.send_async("one")
        # The same ids once more, as in a process that was started again with the same replay configuration.
        async with opened(tmp_path, store, auto_save=True) as session:
            await session.send_async("two")
            assert said(session) == ["one", "one", "two", "two"]
            events = await session.run_events_async("run-id-0")
        saved = await stored_session(store)
        assert saved.facts.last_seq == 4
        [run] = saved.runs
        assert run.snapshot.prompt == "two"
        assert await store.logs("run-events") == [run.events.partition("/")[2]]
        async with resumed(tmp_path, store) as again:
            assert await again.run_events_async("run-id-0") == events

    asyncio.run(main())


# ---- who saves ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORES)
def test_of_two_nodes_that_save_one_wins_and_the_other_is_told(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with open_store(kind, tmp_path) as store, opened(tmp_path / "a", store) as first:
            await first.send_async("one")
            await first.save_async()
            async with resumed(tmp_path / "b", store, auto_save=True) as second:
                await first.send_async("two of a")
                await first.save_async()
                won = await stored_session(store)
                result = await second.send_async("two of b")
                events = await second.run_events_async(result.run_id or "")
                assert [e.payload["operation"] for e in events if e.type == "persistence_failed"] == ["auto_save"]
                for _ in range(2):
                    with pytest.raises(StoreConflictError):
                        await second.save_async()
                assert await stored_session(store) == won
                assert [fact.payload for fact in await stored_facts(store, won.facts)] == [
                    fact.payload for fact in workspace_facts(tmp_path / "a")
                ]
            async with resumed(tmp_path / "b", store, ids="third") as second:
                assert said(second) == ["one", "one", "two of a", "two of a"]
                await second.save_async()
            with pytest.raises(StoreConflictError):
                await first.save_async()

    asyncio.run(main())


class LosingStore(MemorySessionStore):
    """Its leases are lost as soon as they are taken, once it is told so."""

    is_losing = False

    async def acquire(self, name: str) -> Lease:
        lease = await super().acquire(name)
        if self.is_losing:
            self.break_leases()
        return lease


def test_saving_while_another_node_is_at_work_is_refused_and_a_lost_lease_writes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        store = LosingStore()
        async with opened(tmp_path, store) as session:
            await session.send_async("one")
            lease = await store.acquire("session/s")
            with pytest.raises(AlreadyActiveError):
                await session.save_async()
            await store.release(lease)
            await session.save_async()
            before = await stored_session(store)
            await session.send_async("two")
            store.is_losing = True
            with pytest.raises(FencedError):
                await session.save_async()
            assert await stored_session(store) == before
            assert len(await store.read("facts/s")) == 2
            store.is_losing = False
            await session.save_async()
            after = await store.load("session/s")
            assert (await stored_session(store)).facts.last_seq == 4
            store.is_losing = True
            with pytest.raises(FencedError):  # also where there is no new fact, only the document
                await session.save_async()
            assert await store.load("session/s") == after

    asyncio.run(main())


def test_a_session_whose_store_was_emptied_is_saved_whole_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with FileSessionStore(tmp_path / "store") as store:
            (tmp_path / "a").mkdir()
            async with opened(tmp_path / "a", store, auto_save=True) as first:
                await first.send_async("one")
                shutil.rmtree(tmp_path / "store")
                await first.send_async("two")
                expected = first.history(), await first.runs_async()
                events = [await first.run_events_async(run.id) for run in expected[1]]
            async with resumed(tmp_path / "b", store) as second:
                assert (second.history(), await second.runs_async()) == expected
                assert [await second.run_events_async(run.id) for run in expected[1]] == events

    asyncio.run(main())


def test_no_store_decides_what_is_for_each_machine_to_decide(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path, store) as session:
            await session.save_async()
        document = await store.load("session/s")
        assert document is not None
        saved = msgspec.json.decode(document.data)
        saved["options"] |= {"allow_unsandboxed_bash": "yes", "budget_guard": 1, "host_env": 1}
        await store.compare_and_set("session/s", document.revision, msgspec.json.encode(saved))
        async with resumed(tmp_path, store) as session:  # not even looked at
            assert session.session_id == "s"

    asyncio.run(main())


def test_a_session_whose_model_is_gone_says_how_it_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path, store) as session:
            await session.send_async("one")
            await session.save_async()
        async with await Agent.create_async(models={"other/model": ScriptedModel(echo)}) as agent:
            with pytest.raises(ConfigError, match="scripted") as caught:
                await agent.resume_session_async("s", session_store=store)
            assert caught.value.hint == "session 's' was saved with it; to change: resume_session(..., model=...)"
            assert agent.list_sessions() == []
            session = await agent.resume_session_async("s", session_store=store, model="other/model")
            assert said(session) == ["one", "one"]

    asyncio.run(main())


def test_a_later_versions_session_is_refused_and_stays(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await store.compare_and_set("session/s", 0, b'{"schema_version":2,"session_id":["new","form"]}')
        before = await store.load("session/s")
        async with node(tmp_path, echo) as (agent, _):
            with pytest.raises(StorageError, match="has schema version 2 but this build supports at most 1"):
                await agent.resume_session_async("s", session_store=store)
            session = await agent.session_async(tmp_path, session_id="s", session_store=store)
            with pytest.raises(StorageError, match="schema version 2"):
                await session.save_async()
        assert await store.load("session/s") == before

    asyncio.run(main())


def test_text_that_is_no_unicode_keeps_no_session_from_being_saved(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path, store, auto_save=True) as session:
            session.register_command("odd", "", lambda args, context: "half \ud800")
            await session.send_async("/odd")
            await session.save_async()
        [run] = (await stored_session(store)).runs
        assert (run.snapshot.prompt, run.snapshot.result_text) == ("/odd", "half \ufffd")

    asyncio.run(main())


# ---- crashes --------------------------------------------------------------------------------------------------------


async def _two_lives(folder: Path, store: SessionStore) -> None:
    """One node saves twice, the second one goes on and saves by itself."""
    async with opened(folder / "a", store) as session:
        await session.send_async("one")
        await session.save_async()
        await session.send_async("two")
        await session.save_async()


@pytest.mark.parametrize("how", ["before", "torn", "after"])
@pytest.mark.parametrize("at", range(1, 7))
def test_whenever_a_saving_process_dies_the_store_has_a_generation_that_was_true(
    tmp_path: Path, at: int, how: Crash
) -> None:
    """A save is three changes here: facts, events of the run, and the document that counts on them."""

    async def main() -> None:
        store = MemorySessionStore()
        with pytest.raises(SimulatedCrashError):
            await _two_lives(tmp_path, FaultyStore(store, StoreFaults(crash_at=at, crash=how)))
        generation = (at - 1) // 3 + (at % 3 == 0 and how == "after")
        if not generation:
            with pytest.raises(SessionNotFoundError):
                async with resumed(tmp_path / "b", store):
                    pass
            return
        expected = ["one", "one", "two", "two"][: 2 * generation]
        async with resumed(tmp_path / "b", store) as again:
            assert said(again) == expected
            runs = await again.runs_async()
            assert [run.id for run in runs] == ["run-id-0", "run-id-1"][:generation]
            for run in runs:
                events = await again.run_events_async(run.id)
                assert (events[0].type, events[-1].type, len(events)) == ("agent_start", "agent_end", run.event_count)
            await again.send_async("on")
            await again.save_async()
        async with resumed(tmp_path / "c", store, ids="third") as third:
            assert said(third) == [*expected, "on", "on"]
        # The node that died goes on with what it had; then it has to say that its past is the newer one, or be told.
        async with resumed(tmp_path / "a", store, ids="fourth") as back:
            assert said(back) == [*expected, "on", "on"]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_process_that_dies_while_it_drops_old_events_leaves_every_run_that_counts(tmp_path: Path, how: Crash) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        limits = SessionRetentionLimits(max_runs_retained=1)
        way = FaultyStore(store, StoreFaults(crash_at=7, crash=how))
        async with opened(tmp_path / "a", way, retention_limits=limits) as session:
            await session.send_async("one")
            await session.save_async()
            await session.send_async("two")
            with pytest.raises(SimulatedCrashError):
                await session.save_async()
        assert way.changes == 7
        async with resumed(tmp_path / "b", store) as again:
            [run] = await again.runs_async()
            assert (run.id, len(await again.run_events_async(run.id))) == ("run-id-1", run.event_count)

    asyncio.run(main())


def test_a_real_store_gives_the_session_to_a_process_that_was_started_later(tmp_path: Path) -> None:
    async def main() -> None:
        for kind, path in ((FileSessionStore, tmp_path / "store"), (SqliteSessionStore, tmp_path / "store.sqlite")):
            folder = tmp_path / kind.__name__
            for number in range(3):
                async with kind(path) as store, node(folder, echo, ids=f"n{number}") as (agent, _):
                    open_it: Any = (
                        agent.resume_session_async("s", session_store=store)
                        if number
                        else (agent.session_async(folder, session_id="s", session_store=store, auto_save=True))
                    )
                    session = await open_it
                    assert len(said(session)) == 2 * number
                    await session.send_async(f"{number}")

    asyncio.run(main())


def test_the_blocking_forms_do_the_same(tmp_path: Path) -> None:
    store = MemorySessionStore()
    with Agent.create(models={"scripted/model": ScriptedModel(echo)}) as agent:
        with agent.session(tmp_path, session_id="s", session_store=store) as session:
            session.send("go")
            session.save()
        with agent.resume_session("s", session_store=store) as again:
            assert said(again) == ["go", "go"]
            assert again.resume_run().text == "go"
