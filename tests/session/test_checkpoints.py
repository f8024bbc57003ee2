"""Laws of loop checkpoints and `resume_run`: a run that was cut off goes on, here or on another node."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
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
    SessionStore,
    ToolOutput,
)
from fanfold.contracts.facts import Fact
from fanfold.contracts.messages import ASK_USER, ModelRequest, ToolMessage
from fanfold.contracts.record import JsonObject
from fanfold.contracts.saved import LoopCheckpoint
from fanfold.errors import (
    AlreadyActiveError,
    CheckpointNotFoundError,
    MissingStoreError,
    ParkedError,
    ProviderError,
    RunCancelledError,
    RunCheckpointRefusedError,
    SessionClosedError,
    StepLimitError,
    StorageError,
)
from fanfold.kernel.fold import fold
from fanfold.kernel.transcript import as_history
from fanfold.protocols import Lease
from fanfold.testing import CrashPoint, FaultyStore, ScriptedModel, StoreFaults, as_json, calls, every_crash_point
from fanfold.testing.scripted import Answer
from tests.support.nodes import (
    ANSWER,
    ROUNDS,
    STORES,
    CountingStore,
    dies,
    in_rounds,
    node,
    open_store,
    round_tools,
    stored_checkpoint,
    stored_facts,
    workspace_facts,
)
from tests.support.open_session import until
from tests.support.tools import RecordingTool

RUN = "run-id-0"
"""The first one of a node."""
WRITES = PermissionPolicy(ask=("write_it",), default_decision="allow")


async def undisturbed(folder: Path) -> tuple[list[JsonObject], Any]:
    """History and result of the same run where nothing happens."""
    async with node(folder, in_rounds, *round_tools()) as (agent, _):
        session = await agent.session_async(folder, session_id="s")
        result = await session.send_async("go")
        return session.history(), result


async def failures(session: Session) -> list[str]:
    """The operations of which the session's last run says that they failed."""
    run = session.current_run()
    assert run is not None
    return [
        each.payload["operation"]
        for each in await session.run_events_async(run.id)
        if each.type == "persistence_failed"
    ]


# ---- what a checkpoint has ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORES)
def test_a_checkpoint_after_each_round_has_the_whole_conversation_so_far(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with open_store(kind, tmp_path) as store:
            seen: list[LoopCheckpoint | None] = []
            tools = round_tools()

            async def looking(request: ModelRequest) -> Answer:
                seen.append(await stored_checkpoint(store, RUN))
                return in_rounds(request)

            async with node(tmp_path / "a", looking, *tools, now_ms=77) as (agent, model):
                session = await agent.session_async(tmp_path / "a", session_id="s", session_store=store)
                await session.send_async("go")
            assert seen[0] is None
            for rounds, (found, request) in enumerate(zip(seen[1:], model.requests[1:], strict=True), 1):
                assert found is not None
                assert (found.schema_version, found.session_id, found.turn) == (1, "s", rounds)
                assert (found.total_usage.total_tokens, found.tool_calls_count) == (15 * rounds, rounds)
                assert found.checkpoint_ms == 77
                state = fold(await stored_facts(store, found.facts))
                assert as_history(state.transcript) == as_history(request.transcript)
            assert await store.documents("checkpoint") == []

    asyncio.run(main())


async def _cut_by_close(session: Session, _: Agent) -> None:
    await session.close_async()


async def _cut_by_agent(_: Session, agent: Agent) -> None:
    await agent.close_async()


@pytest.mark.parametrize("cut", [_cut_by_close, _cut_by_agent])
def test_a_run_that_is_closed_under_keeps_its_checkpoint(
    tmp_path: Path, cut: Callable[[Session, Agent], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        store, wait = MemorySessionStore(), asyncio.Event()
        tools = [*round_tools()[:1], *round_tools(wait=wait)[1:]]
        async with node(tmp_path, in_rounds, *tools) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store)
            run = asyncio.create_task(session.send_async("go"))
            await until(lambda: tools[1].running)
            await cut(session, agent)
            with pytest.raises((RunCancelledError, SessionClosedError)):
                await run
        assert await store.documents("checkpoint") == [RUN]
        await store.release(await store.acquire("session/s"))  # nobody has it any more

    asyncio.run(main())


def test_a_run_whose_caller_was_cancelled_keeps_its_checkpoint(tmp_path: Path) -> None:
    async def main() -> None:
        store, wait = MemorySessionStore(), asyncio.Event()
        tools = [*round_tools()[:1], *round_tools(wait=wait)[1:]]
        async with node(tmp_path, in_rounds, *tools) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store)
            run = asyncio.create_task(session.send_async("go"))
            await until(lambda: tools[1].running)
            run.cancel()
            await asyncio.wait([run])
            assert run.cancelled()
            assert await store.documents("checkpoint") == [RUN]
            wait.set()
            assert (await session.resume_run_async(RUN)).text == ANSWER
        assert await store.documents("checkpoint") == [RUN]  # that of the old run stays, the new one's is gone

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["completed", "failed", "interrupted", "cancelled", "step limit"])
def test_a_run_that_is_over_leaves_no_checkpoint(tmp_path: Path, ending: str) -> None:
    async def main() -> None:
        store, wait = MemorySessionStore(), asyncio.Event()

        def script(request: ModelRequest) -> Answer:
            done = sum(isinstance(message, ToolMessage) for message in request.transcript)
            if done == 2 and ending == "failed":
                return ProviderError("gone", kind="server", retryable=False)
            if ending == "step limit":
                return calls((ROUNDS[0], {"round": done}))
            return in_rounds(request)

        is_stopped = ending in ("interrupted", "cancelled")
        tools = [*round_tools()[:1], *round_tools(wait=wait if is_stopped else None)[1:]]
        if ending == "step limit":
            tools[0] = RecordingTool(ROUNDS[0], lambda _: ToolOutput(output="no", exit_code=1))
        async with node(tmp_path, script, *tools) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store)
            run = asyncio.create_task(session.send_async("go"))
            if is_stopped:
                await until(lambda: tools[1].running)
                assert await store.documents("checkpoint") == [RUN]
                await (session.interrupt_async() if ending == "interrupted" else session.cancel_async())
            errors = {"failed": ProviderError, "step limit": StepLimitError}
            if ending == "completed":
                await run
            else:
                with pytest.raises(errors.get(ending, RunCancelledError)):
                    await run
            assert await store.documents("checkpoint") == []
            await store.release(await store.acquire("session/s"))

    asyncio.run(main())


