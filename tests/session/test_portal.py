"""Blocking and awaiting reach the same loop, from any thread and any other loop."""

import asyncio
import contextvars
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fanfold import Agent
from fanfold.errors import LifecycleError, UsageError
from fanfold.testing import ScriptedModel, echo


def echoing() -> dict[str, ScriptedModel]:
    return {"scripted/echo": ScriptedModel(echo)}


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
            assert (await asyncio.to_thread(session.send, "from a thread")).text == "from a thread"

    asyncio.run(main())


def test_an_agent_whose_loop_has_ended_says_so(tmp_path: Path) -> None:
    async def main() -> Agent:
        return await Agent.create_async(models=echoing())

    agent = asyncio.run(main())
    with pytest.raises(LifecycleError, match=r"loop .* has ended"):
        agent.session(tmp_path)


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


FORGETFUL = """
import sys
from fanfold import Agent
from fanfold.testing import ScriptedModel, echo
agent = Agent.create(models={"a/b": ScriptedModel(echo)})
session = agent.session(sys.argv[1])
print(session.send("hi").text)
"""


def test_a_forgotten_agent_warns_and_never_hangs_the_exit(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "default", "-c", FORGETFUL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "hi\n")
    assert "an Agent was not closed" in run.stderr
