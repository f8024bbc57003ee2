"""How operations, streams, sessions and agents end, and what a session holds on to meanwhile."""

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, PermissionPolicy, Session
from fanfold.contracts.messages import ModelRequest, ToolMessage, ToolOutput, UserMessage
from fanfold.contracts.record import JsonObject
from fanfold.errors import CorruptLogError, ParkedError, RunCancelledError, SessionClosedError, UsageError
from fanfold.options import SessionOptions
from fanfold.protocols import ToolScope
from fanfold.runs.stream import EventStream
from fanfold.testing import Reply, ScriptedModel, calls, echo
from tests.support.tools import RecordingTool

ALLOW = PermissionPolicy(allow=("*",))
ASK = PermissionPolicy(ask=("change",))


def one_round(*names: str) -> ScriptedModel:
    """Asks for those tools together, then is done."""

    def answer(request: ModelRequest) -> Reply | str:
        is_answered = isinstance(request.transcript.message, ToolMessage)
        return "done" if is_answered else calls(*((name, {"n": n}) for n, name in enumerate(names)))

    return ScriptedModel(answer)


class AwaitingTool(RecordingTool):
    """Awaits what it was given to await."""

    def __init__(self, name: str, work: Callable[[], Awaitable[object]], *, is_parallel_safe: bool = False) -> None:
        super().__init__(name, is_parallel_safe=is_parallel_safe)
        self._work = work

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        return ToolOutput(output=str(await self._work()))


class SlowToStop:
    """Work that, once cancelled, takes until `let_go` to stop."""

    def __init__(self) -> None:
        self.is_running = asyncio.Event()
        self.is_stopping = asyncio.Event()
        self.let_go = asyncio.Event()
        self.is_over = False

    async def __call__(self) -> None:
        self.is_running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_stopping.set()
            await self.let_go.wait()
            self.is_over = True


@asynccontextmanager
async def opened(
    workspace: Path, model: ScriptedModel, *tools: RecordingTool, **options: Any
) -> AsyncIterator[tuple[Agent, Session]]:
    given = {tool.spec.name: tool for tool in tools}
    options.setdefault("permission_policy", ALLOW)
    async with asyncio.timeout(10), await Agent.create_async(models={"a/b": model}, tools=given) as agent:
        yield agent, await agent.session_async(workspace, session_id="s", **options)


@asynccontextmanager
async def running(workspace: Path, work: SlowToStop) -> AsyncIterator[tuple[Agent, Session, asyncio.Task[Any]]]:
    async with opened(workspace, one_round("wait"), AwaitingTool("wait", work)) as (agent, session):
        run = asyncio.create_task(session.send_async("go"))
        await work.is_running.wait()
        yield agent, session, run


async def is_waiting(task: "asyncio.Task[Any]") -> bool:
    for _ in range(20):
        await asyncio.sleep(0)
    return not task.done()


# ---- what runs is held ----------------------------------------------------------------------------------------------


def test_a_parked_run_outlives_its_stream_and_its_session(tmp_path: Path) -> None:
    async def park(agent: Agent) -> None:
        session = await agent.session_async(tmp_path, session_id="s", permission_policy=ASK)
        await session.stream_async("go")
        while not session.pending_confirmations():
            await asyncio.sleep(0)

    async def main() -> None:
        changer = RecordingTool("change", is_read_only=False)
        async with await Agent.create_async(models={"a/b": one_round("change")}, tools={"change": changer}) as agent:
            await park(agent)
            gc.collect()
            assert agent.list_sessions() == ["s"]
            assert await agent.close_session_async("s")
            again = await agent.session_async(tmp_path, session_id="s")
            assert [waiting.tool_id for waiting in again.pending_confirmations()] == ["call-1"]

    asyncio.run(main())


def test_what_a_cancelled_run_has_recorded_is_in_the_history_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        runs: list[asyncio.Task[Any]] = []

        def answer_and_cancel(_: ModelRequest) -> str:
            asyncio.get_running_loop().call_soon(runs[0].cancel)  # comes while the answer is on its way to the disk
            return "recorded"

        async with opened(tmp_path, ScriptedModel(answer_and_cancel)) as (_, session):
            runs.append(asyncio.create_task(session.send_async("go")))
            with pytest.raises(asyncio.CancelledError):
                await runs[0]
            assert log_of(tmp_path).read_text().count("recorded") == 1
            assert [message["role"] for message in session.history()] == ["user", "assistant"]

    asyncio.run(main())


