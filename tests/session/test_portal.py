"""Blocking and awaiting reach the same loop, from any thread and any other loop, and always come back."""

import asyncio
import contextvars
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold import Agent, PermissionPolicy
from fanfold.contracts.messages import ModelRequest, ToolMessage, ToolOutput
from fanfold.contracts.record import JsonObject
from fanfold.errors import FanfoldError, LifecycleError, UsageError
from fanfold.portal import Portal
from fanfold.protocols import ToolScope
from fanfold.testing import Reply, ScriptedModel, calls, echo
from tests.support.scripts import run_script
from tests.support.tools import RecordingTool

ALLOW = PermissionPolicy(allow=("*",))


def echoing() -> dict[str, ScriptedModel]:
    return {"scripted/echo": ScriptedModel(echo)}


def one_tool_call(request: ModelRequest) -> Reply | str:
    return "done" if isinstance(request.transcript.message, ToolMessage) else calls(("wait", {}))


class SlowToStop(RecordingTool):
    """Runs until it is cancelled, calls back, and then takes a moment to clean up."""

    def __init__(self, on_start: Callable[[], None], on_cancel: Callable[[], None] = lambda: None) -> None:
        super().__init__("wait")
        self._on_start = on_start
        self._on_cancel = on_cancel
        self.release = threading.Event()
        self.stopped = 0

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        self._on_start()
        try:
            await asyncio.Event().wait()
        finally:
            self._on_cancel()
            await asyncio.to_thread(self.release.wait, 5)
            self.stopped += 1
        raise AssertionError


def test_blocking_code_needs_no_loop(tmp_path: Path) -> None:
    with Agent.create(models=echoing()) as agent, agent.session(tmp_path) as session:
        assert session.send("hi").text == "hi"
        assert [item.type for item in session.stream("again")][-1] == "agent_end"
        [outcome] = session.parallel([{"task_id": "a", "agent": "answer", "prompt": "x"}])
        assert outcome.output == "x"
    assert session.is_closed()
    assert agent.is_closed()
    agent.close()


def test_a_notebooks_running_loop_may_call_the_blocking_form(tmp_path: Path) -> None:
    async def cell() -> str:
        with Agent.create(models=echoing()) as agent:
            return agent.session(tmp_path).send("hi").text

    assert asyncio.run(cell()) == "hi"


def test_the_async_form_can_be_awaited_on_another_loop(tmp_path: Path) -> None:
    with Agent.create(models=echoing()) as agent:

        async def elsewhere() -> str:
            session = await agent.session_async(tmp_path)
            stream = await session.stream_async("one")
            assert [item.type async for item in stream][-1] == "agent_end"
            return (await session.send_async("hi")).text

        assert asyncio.run(elsewhere()) == "hi"


def test_the_blocking_form_on_its_own_loop_is_refused_with_the_way_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Agent.create_async(models=echoing()) as agent:
            session = await agent.session_async(tmp_path)
            with pytest.raises(UsageError, match="await send_async instead"):
                session.send("hi")
            for owner in (session, agent):
                with pytest.raises(UsageError, match="await close_async instead"):
                    owner.close()
            assert (await asyncio.to_thread(session.send, "from a thread")).text == "from a thread"

    asyncio.run(main())


def test_an_agent_whose_loop_has_ended_says_so_and_closes_quietly(tmp_path: Path) -> None:
    async def main() -> Agent:
        return await Agent.create_async(models=echoing())

    agent = asyncio.run(main())
    with pytest.raises(LifecycleError, match=r"loop .* has ended"):
        agent.session(tmp_path)
    agent.close()
    assert agent.is_closed()


def test_context_variables_reach_the_work(tmp_path: Path) -> None:
    who = contextvars.ContextVar("who", default="nobody")
    seen: list[str] = []

    def answer(_: object) -> str:
        seen.append(who.get())
        return "x"

    with Agent.create(models={"a/b": ScriptedModel(answer)}) as agent:
        session = agent.session(tmp_path)
        who.set("caller")
        session.send("hi")
    assert seen == ["caller"]


