"""Laws of interrupt and cancel: when a run may be stopped, and what it leaves behind; and what only cuts it off."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentEvent, MemorySessionStore, PermissionPolicy, Session
from fanfold.contracts.facts import Fact, NewFact, ToolResulted
from fanfold.contracts.messages import ASK_USER, ModelRequest, ToolMessage
from fanfold.contracts.record import JsonObject
from fanfold.errors import ParkedError, RunCancelledError
from fanfold.protocols import HeldThread
from fanfold.stores.memory import MemoryFactLog
from fanfold.testing import Reply, ScriptedModel, calls, echo
from fanfold.testing.scripted import newest_text
from tests.support.running import (
    INTERRUPTED,
    HeldTool,
    PacedModel,
    facts,
    keys,
    opened,
    receipt_of,
    refused,
    said,
    spoken,
    turns,
    until,
)
from tests.support.tools import RecordingTool


def sequence_of(item: AgentEvent) -> int:
    return int((item.metadata or {})["sequence"])


async def events_of(session: Session, run_id: str) -> list[str]:
    return [item.type for item in await session.run_events_async(run_id)]


# ---- interrupt ------------------------------------------------------------------------------------------------------

End = Callable[[Session, str], Awaitable[object]]
ENDS: dict[str, End] = {
    "interrupt": lambda session, _: session.interrupt_async({"request_id": "i", "reason": "enough"}),
    "cancel": lambda session, _: session.cancel_async(),
    "cancel_run": lambda session, run_id: session.cancel_run_async(run_id),
}
Moment = tuple[Any, dict[str, Any], Callable[[Session, "Moments"], Awaitable[object]], list[str]]


class Moments:
    """A model and a tool that stand still at each of the moments."""

    def __init__(self) -> None:
        self.tool = HeldTool()
        self.together = HeldTool("together", is_parallel_safe=True)
        self.change = RecordingTool("change", is_read_only=False)
        self.is_thinking = asyncio.Event()
        self.model = ScriptedModel(self._answer)

    async def _answer(self, request: ModelRequest) -> Reply | str:
        newest = newest_text(request)
        is_beside = "Summarise" in request.system or request.output_schema is not None
        if not self.is_thinking.is_set() and ("think" in newest or is_beside):
            self.is_thinking.set()
            await asyncio.Event().wait()
        if "next" in newest:
            return "went on"
        if "long" in newest:
            return Reply(text="x" * 4_000, usage=None)
        for name in ("hold", "change"):
            if name in newest:
                return calls((name, {}), text="let me see")
        if "together" in newest:
            return calls(("together", {"n": 1}), ("together", {"n": 2}), ("hold", {}), text="let me see")
        if "ask" in newest:
            return calls((ASK_USER, {"question": "which?"}), text="let me see")
        return "answer"

    async def thinking(self, _: Session) -> None:
        await self.is_thinking.wait()

    async def holding(self, _: Session) -> None:
        await self.tool.started.get()

    async def holding_both(self, _: Session) -> None:
        await self.together.started.get()
        await self.together.started.get()

    async def confirming(self, session: Session) -> None:
        await until(session.pending_confirmations)

    async def asking(self, session: Session) -> None:
        await until(session.pending_questions)

    async def at_once(self, _: Session) -> None: ...


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("moment", "prompt", "options"),
    [
        ("thinking", "think", {}),
        ("holding", "hold", {}),
        ("holding_both", "together", {}),
        ("confirming", "change", {}),
        ("asking", "ask", {}),
        ("thinking", "compact", {"max_context_tokens": 1_000}),
        ("thinking", "plan", {"planning_mode": "enabled"}),
        ("at_once", "hold", {}),
    ],
    ids=["model", "tool", "group", "confirmation", "question", "compaction", "planning", "first step"],
)
def test_a_stop_is_recorded_whenever_it_comes(
    tmp_path: Path, moment: str, prompt: str, options: dict[str, Any], end: str
) -> None:
    async def main() -> None:
        at = Moments()
        tools = (at.tool, at.together, at.change)
        policy = PermissionPolicy(allow=("hold", "together"), ask=("change",))
        async with opened(tmp_path, at.model, *tools, permission_policy=policy, **options) as session:
            if "max_context_tokens" in options:
                await session.send_async("a long answer")
            stream = await session.stream_async(prompt)
            await getattr(at, moment)(session)
            await ENDS[end](session, stream.run_id)
            told = list({sequence_of(item): item.type async for item in stream}.values())
            assert await session.run_control_snapshot_async() is None
            with pytest.raises(RunCancelledError):
                await stream.result_async()
            assert (at.model.running, at.tool.running, at.together.running) == (0, 0, 0)
            assert at.tool.cleaned_up + at.together.cleaned_up == at.tool.stopped + at.together.stopped
            assert f"user: {prompt}" in said(session)
            assert said(session)[-1] == f"assistant: {INTERRUPTED}"
            snapshot = await session.run_snapshot_async(stream.run_id)
            assert snapshot is not None
            assert (snapshot.status, snapshot.error, snapshot.error_code) == ("cancelled", "cancelled", "RUN_CANCELLED")
            assert told == await events_of(session, stream.run_id)
            assert told[-1] == "error"
            receipts = await session.run_control_receipts_async(stream.run_id)
            if end == "interrupt":
                assert told[-2] == "run_control_applied"
                assert [each.state for each in receipts] == ["applied"]
            assert session.pending_confirmations() == []
            assert session.pending_questions() == []
            assert (await session.send_async("next")).text == "went on"
            assert INTERRUPTED in spoken(at.model.requests[-1])[-2]

    asyncio.run(main())
    results = [fact.payload.output for fact in facts(tmp_path) if isinstance(fact.payload, ToolResulted)]
    assert set(results) <= {"abandoned: the run was interrupted"}


def test_an_interrupted_text_turn_adds_two_messages(tmp_path: Path) -> None:
    model = PacedModel("never")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            await session.interrupt_async()
            with pytest.raises(RunCancelledError) as caught:
                await run
            assert caught.value.code == "RUN_CANCELLED"
            assert said(session) == ["user: go", f"assistant: {INTERRUPTED}"]

    asyncio.run(main())
    assert keys(tmp_path) == ["m-0", "model:interrupted:1"]


def test_results_that_came_before_an_interrupt_stay(tmp_path: Path) -> None:
    tool, look = HeldTool(), RecordingTool("look", lambda _: "seen")
    model = ScriptedModel([calls(("look", {}), ("hold", {}), ("look", {})), "next"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, look) as session:
            run = asyncio.create_task(session.send_async("go"))
            await tool.started.get()
            await session.interrupt_async()
            with pytest.raises(RunCancelledError):
                await run
            await session.send_async("and now?")
            results = [each.output for each in model.requests[1].transcript if isinstance(each, ToolMessage)]
            assert results == ["seen", *["abandoned: the run was interrupted"] * 2]

    asyncio.run(main())
    assert len(look.calls) == 1


def test_what_a_hook_has_not_let_through_is_not_recorded_by_an_interrupt(tmp_path: Path) -> None:
    async def main() -> None:
        is_asked = asyncio.Event()

        async def wait(payload: JsonObject) -> None:
            is_asked.set()
            await asyncio.Event().wait()

        async with opened(tmp_path, ScriptedModel(echo)) as session:
            session.register_hook("h", "pre_prompt", handler=wait)
            run = asyncio.create_task(session.send_async("a secret"))
            await is_asked.wait()
            receipt = await session.interrupt_async()
            with pytest.raises(RunCancelledError):
                await run
            assert (await receipt_of(session, receipt)).state == "applied"
            assert said(session) == []

    asyncio.run(main())
    assert facts(tmp_path) == []


def test_what_an_earlier_run_left_parked_is_not_settled_by_one_that_recorded_nothing(tmp_path: Path) -> None:
    look = RecordingTool("look", is_read_only=False)
    options: dict[str, Any] = {"permission_policy": PermissionPolicy(ask=("look",)), "approvals": "refuse"}

    async def main() -> None:
        is_asked = asyncio.Event()

        async def wait(payload: JsonObject) -> None:
            is_asked.set()
            await asyncio.Event().wait()

        async with opened(tmp_path, ScriptedModel([calls(("look", {})), "looked"]), look, **options) as session:
            with pytest.raises(ParkedError):
                await session.send_async("go")
            session.register_hook("h", "pre_prompt", handler=wait)
            run = asyncio.create_task(session.send_async("something else"))
            await is_asked.wait()
            await session.cancel_async()
            with pytest.raises(RunCancelledError):
                await run
            assert await session.confirm_tool_use_async("call-1", True)
            assert (await session.resume_run_async()).text == "looked"

    asyncio.run(main())
    assert len(look.calls) == 1


def test_a_stop_wins_over_the_answer_that_it_raced_with(tmp_path: Path) -> None:
    async def main() -> None:
        sessions: list[Session] = []
        stops: list[asyncio.Task[object]] = []

        async def answer(request: ModelRequest) -> str:
            stops.append(asyncio.create_task(sessions[0].cancel_async()))
            return "answer"  # it is on its way to the log when the cancellation comes

        async with opened(tmp_path, ScriptedModel(answer)) as session:
            sessions.append(session)
            with pytest.raises(RunCancelledError):
                await session.send_async("go")
            assert await stops[0] is True
            assert (await session.runs_async())[0].status == "cancelled"
            assert said(session)[0] == "user: go"
            assert len(said(session)) == 2

    asyncio.run(main())


def test_a_tool_that_swallows_a_cancellation_does_not_save_its_run(tmp_path: Path) -> None:
    class Stubborn(HeldTool):
        async def run(self, args: JsonObject, scope: Any) -> Any:
            try:
                return await super().run(args, scope)
            except asyncio.CancelledError:
                self.let_go.set()
                return await super().run(args, scope)

    model = ScriptedModel([calls(("hold", {})), "never"])

    async def main() -> None:
        tool = Stubborn()
        async with opened(tmp_path, model, tool) as session:
            run = asyncio.create_task(session.send_async("go"))
            await tool.started.get()
            assert await session.cancel_async()
            with pytest.raises(RunCancelledError):
                await run
            assert said(session)[-1] == f"assistant: {INTERRUPTED}"

    asyncio.run(main())
    assert len(model.requests) == 1


def test_clean_up_is_waited_for_and_not_cut_off_by_a_second_stop(tmp_path: Path) -> None:
    tool = HeldTool(is_slow_to_stop=True)

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([calls(("hold", {}))]), tool) as session:
            stream = await session.stream_async("go")
            await tool.started.get()
            await session.interrupt_async()
            await until(lambda: tool.stopped)
            stops: list[Any] = [session.cancel_async(), session.cancel_run_async(stream.run_id), stream.close_async()]
            ends = [asyncio.create_task(stop) for stop in (*stops, session.close_async())]
            await turns()
            assert not any(end.done() for end in ends)
            tool.may_stop.set()
            assert await asyncio.gather(*ends) == [True, True, None, None]
            assert (tool.stopped, tool.cleaned_up) == (1, 1)
            assert said(session)[-1] == f"assistant: {INTERRUPTED}"
            assert not await session.cancel_async()

    asyncio.run(main())


def test_only_the_run_that_is_named_is_cancelled(tmp_path: Path) -> None:
    model = PacedModel("one", "two")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            model.answer()
            first = await session.send_async("one")
            await model.asked()
            run = asyncio.create_task(session.send_async("two"))
            await model.asked()
            for stale in (first.run_id, "nothing"):
                assert not await session.cancel_run_async(stale)
            assert (await refused(session.interrupt_async({"run_id": first.run_id})))[0] == "RUN_MISMATCH"
            model.answer()
            assert (await run).text == "two"
            assert not await session.cancel_run_async((await run).run_id)

    asyncio.run(main())


def test_a_tool_may_stop_the_run_that_it_runs_in(tmp_path: Path) -> None:
    sessions: list[Session] = []

    class Stopping(RecordingTool):
        async def run(self, args: JsonObject, scope: Any) -> Any:
            await (sessions[0].cancel_async() if args else sessions[0].interrupt_async())
            return await super().run(args, scope)

    async def main() -> None:
        for args in ({}, {"hard": True}):
            for is_parallel_safe in (False, True):
                tool = Stopping("stop", is_parallel_safe=is_parallel_safe)
                model = ScriptedModel([calls(("stop", args), ("stop", args)), "next"])
                async with opened(tmp_path, model, tool) as session:
                    sessions[:] = [session]
                    with pytest.raises(RunCancelledError):
                        await session.send_async("go")
                    assert said(session)[-1] == f"assistant: {INTERRUPTED}"
                    assert (await session.send_async("and?")).text == "next"

    asyncio.run(main())


class GatedLog(MemoryFactLog):
    """A log in memory; each append and each release waits until the test lets it pass."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.let: asyncio.Queue[None] = asyncio.Queue()
        self.is_gated = False

    async def hold(self, thread: str, *, wait_seconds: float = 0.0) -> Any:
        return GatedThread(self, await super().hold(thread, wait_seconds=wait_seconds))

    async def passed(self, what: str) -> None:
        if self.is_gated:
            self.asked.put_nowait(what)
            await self.let.get()


