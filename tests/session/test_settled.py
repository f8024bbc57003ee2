"""Laws of waiting: what a prompt does that meets a woken run, and when a session has nothing left to do."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentDefinition, FileSessionStore, Session
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.record import JsonObject
from fanfold.errors import CheckpointNotFoundError, RunCancelledError, SessionBusyError, SessionClosedError, UsageError
from fanfold.protocols import ToolScope
from fanfold.testing import ScriptedModel, calls, echo
from tests.support.notices import ONE, THREE, TWO, FileOutbox, notices_of, runs
from tests.support.running import HeldTool, PacedModel, keys, opened, spoken, turns, until
from tests.support.tools import RecordingTool

# ---- a prompt that meets a woken run --------------------------------------------------------------------------------


async def sent(session: Session) -> str:
    return (await session.send_async("and?")).text


async def streamed(session: Session) -> str:
    return (await (await session.stream_async("and?")).result_async()).text


async def attached(session: Session) -> str:
    return (await session.send_with_attachments_async("and?", [{"data": b"x", "media_type": "text/plain"}])).text


async def spawned(session: Session) -> str:
    start = await session.spawn_run_with_id_async("own", "and?")
    assert not start.replayed
    await session.settled_async()
    again = await session.spawn_run_with_id_async("own", "and?")
    assert again.replayed
    return again.snapshot.result_text or ""


Ask = Callable[[Session], Coroutine[Any, Any, str]]
PROMPTS = [sent, streamed, attached, spawned]


@pytest.mark.parametrize("ask", PROMPTS)
def test_a_prompt_waits_for_a_woken_run_and_then_runs(tmp_path: Path, ask: Ask) -> None:
    model = PacedModel("noted", "answer")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            notices_of(session).post(ONE)
            await model.asked()
            asking = asyncio.create_task(ask(session))
            await turns()
            notices_of(session).post(TWO)  # told by the woken run, or in front of the prompt
            assert len(await session.runs_async()) == 1
            model.answer()
            assert spoken(await model.asked())[-1] == f"user: {TWO.text}"
            model._answers.appendleft("noted too")
            model.answer(2)
            assert await asking == "answer"
            assert [prompt for prompt, _ in await runs(session)] == ["<task_notification one>", "and?"]

    asyncio.run(main())


def test_a_prompt_that_waits_goes_before_the_next_woken_run(tmp_path: Path) -> None:
    model = PacedModel("noted", "answer")

    async def main() -> None:
        async with opened(tmp_path, model) as session:

            def hear(event: AgentEvent) -> None:
                if event.type == "agent_end":
                    notices_of(session).post(TWO)

            session.on_wake(hear)
            notices_of(session).post(ONE)
            await model.asked()
            asking = asyncio.create_task(session.send_async("and?"))
            await turns()
            model.answer(2)
            assert (await asking).text == "answer"
            await session.settled_async()
            assert [prompt for prompt, _ in await runs(session)] == ["<task_notification one>", "and?"]

    asyncio.run(main())
    assert keys(tmp_path) == ["notice-one", "model:1:0", "notice-two", "m-3", "model:3:0"]


def test_of_two_prompts_that_wait_one_runs_and_one_is_refused(tmp_path: Path) -> None:
    model = PacedModel("noted", "answer")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            notices_of(session).post(ONE)
            await model.asked()
            asking = [asyncio.create_task(session.send_async("and?")) for _ in range(2)]
            await turns()
            model.answer(2)
            first, second = await asyncio.gather(*asking, return_exceptions=True)
            assert str(first) == "answer"
            assert isinstance(second, SessionBusyError)

    asyncio.run(main())


def test_a_prompt_that_is_given_up_while_it_waits_leaves_nothing(tmp_path: Path) -> None:
    model = PacedModel("noted", "noted")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            notices_of(session).post(ONE)
            await model.asked()
            asking = asyncio.create_task(session.send_async("and?"))
            await turns()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            model.answer()
            await session.settled_async()
            notices_of(session).post(TWO)  # nothing holds the session off any more
            model.answer()
            await session.settled_async()
            assert [status for _, status in await runs(session)] == ["completed", "completed"]

    asyncio.run(main())


def test_a_prompt_refused_for_what_it_is_still_lets_the_session_wake(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            notices_of(session)._held_off += 1  # as a prompt does that is just being looked at
            notices_of(session).post(ONE)
            notices_of(session)._held_off -= 1
            with pytest.raises(UsageError):
                await session.send_async("\ud800")
            await session.settled_async()
            assert await runs(session) == [("<task_notification one>", "completed")]

    asyncio.run(main())


ASK_FIRST: JsonObject = {"permission_policy": {}}


@pytest.mark.parametrize("ask", PROMPTS)
@pytest.mark.parametrize("waits_before", [True, False])
@pytest.mark.parametrize("question", [True, False])
def test_a_prompt_does_not_wait_for_a_person(tmp_path: Path, ask: Ask, waits_before: bool, question: bool) -> None:
    call = calls(("ask_user", {"question": "which?"})) if question else calls(("send", {}))
    model, tool = PacedModel(call, "answer"), RecordingTool("send", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, model, tool, **ASK_FIRST) as session:
            notices_of(session).post(ONE)
            await model.asked()
            asking = asyncio.create_task(ask(session)) if waits_before else None
            await turns()
            model.answer()
            if asking is None:
                await until(session.pending_questions if question else session.pending_confirmations)
                asking = asyncio.create_task(ask(session))
            assert spoken(await model.asked())[-2:] == ["tool: abandoned: a new message came first", "user: and?"]
            model.answer()
            assert await asking == "answer"
            assert await runs(session) == [("<task_notification one>", "cancelled"), ("and?", "completed")]
            assert [*session.pending_confirmations(), *session.pending_questions()] == []

    asyncio.run(main())
    assert tool.calls == []


def test_an_answer_in_time_lets_the_woken_run_and_then_the_prompt_go_on(tmp_path: Path) -> None:
    model, tool = PacedModel(calls(("send", {})), "sent", "answer"), RecordingTool("send", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, model, tool, **ASK_FIRST) as session:
            notices_of(session).post(ONE)
            model.answer()
            [waiting] = await waits_for_approval(session)
            assert await session.confirm_tool_use_async(waiting.tool_id, True)
            asking = asyncio.create_task(session.send_async("and?"))
            model.answer(2)
            assert (await asking).text == "answer"
            assert [status for _, status in await runs(session)] == ["completed", "completed"]

    asyncio.run(main())
    assert len(tool.calls) == 1


async def waits_for_approval(session: Session) -> list[Any]:
    await until(session.pending_confirmations)
    return session.pending_confirmations()


async def saved(session: Session) -> None:
    await session.save_async()


async def compacted(session: Session) -> None:
    await session.compact_async()


async def resumed(session: Session) -> None:
    await session.resume_run_async()


@pytest.mark.parametrize("operation", [saved, compacted, resumed])
def test_whatever_else_wants_the_conversation_waits_too_but_gives_no_turn_up(
    tmp_path: Path, operation: Callable[[Session], Coroutine[Any, Any, None]]
) -> None:
    tool = RecordingTool("send", is_read_only=False)
    model = PacedModel("noted", calls(("send", {})), "sent")

    async def main() -> None:
        with FileSessionStore(tmp_path / "store") as store:
            async with opened(tmp_path, model, tool, session_store=store, **ASK_FIRST) as session:
                notices_of(session).post(ONE)
                await model.asked()
                working = asyncio.create_task(operation(session))
                await turns()
                assert not working.done()
                model.answer()
                await working
                notices_of(session).post(TWO)
                model.answer()
                [waiting] = await waits_for_approval(session)
                with pytest.raises(SessionBusyError):
                    await operation(session)
                assert await session.confirm_tool_use_async(waiting.tool_id, True)
                model.answer()
                await session.settled_async()

    asyncio.run(main())
    assert len(tool.calls) == 1


@pytest.mark.parametrize("who", ["host", "child"])
def test_a_person_who_is_asked_by_somebody_else_does_not_end_the_woken_run(tmp_path: Path, who: str) -> None:
    tool, model = RecordingTool("send", is_read_only=False), PacedModel("noted", "answer")

    async def main() -> None:
        agents = {"worker": AgentDefinition(name="worker", description="d", tools=("send",), model="child/model")}
        models = {"own/model": model, "child/model": ScriptedModel([calls(("send", {})), "sent"])}
        async with await Agent.create_async(models=models, tools={"send": tool}, agents=agents) as agent:
            session = await agent.session_async(tmp_path, **ASK_FIRST)
            if who == "host":
                other = asyncio.create_task(session.governed_tool_async("send", {}))
            else:
                other = asyncio.create_task(session.delegate_task_async("worker", "d", "send it"))
            [waiting] = await waits_for_approval(session)
            notices_of(session).post(ONE)
            await model.asked()
            asking = asyncio.create_task(session.send_async("and?"))
            await turns()
            assert await session.confirm_tool_use_async(waiting.tool_id, True)
            assert (await other).ok
            model.answer(2)
            assert (await asking).text == "answer"
            assert [status for _, status in await runs(session)] == ["completed", "completed"]

    asyncio.run(main())


class SlowStore(FileSessionStore):
    """`resume_run` looks for a checkpoint in it before its run begins: that waits for `go_on`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.looked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def load(self, document: str) -> Any:
        if document.startswith("checkpoint/"):
            self.looked.set()
            await self.go_on.wait()
        return await super().load(document)


