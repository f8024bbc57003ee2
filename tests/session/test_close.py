"""Laws of closing: whatever is under way ends with its session, and nothing of it is left in the process."""

import asyncio
import gc
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, MemorySessionStore, PermissionPolicy, Session
from fanfold.contracts.messages import ModelRequest, ToolMessage
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunControlReceipt
from fanfold.errors import FanfoldError, RunCancelledError, RunControlError, SessionClosedError
from fanfold.testing import Reply, ScriptedModel, calls, echo
from fanfold.testing.scripted import newest_text
from tests.support.chat_server import ChatServer, Http
from tests.support.running import ALLOW, INTERRUPTED, HeldTool, PacedModel, opened, said, turns, until
from tests.support.tools import RecordingTool

OPEN_FILES = Path("/proc/self/fd")


def open_files() -> list[str]:
    """What the process has open, by what it is; nothing where the system does not tell."""
    found: list[str] = []
    for each in OPEN_FILES.iterdir() if OPEN_FILES.exists() else ():
        try:
            found.append(os.readlink(each).split(":[")[0])
        except OSError:
            pass  # the listing's own
    return sorted(found)


def children() -> set[int]:
    """Processes that this one has started and that are still there."""
    found: set[int] = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = status.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if parent == str(os.getpid()):
            found.add(int(status.parent.name))
    return found


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.is_alive()}


class Traces:
    """What there is in this process, for a comparison."""

    def __init__(self) -> None:
        gc.collect()
        self.files, self.children, self.threads = open_files(), children(), threads()

    def require_same(self) -> None:
        now = Traces()
        assert (now.files, now.children, now.threads - self.threads) == (self.files, self.children, set())


async def tasks_left() -> list[str]:
    """Tasks of the running loop beside the caller's, once what was told to end has had a few turns."""
    await turns()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return sorted(getattr(task.get_coro(), "__qualname__", str(task)) for task in others)


# ---- everything at once ---------------------------------------------------------------------------------------------


class Busy:
    """A session with twenty things under way that would none of them end by itself."""

    def __init__(self, session: Session, server: ChatServer, tool: HeldTool) -> None:
        self.session, self.server, self.tool = session, server, tool
        self.work: list[asyncio.Task[Any]] = []

    async def begin(self) -> None:
        session = self.session
        task = {"agent": "general", "description": "wait", "prompt": "wait"}
        specs = [{"task_id": f"t-{n}", "agent": "general", "description": "", "prompt": "wait"} for n in range(2)]
        self.stream = await session.stream_async("hold")
        await self.tool.started.get()
        self.receipt = await session.steer_async("waits for the tool")
        started: list[Awaitable[Any]] = [
            session.tool_async("hold", {}),
            session.tool_async("bash", {"command": "sleep 1000 & sleep 1000"}),
            session.governed_tool_async("change", {}),
            session.governed_tool_async("change", {}),
            session.task_async(task),
            session.tasks_async([task, task]),
            session.parallel_async(specs),
            session.parallel_async(specs, 1_000_000),
            session.pipeline_async([1, 2], [lambda context: specs[0]]),
            session.pipeline_async([1], [_never]),
            session.map_async([{"key": "a", "fields": {}}], [{"agent": "general", "prompt": "wait"}]),
            session.parallel_resumable_async(specs, "resumable"),
            self._in_workflow(specs),
            self._next_event(),
            self.stream.result_async(),
        ]
        self.work += [asyncio.ensure_future(each) for each in started]
        background = await session.task_async({**task, "background": True})
        assert background.ok, background.output
        await until(lambda: len(session.pending_confirmations()) == 2)
        await until(lambda: len(children()) >= 1)
        await self.server.request_count(at_least=10)
        assert [each for each in self.work if each.done()] == []

    async def _in_workflow(self, specs: list[JsonObject]) -> None:
        async with await self.session.workflow_async(workflow_id="wf") as workflow:
            await workflow.parallel_async(specs)

    async def _next_event(self) -> list[str]:
        return [item.type async for item in self.stream]

    async def ended(self) -> list[object]:
        async with asyncio.timeout(5):
            return list(await asyncio.gather(*self.work, return_exceptions=True))


async def _never(context: Any) -> None:
    await asyncio.Event().wait()


CHAT = """
default_model = "chat/fake"
providers "chat" {{
  api_key  = "none"
  base_url = "{url}"
  models "fake" {{ tool_call = true }}
}}
"""