class GatedThread:
    def __init__(self, log: GatedLog, held: HeldThread) -> None:
        self._log = log
        self._held = held

    @property
    def last_seq(self) -> int:
        return self._held.last_seq

    @property
    def lineage(self) -> object:
        return self._held.lineage

    @property
    def torn_tail(self) -> str | None:
        return self._held.torn_tail

    async def read(self, after_seq: int = 0) -> Sequence[Fact]:
        return await self._held.read(after_seq)

    async def append(self, facts: Sequence[NewFact]) -> Sequence[Fact]:
        await self._log.passed(facts[0].key)
        return await self._held.append(facts)

    async def set_aside(self) -> None:
        await self._held.set_aside()

    async def release(self) -> None:
        await self._log.passed("release")
        await self._held.release()


@asynccontextmanager
async def gated(workspace: Path, model: ScriptedModel) -> AsyncIterator[tuple[Session, GatedLog]]:
    log = GatedLog()
    async with (
        asyncio.timeout(10),
        await Agent.create_async(models={"a/b": model}, open_log=lambda _: log) as agent,
    ):
        yield await agent.session_async(workspace, session_id="s"), log
        log.is_gated = False


async def gate(log: GatedLog, what: str) -> None:
    """Let everything pass up to `what`, which waits then."""
    while (asked := await log.asked.get()) != what:
        assert asked != "release"
        log.let.put_nowait(None)