def test_no_run_is_woken_between_the_parts_of_an_operation(tmp_path: Path) -> None:
    async def main() -> None:
        with SlowStore(tmp_path / "store") as store:
            async with opened(tmp_path, ScriptedModel(echo), session_store=store) as session:
                result = await session.send_async("go")
                store.looked.clear()
                resuming = asyncio.create_task(session.resume_run_async(result.run_id))
                await store.looked.wait()
                notices_of(session).post(ONE)
                await turns()
                store.go_on.set()
                assert (await resuming).text == ONE.text

    asyncio.run(main())


def test_settled_waits_for_an_operation_that_begins_and_is_refused_in_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        with SlowStore(tmp_path / "store") as store:
            async with opened(tmp_path, ScriptedModel(echo), session_store=store) as session:
                resuming = asyncio.create_task(session.resume_run_async("nobody"))
                await store.looked.wait()
                settled = asyncio.create_task(session.settled_async())
                await turns()
                assert not settled.done()
                store.go_on.set()
                with pytest.raises(CheckpointNotFoundError):
                    await resuming
                await settled

    asyncio.run(main())


class Meddler(RecordingTool):
    """Uses the session that it runs in."""

    def __init__(self) -> None:
        super().__init__("meddle")
        self.session: Session | None = None
        self.refused = 0

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        session = self.session
        assert session is not None
        for operation in (sent, streamed, compacted, resumed, Session.settled_async):
            with pytest.raises(SessionBusyError):
                await operation(session)
            self.refused += 1
        with pytest.raises(SessionBusyError):
            await asyncio.to_thread(session.send, "from a thread")
        return ToolOutput(output="refused")