# ---- streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [lambda _, stream: stream.close_async(), lambda session, _: session.cancel_async()])
def test_a_stream_that_is_cancelled_before_its_first_step_ends(
    tmp_path: Path, end: Callable[[Session, EventStream], Awaitable[object]]
) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as (_, session):
            stream = await session.stream_async("go")
            await end(session, stream)
            *_, last = [item async for item in stream]
            assert (last.type, last.payload["code"]) == ("error", "RUN_CANCELLED")
            with pytest.raises(RunCancelledError):
                await stream.result_async()
            with pytest.raises(RunCancelledError):
                await asyncio.to_thread(stream.result)
            assert (await session.send_async("next")).text == "next"

    asyncio.run(main())


# ---- closing --------------------------------------------------------------------------------------------------------


def test_everybody_who_closes_waits_for_the_one_close(tmp_path: Path) -> None:
    async def main() -> None:
        work = SlowToStop()
        async with running(tmp_path, work) as (agent, session, run):
            closers = [
                asyncio.create_task(session.close_async()),
                asyncio.create_task(agent.close_async()),
                asyncio.create_task(agent.close_session_async("s")),
                asyncio.create_task(asyncio.to_thread(session.close)),
                asyncio.create_task(asyncio.to_thread(agent.close)),
            ]
            await work.is_stopping.wait()
            done, _ = await asyncio.wait(closers, timeout=0.2)
            assert done == {closers[2]}
            assert not await closers[2]
            assert session.is_closed()
            assert agent.is_closed()
            work.let_go.set()
            await asyncio.gather(*closers)
            assert work.is_over
            with pytest.raises(RunCancelledError):
                await run

    asyncio.run(main())


def test_closing_twice_at_once_ends_an_agent_with_a_thread_of_its_own(tmp_path: Path) -> None:
    started = threading.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    agent = Agent.create(models={"a/b": one_round("wait")}, tools={"wait": AwaitingTool("wait", wait)})
    stream = agent.session(tmp_path, permission_policy=ALLOW).stream("go")
    assert started.wait(5)
    closers = [threading.Thread(target=agent.close, daemon=True) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(5)
    assert not any(closer.is_alive() for closer in closers)
    assert agent.portal.loop.is_closed()
    del stream


def test_a_close_that_is_cut_off_goes_on_and_can_be_waited_for_again(tmp_path: Path) -> None:
    async def main() -> None:
        work = SlowToStop()
        async with running(tmp_path, work) as (agent, session, run):
            for owner in (session, agent):
                cut_off = asyncio.create_task(owner.close_async())
                await work.is_stopping.wait()
                cut_off.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cut_off
                again = asyncio.create_task(owner.close_async())
                assert await is_waiting(again)
                assert agent.list_sessions() == ["s"]
            work.let_go.set()
            await again
            assert work.is_over
            assert agent.list_sessions() == []
            with pytest.raises(RunCancelledError):
                await run

    asyncio.run(main())


class BrokenModel(ScriptedModel):
    async def close(self) -> None:
        raise ZeroDivisionError("cannot close")


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("fanfold")}


def test_each_part_is_closed_though_another_one_cannot_be(tmp_path: Path) -> None:
    before = own_threads()
    agent = Agent.create(models={"a/b": BrokenModel(echo)})
    (tmp_path / "other").mkdir()
    agent.session(tmp_path / "other").send("a session that is dropped leaves its log to its agent")
    session = agent.session(tmp_path)
    session.send("hi")
    with pytest.raises(ZeroDivisionError, match="cannot close"):
        agent.close()
    agent.close()
    assert session.is_closed()
    assert agent.portal.loop.is_closed()
    assert own_threads() <= before


def test_sessions_of_one_agent_stop_at_the_same_time(tmp_path: Path) -> None:
    async def main() -> None:
        first, second = SlowToStop(), SlowToStop()
        works = iter([first, second])

        async def wait() -> None:
            await next(works)()

        async with opened(tmp_path, one_round("wait"), AwaitingTool("wait", wait)) as (agent, session):
            other = await agent.session_async(tmp_path, permission_policy=ALLOW)
            runs = [asyncio.create_task(each.send_async("go")) for each in (session, other)]
            await first.is_running.wait()
            await second.is_running.wait()
            closer = asyncio.create_task(agent.close_async())
            await first.is_stopping.wait()
            await second.is_stopping.wait()
            first.let_go.set()
            second.let_go.set()
            await closer
            await asyncio.gather(*runs, return_exceptions=True)

    asyncio.run(main())