def test_a_checkpoint_costs_what_is_new_however_long_the_conversation_is(tmp_path: Path) -> None:
    rounds, output = 60, "x" * 500

    def script(request: ModelRequest) -> Answer:
        done = sum(isinstance(message, ToolMessage) for message in request.transcript)
        return calls(("look", {"round": done})) if done < rounds else ANSWER

    async def main() -> None:
        store = CountingStore()
        async with node(tmp_path, script, RecordingTool("look", lambda _: output)) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store, max_tool_rounds=rounds)
            await session.send_async("go")
        appends = [size for operation, kind, size in store.done if (operation, kind) == ("append", "facts")]
        documents = [size for operation, kind, size in store.done if (operation, kind) == ("set", "checkpoint")]
        assert (len(appends), len(documents)) == (rounds, rounds + 1)  # the last one removes it
        assert max(appends[1:]) - min(appends[1:]) < 60  # a turn and its result, whichever round it is
        assert max(documents) < 600
        assert [kind for operation, kind, _ in store.done if operation == "read"] == ["facts"]  # once

    asyncio.run(main())


def test_a_round_of_many_calls_has_one_checkpoint_at_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        store = CountingStore()
        script: list[Answer] = [calls(*[("look", {"round": n}) for n in range(4)]), "done"]
        async with node(tmp_path, script, RecordingTool("look")) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store)
            await session.send_async("go")
        changes = [(operation, kind) for operation, kind, _ in store.done if operation != "read"]
        assert changes == [("append", "facts"), ("set", "checkpoint"), ("set", "checkpoint")]
        assert len(await store.read("facts/s")) == 6

    asyncio.run(main())


def test_a_run_without_tools_does_not_touch_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        store = CountingStore()
        async with node(tmp_path, ["hello"]) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store)
            await session.send_async("go")
        assert store.done == []

    asyncio.run(main())


# ---- going on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("at", [1, 2])
def test_another_node_goes_on_from_the_store_alone(tmp_path: Path, kind: str, at: int) -> None:
    async def main() -> None:
        expected, whole = await undisturbed(tmp_path / "whole")
        async with open_store(kind, tmp_path) as store:
            await dies(tmp_path / "a", store, CrashPoint(in_tool=ROUNDS[at]), *round_tools())
            before = await store.load(f"checkpoint/{RUN}")
            tools = round_tools()
            async with node(tmp_path / "b", in_rounds, *tools, ids="other") as (agent, model):
                session = await agent.session_async(tmp_path / "b", session_id="s", session_store=store)
                result = await session.resume_run_async(RUN)
                assert session.history() == expected
                # The rounds of the checkpoint are not asked for, nor done, again.
                assert len(model.requests) == 4 - at
                assert [len(tool.calls) for tool in tools] == [int(number >= at) for number in range(3)]
                assert (result.text, result.usage, result.tool_calls_count) == (ANSWER, whole.usage, 3)
                assert result.run_id == "run-other-0"
                [run] = await session.runs_async()
                assert (run.id, run.status, run.prompt) == ("run-other-0", "completed", f"<resume run={RUN}>")
            assert await store.documents("checkpoint") == [RUN]
            assert await store.load(f"checkpoint/{RUN}") == before

    asyncio.run(main())