def test_a_steer_that_is_on_its_way_to_the_log_is_applied_by_a_run_that_is_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        model = PacedModel("one")
        async with gated(tmp_path, model) as (session, log):
            log.is_gated = True
            stream = await session.stream_async("go")
            await gate(log, "m-0")
            log.let.put_nowait(None)
            await model.asked()
            receipt = await session.steer_async("x", {"request_id": "r"})
            model.answer()
            await gate(log, "steer:r")
            stop = asyncio.create_task(session.cancel_async())
            await turns()
            log.is_gated = False
            log.let.put_nowait(None)
            assert await stop
            assert (await receipt_of(session, receipt)).state == "applied"
            assert [item.type async for item in stream][-2:] == ["run_control_applied", "error"]
            assert said(session)[-2:] == ["user: x", f"assistant: {INTERRUPTED}"]

    asyncio.run(main())


def test_what_a_stop_records_is_recorded_though_the_caller_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        model = PacedModel("never")
        async with gated(tmp_path, model) as (session, log):
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            log.is_gated = True
            await session.interrupt_async()
            await gate(log, "model:interrupted:1")
            run.cancel()
            await turns()
            assert not run.done()
            log.is_gated = False
            log.let.put_nowait(None)
            with pytest.raises(asyncio.CancelledError):
                await run
            assert said(session) == ["user: go", f"assistant: {INTERRUPTED}"]

    asyncio.run(main())


