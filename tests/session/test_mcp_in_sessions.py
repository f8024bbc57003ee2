"""MCP servers of sessions: started, shared, killed and closed at the worst moments."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, HostEnv, PermissionPolicy
from fanfold.contracts.messages import ModelRequest
from fanfold.errors import RunCancelledError, SessionClosedError, UsageError
from fanfold.testing import Reply, ScriptedModel, calls
from fanfold.testing.clock import ManualClock
from tests.support.mcp_calls import RAW, lines
from tests.support.open_session import opened, until

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups")
ALL_ALLOWED = PermissionPolicy(default_decision="allow")


def given(*manners: str, name: str = "raw") -> dict[str, Any]:
    return {"name": name, "transport": {"type": "stdio", "command": sys.executable, "args": [RAW, *manners]}}


def configured(*manners: str, name: str = "raw") -> str:
    args = ", ".join(f'"{each}"' for each in (RAW, *manners))
    return f'mcp_servers "{name}" {{\n command = "{sys.executable}"\n args = [{args}]\n}}\n'


async def agent_with(config: str, model: ScriptedModel) -> Agent:
    return await Agent.create_async(config, models={"openai/scripted": model})


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def started(pids: Path) -> list[int]:
    """The processes of a server that notes its `pids=`."""
    return [int(line) for line in lines(pids)]


def test_an_agent_that_is_closed_while_a_server_starts_leaves_no_process(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def main() -> None:
        agent = await agent_with(configured("silent", f"pids={pids}"), ScriptedModel([]))
        opening = asyncio.create_task(agent.session_async(tmp_path, model="openai/scripted"))
        await until(lambda: started(pids))
        await agent.close_async()
        assert not any(map(is_running, started(pids)))
        with pytest.raises(SessionClosedError):
            await opening

    asyncio.run(main())


def test_a_session_that_is_closed_while_its_server_starts_leaves_no_process(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            adding = asyncio.create_task(session.add_mcp_async(given("silent", f"pids={pids}")))
            await until(lambda: started(pids))
            await session.close_async()
            assert not any(map(is_running, started(pids)))
            with pytest.raises(RunCancelledError):
                await adding

    asyncio.run(main())


def test_a_server_that_is_killed_in_a_call_fails_that_call_and_the_run_goes_on(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    model = ScriptedModel([calls(("mcp__raw__mute", {})), calls(("mcp__raw__echo", {"text": "x"})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, permission_policy=ALL_ALLOWED) as session:
            await session.add_mcp_async(given(f"pids={pids}"))
            run = asyncio.create_task(session.send_async("go"))
            await until(session.active_tools)
            os.kill(started(pids)[-1], signal.SIGKILL)
            assert (await run).text == "done"
            results = [each["content"][0] for each in session.history()[2:5:2]]
            assert all("was ended by signal 9" in each["content"] and each["is_error"] for each in results)
            assert session.mcps()["raw"]["alive"] is False

    asyncio.run(main())


def test_two_sessions_share_a_server_that_neither_of_them_ends(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def asked(request: ModelRequest) -> Reply | str:
        return calls(("mcp__raw__echo", {"text": "x"})) if request.transcript.length == 1 else "done"

    async def main() -> None:
        async with await agent_with(configured(f"pids={pids}"), ScriptedModel(asked)) as agent:
            options: dict[str, Any] = {"model": "openai/scripted", "permission_policy": ALL_ALLOWED}
            one, other = [await agent.session_async(tmp_path, **options) for _ in range(2)]
            assert [run.text for run in await asyncio.gather(one.send_async("a"), other.send_async("b"))] == [
                "done"
            ] * 2
            assert await one.remove_mcp_async("raw") is False
            await one.close_async()
            assert other.mcps()["raw"]["alive"] is True
            assert len(started(pids)) == 1
        assert not any(map(is_running, started(pids)))

    asyncio.run(main())


def test_names_of_servers_that_rules_could_not_tell_apart_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            await session.add_mcp_async(given(name="mail"))
            with pytest.raises(UsageError, match="differs from 'mail' by case only"):
                await session.add_mcp_async(given(name="Mail"))
            with pytest.raises(UsageError, match="remove it first"):
                await session.add_mcp_async(given(name="mail"))
            assert list(session.mcps()) == ["mail"]

    asyncio.run(main())


def test_five_starts_at_once_under_one_name_leave_one_server(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            adding = (session.add_mcp_async(given(f"pids={pids}")) for _ in range(5))
            outcomes = await asyncio.gather(*adding, return_exceptions=True)
            assert sum(isinstance(each, UsageError) for each in outcomes) == 4
            assert sum(map(is_running, started(pids))) == 1
        assert not any(map(is_running, started(pids)))

    asyncio.run(main())


def test_a_server_that_could_not_be_started_is_tried_again_a_minute_later_and_not_before(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    acl = f'mcp_servers "broken" {{\n command = "sh"\n args = ["-c", "echo x >> {starts}; exit 3"]\n}}\n'
    clock = ManualClock()

    async def tries(agent: Agent) -> int:
        async with await agent.session_async(tmp_path, model="openai/scripted") as session:
            assert "server 'broken'" in (session.init_warning or "")
        return len(starts.read_text().splitlines())

    async def main() -> None:
        models = {"openai/scripted": ScriptedModel([])}
        async with await Agent.create_async(acl, models=models, host_env=HostEnv(clock=clock)) as agent:
            first = await tries(agent)
            assert await tries(agent) == first
            clock.advance(61)
            assert await tries(agent) == 2 * first

    asyncio.run(main())
