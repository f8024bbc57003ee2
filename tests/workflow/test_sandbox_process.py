"""The process of the sandbox ends with its script, and with this one, whatever happens in between."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import MissingExtraError, SandboxError
from fanfold.workflow.sandbox_process import SandboxProcess, load_monty
from tests.workflow.sandbox_host import NotingHost, in_sandbox, module

LOOP = "while True: pass"
WAITS = "import asyncio\nawait asyncio.gather(ctx.agent('wait'), ctx.agent('wait'))"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def children() -> set[int]:
    listed = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for each in listed for pid in each.read_text().split()}


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Waiting(NotingHost):
    """Its agents never end; `begun` when there are two."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = 0
        super().__init__(self._wait)

    async def _wait(self, prompt: str) -> None:
        if len(self.agents) == 2:
            self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


async def a_new_child(before: set[int]) -> int:
    await until(lambda: bool(children() - before))
    (pid,) = children() - before
    return pid


# ---- cancelled ----


@on_linux
def test_cancelling_a_script_that_waits_ends_its_agents_and_its_process() -> None:
    async def main() -> None:
        before, threads, host = children(), threading.active_count(), Waiting()
        task = asyncio.create_task(in_sandbox(module(WAITS), host))
        await host.begun.wait()
        pid = await a_new_child(before)
        begun = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun < 2
        assert not is_there(pid)
        assert host.cancelled == 2
        assert threading.active_count() == threads

    asyncio.run(main())


@on_linux
@pytest.mark.parametrize("pauses", range(12))
def test_cancelling_at_any_moment_leaves_no_process(pauses: int) -> None:
    async def main() -> None:
        before = children()
        task = asyncio.create_task(in_sandbox(module(LOOP), NotingHost()))
        for _ in range(pauses):
            await asyncio.sleep(0.002)
        begun = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun < 5  # and not when its time is up
        assert children() == before
        assert not [each for each in threading.enumerate() if each.name.startswith("sandbox")]

    asyncio.run(main())


@on_linux
def test_a_second_cancellation_leaves_nothing_behind_either() -> None:
    async def main() -> None:
        class Stubborn(Waiting):
            async def _wait(self, prompt: str) -> None:
                try:
                    await super()._wait(prompt)
                finally:
                    for _ in range(5):
                        await asyncio.sleep(0)

        before, host = children(), Stubborn()
        task = asyncio.create_task(in_sandbox(module(WAITS), host))
        await host.begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert children() == before
        assert host.cancelled == 2

    asyncio.run(main())


@on_linux
def test_cancelling_while_it_prints_does_not_hang() -> None:
    async def main() -> None:
        class Slow(NotingHost):
            def log(self, message: object) -> None:
                super().log(message)
                if len(self.logged) == 3:
                    task.cancel()

        before = children()
        task = asyncio.create_task(in_sandbox(module("for n in range(10**6): print(n)"), Slow()))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert children() == before

    asyncio.run(main())


# ---- dead ----


@on_linux
def test_a_process_that_dies_is_an_error_of_the_sandbox() -> None:
    async def main() -> None:
        before, host = children(), NotingHost()
        task = asyncio.create_task(in_sandbox(module(f"ctx.log('begun')\n{LOOP}"), host))
        await until(lambda: bool(host.logged))
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="process died"):
            await task
        assert children() == before

    asyncio.run(main())


@on_linux
def test_a_script_whose_process_died_while_it_waited_can_still_be_cancelled() -> None:
    async def main() -> None:
        before, host = children(), Waiting()
        task = asyncio.create_task(in_sandbox(module(WAITS), host))
        await host.begun.wait()
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_there(pid))
        task.cancel()
        with pytest.raises((SandboxError, asyncio.CancelledError)):  # found out already, or only with an answer
            await task
        assert children() == before
        assert host.cancelled == 2

    asyncio.run(main())


@on_linux
def test_a_process_that_died_meanwhile_is_found_dead_when_an_agent_has_answered() -> None:
    async def main() -> None:
        before = children()

        async def kill(prompt: str) -> str:
            (pid,) = children() - before
            os.kill(pid, signal.SIGKILL)
            return "done"

        with pytest.raises(SandboxError, match="process died"):
            await in_sandbox(module('return await ctx.agent("x")'), NotingHost(kill))

    asyncio.run(main())


@on_linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_does_not_end_the_script_behind_our_back(number: signal.Signals) -> None:
    async def main() -> None:
        before = children()

        async def interrupt(prompt: str) -> str:
            (pid,) = children() - before
            os.kill(pid, number)
            return "done"

        script = module('await ctx.agent("x")\nreturn await ctx.agent("y")')
        assert await in_sandbox(script, NotingHost(interrupt)) == "done"

    asyncio.run(main())