def test_a_caller_who_leaves_while_the_thread_is_let_go_leaves_no_busy_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with gated(tmp_path, ScriptedModel(echo)) as (session, log):
            log.is_gated = True
            run = asyncio.create_task(session.send_async("go"))
            await gate(log, "m-0")
            log.let.put_nowait(None)
            await gate(log, "model:1:0")
            log.let.put_nowait(None)
            assert await log.asked.get() == "release"
            run.cancel()
            await turns()
            assert not run.done()
            log.is_gated = False
            log.let.put_nowait(None)
            with pytest.raises(asyncio.CancelledError):
                await run
            assert (await session.runs_async())[0].status == "completed"  # it had its answer before it was left
            assert (await session.send_async("next")).text == "next"

    asyncio.run(main())


def test_a_command_that_swallows_a_cancellation_is_cancelled_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def stubborn(args: str, context: Any) -> str:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            return "an answer"

        async with opened(tmp_path, ScriptedModel(echo)) as session:
            session.register_command("stubborn", "goes on", stubborn)
            run = asyncio.create_task(session.send_async("/stubborn"))
            await begun.wait()
            assert await session.cancel_async()
            with pytest.raises(RunCancelledError):
                await run
            assert (await session.runs_async())[0].status == "cancelled"

    asyncio.run(main())


