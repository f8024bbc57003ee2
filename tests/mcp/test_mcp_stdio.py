"""Servers over stdio: what their tools give, and that a server's end is the end of its calls and of all it started."""

import asyncio
import os
import re
import threading
import uuid
from pathlib import Path

import pytest

from fanfold.contracts.settings import McpServerSettings
from fanfold.errors import ConfigError, McpError
from fanfold.mcp.connect import connect
from fanfold.protocols import ToolServer
from tests.support.mcp_calls import (
    called,
    connected,
    lines,
    processes_with,
    raw_settings,
    scope,
    sdk_settings,
    tool,
    until,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups and /proc")


def test_answers_of_each_kind_become_texts() -> None:
    async def main() -> None:
        async with connected(sdk_settings()) as server:
            assert isinstance(server, ToolServer)
            assert (await called(server, "echo", text="hé")).output == "hé"
            assert (await called(server, "numbers")).output == '{"sum":3,"of":[1,2]}'
            assert (await called(server, "nothing")).output == "[no output]"
            assert (await called(server, "mixed")).output.splitlines() == [
                "first",
                "[image: image/png, 300 bytes, not shown]",
                "[audio: audio/wav, 30 bytes, not shown]",
                "[resource: report, https://example.com/report]",
                "[resource: file:///notes.txt]",
                "the notes",
                "[resource: file:///a.bin, application/x-bin, not shown]",
                "last",
            ]
            failure = await called(server, "fail", text="no such page")
            assert (failure.output, failure.exit_code) == ("no such page", 1)
            assert (await tool(server, "key").run({}, scope("k-7"))).output == "k-7"

    asyncio.run(main())


def test_models_are_told_what_the_server_says_and_no_more_is_believed() -> None:
    async def main() -> None:
        async with connected(sdk_settings()) as server:
            echo = tool(server, "echo").spec
            assert (echo.name, echo.description) == ("mcp__demo__echo", "Give back the text.")
            assert echo.parameters["required"] == ["text"]
            assert (echo.is_read_only, echo.is_parallel_safe) == (False, True)
            for name in ("fail", "contradictory"):
                spec = tool(server, name).spec
                assert (spec.is_read_only, spec.is_parallel_safe) == (False, False)

    asyncio.run(main())


def test_a_server_gets_its_own_variables_and_no_secret_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    async def main() -> list[str]:
        settings = sdk_settings(TOKEN="given", PYTHONPATH=os.getcwd())
        async with connected(settings, tmp_path) as server:
            return (await called(server, "where")).output.splitlines()

    folder, _, *names = asyncio.run(main())
    assert folder == str(tmp_path)
    assert {"PATH", "TOKEN"} <= set(names)
    assert "OPENAI_API_KEY" not in names


def test_a_call_without_an_answer_ends_in_time_and_the_next_one_works() -> None:
    async def main() -> None:
        async with connected(raw_settings(timeout_ms=2000)) as server:
            late = await called(server, "mute")
            assert late.exit_code == 1
            assert late.output == "MCP server 'raw' gave no answer to 'mute' within 2000 ms"
            assert (await called(server, "echo", text="a")).output == "echo: a"
            assert "notifications/cancelled" in (await called(server, "seen")).output

    asyncio.run(main())


def test_cancelling_a_call_cancels_it_at_the_server(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def main() -> None:
        async with connected(sdk_settings()) as server:
            task = asyncio.create_task(called(server, "hang", mark=str(mark)))
            await until(lambda: lines(mark) == ["started"])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: lines(mark) == ["started", "cancelled"])
            assert (await called(server, "echo", text="on")).output == "on"

    asyncio.run(main())


def test_a_death_fails_all_pending_calls_at_once_and_later_ones_too(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def main() -> None:
        async with connected(sdk_settings()) as server:
            pending = [asyncio.create_task(called(server, "hang", mark=str(mark))) for _ in range(20)]
            await until(lambda: lines(mark) == ["started"] * 20)
            died = await called(server, "die", code=3)
            # Done without another wait: the same moment ended them all.
            await asyncio.sleep(0)
            assert all(task.done() for task in pending)
            for answer in [died, *(task.result() for task in pending), await called(server, "echo", text="late")]:
                assert answer.exit_code == 1
                assert answer.output.startswith("MCP server 'demo' is gone: it exited with code 3")
                assert "something terrible has happened" in answer.output
            assert not server.is_alive
            assert "mcp__demo__echo" in server.tools

    asyncio.run(main())


def test_the_last_answer_of_a_server_that_leaves_counts() -> None:
    async def main() -> None:
        async with connected(raw_settings()) as server:
            assert (await called(server, "last_word")).output == "farewell"
            await until(lambda: not server.is_alive)
            assert "it exited with code 0" in (await called(server, "echo")).output

    asyncio.run(main())


def test_closing_kills_a_server_that_ignores_it_and_its_child() -> None:
    token = uuid.uuid4().hex

    async def main() -> None:
        async with connected(sdk_settings("--stubborn", token)):
            await until(lambda: len(processes_with(token)) == 2)
        await until(lambda: processes_with(token) == [])

    asyncio.run(main())


def test_a_child_that_a_polite_server_leaves_behind_is_killed() -> None:
    token = uuid.uuid4().hex

    async def main() -> None:
        async with connected(sdk_settings()) as server:
            await called(server, "spawn", token=token)
            await until(lambda: len(processes_with(token)) == 1)
        await until(lambda: processes_with(token) == [])

    asyncio.run(main())


def test_tools_of_two_servers_with_one_name_are_kept_apart() -> None:
    async def main() -> None:
        async with connected(sdk_settings(name="one")) as one, connected(raw_settings(name="two")) as two:
            assert (await called(one, "echo", text="a")).output == "a"
            assert (await called(two, "echo", text="b")).output == "echo: b"
            assert not one.tools.keys() & two.tools.keys()
            await one.close()
            assert (await called(two, "echo", text="c")).output == "echo: c"

    asyncio.run(main())


def test_who_closes_need_not_be_who_connected() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(connect(raw_settings(), workspace=None))
            server = await task
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(called(server, "echo", text=str(i))) for i in range(50)]
        assert [task.result().output for task in calls] == [f"echo: {i}" for i in range(50)]
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(server.close())
        await server.close()
        assert "it was closed" in (await called(server, "echo")).output

    asyncio.run(main())


def test_closing_ends_pending_calls() -> None:
    async def main() -> None:
        server = await connect(raw_settings())
        pending = asyncio.create_task(called(server, "mute"))
        await called(server, "echo")
        closing = asyncio.create_task(server.close())
        assert (await pending).output == "MCP server 'raw' is gone: it was closed"
        await closing

    asyncio.run(main())


def test_closing_does_not_wait_for_a_server_that_reads_nothing() -> None:
    token = uuid.uuid4().hex

    async def main() -> None:
        async with connected(raw_settings(token)) as server:
            pending = [asyncio.create_task(called(server, "asleep", text="x" * 1_000_000)) for _ in range(3)]
            await until(lambda: bool(processes_with(token)))
            pending[0].cancel()  # its cancellation cannot be written either
            await asyncio.wait(pending[:1])
        await asyncio.gather(*pending[1:])
        await until(lambda: processes_with(token) == [])

    asyncio.run(main())


def test_a_closing_that_is_cancelled_kills() -> None:
    token = uuid.uuid4().hex

    async def main() -> None:
        server = await connect(sdk_settings("--stubborn", token))
        await until(lambda: len(processes_with(token)) == 2)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until(lambda: processes_with(token) == [])

    asyncio.run(main())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_of_a_server() -> None:
    token = uuid.uuid4().hex

    async def once() -> None:
        async with connected(raw_settings(token)) as server:
            await called(server, "echo")
            pending = asyncio.create_task(called(server, "mute"))
            await called(server, "echo")
        await pending

    async def main() -> None:
        await once()  # what is made once and for all, such as the thread that loads the SDK
        files, threads = open_files(), threading.active_count()
        await once()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert open_files() == files
        await until(lambda: threading.active_count() <= threads)  # asyncio's that waits for the process, on 3.11
        assert processes_with(token) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("command", "args", "reason"),
    [
        ("no-such-program-anywhere", ("x",), "there is no such command on the PATH"),
        ("no-such-program --flag", (), "there is no such command; its arguments belong into args"),
        ("/", (), "cannot start '/': Permission denied"),
    ],
)
def test_a_command_that_cannot_be_started_is_named(command: str, args: tuple[str, ...], reason: str) -> None:
    with pytest.raises(McpError, match=re.escape(command)) as told:
        asyncio.run(connect(McpServerSettings(name="docs", command=command, args=args)))
    assert reason in str(told.value)
    assert told.value.code == "MCP_ERROR"
    assert told.value.server == "docs"