def test_sessions_can_be_driven_from_several_threads(tmp_path: Path) -> None:
    texts: list[str] = []
    with Agent.create(models=echoing()) as agent:

        def work(name: str) -> None:
            with agent.session(tmp_path, session_id=name) as session:
                texts.append(session.send(name).text)

        threads = [threading.Thread(target=work, args=(f"s{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(texts) == [f"s{number}" for number in range(8)]


# ---- waiting that is cut off ----------------------------------------------------------------------------------------


def interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends Ctrl-C to the waiting thread")
def test_ctrl_c_in_a_blocking_call_returns_when_the_work_has_stopped(tmp_path: Path) -> None:
    tool = SlowToStop(interrupt)
    tool.release.set()
    with Agent.create(models={"a/b": ScriptedModel(one_tool_call)}, tools={"wait": tool}) as agent:
        session = agent.session(tmp_path, permission_policy=ALLOW)
        with pytest.raises(KeyboardInterrupt):
            session.send("go")
        assert tool.stopped == 1
        assert not session.cancel()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends Ctrl-C to the waiting thread")
def test_a_second_ctrl_c_leaves_work_behind_that_does_not_stop(tmp_path: Path) -> None:
    tool = SlowToStop(interrupt, on_cancel=interrupt)
    with Agent.create(models={"a/b": ScriptedModel(one_tool_call)}, tools={"wait": tool}) as agent:
        session = agent.session(tmp_path, permission_policy=ALLOW)
        with pytest.raises(KeyboardInterrupt):
            session.send("go")
        assert tool.stopped == 0
        tool.release.set()


def test_a_cancelled_await_on_another_loop_returns_when_the_work_has_stopped(tmp_path: Path) -> None:
    started = threading.Event()
    tool = SlowToStop(started.set)
    tool.release.set()
    with Agent.create(models={"a/b": ScriptedModel(one_tool_call)}, tools={"wait": tool}) as agent:
        session = agent.session(tmp_path, permission_policy=ALLOW)

        async def elsewhere() -> None:
            for attempt in (1, 2):  # the second one finds the session free
                started.clear()
                run = asyncio.create_task(session.send_async("go"))
                await asyncio.to_thread(started.wait, 5)
                run.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await run
                assert tool.stopped == attempt

        asyncio.run(elsewhere())


# ---- the loop's end -------------------------------------------------------------------------------------------------


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_task_that_wants_to_exit_does_not_take_the_loop_with_it(kind: type[BaseException]) -> None:
    portal = Portal.in_new_thread("fanfold-test")
    release = asyncio.Event()

    async def leave() -> None:
        raise kind

    async def let_go() -> str:
        release.set()
        return "let go"

    other = portal.submit(release.wait())
    with pytest.raises(kind):
        portal.call(leave(), "leave")
    assert portal.call(let_go(), "let_go") == "let go"
    assert other.future.result(timeout=5)
    portal.stop()
    portal.join()
    assert portal.loop.is_closed()


def test_every_call_comes_back_from_a_loop_that_is_stopped() -> None:
    portal = Portal.in_new_thread("fanfold-test")
    returned: list[BaseException | None] = []

    async def briefly() -> None:
        await asyncio.sleep(0)

    def hammer() -> None:
        try:
            while True:
                portal.call(briefly(), "briefly")
        except LifecycleError as error:
            returned.append(error)

    threads = [threading.Thread(target=hammer, daemon=True) for _ in range(8)]
    stuck = portal.submit(forever())
    for thread in threads:
        thread.start()
    portal.stop()
    with pytest.raises(LifecycleError, match="has ended"):
        portal.submit(forever())
    for thread in threads:
        thread.join(timeout=5)
    assert len(returned) == len(threads)
    with pytest.raises(LifecycleError, match="has ended"):
        stuck.future.result(timeout=5)
    portal.join()
    assert portal.loop.is_closed()


def test_a_call_that_a_foreign_loop_leaves_unanswered_comes_back() -> None:
    loop = asyncio.new_event_loop()
    portal = Portal(loop)
    submitted = threading.Event()
    errors: list[BaseException] = []

    def wait() -> None:
        call = portal.submit(forever())
        submitted.set()
        try:
            call.result()
        except LifecycleError as error:
            errors.append(error)

    async def main() -> None:
        waiting.start()
        await asyncio.to_thread(submitted.wait, 5)

    waiting = threading.Thread(target=wait, daemon=True)
    loop.run_until_complete(main())
    loop.close()
    waiting.join(timeout=5)
    assert len(errors) == 1


def test_calls_that_overlap_the_close_all_come_back(tmp_path: Path) -> None:
    for round in range(10):
        agent = Agent.create(models={"a/b": ScriptedModel(lambda _: Reply(text="a b", delay=0.001))})
        session = agent.session(tmp_path)
        begun = threading.Barrier(4)

        def hammer(agent: Agent = agent, begun: threading.Barrier = begun) -> None:
            mine = agent.session(tmp_path)
            begun.wait()
            try:
                while True:
                    mine.send("x")
                    list(mine.stream("y"))
                    agent.session(tmp_path).parallel([{"task_id": "1", "agent": "answer", "prompt": "p"}])
            except FanfoldError:
                pass

        threads = [threading.Thread(target=hammer, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait()
        time.sleep(0.002 * round)
        agent.close()
        for thread in threads:
            thread.join(timeout=5)
        assert not any(thread.is_alive() for thread in threads)
        session.close()


FORKED = """
import multiprocessing, os, sys
from fanfold import Agent
from fanfold.errors import LifecycleError
from fanfold.testing import ScriptedModel, echo

def nothing():
    pass

def use():
    try:
        session.send("again")
    except LifecycleError as error:
        print(error, flush=True)
    session.close()
    agent.close()

def own():
    session = Agent.create(models={"a/b": ScriptedModel(echo)}).session(sys.argv[1])
    print(session.send("child").text, flush=True)

agent = Agent.create(models={"a/b": ScriptedModel(echo)})
session = agent.session(sys.argv[1])
session.send("hi")
for work in (nothing, use, own):
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(10)
    print(work.__name__, child.exitcode, flush=True)
    child.kill()
pid = os.fork()
if pid == 0:
    sys.exit(0)
print("fork", os.waitpid(pid, 0)[1], session.send("parent").text)
agent.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_leaves_its_parents_agent_alone(tmp_path: Path) -> None:
    run = run_script(FORKED, tmp_path)
    assert run.stdout.splitlines() == [
        "nothing 0",
        "this agent was made before a fork, and its event loop stayed in the parent; create a new agent",
        "use 0",
        "child",
        "own 0",
        "fork 0 parent",
    ]
    assert run.stderr.count("an Agent was not closed") == 1, "the child's own one"