def test_what_a_woken_run_does_itself_meets_a_busy_session(tmp_path: Path) -> None:
    tool = Meddler()

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([calls(("meddle", {})), "done"]), tool) as session:
            tool.session = session
            notices_of(session).post(ONE)
            await session.settled_async()
            assert await runs(session) == [("<task_notification one>", "completed")]

    asyncio.run(main())
    assert tool.refused == 5


# ---- settled --------------------------------------------------------------------------------------------------------


def test_a_session_with_nothing_to_do_is_settled_at_once(tmp_path: Path) -> None:
    with Agent.create(models={"a/b": ScriptedModel(echo)}) as agent, agent.session(tmp_path) as session:
        session.settled()
        session.send("go")
        session.settled()
        session.close()
        with pytest.raises(SessionClosedError):
            session.settled()


def test_settled_waits_for_the_run_under_way_and_what_it_leaves_behind(tmp_path: Path) -> None:
    tool, model = HeldTool(), PacedModel("hello", calls(("hold", {})), "done")

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            settled = asyncio.create_task(session.settled_async())
            gate = asyncio.Event()
            task = notices_of(session).launch(gate.wait())
            model.answer()
            await run
            await turns()
            assert not settled.done()
            notices_of(session).post(ONE)
            gate.set()
            await task
            model.answer()
            await tool.started.get()
            assert not settled.done()
            tool.let_go.set()
            model.answer()
            await settled
            assert [status for _, status in await runs(session)] == ["completed", "completed"]

    asyncio.run(main())


