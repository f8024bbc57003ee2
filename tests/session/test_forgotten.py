"""Agents that nobody closes: they warn, end what they started, and never hang anything."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold import Agent
from fanfold.testing import ScriptedModel, echo
from tests.support.scripts import run_script


def eventually(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("fanfold")}


FORGETFUL = """
import sys
from fanfold import Agent
from fanfold.testing import ScriptedModel, echo
agent = Agent.create(models={"a/b": ScriptedModel(echo)})
session = agent.session(sys.argv[1])
print(session.send("hi").text)
"""

STUBBORN = """
import asyncio, sys, threading
from fanfold import Agent
from fanfold.testing import ScriptedModel
started = threading.Event()

async def answer(request):
    started.set()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

agent = Agent.create(models={"a/b": ScriptedModel(answer)})
stream = agent.session(sys.argv[1]).stream("hi")
started.wait()
"""


def test_a_forgotten_agent_warns_and_never_hangs_the_exit(tmp_path: Path) -> None:
    run = run_script(FORGETFUL, tmp_path)
    assert (run.returncode, run.stdout) == (0, "hi\n")
    assert run.stderr.count("an Agent was not closed") == 1


def test_a_run_that_does_not_stop_is_left_behind_at_the_exit(tmp_path: Path) -> None:
    run = run_script(STUBBORN, tmp_path)
    assert run.returncode == 0
    assert "an Agent was not closed" in run.stderr
    assert "a run did not stop within 5 s of the exit" in run.stderr


class ClosingModel(ScriptedModel):
    def __init__(self) -> None:
        super().__init__(echo)
        self.is_closed = threading.Event()

    async def close(self) -> None:
        self.is_closed.set()


def test_an_agent_that_is_dropped_open_warns_and_ends_its_threads(tmp_path: Path) -> None:
    before = own_threads()
    model = ClosingModel()

    def use() -> None:
        agent = Agent.create(models={"a/b": model})
        agent.session(tmp_path).send("hi")
        assert own_threads() > before

    def drop() -> None:
        use()
        gc.collect()

    with pytest.warns(ResourceWarning, match="an Agent was not closed"):
        drop()
    assert model.is_closed.wait(5)
    assert eventually(lambda: own_threads() <= before)


def test_an_agent_that_is_dropped_open_on_a_running_loop_is_closed_there(tmp_path: Path) -> None:
    model = ClosingModel()

    async def use() -> None:
        agent = await Agent.create_async(models={"a/b": model})
        await (await agent.session_async(tmp_path)).send_async("hi")

    async def drop() -> None:
        await use()
        gc.collect()

    async def main() -> None:
        with pytest.warns(ResourceWarning, match="an Agent was not closed"):
            await drop()
        async with asyncio.timeout(5):
            while not model.is_closed.is_set():
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_an_agent_that_outlived_its_loop_and_is_dropped_open_warns(tmp_path: Path) -> None:
    async def main() -> Agent:
        return await Agent.create_async(models={"a/b": ScriptedModel(echo)})

    def drop() -> None:
        asyncio.run(main())
        gc.collect()

    with pytest.warns(ResourceWarning, match="an Agent was not closed"):
        drop()


def test_a_closed_agent_is_dropped_without_a_warning(tmp_path: Path) -> None:
    before = own_threads()
    agent = Agent.create(models={"a/b": ScriptedModel(echo)})
    agent.session(tmp_path).send("hi")
    agent.close()
    del agent
    gc.collect()
    assert own_threads() <= before