CLOSES: list[Callable[[Agent, Session], Awaitable[object]]] = [
    lambda _, session: session.close_async(),
    lambda _, session: asyncio.to_thread(session.close),
    lambda agent, _: agent.close_async(),
    lambda agent, _: asyncio.to_thread(agent.close),
]


@pytest.mark.parametrize("close", CLOSES)
@pytest.mark.parametrize("is_parallel_safe", [False, True])
def test_a_tool_that_closes_its_own_session_ends_its_own_run(
    tmp_path: Path, close: Callable[[Agent, Session], Awaitable[object]], is_parallel_safe: bool
) -> None:
    owners: list[tuple[Agent, Session]] = []
    tool = AwaitingTool("close", lambda: close(*owners[0]), is_parallel_safe=is_parallel_safe)
    look = RecordingTool("look", is_parallel_safe=True)
    model = one_round("close", "look")

    async def main() -> None:
        async with opened(tmp_path, model, tool, look) as (agent, session):
            owners.append((agent, session))
            with pytest.raises(RunCancelledError):
                await session.send_async("go")
            await session.close_async()
            assert session.is_closed()
            assert len(model.requests) == 1

    asyncio.run(main())


def test_a_stage_that_closes_its_agent_ends_the_pipeline(tmp_path: Path) -> None:
    agent = Agent.create(models={"a/b": ScriptedModel(echo)})
    session = agent.session(tmp_path)
    with pytest.raises(RunCancelledError):
        session.pipeline([1], [lambda _: agent.close()])
    agent.close()
    assert agent.portal.loop.is_closed()