KILLED = """
import asyncio, os
from pathlib import Path
from fanfold.workflow.sandbox import SandboxLimits
from tests.workflow.sandbox_host import NotingHost, in_sandbox, module

async def told(prompt):
    listed = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    print(*[each.read_text() for each in listed], flush=True)
    if prompt == "wait":
        await asyncio.Event().wait()

script = module(f"await ctx.agent({PROMPT!r})\\nwhile True: pass")
asyncio.run(in_sandbox(script, NotingHost(told), limits=SandboxLimits(turn_seconds=1_000.0, total_seconds=1_000.0)))
"""


def ticks(pid: int) -> int:
    """Of a processor, that it has used."""
    return sum(int(each) for each in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])


@on_linux
@pytest.mark.parametrize("does", ["wait", "loop"])
def test_the_sandbox_does_not_outlive_a_host_that_was_killed(does: str) -> None:
    program = KILLED.replace("PROMPT", repr(does))
    host = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    if does == "loop":
        before = ticks(pid)
        asyncio.run(until(lambda: ticks(pid) > before + 5))  # it is in there, and listens to nobody
    host.kill()
    host.wait()
    host.stdout.close()
    asyncio.run(asyncio.wait_for(until(lambda: not is_there(pid)), 5))


@on_linux
def test_what_keeps_the_sandbox_with_its_host_is_given_back() -> None:
    async def main() -> None:
        await in_sandbox(module("return 1"), NotingHost())
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            await in_sandbox(module("return 1"), NotingHost())
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    asyncio.run(main())


# ---- not to be had ----


def test_without_the_extra_it_is_said_how_to_get_it() -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named '{name}'")

    with pytest.raises(MissingExtraError, match=r"\[sandbox\]"):
        load_monty(missing)


def test_without_its_program_it_is_said_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MONTY_BIN", str(tmp_path / "nothing"))
    with pytest.raises((SandboxError, MissingExtraError)):
        asyncio.run(in_sandbox(module("return 1"), NotingHost()))
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("MONTY_BIN", str(broken))
    with pytest.raises(SandboxError):
        asyncio.run(in_sandbox(module("return 1"), NotingHost()))


def test_a_panic_of_its_client_is_an_error_of_the_sandbox() -> None:
    class Panic(BaseException):
        pass

    def work(monty: Any, session: Any) -> None:
        raise Panic("native")

    async def main() -> None:
        with pytest.raises(SandboxError, match="native"):
            await SandboxProcess(work, name="x").run()

    asyncio.run(main())


# ---- at the end of Python ----

ENDS = {
    "returned": "asyncio.run(script())",
    "raised": "asyncio.run(failing())",
    "cancelled": "asyncio.run(cancelled())",
    "loop stopped": "stopped(close=False)",
    "loop closed": "stopped(close=True)",
    "exit within": "asyncio.run(exits())",
    "in a thread": "threaded()",
    "several": "asyncio.run(several())",
}
PROGRAM = """
import asyncio, sys, threading
from fanfold.errors import ScriptError
from tests.workflow.sandbox_host import NotingHost, in_sandbox, module

def script(body="return await ctx.agent('x')"):
    return in_sandbox(module(body), NotingHost())

async def failing():
    try:
        await script("1 / 0")
    except ScriptError:
        pass

async def cancelled():
    try:
        await asyncio.wait_for(script("while True: pass"), 0.05)
    except TimeoutError:
        pass

async def exits():
    running = asyncio.create_task(script("while True: pass"))
    await asyncio.sleep(0.05)
    raise SystemExit(0)

def stopped(close):
    loop = asyncio.new_event_loop()
    running = [loop.create_task(script(body)) for body in ("while True: pass", "while True: ctx.random()")]
    for task in running:
        task._log_destroy_pending = False
    loop.run_until_complete(asyncio.sleep(0.05))
    if close:
        loop.close()
    globals().update(loop=loop, running=running)

def threaded():
    thread = threading.Thread(target=lambda: asyncio.run(script()))
    thread.start()

async def several():
    await asyncio.gather(*[script() for _ in range(4)])

"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ENDS)
def test_python_ends_cleanly_in_any_order_of_events(way: str) -> None:
    runs = 15 if way == "returned" else 5

    async def end() -> tuple[int | None, bytes]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM + ENDS[way], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = await process.communicate()
        return process.returncode, said

    async def main() -> list[Any]:
        return await in_turns([end] * runs, 4)

    assert asyncio.run(main()) == [(0, b"")] * runs


async def in_turns(work: list[Callable[[], Awaitable[Any]]], width: int) -> list[Any]:
    places = asyncio.Semaphore(width)

    async def one(begin: Callable[[], Awaitable[Any]]) -> Any:
        async with places:
            return await begin()

    return await asyncio.gather(*map(one, work))