def test_settled_waits_for_busy_parts_of_the_host_and_for_an_outbox_that_is_slow(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            outbox, is_busy = FileOutbox(tmp_path / "outbox"), True
            notices_of(session).connect(outbox, lambda: is_busy)
            settled = asyncio.create_task(session.settled_async())
            await turns()
            assert not settled.done()
            is_busy = False
            outbox.may_answer.clear()
            outbox.put(ONE)
            notices_of(session).look()
            await turns()
            assert not settled.done()
            outbox.may_answer.set()
            await settled
            assert await runs(session) == [("<task_notification one>", "completed")]
            assert len(await session.runs_async()) == 1

    asyncio.run(main())


def test_a_part_of_the_host_that_is_busy_no_more_need_not_have_anything_to_tell(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo), wake_on_notice=False) as session:
            is_busy = True
            notices_of(session).connect(FileOutbox(tmp_path / "outbox"), lambda: is_busy)
            settled = asyncio.create_task(session.settled_async())
            await turns()
            assert not settled.done()
            is_busy = False
            notices_of(session).look()
            await settled

    asyncio.run(main())


def test_settled_waits_for_a_prompt_that_waits(tmp_path: Path) -> None:
    model = PacedModel("noted", "answer")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            notices_of(session).post(ONE)
            await model.asked()
            asking = asyncio.create_task(session.send_async("and?"))
            settled = asyncio.create_task(session.settled_async())
            await turns()
            model.answer()
            await model.asked()
            assert not settled.done()
            model.answer()
            await settled
            assert asking.done()

    asyncio.run(main())


def test_closing_ends_all_that_waits(tmp_path: Path) -> None:
    model = PacedModel("never")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            notices_of(session).post(ONE)
            await model.asked()
            waiting = [asyncio.create_task(each) for each in (session.settled_async(), session.send_async("and?"))]
            await turns()
            await session.close_async()
            settled, asked = await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(settled, RunCancelledError)
            assert isinstance(asked, SessionClosedError)
            assert await runs(session) == [("<task_notification one>", "cancelled")]

    asyncio.run(main())
    assert keys(tmp_path) == ["notice-one"]


def test_settled_is_for_any_thread(tmp_path: Path) -> None:
    gate = threading.Event()

    async def slow(request: Any) -> str:
        await asyncio.to_thread(gate.wait)
        return "slow"

    with Agent.create(models={"a/b": ScriptedModel(slow)}) as agent, agent.session(tmp_path) as session:

        async def post() -> None:
            for notice in (ONE, TWO, THREE):
                notices_of(session).post(notice)

        agent.portal.call(post(), "post")
        waiting = [threading.Thread(target=session.settled) for _ in range(3)]
        for thread in waiting:
            thread.start()
        gate.set()
        for thread in waiting:
            thread.join(10)
            assert not thread.is_alive()
        assert [run.status for run in session.runs()] == ["completed"]