def _waits(asked: JsonObject) -> Http:
    """Streams a first piece and then nothing; the session's own prompt asks for its tool."""
    return Http((b": waiting\n\n",), headers={"Content-Type": "text/event-stream"}, then="hang")


@pytest.mark.parametrize("by", ["session", "agent", "close_session"])
def test_closing_ends_all_that_is_under_way_and_leaves_nothing(tmp_path: Path, by: str) -> None:
    async def main() -> None:
        before_tasks = await tasks_left()
        own = ScriptedModel([calls(("hold", {})), "never"])
        tool, change = HeldTool(), RecordingTool("change", is_read_only=False)
        async with (
            asyncio.timeout(20),
            ChatServer(_waits) as server,
            MemorySessionStore() as store,
            await Agent.create_async(
                CHAT.format(url=server.base_url),
                models={"scripted/model": own},
                tools={"hold": tool, "change": change},
            ) as agent,
        ):
            session = await agent.session_async(
                tmp_path,
                session_id="s",
                model="scripted/model",
                session_store=store,
                permission_policy=PermissionPolicy(allow=("hold", "bash", "task"), ask=("change",)),
                allow_unsandboxed_bash=True,
                worker_agents=[{"name": "general", "description": "waits", "model": "chat/fake"}],
                max_parallel_tasks=32,
            )
            busy = Busy(session, server, tool)
            await busy.begin()
            if by == "session":
                await session.close_async()
            elif by == "agent":
                await agent.close_async()
            else:
                assert await agent.close_session_async("s")
            ends = await busy.ended()
            assert {type(each).__name__ for each in ends} == {"RunCancelledError", "list"}
            assert (tool.stopped, tool.cleaned_up, tool.running) == (2, 2, 0)
            assert change.calls == []
            assert session.pending_confirmations() == []
            assert {task.status for task in session.subagent_tasks()} == {"cancelled"}
            receipts = await session.run_control_receipts_async(busy.stream.run_id)
            assert [each.state for each in receipts] == ["settled"]
            await server.disconnects(at_least=10)
            await agent.close_async()
            assert agent.list_sessions() == []
            assert children() == before.children
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert await tasks_left() == before_tasks

    before = Traces()
    asyncio.run(main())
    before.require_same()


# ---- what closing is ------------------------------------------------------------------------------------------------


def test_a_closed_session_refuses_everything_that_would_change_something(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo), session_store=MemorySessionStore()) as session:
            await session.send_async("one")
            assert not session.is_closed()
            await session.close_async()
            await session.close_async()
            assert session.is_closed()
            works: list[Callable[[], Awaitable[object]]] = [
                lambda: session.send_async("x"),
                lambda: session.send_async("/help"),
                lambda: session.stream_async("x"),
                lambda: session.resume_run_async(),
                lambda: session.spawn_run_with_id_async("mine", "x"),
                lambda: session.save_async(),
                lambda: session.compact_async(),
                lambda: session.tool_async("ls", {}),
                lambda: session.governed_tool_async("ls", {}),
                lambda: session.parallel_async([]),
            ]
            for work in works:
                with pytest.raises(SessionClosedError, match="Session 's' is closed"):
                    await work()
            registrations: list[Callable[[], object]] = [
                lambda: session.register_hook("h", "pre_prompt", handler=print),
                lambda: session.register_command("c", "d", lambda args, context: ""),
                lambda: session.set_budget_guard(None),
            ]
            for register in registrations:
                with pytest.raises(SessionClosedError, match="Session 's' is closed"):
                    register()
            assert session.hook_count() == 0
            assert not await session.cancel_async()
            with pytest.raises(RunControlError) as caught:
                await session.interrupt_async()
            assert caught.value.code == "CLOSED"
            assert said(session) == ["user: one", "assistant: one"]  # what there was can still be read
            assert [run.status for run in await session.runs_async()] == ["completed"]

    asyncio.run(main())


def test_a_send_that_is_closed_under_ends_soon_and_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        model = PacedModel("never")
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            async with asyncio.timeout(1):
                await session.close_async()
                with pytest.raises(RunCancelledError):
                    await run
            [record] = await session.runs_async()
            assert (record.status, model.running) == ("cancelled", 0)

    asyncio.run(main())