@pytest.mark.parametrize(("end", "is_kept"), [("interrupt", False), ("close", True)])
def test_a_stopped_run_needs_no_checkpoint_and_one_that_was_cut_off_keeps_it(
    tmp_path: Path, end: str, is_kept: bool
) -> None:
    async def main() -> None:
        tool, store = HeldTool(), MemorySessionStore()
        model = ScriptedModel([calls(("look", {})), calls(("hold", {}))])
        async with opened(tmp_path, model, RecordingTool("look"), tool, session_store=store) as session:
            run = asyncio.create_task(session.send_async("go"))
            await tool.started.get()
            current = session.current_run()
            assert current is not None
            name = f"checkpoint/{current.id}"
            assert await store.load(name) is not None
            await (session.interrupt_async() if end == "interrupt" else session.close_async())
            with pytest.raises(RunCancelledError):
                await run
            assert (await store.load(name) is not None) == is_kept

    asyncio.run(main())


# ---- what is merely cut off -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["close", "caller", "stream"])
def test_a_run_that_is_cut_off_records_nothing_and_goes_on_later(tmp_path: Path, cut: str) -> None:
    tool = HeldTool()

    async def first() -> None:
        async with opened(tmp_path, ScriptedModel([calls(("hold", {}))]), tool) as session:
            if cut == "stream":
                stream = await session.stream_async("go")
                await tool.started.get()
                await stream.close_async()
            else:
                run = asyncio.create_task(session.send_async("go"))
                await tool.started.get()
                if cut == "close":
                    await session.close_async()
                else:
                    run.cancel()
                with pytest.raises((RunCancelledError, asyncio.CancelledError)):
                    await run
            assert (await session.runs_async())[0].status == "cancelled"
            assert said(session) == []
            assert tool.cleaned_up == 1

    async def second() -> None:
        tool.let_go.set()
        async with opened(tmp_path, ScriptedModel(["done"]), tool) as session:
            assert (await session.resume_run_async()).text == "done"
            assert said(session)[-1] == "assistant: done"

    asyncio.run(first())
    assert keys(tmp_path) == ["m-0", "model:1:0"]
    asyncio.run(second())