def test_the_first_round_after_a_resume_is_checkpointed_too(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await dies(tmp_path / "a", store, CrashPoint(in_tool="second"), *round_tools())
        seen: list[int | None] = []

        async def looking(request: ModelRequest) -> Answer:
            found = await stored_checkpoint(store, "run-other-0")
            seen.append(None if found is None else found.turn)
            return in_rounds(request)

        async with node(tmp_path / "a", looking, *round_tools(), ids="other") as (agent, _):
            session = await agent.session_async(tmp_path / "a", session_id="s", session_store=store)
            await session.resume_run_async(RUN)
        assert seen == [2, 3]  # the call without a result ran first, and ended the second round

    asyncio.run(main())


def test_a_second_node_that_dies_is_gone_on_from_by_a_third(tmp_path: Path) -> None:
    async def main() -> None:
        expected, whole = await undisturbed(tmp_path / "whole")
        async with open_store("file", tmp_path) as store:
            await dies(tmp_path / "a", store, CrashPoint(in_tool="second"), *round_tools())
            point = CrashPoint(in_tool="third")
            with point:
                async with node(tmp_path / "b", in_rounds, *round_tools(), ids="b", point=point) as (agent, _):
                    second = await agent.session_async(tmp_path / "b", session_id="s", session_store=point.store(store))
                    await second.resume_run_async(RUN)
            assert await store.documents("checkpoint") == ["run-b-0", RUN]
            async with node(tmp_path / "c", in_rounds, *round_tools(), ids="c") as (agent, model):
                third = await agent.session_async(tmp_path / "c", session_id="s", session_store=store)
                result = await third.resume_run_async("run-b-0")
                assert len(model.requests) == 2
                assert (third.history(), result.usage) == (expected, whole.usage)

    asyncio.run(main())


def test_planning_that_no_fact_tells_of_still_counts_after_a_resume(tmp_path: Path) -> None:
    plan = as_json({"steps": ["one", "two"]})

    def script(request: ModelRequest) -> Answer:
        return plan if request.output_schema is not None else in_rounds(request)

    async def main() -> None:
        store = MemorySessionStore()
        async with node(tmp_path / "whole", script, *round_tools()) as (agent, _):
            session = await agent.session_async(tmp_path / "whole", planning_mode="enabled")
            whole = await session.send_async("go")
            assert whole.total_tokens == 5 * 15
        point = CrashPoint(in_tool="third")
        with point:
            async with node(tmp_path / "a", script, *round_tools(), point=point) as (agent, _):
                session = await agent.session_async(
                    tmp_path / "a", session_id="s", session_store=point.store(store), planning_mode="enabled"
                )
                await session.send_async("go")
        async with node(tmp_path / "b", script, *round_tools(), ids="other") as (agent, _):
            session = await agent.session_async(tmp_path / "b", session_id="s", session_store=store)
            assert (await session.resume_run_async(RUN)).usage == whole.usage

    asyncio.run(main())


def test_a_node_that_dies_anywhere_while_it_takes_a_run_up_goes_on_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        expected, whole = await undisturbed(tmp_path / "whole")
        store = FileSessionStore(tmp_path / "store")
        await dies(tmp_path / "a", store, CrashPoint(in_tool="second"), *round_tools())
        async with node(tmp_path / "b", ["another story"], ids="other") as (agent, _):
            await (await agent.session_async(tmp_path / "b", session_id="s")).send_async("something else")
        await store.close()
        for number, point in enumerate(every_crash_point()):
            here = tmp_path / f"{number}"
            shutil.copytree(tmp_path / "b", here)
            shutil.copytree(tmp_path / "store", here / "store")
            async with FileSessionStore(here / "store") as store:
                with point:
                    async with node(here, in_rounds, *round_tools(), ids="x", point=point) as (agent, _):
                        session = await agent.session_async(here, session_id="s", session_store=point.store(store))
                        await session.resume_run_async(RUN)
                async with node(here, in_rounds, *round_tools(), ids="y") as (agent, _):
                    session = await agent.session_async(here, session_id="s", session_store=store)
                    result = await session.resume_run_async(RUN)
                    assert (session.history(), result.usage) == (expected, whole.usage), point.place
            [aside] = here.glob(".a3s/effect-log/*aside*")
            assert b"another story" in aside.read_bytes()
        assert number > 20

    asyncio.run(main())


def _length(folder: Path) -> int:
    return len(workspace_facts(folder))


def test_the_nodes_own_log_wins_when_it_has_more_than_the_checkpoint(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        point = CrashPoint(after_fact=lambda fact: fact.key.startswith("tool-result:1:1"))  # before its checkpoint
        await dies(tmp_path / "a", store, point, *round_tools())
        found = await stored_checkpoint(store, RUN)
        assert found is not None
        assert (found.facts.last_seq, _length(tmp_path / "a")) == (3, 5)
        before = workspace_facts(tmp_path / "a")
        tools = round_tools()
        async with node(tmp_path / "a", in_rounds, *tools, ids="other") as (agent, model):
            session = await agent.session_async(tmp_path / "a", session_id="s", session_store=store)
            assert (await session.resume_run_async(RUN)).text == ANSWER
            assert len(model.requests) == 2
        assert [len(tool.calls) for tool in tools] == [0, 0, 1]
        assert workspace_facts(tmp_path / "a")[:5] == before
        assert list((tmp_path / "a/.a3s/effect-log").glob("*aside*")) == []

    asyncio.run(main())


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_log_that_is_a_beginning_of_the_checkpoint_is_completed(tmp_path: Path, kept: int) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await dies(tmp_path / "a", store, CrashPoint(in_tool="third"), *round_tools())
        path = tmp_path / "a/.a3s/effect-log/s.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:kept]))
        async with node(tmp_path / "a", in_rounds, *round_tools(), ids="other") as (agent, model):
            session = await agent.session_async(tmp_path / "a", session_id="s", session_store=store)
            assert (await session.resume_run_async(RUN)).text == ANSWER
            assert len(model.requests) == 2
        assert path.read_bytes().splitlines(keepends=True)[:5] == lines[:5]
        assert list(path.parent.glob("*aside*")) == []

    asyncio.run(main())


def test_a_log_that_went_another_way_is_set_aside_whole(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await dies(tmp_path / "a", store, CrashPoint(in_tool="second"), *round_tools())
        async with node(tmp_path / "b", ["another story"], ids="other") as (agent, _):
            session = await agent.session_async(tmp_path / "b", session_id="s", session_store=store)
            await session.send_async("something else")
        path = tmp_path / "b/.a3s/effect-log/s.jsonl"
        before = path.read_bytes()
        async with node(tmp_path / "b", in_rounds, *round_tools(), ids="third") as (agent, _):
            session = await agent.session_async(tmp_path / "b", session_id="s", session_store=store)
            assert len(session.history()) == 2
            assert (await session.resume_run_async(RUN)).text == ANSWER
            expected, _ = await undisturbed(tmp_path / "whole")
            assert session.history() == expected
        assert path.with_name("s.jsonl.aside-1").read_bytes() == before

    asyncio.run(main())


def test_without_a_checkpoint_the_nodes_own_log_is_gone_on_from(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await dies(tmp_path / "a", store, CrashPoint(in_tool="first"), *round_tools())
        assert await store.documents("checkpoint") == []
        tools = round_tools()
        async with node(tmp_path / "a", in_rounds, *tools, ids="other") as (agent, model):
            session = await agent.session_async(tmp_path / "a", session_id="s", session_store=store)
            assert (await session.resume_run_async("any run")).text == ANSWER
            assert (len(model.requests), [len(tool.calls) for tool in tools]) == (3, [1, 1, 1])
            assert (await session.resume_run_async(RUN)).text == ANSWER
            assert len(model.requests) == 3  # a log at rest takes no step

    asyncio.run(main())


def test_neither_a_checkpoint_nor_facts_is_an_error_that_says_which_is_missing(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        async with node(tmp_path, []) as (agent, _):
            bare = await agent.session_async(tmp_path, session_id="bare")
            with pytest.raises(MissingStoreError) as missing:
                await bare.resume_run_async("X")
            assert str(missing.value) == "resume_run requires a session_store on this session"
            session = await agent.session_async(tmp_path, session_id="s", session_store=store)
            with pytest.raises(CheckpointNotFoundError) as lost:
                await session.resume_run_async("X")
            assert str(lost.value) == "no loop checkpoint found for run 'X'"
            with pytest.raises(CheckpointNotFoundError):
                await session.resume_stream_async("X")
            assert await session.runs_async() == await bare.runs_async() == []
        assert list(tmp_path.glob(".a3s/effect-log/*.jsonl")) == []

    asyncio.run(main())


def test_a_detached_recovery_has_the_id_that_was_chosen_for_it_and_happens_once(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await dies(tmp_path / "a", store, CrashPoint(in_tool="second"), *round_tools())
        async with node(tmp_path / "b", in_rounds, *round_tools(), ids="other") as (agent, model):
            bare = await agent.session_async(tmp_path / "b", session_id="bare")
            with pytest.raises(MissingStoreError):
                await bare.spawn_recovery_with_run_id_async(RUN, "mine")
            session = await agent.session_async(tmp_path / "b", session_id="s", session_store=store)
            with pytest.raises(CheckpointNotFoundError):
                await session.spawn_recovery_with_run_id_async("never", "mine")
            first = await session.spawn_recovery_with_run_id_async(RUN, "mine")
            again = await session.spawn_recovery_with_run_id_async(RUN, "mine")
            assert (first.snapshot.id, first.replayed, again.replayed) == ("mine", False, True)
            await until(lambda: (run := session.current_run()) is not None and run.status == "completed")
            assert (await session.spawn_recovery_with_run_id_async(RUN, "mine")).snapshot.result_text == ANSWER
            assert len(model.requests) == 3

    asyncio.run(main())


# ---- runs that wait for a person ------------------------------------------------------------------------------------


def _asks(request: ModelRequest) -> Answer:
    results = [message.output for message in request.transcript if isinstance(message, ToolMessage)]
    return calls(("write_it", {"to": "disk"}), text="I will write") if not results else f"wrote: {results[-1]}"


def _questions(request: ModelRequest) -> Answer:
    results = [message.output for message in request.transcript if isinstance(message, ToolMessage)]
    question = {"question": "Which one?", "options": ["a", "b"], "allow_free_text": False}
    return calls((ASK_USER, question)) if not results else f"chosen: {results[-1]}"


async def _dies_parked(folder: Path, store: SessionStore, script: Callable[[ModelRequest], Answer]) -> RecordingTool:
    """A node that ends while its run waits for a person."""
    tool, point = RecordingTool("write_it", is_read_only=False), CrashPoint()
    async with node(folder, script, tool, point=point) as (agent, _):
        way = FaultyStore(store)
        session = await agent.session_async(folder, session_id="s", session_store=way, permission_policy=WRITES)
        run = asyncio.create_task(session.send_async("go"))
        await until(lambda: session.pending_confirmations() or session.pending_questions())
        await way.end_process()
        await session.close_async()
        await asyncio.wait([run])
        assert isinstance(run.exception(), RunCancelledError)
    return tool


@pytest.mark.parametrize("kind", STORES)
def test_another_node_sees_the_pending_confirmation_answers_it_and_goes_on(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with open_store(kind, tmp_path) as store:
            first = await _dies_parked(tmp_path / "a", store, _asks)
            tool = RecordingTool("write_it", is_read_only=False)
            async with node(tmp_path / "b", _asks, tool, ids="other") as (agent, model):
                session = await agent.session_async(
                    tmp_path / "b", session_id="s", session_store=store, permission_policy=WRITES
                )
                run = asyncio.create_task(session.resume_run_async(RUN))
                await until(session.pending_confirmations)
                [pending] = session.pending_confirmations()
                assert (pending.tool_name, pending.args) == ("write_it", {"to": "disk"})
                assert await session.confirm_tool_use_async(pending.tool_id, True)
                assert (await run).text == "wrote: done"
                assert (len(model.requests), len(first.calls), len(tool.calls)) == (1, 0, 1)

    asyncio.run(main())


def test_another_node_answers_the_pending_question_and_one_model_call_follows(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await _dies_parked(tmp_path / "a", store, _questions)
        async with node(tmp_path / "b", _questions, ids="other") as (agent, model):
            session = await agent.session_async(tmp_path / "b", session_id="s", session_store=store)
            run = asyncio.create_task(session.resume_run_async(RUN))
            await until(session.pending_questions)
            [question] = session.pending_questions()
            assert (question.question, list(question.options), question.allow_free_text) == (
                "Which one?",
                ["a", "b"],
                False,
            )
            assert await session.answer_question_async(question.question_id, "b")
            assert (await run).text == "chosen: b"
            assert len(model.requests) == 1

    asyncio.run(main())


def test_a_run_that_refuses_to_wait_parks_for_another_node_which_answers_between_two_runs(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        tool = RecordingTool("write_it", is_read_only=False)
        async with node(tmp_path / "a", _asks, tool) as (agent, _):
            session = await agent.session_async(
                tmp_path / "a", session_id="s", session_store=store, permission_policy=WRITES, approvals="refuse"
            )
            with pytest.raises(ParkedError):
                await session.send_async("go")
            assert await store.documents("checkpoint") == [RUN]
        async with node(tmp_path / "b", _asks, tool, ids="other") as (agent, model):
            session = await agent.session_async(
                tmp_path / "b", session_id="s", session_store=store, permission_policy=WRITES
            )
            assert session.pending_confirmations() == []  # nothing of it is on this node yet
            with pytest.raises(ParkedError):
                await session.resume_run_async(RUN, wait=False)
            [pending] = session.pending_confirmations()
            assert await session.confirm_tool_use_async(pending.tool_id, True)
            assert tool.calls == []
            assert (await session.resume_run_async()).text == "wrote: done"
            assert (len(tool.calls), len(model.requests)) == (1, 1)

    asyncio.run(main())


def test_a_person_who_has_approved_is_not_asked_again_by_the_next_node(tmp_path: Path) -> None:
    async def main() -> None:
        store, point = MemorySessionStore(), CrashPoint(in_tool="write_it")
        with point:
            tool = RecordingTool("write_it", is_read_only=False)
            async with node(tmp_path / "a", _asks, tool, point=point) as (agent, _):
                session = await agent.session_async(
                    tmp_path / "a", session_id="s", session_store=point.store(store), permission_policy=WRITES
                )
                run = asyncio.create_task(session.send_async("go"))
                await until(session.pending_confirmations)
                await session.confirm_tool_use_async(session.pending_confirmations()[0].tool_id, True)
                await run
        async with node(tmp_path / "b", _asks, tool, ids="other") as (agent, _):
            session = await agent.session_async(
                tmp_path / "b", session_id="s", session_store=store, permission_policy=WRITES, approvals="refuse"
            )
            assert (await session.resume_run_async(RUN)).text == "wrote: done"

    asyncio.run(main())


class SlowStore(MemorySessionStore):
    """Takes its time for each lease, which every checkpoint needs."""

    async def acquire(self, name: str) -> Lease:
        for _ in range(20):
            await asyncio.sleep(0)
        return await super().acquire(name)


@pytest.mark.parametrize("script", [_asks, _questions])
def test_an_answer_that_comes_as_soon_as_the_question_is_told_counts(
    tmp_path: Path, script: Callable[[ModelRequest], Answer]
) -> None:
    async def main() -> None:
        tool = RecordingTool("write_it", is_read_only=False)
        async with node(tmp_path, script, tool) as (agent, _):
            session = await agent.session_async(
                tmp_path, session_id="s", session_store=SlowStore(), permission_policy=WRITES
            )
            answers: list[asyncio.Task[bool]] = []

            def hear(item: AgentEvent) -> None:
                if item.type == "confirmation_required":
                    answers.append(asyncio.create_task(session.confirm_tool_use_async(item.payload["tool_id"], True)))
                if item.type == "user_question":
                    answers.append(asyncio.create_task(session.answer_question_async(item.payload["question_id"], "b")))

            stream = await session.stream_async("go")
            async for item in stream:
                hear(item)
            assert [answer.result() for answer in answers] == [True]

    asyncio.run(main())


# ---- who may not ----------------------------------------------------------------------------------------------------


async def _cut_off(folder: Path, store: SessionStore) -> JsonObject:
    """The checkpoint of a run that was cut off, as JSON."""
    await dies(folder, store, CrashPoint(in_tool="second"), *round_tools())
    document = await store.load(f"checkpoint/{RUN}")
    assert document is not None
    found: JsonObject = msgspec.json.decode(document.data)
    return found


_REFUSED: dict[str, tuple[JsonObject, type[StorageError], str]] = {
    "another session's": (
        {"session_id": "another"},
        RunCheckpointRefusedError,
        "refusing to resume checkpoint 'copy': loop checkpoint ownership mismatch for run \"copy\": "
        'current session is "s", payload belongs to "another"',
    ),
    "another run's": (
        {"run_id": "original"},
        RunCheckpointRefusedError,
        "loop checkpoint key mismatch: requested run 'copy', payload belongs to 'original'",
    ),
    "a later version's": (
        {"schema_version": 2},
        RunCheckpointRefusedError,
        "loop checkpoint for run copy has schema version 2 but this build supports at most 1; "
        "refusing to resume from an incompatible future checkpoint",
    ),
    "a later version's in another form": (
        {"schema_version": 7, "facts": ["all", "new"], "session_id": None},
        RunCheckpointRefusedError,
        "loop checkpoint for run copy has schema version 7 but this build supports at most 1; "
        "refusing to resume from an incompatible future checkpoint",
    ),
    "unreadable": ({"facts": 5}, StorageError, "'checkpoint/copy' of the session store cannot be read: "),
}


@pytest.mark.parametrize(("changes", "kind", "says"), _REFUSED.values(), ids=_REFUSED.keys())
def test_a_checkpoint_that_is_not_for_this_session_is_refused_and_stays(
    tmp_path: Path, changes: JsonObject, kind: type[StorageError], says: str
) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        found = await _cut_off(tmp_path / "a", store)
        await store.compare_and_set("checkpoint/copy", 0, msgspec.json.encode({**found, "run_id": "copy", **changes}))
        before = await store.load("checkpoint/copy")
        async with node(tmp_path / "b", in_rounds, *round_tools(), ids="other") as (agent, model):
            session = await agent.session_async(tmp_path / "b", session_id="s", session_store=store)
            for refused in (session.resume_run_async("copy"), session.spawn_recovery_with_run_id_async("copy", "mine")):
                with pytest.raises(kind) as error:
                    await refused
                assert str(error.value).startswith(says)
            assert (await session.runs_async(), model.requests, session.history()) == ([], [], [])
        assert await store.load("checkpoint/copy") == before
        assert workspace_facts(tmp_path / "b") == []

    asyncio.run(main())


def test_a_checkpoint_that_does_not_say_its_version_is_of_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        found = await _cut_off(tmp_path / "a", store)
        del found["schema_version"]
        document = await store.load(f"checkpoint/{RUN}")
        assert document is not None
        await store.compare_and_set(f"checkpoint/{RUN}", document.revision, msgspec.json.encode(found))
        async with node(tmp_path / "b", in_rounds, *round_tools(), ids="other") as (agent, _):
            session = await agent.session_async(tmp_path / "b", session_id="s", session_store=store)
            assert (await session.resume_run_async(RUN)).text == ANSWER

    asyncio.run(main())


@pytest.mark.parametrize("lost", ["records", "sense"])
def test_facts_that_the_store_has_lost_are_told_and_the_nodes_own_log_stays(tmp_path: Path, lost: str) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await _cut_off(tmp_path / "a", store)
        records = list(await store.read("facts/s"))
        await store.delete("facts/s")
        await store.append("facts/s", 0, records[:2] if lost == "records" else [*records[:2], b"{}", *records[3:]])
        async with node(tmp_path / "a", in_rounds, *round_tools(), ids="other") as (agent, _):
            session = await agent.session_async(tmp_path / "a", session_id="s", session_store=store)
            before = workspace_facts(tmp_path / "a")
            with pytest.raises(StorageError, match=r"saved facts 'facts/s' is corrupt at line 3"):
                await session.resume_run_async(RUN)
            assert workspace_facts(tmp_path / "a") == before
            assert (await session.resume_run_async()).text == ANSWER

    asyncio.run(main())


def test_a_run_of_another_session_with_the_same_id_keeps_its_checkpoint(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await _cut_off(tmp_path / "a", store)
        before = await store.load(f"checkpoint/{RUN}")
        async with node(tmp_path / "b", in_rounds, *round_tools()) as (agent, _):
            session = await agent.session_async(tmp_path / "b", session_id="t", session_store=store)
            result = await session.send_async("go")
            assert (result.text, result.run_id) == (ANSWER, RUN)
            assert await failures(session) == ["checkpoint"] * 3
        assert await store.load(f"checkpoint/{RUN}") == before

    asyncio.run(main())


@pytest.mark.parametrize("kind", STORES)
def test_a_second_node_is_refused_while_the_first_is_at_work(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with open_store(kind, tmp_path) as store:
            wait = asyncio.Event()
            tools = [*round_tools()[:1], *round_tools(wait=wait)[1:]]
            async with node(tmp_path / "a", in_rounds, *tools) as (agent, _):
                first = await agent.session_async(tmp_path / "a", session_id="s", session_store=store)
                run = asyncio.create_task(first.send_async("go"))
                await until(lambda: tools[1].running)
                async with node(tmp_path / "b", in_rounds, *round_tools(), ids="other") as (other, model):
                    second = await other.session_async(tmp_path / "b", session_id="s", session_store=store)
                    with pytest.raises(AlreadyActiveError, match="session 's' is already active"):
                        await second.resume_run_async(RUN)
                    with pytest.raises(AlreadyActiveError):
                        await second.save_async()
                    assert (model.requests, second.history(), workspace_facts(tmp_path / "b")) == ([], [], [])
                    wait.set()
                    assert (await run).text == ANSWER
                    await second.save_async()

    asyncio.run(main())


# ---- stores that fail -----------------------------------------------------------------------------------------------


def test_a_writer_that_lost_its_lease_changes_nothing_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        taken: list[Lease] = []

        async def losing(request: ModelRequest) -> Answer:
            if len(model.requests) == 2:
                store.break_leases()  # as if its process had been taken for dead
                taken.append(await store.acquire("session/s"))
            return in_rounds(request)

        async with node(tmp_path, losing, *round_tools()) as (agent, model):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store, auto_save=True)
            assert (await session.send_async("go")).text == ANSWER
            # Two rounds, the removal of the checkpoint, and the save; the second node's lease was not given back.
            assert sorted(await failures(session)) == ["auto_save", "checkpoint", "checkpoint", "checkpoint"]
        assert len(await store.read("facts/s")) == 3
        found = await stored_checkpoint(store, RUN)
        assert found is not None
        assert (found.turn, await store.documents("session")) == (1, [])
        await store.append("facts/s", 3, [b"{}"], taken[0])
        await store.release(taken[0])

    asyncio.run(main())


class BrokenStore(MemorySessionStore):
    """Somebody's own, whose errors are none of ours."""

    async def acquire(self, name: str) -> Lease:
        raise ConnectionError("the cable is out")


@pytest.mark.parametrize("kind", ["full", "broken"])
def test_a_store_that_fails_costs_the_run_nothing(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        store = BrokenStore() if kind == "broken" else FaultyStore(MemorySessionStore(), StoreFaults(full=1.0))
        async with node(tmp_path, in_rounds, *round_tools()) as (agent, model):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store, auto_save=True)
            stream = await session.stream_async("go")
            told = [item async for item in stream]
            assert (await stream.result_async()).text == ANSWER
            assert len(model.requests) == 4
        failed = [item for item in told if item.type == "persistence_failed"]
        assert [item.payload["operation"] for item in failed] == ["checkpoint", "checkpoint", "checkpoint", "auto_save"]
        assert {item.payload["session_id"] for item in failed} == {"s"}
        assert ("the cable is out" if kind == "broken" else "No space left") in failed[0].payload["error"]
        assert told[-1].type == "agent_end"

    asyncio.run(main())


@pytest.mark.parametrize("at", range(1, 9))
def test_a_store_that_fails_once_has_the_next_checkpoint_whole(tmp_path: Path, at: int) -> None:
    """Whether the failed change was done or not: nobody knows, and it does not matter."""

    class Once(MemorySessionStore):
        changes = 0

        async def append(self, log: str, expected_seq: int, records: Any, lease: Lease | None = None) -> int:
            done = await super().append(log, expected_seq, records, lease)
            self._fail()
            return done

        async def compare_and_set(
            self, document: str, expected_revision: int, data: bytes | None, lease: Lease | None = None
        ) -> int:
            done = await super().compare_and_set(document, expected_revision, data, lease)
            self._fail()
            return done

        def _fail(self) -> None:
            self.changes += 1
            if self.changes == at:
                raise StorageError("its answer is lost")

    async def main() -> None:
        store = Once()
        seen: list[tuple[int, list[Fact]] | None] = []

        async def looking(request: ModelRequest) -> Answer:
            found = await stored_checkpoint(store, RUN)
            seen.append(None if found is None else (found.turn, await stored_facts(store, found.facts)))
            return in_rounds(request)

        async with node(tmp_path, looking, *round_tools()) as (agent, _):
            session = await agent.session_async(tmp_path, session_id="s", session_store=store, auto_save=True)
            await session.send_async("go")
            assert len(await failures(session)) == 1
            facts = workspace_facts(tmp_path)
            lost = 1 + (at - 1) // 2  # round of the change that failed; an append has no document after it then
            for rounds, found in enumerate(seen[1:], 1):
                if rounds != lost or at % 2 == 0:
                    assert found == (rounds, facts[: 2 * rounds + 1])
            await session.send_async("again")
            assert await failures(session) == []
        assert await store.logs("facts") == ["s"]

    asyncio.run(main())


@asynccontextmanager
async def _parked_then_saved(folder: Path, store: SessionStore) -> AsyncIterator[Session]:
    async with node(folder, _asks, RecordingTool("write_it", is_read_only=False)) as (agent, _):
        yield await agent.session_async(
            folder,
            session_id="s",
            session_store=store,
            permission_policy=WRITES,
            approvals="refuse",
            auto_save=True,
        )


def test_a_run_that_parked_is_saved_and_answered_after_the_session_was_resumed_elsewhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with FileSessionStore(tmp_path / "store") as store:
            async with _parked_then_saved(tmp_path / "a", store) as session:
                with pytest.raises(ParkedError):
                    await session.send_async("go")
            tool = RecordingTool("write_it", is_read_only=False)
            async with node(tmp_path / "b", _asks, tool, ids="other") as (agent, _):
                session = await agent.resume_session_async("s", session_store=store, workspace=tmp_path / "b")
                [run] = await session.runs_async()
                assert (run.status, run.error_code) == ("failed", "PARKED")
                [pending] = session.pending_confirmations()
                assert await session.confirm_tool_use_async(pending.tool_id, True)
            # The approval is a change of the conversation, and saved by itself like any other.
            async with node(tmp_path / "c", _asks, tool, ids="third") as (agent, _):
                session = await agent.resume_session_async("s", session_store=store, workspace=tmp_path / "c")
                assert session.pending_confirmations() == []
                assert (await session.resume_run_async()).text == "wrote: done"
                assert len(tool.calls) == 1

    asyncio.run(main())


# ---- going on without a run's id ------------------------------------------------------------------------------------


async def _dies_at_call(directory: Path, store: MemorySessionStore, after: int) -> None:
    """A run that dies at its model call number `after`."""
    script = [*[calls(("look", {}))] * (after - 1), RuntimeError("gone")]
    point: list[bool] = []

    async def answer(request: ModelRequest) -> Any:
        if len(point) == after - 1:
            await asyncio.Event().wait()
        point.append(True)
        return script[len(point) - 1]

    async with await Agent.create_async(models={"a/b": ScriptedModel(answer)}, tools={"look": _LOOK}) as agent:
        session = await agent.session_async(directory, session_id="s", session_store=store)
        run = asyncio.create_task(session.send_async("go"))
        while len(point) < after - 1 or not await store.documents("checkpoint"):
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait({run})


_LOOK = RecordingTool("look", is_parallel_safe=True)


def test_another_node_goes_on_from_the_sessions_newest_checkpoint_without_an_id(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await _dies_at_call(tmp_path, store, after=3)
        other = tmp_path / "other"
        other.mkdir()
        model = ScriptedModel(["done"])
        async with await Agent.create_async(models={"a/b": model}, tools={"look": _LOOK}) as agent:
            async with await agent.session_async(other, session_id="s", session_store=store) as session:
                assert (await session.resume_run_async()).text == "done"
                assert len(model.requests) == 1
            async with await agent.session_async(other, session_id="t", session_store=store) as session:
                with pytest.raises(CheckpointNotFoundError):
                    await session.resume_run_async()

    asyncio.run(main())


def test_what_another_run_has_gone_on_to_is_not_asked_again_from_an_old_checkpoint(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemorySessionStore()
        await _dies_at_call(tmp_path, store, after=3)
        [old] = await store.documents("checkpoint")
        more: list[Answer] = [calls(("look", {})), "done"]
        async with (
            await Agent.create_async(models={"a/b": ScriptedModel(more)}, tools={"look": _LOOK}) as agent,
            await agent.session_async(tmp_path, session_id="s", session_store=store) as session,
        ):
            assert (await session.resume_run_async(old)).text == "done"
            await session.save_async()
        other = tmp_path / "other"
        other.mkdir()
        silent = ScriptedModel([])
        async with (
            await Agent.create_async(models={"a/b": silent}, tools={"look": _LOOK}) as agent,
            await agent.session_async(other, session_id="s", session_store=store) as session,
        ):
            assert (await session.resume_run_async(old)).text == "done"
            assert silent.requests == []

    asyncio.run(main())