def test_closing_an_interrupted_run_keeps_its_interruption(tmp_path: Path) -> None:
    tool = HeldTool(is_slow_to_stop=True)

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([calls(("hold", {}))]), tool) as session:
            run = asyncio.create_task(session.send_async("go"))
            await tool.started.get()
            receipt: RunControlReceipt = await session.interrupt_async()
            await until(lambda: tool.stopped)
            closing = asyncio.create_task(session.close_async())
            await turns()
            tool.may_stop.set()
            await closing
            with pytest.raises(RunCancelledError):
                await run
            assert tool.cleaned_up == 1
            assert said(session)[-1] == f"assistant: {INTERRUPTED}"
            [now] = await session.run_control_receipts_async(receipt.run_id)
            assert now.state == "applied"

    asyncio.run(main())


def test_the_children_of_an_interrupted_task_call_end_with_it_and_background_ones_with_the_session(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        begun = asyncio.Semaphore(0)

        async def answer(request: ModelRequest) -> Reply | str:
            newest = newest_text(request)
            if newest == "wait":
                begun.release()
                await asyncio.Event().wait()
            if isinstance(request.transcript.message, ToolMessage):
                return calls(("task", {"tasks": [{"agent": "general", "description": "d", "prompt": "wait"}] * 2}))
            if newest == "go":
                one = {"agent": "general", "description": "d", "prompt": "wait", "background": True}
                return calls(("task", {"tasks": [one]}))
            return "fine"

        model = ScriptedModel(answer)
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            for _ in range(3):
                await begun.acquire()
            assert len(session.pending_subagent_tasks()) == 3
            await session.interrupt_async()
            with pytest.raises(RunCancelledError):
                await run
            assert [task.status for task in session.subagent_tasks()] == ["running", "cancelled", "cancelled"]
            assert model.running == 1
            assert (await session.send_async("next")).text == "fine"
            await session.close_async()
            assert [task.status for task in session.subagent_tasks()] == ["cancelled"] * 3
            assert model.running == 0

    asyncio.run(main())


# ---- over HTTP ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["interrupt", "cancel", "close", "caller"])
def test_a_call_that_streams_is_broken_off_at_the_server(tmp_path: Path, end: str) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(10),
            ChatServer(_waits) as server,
            await Agent.create_async(CHAT.format(url=server.base_url)) as agent,
        ):
            session = await agent.session_async(tmp_path, permission_policy=ALLOW)
            run = asyncio.create_task(session.send_async("go"))
            await server.request_count(1)
            async with asyncio.timeout(2):
                if end == "interrupt":
                    await session.interrupt_async()
                elif end == "cancel":
                    await session.cancel_async()
                elif end == "close":
                    await session.close_async()
                else:
                    run.cancel()
                with pytest.raises((RunCancelledError, asyncio.CancelledError)):
                    await run
                await server.disconnects()
            if end in ("interrupt", "cancel"):
                assert said(session) == ["user: go", f"assistant: {INTERRUPTED}"]

    asyncio.run(main())


# ---- sessions that nobody closes ------------------------------------------------------------------------------------


def test_sessions_that_are_dropped_leave_nothing_once_their_agent_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Agent.create_async(models={"a/b": ScriptedModel(echo)}) as agent:

            async def use(number: int) -> None:
                session = await agent.session_async(tmp_path, session_id=f"s-{number}")
                stream = await session.stream_async("go")
                if number % 2:
                    await stream.result_async()

            for number in range(20):
                await use(number)
            await turns()
            gc.collect()
            await turns()
            assert await until_none(agent.list_sessions) == []
            gc.collect()
        assert await tasks_left() == []

    before = Traces()
    asyncio.run(main())
    before.require_same()


async def until_none(found: Callable[[], list[str]]) -> list[str]:
    for _ in range(1_000):
        if not found():
            break
        gc.collect()
        await asyncio.sleep(0.001)
    return found()


def test_a_session_of_a_thread_is_closed_from_another_thread_while_it_runs(tmp_path: Path) -> None:
    started = threading.Event()

    async def never(request: ModelRequest) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    before = Traces()
    with Agent.create(models={"a/b": ScriptedModel(never)}) as agent:
        session = agent.session(tmp_path)
        raised: list[BaseException] = []

        def send() -> None:
            try:
                session.send("go")
            except FanfoldError as error:
                raised.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        assert started.wait(5)
        session.close()
        sender.join(5)
        assert [type(each) for each in raised] == [RunCancelledError]
        assert session.is_closed()
    before.require_same()
