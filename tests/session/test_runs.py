"""Laws of run records: what is told of a run, which runs are kept, and runs whose id the caller chooses."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentEvent, FileSessionStore, HostEnv, MemorySessionStore, SequentialIds, Session
from fanfold.contracts.events import AgentResult, event
from fanfold.contracts.messages import NO_USAGE, ModelRequest, ToolOutput
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunSnapshot, SessionRetentionLimits
from fanfold.errors import (
    CheckpointNotFoundError,
    MissingStoreError,
    ParkedError,
    ProviderError,
    RunCancelledError,
    RunIdentityError,
    SessionBusyError,
    SessionClosedError,
    UsageError,
)
from fanfold.protocols import Document, ToolScope
from fanfold.runs.operations import Operations
from fanfold.runs.runs import Run, Runs
from fanfold.testing import ManualClock, ScriptedModel, calls, echo
from tests.support.running import HeldTool, PacedModel, facts, keys, opened, said, turns, until
from tests.support.tools import RecordingTool


async def snapshot_of(session: Session, run_id: str) -> RunSnapshot:
    snapshot = await session.run_snapshot_async(run_id)
    assert snapshot is not None
    return snapshot


async def over(session: Session, run_id: str) -> RunSnapshot:
    """The record of a detached run, once it has ended."""
    while not (snapshot := await snapshot_of(session, run_id)).is_terminal:
        await asyncio.sleep(0.001)
    return snapshot


# ---- records --------------------------------------------------------------------------------------------------------


def test_each_kind_of_operation_is_a_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            await session.send_async("one")
            stream = await session.stream_async("two")
            await stream.result_async()
            await session.send_async("/help")
            await session.resume_run_async()
            await session.spawn_run_with_id_async("mine", "three")
            await over(session, "mine")
            runs = await session.runs_async()
            assert [run.prompt for run in runs] == ["one", "two", "/help", "<resume run=s>", "three"]
            assert [run.status for run in runs] == ["completed"] * 5
            assert len({run.id for run in runs}) == 5
            assert {run.session_id for run in runs} == {"s"}
            current = session.current_run()
            assert current is not None
            assert current.id == "mine"

    asyncio.run(main())


def test_a_record_tells_of_the_run_while_it_lasts_and_after(tmp_path: Path) -> None:
    model, tool = PacedModel(calls(("hold", {})), "done"), HeldTool()

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            assert session.current_run() is None
            assert session.active_tools() == []
            assert await session.runs_async() == []
            stream = await session.stream_async("go")
            current = session.current_run()
            assert current is not None
            assert (current.id, current.status, current.event_count) == (stream.run_id, "created", 0)
            await model.asked()
            assert (await snapshot_of(session, stream.run_id)).status == "executing"
            model.answer(2)
            await tool.started.get()
            assert session.active_tools() == [{"id": "call-1", "name": "hold"}]
            tool.let_go.set()
            await stream.result_async()
            assert session.active_tools() == []
            now = await snapshot_of(session, stream.run_id)
            assert (now.status, now.result_text, now.error, now.usage.total_tokens) == ("completed", "done", None, 30)
            assert now.event_count == len(await session.run_events_async(stream.run_id))
            assert (now["result_text"], "error" in now) == ("done", False)
            assert await session.run_snapshot_async("unknown") is None
            assert await session.run_events_async("unknown") == []

    asyncio.run(main())


def test_planning_and_judging_are_statuses_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        seen: list[str] = []

        async def answer(request: ModelRequest) -> str:
            current = session.current_run()
            assert current is not None
            seen.append(current.status)
            return "no JSON" if request.output_schema else "answer"

        async with opened(tmp_path, ScriptedModel(answer), planning_mode="enabled") as session:
            await session.send_async("go")
            assert seen == ["planning", "executing"]

    asyncio.run(main())


FAULT = ProviderError("no such key", kind="auth", retryable=False)


def test_a_failed_run_keeps_its_error_and_its_code(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel([calls(("look", {})), FAULT, "late"])
        async with opened(tmp_path, model, RecordingTool("look")) as session:
            with pytest.raises(ProviderError):
                await session.send_async("go")
            [run] = await session.runs_async()
            assert (run.status, run.error, run.error_code) == ("failed", "LLM error: no such key", "LLM_ERROR")
            assert run.usage.total_tokens == 15
            last = (await session.run_events_async(run.id))[-1]
            assert (last.type, last.payload) == ("error", {"message": "LLM error: no such key", "code": "LLM_ERROR"})
            assert said(session) == []
            assert (await session.resume_run_async()).text == "late"
            assert (said(session)[0], said(session)[-1]) == ("user: go", "assistant: late")

    asyncio.run(main())


def test_a_run_that_nobody_can_answer_failed_by_that(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel([calls(("ask_user", {"question": "which?"}))])
        async with opened(tmp_path, model, approvals="refuse") as session:
            with pytest.raises(ParkedError):
                await session.send_async("go")
            [run] = await session.runs_async()
            assert (run.status, run.error_code) == ("failed", "PARKED")

    asyncio.run(main())


def test_history_with_a_prompt_of_its_own_stays_as_it_is(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("one")
            before = session.history()
            stream = await session.stream_async("aside", before)
            await session.steer_async("and this")
            await stream.result_async()
            assert session.history() == before
            await session.send_async("two")
            assert said(session) == ["user: one", "assistant: one", "user: two", "assistant: two"]

    asyncio.run(main())
    heard = [str(message) for message in model.requests[-1].transcript]
    assert any("aside" in each for each in heard)


def test_a_stop_of_a_prompt_with_its_own_history_leaves_the_history(tmp_path: Path) -> None:
    async def main() -> None:
        model = PacedModel("never")
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("aside", [{"role": "user", "content": "earlier"}]))
            await model.asked()
            await session.cancel_async()
            with pytest.raises(RunCancelledError):
                await run
            assert session.history() == []

    asyncio.run(main())
    assert keys(tmp_path) == ["m-hist-0", "aside-1", "model:interrupted:2"]


# ---- one run by itself ----------------------------------------------------------------------------------------------


def run_of(clock: ManualClock | None = None, **limits: Any) -> Run:
    env = HostEnv(clock=clock or ManualClock(), ids=SequentialIds("id"))
    return Run("r", "s", "go", env, SessionRetentionLimits(**limits))


RESULT = AgentResult(text="done", usage=NO_USAGE, tool_calls_count=0, stop_reason="stop", run_id="r")


def test_what_comes_after_the_end_is_recorded_and_changes_nothing() -> None:
    run = run_of()
    run.end(RESULT)
    run.tell_end()
    ended = run.snapshot()
    run.emit(event("turn_start", turn=9))
    run.emit(event("planning_start"))
    run.end(RunCancelledError(session_id="s"))
    run.tell_end()
    assert not run.stop()
    assert run.snapshot().status == "completed"
    assert run.snapshot().event_count == ended.event_count + 2
    assert [item.type for item in run.events.all()] == ["agent_end", "turn_start", "planning_start"]


def test_the_time_of_a_run_never_goes_back() -> None:
    clock = ManualClock(now_ms=5_000)
    run = run_of(clock)
    run.emit(event("turn_start", turn=1))
    clock.advance(-3.0)
    run.emit(event("turn_end", turn=1))
    run.end(RESULT)
    record, first, events = run.saved()
    run.tell_end()
    assert (record, events) == (run.snapshot(), run.saved()[2])  # what was saved is what was told then
    assert [(item.metadata or {})["timestamp_ms"] for item in run.events.all()] == [5_000] * 3
    assert run.snapshot().updated_at_ms == 5_000
    again = run_of(clock)
    again.restore(record)
    again.events.restore(first, events, record.updated_at_ms)
    again.emit(event("late"))
    assert (again.events.all()[-1].metadata or {})["timestamp_ms"] == 5_000


def test_a_record_that_was_saved_under_way_was_cut_off() -> None:
    run = run_of()
    run.emit(event("agent_start", prompt="go"))
    again = run_of()
    again.restore(run.snapshot())
    assert (again.snapshot().status, again.snapshot().error) == ("cancelled", "the process that ran it has ended")


def test_a_run_that_failed_keeps_nothing_of_what_it_worked_with() -> None:
    class Large:
        """What hangs on the frames of an error."""

    async def main() -> None:
        held: list[weakref.ref[Large]] = []

        async def work() -> AgentResult:
            large = Large()
            held.append(weakref.ref(large))
            raise FAULT

        run = run_of()
        task = asyncio.get_running_loop().create_task(work())
        run.begin(task)
        await asyncio.wait({task})
        await asyncio.sleep(0)
        del task
        FAULT.__traceback__ = None
        gc.collect()
        assert held[0]() is None
        assert run.snapshot().status == "failed"

    asyncio.run(main())


def test_an_operation_that_is_done_keeps_nobody_out_though_nobody_was_told_yet() -> None:
    async def main() -> None:
        operations = Operations("s")
        looked: list[bool] = []

        def look() -> None:
            operations.require(is_exclusive=True)
            looked.append(True)

        async def work() -> None:
            with pytest.raises(SessionBusyError):
                operations.require(is_exclusive=True)
            asyncio.get_running_loop().call_soon(look)  # comes before the callbacks of this task

        await asyncio.wait({operations.start(work(), is_exclusive=True)})
        assert looked == [True]

    asyncio.run(main())


NO_EVENTS: list[Any] = [
    "text",
    None,
    {"type": "tool_start"},
    AgentEvent(type=5, payload={}),  # type: ignore[arg-type]
    AgentEvent(type="x", payload=[]),  # type: ignore[arg-type]
    AgentEvent(type="x", payload={}, metadata="m"),  # type: ignore[arg-type]
    AgentEvent(type="\ud800", payload={}),
]
ODD_EVENTS: list[AgentEvent] = [
    AgentEvent(type="tool_start", payload={}),
    AgentEvent(type="tool_end", payload={"id": ["no", "text"]}),
    AgentEvent(type="text_delta", payload={}),
    AgentEvent(type="text_delta", payload={"text": 5}),
    AgentEvent(type="mine", payload={"object": object()}),
    AgentEvent(type="mine", payload={"text": "\ud800"}),
    AgentEvent(type="mine", payload={"n": 2**100, ("a", "b"): 1}),  # type: ignore[dict-item]
    AgentEvent(type="mine", payload={}, metadata={"run_id": "forged", "sequence": -1, "mine": object()}),
]


class Unspeakable:
    def __repr__(self) -> str:
        raise ZeroDivisionError("no words")


@pytest.mark.parametrize("told", [*NO_EVENTS, *ODD_EVENTS, AgentEvent(type="mine", payload={"x": Unspeakable()})])
def test_whatever_a_tool_tells_the_run_is_told_of_to_its_end(tmp_path: Path, told: Any) -> None:
    class Telling(RecordingTool):
        async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
            scope.emit(told)
            return await super().run(args, scope)

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([calls(("tell", {})), "done"]), Telling("tell")) as session:
            stream = await session.stream_async("go")
            heard = [item async for item in stream]
            recorded = await session.run_events_async(stream.run_id)
            assert heard[-1].type == recorded[-1].type == "agent_end"
            assert [item.type for item in recorded].count("turn_end") == 2
            assert [(item.metadata or {})["sequence"] for item in recorded] == list(range(len(recorded)))
            assert {(item.metadata or {})["run_id"] for item in recorded} == {stream.run_id}

    asyncio.run(main())


# ---- which are kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limits", "kept"), [({}, 64), ({"unbounded": True}, 65), ({"max_runs_retained": 1}, 1)])
def test_the_oldest_ended_runs_are_dropped(tmp_path: Path, limits: JsonObject, kept: int) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo), retention_limits=limits) as session:
            for number in range(65):
                await session.send_async(f"prompt {number}")
            runs = await session.runs_async()
            assert [run.prompt for run in runs] == [f"prompt {number}" for number in range(65 - kept, 65)]

    asyncio.run(main())


async def under_way(run: Run) -> "asyncio.Task[AgentResult]":
    async def work() -> AgentResult:
        await asyncio.Event().wait()
        return RESULT

    task = asyncio.get_running_loop().create_task(work())
    run.begin(task)
    return task


def test_a_run_under_way_is_never_dropped() -> None:
    async def main() -> None:
        runs = Runs("s", HostEnv(ids=SequentialIds("id")), SessionRetentionLimits(max_runs_retained=1))
        first = runs.reserve(None, "first")
        task = await under_way(first)
        for number in range(3):
            more = runs.reserve(f"r-{number}", "more")
            more.end(RESULT)
            more.tell_end()
        assert [run.prompt for run in runs.all()] == ["first", "more"]
        task.cancel()
        await asyncio.wait({task})
        await asyncio.sleep(0)
        runs.reserve(None, "last")
        assert [run.prompt for run in runs.all()] == ["last"]

    asyncio.run(main())


# ---- ids of the caller's choice -------------------------------------------------------------------------------------


def test_a_run_of_a_chosen_id_is_started_once(tmp_path: Path) -> None:
    model = PacedModel("done")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            spawned = await session.spawn_run_with_id_async("mine", "go")
            assert (spawned["replayed"], spawned["snapshot"]["id"]) == (False, "mine")
            await model.asked()
            again = await session.spawn_run_with_id_async("mine", "go")  # though the session is busy
            assert (again.replayed, again.snapshot.status) == (True, "executing")
            with pytest.raises(RunIdentityError, match="already bound to different immutable input"):
                await session.spawn_run_with_id_async("mine", "something else")
            with pytest.raises(SessionBusyError):
                await session.spawn_run_with_id_async("other", "go")
            assert await session.run_snapshot_async("other") is None
            model.answer()
            assert (await over(session, "mine")).result_text == "done"
            ended = await session.spawn_run_with_id_async("mine", "go")
            assert (ended.replayed, ended.snapshot.status) == (True, "completed")
            await session.close_async()
            assert (await session.spawn_run_with_id_async("mine", "go")).replayed
            with pytest.raises(SessionClosedError):
                await session.spawn_run_with_id_async("other", "go")

    asyncio.run(main())
    assert len(model.requests) == 1


def test_of_many_that_reserve_one_id_one_starts_the_run(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            spawned = await asyncio.gather(*(session.spawn_run_with_id_async("mine", "go") for _ in range(32)))
            assert [each.replayed for each in spawned].count(False) == 1
            assert {each.snapshot.id for each in spawned} == {"mine"}
            await over(session, "mine")

    asyncio.run(main())
    assert keys(tmp_path) == ["m-0", "model:1:0"]


def test_threads_that_reserve_one_id_start_one_run(tmp_path: Path) -> None:
    model = ScriptedModel(echo)
    with Agent.create(models={"a/b": model}) as agent:
        session = agent.session(tmp_path)

        async def all_at_once() -> list[bool]:
            work = [asyncio.to_thread(session.spawn_run_with_id, "mine", "go") for _ in range(16)]
            return [each.replayed for each in await asyncio.gather(*work)]

        assert asyncio.run(all_at_once()).count(False) == 1
    assert len(model.requests) <= 1


def test_a_detached_run_is_steered_stopped_and_heard_of_as_any_other(tmp_path: Path) -> None:
    model = PacedModel("one", "two", "never")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.spawn_run_with_id_async("mine", "go")
            await model.asked()
            await session.steer_async("steered", {"run_id": "mine"})
            model.answer(2)
            assert (await over(session, "mine")).result_text == "two"
            await model.asked()
            assert len(said(session)) == 4
            await session.spawn_run_with_id_async("other", "again")
            await model.asked()
            await session.interrupt_async({"run_id": "other"})
            assert (await over(session, "other")).status == "cancelled"
            assert len(said(session)) == 6

    asyncio.run(main())


def test_a_detached_run_that_fails_is_a_failed_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([FAULT])) as session:
            await session.spawn_run_with_id_async("mine", "go")
            assert (await over(session, "mine")).error_code == "LLM_ERROR"
            assert (await session.spawn_run_with_id_async("mine", "go")).replayed

    asyncio.run(main())


@pytest.mark.parametrize("run_id", ["", "  ", "a\nb", "a\0b", "\ud800", "x" * 513, 5, None])
def test_an_id_that_is_none_is_refused(tmp_path: Path, run_id: Any) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            with pytest.raises(UsageError, match="run_id must be"):
                await session.spawn_run_with_id_async(run_id, "go")
            with pytest.raises(UsageError, match="run_id must be"):
                await session.spawn_recovery_with_run_id_async("c", run_id)
            with pytest.raises(UsageError, match="prompt must be text"):
                await session.spawn_run_with_id_async("mine", 5)  # type: ignore[arg-type]

    asyncio.run(main())


# ---- recovery -------------------------------------------------------------------------------------------------------


async def cut_off(workspace: Path, store: Any) -> str:
    """A run that is cut off behind its first round of tools; its id."""
    tool = HeldTool()
    model = ScriptedModel([calls(("look", {})), calls(("hold", {}))])
    async with opened(workspace, model, RecordingTool("look"), tool, session_store=store) as session:
        stream = await session.stream_async("go")
        await tool.started.get()
        await stream.close_async()
        return stream.run_id


def test_a_recovery_is_started_once_and_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    class SlowStore(MemorySessionStore):
        async def load(self, document: str) -> Document | None:
            await turns()
            return await super().load(document)

    store = SlowStore()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    async def main() -> None:
        checkpoint = await cut_off(tmp_path / "a", store)
        tool = HeldTool()
        tool.let_go.set()
        model = ScriptedModel([calls(("hold", {})), "recovered"])
        ids = HostEnv(ids=SequentialIds("other"))
        async with opened(tmp_path / "b", model, RecordingTool("look"), tool, session_store=store, env=ids) as session:
            spawn = session.spawn_recovery_with_run_id_async
            spawned = await asyncio.gather(*(spawn(checkpoint, "again") for _ in range(8)))
            assert [each.replayed for each in spawned].count(False) == 1
            assert (await over(session, "again")).result_text == "recovered"
            assert (await spawn(checkpoint, "again")).replayed
            with pytest.raises(RunIdentityError):
                await spawn("another", "again")
            with pytest.raises(CheckpointNotFoundError, match="no loop checkpoint found for run 'another'"):
                await spawn("another", "new")
            [run] = await session.runs_async()
            assert run.prompt == f"<resume run={checkpoint}>"

    asyncio.run(main())
    texts = [fact.key for fact in facts(tmp_path / "b")]
    assert texts[:3] == ["m-0", "model:1:0", "tool-result:1:0:call-1"]


def test_a_recovery_without_a_store_says_what_is_missing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            with pytest.raises(MissingStoreError, match="resume_run requires a session_store on this session"):
                await session.spawn_recovery_with_run_id_async("c", "mine")

    asyncio.run(main())


# ---- saved ----------------------------------------------------------------------------------------------------------


def resumed(store: Any) -> Callable[[Callable[[Session], Awaitable[None]]], None]:
    def look(check: Callable[[Session], Awaitable[None]]) -> None:
        async def main() -> None:
            async with await Agent.create_async(models={"scripted/model": ScriptedModel(echo)}) as agent:
                await check(await agent.resume_session_async("s", session_store=store))

        asyncio.run(main())

    return look


def test_a_run_that_saves_its_session_is_saved_with_its_end(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path / "store")

    async def main() -> None:
        model = PacedModel("answer", "never")
        async with opened(tmp_path, model, session_store=store, auto_save=True) as session:
            model.answer()
            await session.send_async("one")
            await model.asked()
            stream = await session.stream_async("two")
            await model.asked()
            await session.interrupt_async()
            await over(session, stream.run_id)
            kept.extend(await session.runs_async())
            events.extend([await session.run_events_async(run.id) for run in kept])
            await until(lambda: not session._operations.is_busy)

    async def check(session: Session) -> None:
        assert await session.runs_async() == kept
        assert [await session.run_events_async(run.id) for run in kept] == events
        assert [run.status for run in kept] == ["completed", "cancelled"]
        for run in kept:
            page = await session.run_event_page_async(run.id)
            assert page is not None
            assert page.latest_sequence_exclusive == run.event_count
        assert session.current_run() == kept[-1]
        assert len(said(session)) == 4
        replay = await session.spawn_run_with_id_async(kept[0].id, "one")
        assert (replay.replayed, replay.snapshot) == (True, kept[0])

    kept: list[RunSnapshot] = []
    events: list[list[AgentEvent]] = []
    asyncio.run(main())
    resumed(store)(check)


def test_the_count_of_events_survives_trimming_and_restoring(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path / "store")
    limits: JsonObject = {"max_events_per_run": 3}

    async def main() -> None:
        options: dict[str, Any] = {"session_store": store, "auto_save": True, "retention_limits": limits}
        async with opened(tmp_path, ScriptedModel(echo), **options) as session:
            stream = await session.stream_async("one")
            await stream.result_async()
            counts.append((await snapshot_of(session, stream.run_id)).event_count)

    async def check(session: Session) -> None:
        [run] = await session.runs_async()
        assert run.event_count == counts[0]
        page = await session.run_event_page_async(run.id)
        assert page is not None
        assert (page.first_available_sequence, page.retention_gap) == (counts[0] - 3, True)

    counts: list[int] = []
    asyncio.run(main())
    assert counts[0] > 3
    resumed(store)(check)


def test_no_run_is_left_half_saved_by_a_stop_during_the_save(tmp_path: Path) -> None:
    """The answer is settled when the session is saved: a stop that comes then finds nothing to stop."""

    class SlowStore(MemorySessionStore):
        def __init__(self) -> None:
            super().__init__()
            self.is_saving, self.go_on = asyncio.Event(), asyncio.Event()

        async def compare_and_set(self, document: str, *rest: Any, **more: Any) -> int:
            if document.startswith("session/"):
                self.is_saving.set()
                await self.go_on.wait()
            return await super().compare_and_set(document, *rest, **more)

    async def main() -> None:
        store = SlowStore()
        async with opened(tmp_path, ScriptedModel(echo), session_store=store, auto_save=True) as session:
            run = asyncio.create_task(session.send_async("go"))
            await store.is_saving.wait()
            current = session.current_run()
            assert current is not None
            assert not current.is_terminal  # for whoever sees that it is may go on
            stop = asyncio.create_task(session.cancel_async())
            await turns()
            assert not stop.done()
            assert not await session.cancel_run_async(current.id)
            with pytest.raises(SessionBusyError):
                await session.send_async("busy")
            store.go_on.set()
            assert (await stop, (await run).text) == (False, "go")
            assert (await session.send_async("next")).text == "next"

    asyncio.run(main())