def test_a_missing_folder_is_not_taken_for_a_missing_command(tmp_path: Path) -> None:
    with pytest.raises(McpError, match=r"the folder .*gone does not exist"):
        asyncio.run(connect(raw_settings(), workspace=tmp_path / "gone"))


def test_a_server_that_exits_at_once_is_quoted() -> None:
    with pytest.raises(McpError, match=r"it exited with code 3; it said on stderr: I am raw \d+ \| no configuration$"):
        asyncio.run(connect(raw_settings("exits")))


def test_a_server_that_says_nothing_has_its_time_and_is_gone() -> None:
    token = uuid.uuid4().hex
    with pytest.raises(McpError, match=r"it was not ready within 700 ms; it said on stderr: I am raw"):
        asyncio.run(connect(raw_settings("silent", token, timeout_ms=700)))
    assert processes_with(token) == []


def test_what_is_no_server_is_shown() -> None:
    settings = McpServerSettings(name="e", command="echo", args=("Hello,", "world"))
    with pytest.raises(McpError, match=r"it exited with code 0; it printed what is no message: 'Hello, world'"):
        asyncio.run(connect(settings))


def test_a_cancelled_start_leaves_nothing() -> None:
    token = uuid.uuid4().hex

    async def main() -> None:
        task = asyncio.create_task(connect(raw_settings("silent", token)))
        await until(lambda: bool(processes_with(token)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert processes_with(token) == []

    asyncio.run(main())


def test_a_loop_that_ends_takes_the_server_with_it() -> None:
    token = uuid.uuid4().hex

    async def main() -> ToolServer:
        return await connect(raw_settings(token))

    asyncio.run(main())
    assert processes_with(token) == []


def test_a_server_that_dies_of_the_new_handshake_is_started_again_with_the_old(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def main() -> None:
        async with connected(raw_settings("old", f"marks={mark}")) as server:
            assert (await called(server, "seen")).output.split()[0] == "initialize"
            assert lines(mark) == ["started"] * 2

    asyncio.run(main())


def test_changes_of_the_list_are_followed() -> None:
    async def main() -> None:
        async with connected(sdk_settings()) as new, connected(raw_settings()) as old:
            await called(new, "grow", name="more")
            await called(old, "rename", text="echo_2")
            await until(lambda: "mcp__demo__more" in new.tools)
            await until(lambda: "mcp__raw__echo" not in old.tools)
            assert (await called(new, "more")).output == "[no output]"
            assert (await called(old, "echo_2", text="a")).output == "echo_2: a"

    asyncio.run(main())


def test_settings_that_no_server_can_have_start_nothing() -> None:
    with pytest.raises(ConfigError) as told:
        asyncio.run(connect(McpServerSettings(name="a__b", command="x", url="http://127.0.0.1", timeout_ms=0)))
    assert len(told.value.problems) == 3
