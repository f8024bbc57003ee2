"""Laws of event streams: nothing is lost, the end comes last and once, and then the session is free."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold import Agent, AgentEvent, HostEnv, MemorySessionStore, Session
from fanfold.contracts.events import AgentResult, event
from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.errors import LifecycleError, ProviderError, RunCancelledError, SessionBusyError, UsageError
from fanfold.portal import Portal
from fanfold.protocols import ToolScope
from fanfold.runs.runs import Run
from fanfold.runs.stream import MAX_APART, MAX_WAITING, EventBuffer, EventStream
from fanfold.testing import Reply, ScriptedModel, calls, echo
from tests.support.running import HeldTool, PacedModel, opened, said, turns
from tests.support.tools import RecordingTool

TYPES = ["agent_start", "turn_start", "text_delta", "text_delta", "turn_end", "agent_end"]


def sequences(events: list[AgentEvent]) -> list[int]:
    return [(item.metadata or {})["sequence"] for item in events]


# ---- order ----------------------------------------------------------------------------------------------------------


def test_a_text_turn_tells_each_thing_once_and_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["two words"])) as session:
            stream = await session.stream_async("go")
            heard = [item async for item in stream]
            assert [item.type for item in heard] == TYPES
            assert "".join(item.text or "" for item in heard if item.type == "text_delta") == "two words"
            assert sequences(heard) == [0, 1, 2, 2, 3, 4]
            assert heard[-1].payload["usage"] == (await stream.result_async()).usage.to_dict()
            assert heard[-1] == (await session.run_events_async(stream.run_id))[-1]
            assert [item async for item in stream] == []

    asyncio.run(main())


@pytest.mark.parametrize("answer", ["fine", ProviderError("no", kind="auth", retryable=False)])
def test_whoever_hears_the_last_event_finds_the_session_free(tmp_path: Path, answer: Any) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([answer, "next"])) as session:
            heard: list[str] = []
            async for item in await session.stream_async("go"):
                heard.append(item.type)
                if item.type in ("agent_end", "error"):
                    current = session.current_run()
                    assert current is not None
                    assert current.is_terminal
                    assert (await session.send_async("at once")).text == "next"
                else:
                    with pytest.raises(SessionBusyError):
                        await session.send_async("too early")
            assert heard[-1] == ("error" if isinstance(answer, Exception) else "agent_end")

    asyncio.run(main())


def test_while_a_stream_is_read_everything_else_that_changes_the_transcript_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        model = PacedModel("never", "fine")
        async with opened(tmp_path, model, session_store=MemorySessionStore()) as session:
            stream = await session.stream_async("go")
            await model.asked()
            picture = [{"data": b"x", "media_type": "image/png"}]
            overlaps: list[Awaitable[object]] = [
                session.send_async("x"),
                session.send_async("/help"),
                session.send_async(5),  # type: ignore[arg-type]  # busy comes first
                session.stream_async("x"),
                session.send_with_attachments_async("x", picture),
                session.stream_with_attachments_async("x", picture),
                session.resume_run_async(),
                session.resume_stream_async(),
                session.spawn_run_with_id_async("mine", "x"),
                session.compact_async(),
                session.save_async(),
            ]
            for overlap in overlaps:
                with pytest.raises(SessionBusyError, match="Session 's' already has an active operation"):
                    await overlap
            assert (await session.tool_async("ls", {})).ok  # a tool of the host is none
            assert await session.cancel_async()
            assert [item.type async for item in stream][-1] == "error"
            with pytest.raises(RunCancelledError):
                await stream.result_async()
            model.answer(2)
            assert (await session.send_async("x")).text == "never"

    asyncio.run(main())


def test_the_result_comes_though_nobody_reads_the_events(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            for number in range(20):
                stream = await session.stream_async(f"prompt {number}")
                assert (await stream.result_async()).text == f"prompt {number}"
                assert (await stream.result_async()).text == f"prompt {number}"

    asyncio.run(main())


def test_nothing_comes_behind_the_last_event(tmp_path: Path) -> None:
    """A tool that goes on telling when its run is over, as a background task does, is recorded and not heard."""

    class Lasting(RecordingTool):
        tell: Callable[[AgentEvent], None]

        async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
            self.tell = scope.emit
            return await super().run(args, scope)

    async def main() -> None:
        tool = Lasting("last")
        async with opened(tmp_path, ScriptedModel([calls(("last", {})), "done"]), tool) as session:
            stream = await session.stream_async("go")
            await stream.result_async()
            tool.tell(event("late"))
            assert [item.type async for item in stream][-1] == "agent_end"
            assert (await session.run_events_async(stream.run_id))[-1].type == "late"

    asyncio.run(main())


def test_a_sink_hears_what_a_stream_would_tell(tmp_path: Path) -> None:
    heard: list[AgentEvent] = []
    fault = ProviderError("no", kind="auth", retryable=False)

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([fault, "late"])) as session:
            with pytest.raises(ProviderError):
                await session.send_async("go")
            result = await session.resume_run_async(events=heard.append)
            assert result.text == "late"
            assert [item.type for item in heard] == [*TYPES[:3], *TYPES[4:]]

    asyncio.run(main())


# ---- leaving --------------------------------------------------------------------------------------------------------


def test_leaving_a_stream_early_ends_its_run_and_frees_the_session(tmp_path: Path) -> None:
    tool = HeldTool()

    async def main() -> None:
        model = ScriptedModel({"go": calls(("hold", {})), "next": "fine"})
        async with opened(tmp_path, model, tool) as session:
            async with await session.stream_async("go") as stream:
                async for item in stream:
                    if item.type == "tool_execution_start":
                        break
            assert (tool.stopped, tool.cleaned_up) == (1, 1)
            assert [item.type async for item in stream][-1] == "error"
            assert (await session.send_async("next")).text == "fine"
            await stream.close_async()

    asyncio.run(main())


def test_a_stream_that_is_dropped_lets_its_run_finish_and_keeps_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        model = PacedModel("fine")
        async with opened(tmp_path, model) as session:
            stream = await session.stream_async("go")
            dropped = weakref.ref(stream._buffer)
            del stream
            await model.asked()
            model.answer()
            while (current := session.current_run()) is None or not current.is_terminal:
                await asyncio.sleep(0)
            await turns()
            gc.collect()
            assert dropped() is None
            assert said(session) == ["user: go", "assistant: fine"]

    asyncio.run(main())


PIECES = [f"{number} " for number in range(50)]


async def read_with_cuts(stream: EventStream, each: int) -> str:
    """The text of a stream whose reader is cancelled again and again."""
    heard: list[AgentEvent] = []
    for number in range(60):
        reader = asyncio.ensure_future(anext(stream))
        await turns(number % each)
        reader.cancel()
        await asyncio.wait({reader})
        if not reader.cancelled():
            heard.append(reader.result())
    heard += [item async for item in stream]
    return "".join(item.text or "" for item in heard if item.type == "text_delta")


@pytest.mark.parametrize("each", [1, 2, 7])
def test_a_reader_that_is_cut_off_loses_no_event(tmp_path: Path, each: int) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([Reply(text="".join(PIECES), pieces=PIECES)])) as session:
            assert await read_with_cuts(await session.stream_async("go"), each) == "".join(PIECES)

    asyncio.run(main())
    with Agent.create(models={"a/b": ScriptedModel([Reply(text="".join(PIECES), pieces=PIECES)])}) as agent:
        stream = agent.session(tmp_path, session_id="other").stream("go")
        assert asyncio.run(read_with_cuts(stream, each)) == "".join(PIECES)


# ---- other threads --------------------------------------------------------------------------------------------------


def test_a_stream_is_read_in_any_thread_and_after_its_loop_has_ended(tmp_path: Path) -> None:
    with Agent.create(models={"a/b": ScriptedModel(echo)}) as agent:
        stream = agent.session(tmp_path).stream("two words")
        assert next(stream).type == "agent_start"
        heard = [item.type for item in stream]
        unread = agent.session(tmp_path, session_id="other").stream("two words")
        unread.result()
    assert heard == TYPES[1:]
    assert [item.type for item in unread] == TYPES
    assert unread.result().text == "two words"
    assert asyncio.run(unread.result_async()).text == "two words"
    unread.close()
    asyncio.run(unread.close_async())


def test_a_reader_that_waits_when_the_agent_is_closed_gets_the_end(tmp_path: Path) -> None:
    started = threading.Event()

    async def never(request: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    heard: list[str] = []
    agent = Agent.create(models={"a/b": ScriptedModel(never)})
    stream = agent.session(tmp_path).stream("go")
    reader = threading.Thread(target=lambda: heard.extend(item.type for item in stream))
    reader.start()
    assert started.wait(5)
    agent.close()
    reader.join(5)
    assert not reader.is_alive()
    assert heard == ["agent_start", "turn_start", "error"]
    with pytest.raises(RunCancelledError):
        stream.result()


@pytest.mark.parametrize("is_over", [True, False])
def test_a_reader_that_comes_to_wait_just_when_the_loop_has_ended_gets_what_there_is(is_over: bool) -> None:
    buffer = EventBuffer()

    class EndedPortal(Portal):
        """Of a loop that ends in the moment before the reader waits for it."""

        def call(self, work: Any, name: str) -> Any:
            work.close()
            if is_over:
                buffer.put(event("agent_end"))
                buffer.end()
            raise LifecycleError("the loop has ended")

    async def begun() -> EventStream:
        async def never() -> AgentResult:
            never_set: asyncio.Future[AgentResult] = asyncio.get_running_loop().create_future()
            return await never_set

        run = Run("r", "s", "go", HostEnv(), SessionRetentionLimits())
        run.begin(asyncio.create_task(never()))
        return EventStream(EndedPortal(asyncio.get_running_loop()), "s", buffer, run)

    stream = asyncio.run(begun())
    buffer.is_ended = False  # as if the run were still under way
    if is_over:
        assert [item.type for item in stream] == ["agent_end"]
    else:
        with pytest.raises(LifecycleError):
            next(stream)


def test_a_stream_does_not_block_its_own_loop(tmp_path: Path) -> None:
    async def main() -> None:
        model = PacedModel("fine")
        async with opened(tmp_path, model) as session:
            stream = await session.stream_async("go")
            await model.asked()
            with pytest.raises(UsageError, match="next would block the loop"):
                list(stream)
            with pytest.raises(UsageError, match="result_async"):
                stream.result()
            model.answer()
            await stream.result_async()

    asyncio.run(main())


def test_a_stream_is_read_on_another_loop(tmp_path: Path) -> None:
    async def read(stream: Any) -> list[str]:
        return [item.type async for item in stream]

    with Agent.create(models={"a/b": ScriptedModel(echo)}) as agent:
        stream = agent.session(tmp_path).stream("two words")
        assert asyncio.run(read(stream)) == TYPES


# ---- slow readers ---------------------------------------------------------------------------------------------------


def read_out(buffer: EventBuffer) -> list[AgentEvent]:
    events: list[AgentEvent] = []
    while (item := buffer.take()) is not None:
        events.append(item)
    return events


Told = list[tuple[str, int]]
told = st.lists(st.tuples(st.sampled_from(["text_delta", "reasoning_delta", "tick"]), st.integers(0, 2)), max_size=60)


@given(told, st.sampled_from([0, MAX_APART - 5, MAX_APART]))
def test_joining_changes_no_text_and_no_order(events: Told, waiting: int) -> None:
    """Texts of one sequence may come in fewer pieces; everything else comes as it was told."""
    buffer = EventBuffer()
    for _ in range(waiting):
        buffer.put(event("tick"))
    sequence = 0
    for number, (kind, step) in enumerate(events):
        sequence += step
        buffer.put(AgentEvent(type=kind, payload={"text": f"{number} "}, metadata={"sequence": sequence}))
    buffer.end()
    assert [_merged(read_out(buffer)[waiting:])] == [
        _merged(
            [
                AgentEvent(type=kind, payload={"text": f"{n} "}, metadata={"sequence": at})
                for n, (kind, at) in _placed(events)
            ]
        )
    ]


def _placed(events: Told) -> list[tuple[int, tuple[str, int]]]:
    placed: list[tuple[int, tuple[str, int]]] = []
    sequence = 0
    for number, (kind, step) in enumerate(events):
        sequence += step
        placed.append((number, (kind, sequence)))
    return placed


def _merged(events: list[AgentEvent]) -> list[tuple[str, str, int]]:
    merged: list[tuple[str, str, int]] = []
    for item in events:
        at, text = (item.metadata or {})["sequence"], item.payload["text"]
        if item.type != "tick" and merged and (merged[-1][0], merged[-1][2]) == (item.type, at):
            merged[-1] = (item.type, merged[-1][1] + text, at)
        else:
            merged.append((item.type, text, at))
    return merged


def test_a_long_text_costs_a_slow_reader_one_event() -> None:
    buffer = EventBuffer()
    for _ in range(MAX_APART):
        buffer.put(event("tick"))
    for _ in range(100_000):
        buffer.put(event("text_delta", text="x"))
    events = read_out(buffer)
    assert len(events) == MAX_APART + 1
    assert events[-1].text == "x" * 100_000


def test_what_is_too_much_is_left_out_from_the_front_and_told() -> None:
    buffer = EventBuffer()
    for number in range(MAX_WAITING + 500):
        buffer.put(event("tick", n=number))
    buffer.put(event("agent_end", text="done"))
    buffer.end()
    events = read_out(buffer)
    assert (events[0].type, events[0].payload) == ("events_left_out", {"count": 501})
    assert events[1].payload == {"n": 501}
    assert events[-1].type == "agent_end"
    assert len(events) == MAX_WAITING + 1


def test_a_run_is_not_held_up_by_a_reader_that_never_reads(tmp_path: Path) -> None:
    class Ticking(RecordingTool):
        async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
            for number in range(3 * MAX_WAITING):
                scope.emit(event("tick", n=number))
            return ToolOutput(output="done")

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([calls(("tick", {})), "fine"]), Ticking("tick")) as session:
            stream = await session.stream_async("go")
            assert (await stream.result_async()).text == "fine"
            heard = [item async for item in stream]
            assert len(heard) == MAX_WAITING + 1
            assert (heard[0].type, heard[-1].type) == ("events_left_out", "agent_end")
            snapshot = await session.run_snapshot_async(stream.run_id)
            assert snapshot is not None
            assert snapshot.event_count == 3 * MAX_WAITING + 10

    asyncio.run(main())


def test_a_stream_outlives_a_loop_that_ended_under_its_run(tmp_path: Path) -> None:
    async def begun() -> tuple[Agent, Session, EventStream]:
        agent = await Agent.create_async(models={"a/b": PacedModel("never")})
        session = await agent.session_async(tmp_path)
        return agent, session, await session.stream_async("go")

    agent, session, stream = asyncio.run(begun())
    assert [item.type for item in stream][-1] == "error"
    with pytest.raises(RunCancelledError):
        stream.result()
    with pytest.raises(LifecycleError):
        session.send("too late")
    agent.close()