def test_a_session_that_is_still_loading_is_closed_with_its_agent(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as (agent, _):
            opening = asyncio.create_task(agent.session_async(tmp_path, session_id="other"))
            await asyncio.sleep(0)
            assert not opening.done()
            await agent.close_async()
            with pytest.raises((RunCancelledError, SessionClosedError)):
                await opening
            assert agent.list_sessions() == []

    asyncio.run(main())


def test_a_session_that_cannot_be_loaded_leaves_its_id_free(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as (agent, _):
            log_of(tmp_path).with_name("broken.jsonl").write_text("this is no fact\n{}\n")
            with pytest.raises(CorruptLogError) as first:  # which holds what was built
                await agent.session_async(tmp_path, session_id="broken")
            assert agent.list_sessions() == ["s"]
            with pytest.raises(CorruptLogError):
                await agent.session_async(tmp_path, session_id="broken")
            del first

    asyncio.run(main())


# ---- logs -----------------------------------------------------------------------------------------------------------


def test_a_workspace_costs_at_most_one_thread_and_only_while_a_session_uses_it(tmp_path: Path) -> None:
    with Agent.create(models={"a/b": ScriptedModel(echo)}) as agent:
        before = own_threads()
        for number in range(5):
            (tmp_path / str(number)).mkdir()
            with agent.session(tmp_path / str(number)) as session:
                session.send("hi")
                assert len(own_threads() - before) <= 1  # none, while the disk is fast
        assert own_threads() <= before


def test_a_workspaces_log_stays_open_for_its_other_sessions_and_opens_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as (agent, session):
            other = await agent.session_async(tmp_path, session_id="other")
            await other.send_async("one")
            await session.close_async()
            assert (await other.send_async("two")).text == "two"
            await other.close_async()
            again = await agent.session_async(tmp_path, session_id="other")
            assert (await again.send_async("three")).text == "three"
            assert len(again.history()) == 6

    asyncio.run(main())


def log_of(workspace: Path) -> Path:
    return workspace / ".a3s/effect-log/s.jsonl"


@pytest.mark.parametrize("kept_prompts", [["other one", "other two"], ["other one"], []])
def test_a_log_that_was_replaced_is_folded_anew(tmp_path: Path, kept_prompts: list[str]) -> None:
    async def tell(workspace: Path, prompts: list[str]) -> None:
        async with opened(workspace, ScriptedModel(echo)) as (_, session):
            for prompt in prompts:
                await session.send_async(prompt)

    async def main() -> None:
        model = ScriptedModel(echo)
        async with opened(mine, model) as (_, session):
            await session.send_async("my one")
            await session.send_async("my two")
            if kept_prompts:
                os.replace(log_of(other), log_of(mine))
            else:
                log_of(mine).unlink()
            await session.send_async("newest")
        heard = [message.text for message in model.requests[-1].transcript if isinstance(message, UserMessage)]
        assert heard == [*kept_prompts, "newest"]

    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    asyncio.run(tell(other, kept_prompts))
    asyncio.run(main())
    asyncio.run(tell(mine, ["and the log is sound"]))


# ---- answers to parked calls ----------------------------------------------------------------------------------------


async def parked(session: Session) -> None:
    with pytest.raises(ParkedError):
        await session.send_async("go")


def test_an_answer_that_another_process_has_given_is_not_given_twice(tmp_path: Path) -> None:
    changer = RecordingTool("change", is_read_only=False)
    options: dict[str, Any] = {"permission_policy": ASK, "approvals": "refuse"}

    async def main() -> None:
        async with opened(tmp_path, one_round("change"), changer, **options) as (_, stale):
            await parked(stale)
            async with opened(tmp_path, one_round("change"), changer, **options) as (_, other):
                assert await other.confirm_tool_use_async("call-1", False, "no")
            assert not await stale.confirm_tool_use_async("call-1", True)
            assert stale.pending_confirmations() == []
            assert (await stale.resume_run_async()).stop_reason == "denied"

    asyncio.run(main())
    assert changer.calls == []


def test_a_question_that_another_process_has_answered_is_not_answered_twice(tmp_path: Path) -> None:
    def asking() -> ScriptedModel:
        return ScriptedModel([calls(("ask_user", {"question": "which?"})), "done"])

    async def main() -> None:
        async with opened(tmp_path, asking(), approvals="refuse") as (_, stale):
            await parked(stale)
            async with opened(tmp_path, asking(), approvals="refuse") as (_, other):
                assert await other.answer_question_async("call-1", "this")
            assert not await stale.answer_question_async("call-1", "that")

    asyncio.run(main())


def test_answers_to_several_calls_may_come_at_the_same_time(tmp_path: Path) -> None:
    changer = RecordingTool("change", is_read_only=False)

    async def main() -> None:
        model = one_round("change", "change")
        async with opened(tmp_path, model, changer, permission_policy=ASK, approvals="refuse") as (_, session):
            await parked(session)
            answers = [session.confirm_tool_use_async(f"call-{number}", True) for number in (1, 2, 1, 2, 3)]
            assert await asyncio.gather(*answers) == [True, True, False, False, False]
            assert (await session.resume_run_async()).text == "done"

    asyncio.run(main())
    assert len(changer.calls) == 2


def test_an_answer_that_no_log_could_hold_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as (_, session):
            wrong: Any
            for wrong in (5, "\ud800"):
                with pytest.raises(UsageError, match="text must be text"):
                    await session.answer_question_async("call-1", wrong)
                with pytest.raises(UsageError, match="reason must be text"):
                    await session.confirm_tool_use_async("call-1", True, wrong)
            wrong = "no"
            with pytest.raises(UsageError, match="approved must be True or False, got 'no'"):
                await session.confirm_tool_use_async("call-1", wrong)

    asyncio.run(main())


# ---- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"session_id": ""}, "session_id"),
        ({"options": SessionOptions(session_id="")}, "session_id"),
        ({"session_id": 5}, "session_id"),
        ({"max_tool_rounds": "3"}, "max_tool_rounds"),
        ({"permission_policy": 5}, "permission_policy"),
        ({"host_env": "x"}, "host_env"),
        ({"options": {"session_id": "s"}}, "options"),
        ({"workspace": 5}, "workspace"),
        ({"workspace": None}, "workspace"),
        ({"workspace": ""}, "workspace"),
        ({"workspace": b"x"}, "workspace"),
    ],
)
def test_an_argument_of_a_wrong_kind_is_refused_by_its_name(tmp_path: Path, given: dict[str, Any], names: str) -> None:
    arguments = {"workspace": tmp_path} | given
    workspace, options = arguments.pop("workspace"), arguments.pop("options", None)
    with Agent.create(models={"a/b": ScriptedModel(echo)}) as agent:
        with pytest.raises(UsageError, match=rf"^[^\n]*\b{names}\b[^\n]*$"):
            agent.session(workspace, options, **arguments)
        assert agent.list_sessions() == []
