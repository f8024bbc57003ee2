"""Servers that break the protocol, by accident or not: they cost their own calls, and nobody else's."""

import asyncio
import os
import re
import time
from typing import Any

import pytest

from fanfold.errors import McpError
from fanfold.mcp.answers import MAX_OUTPUT_BYTES
from fanfold.mcp.connect import connect
from fanfold.mcp.tools import MAX_DESCRIPTION_CHARS
from fanfold.protocols import ToolServer
from tests.support.mcp_calls import called, connected, raw_settings, scope, sdk_settings, tool

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups")


def one_call(name: str, **args: Any) -> tuple[str, int, bool]:
    """What one call gave, and whether the server was alive after it."""

    async def main() -> tuple[str, int, bool]:
        async with connected(raw_settings()) as server:
            answer = await called(server, name, **args)
            return answer.output, answer.exit_code, server.is_alive

    return asyncio.run(main())


def test_what_is_no_message_is_passed_over() -> None:
    assert one_call("garbage") == ("still here", 0, True)


def test_a_message_without_end_ends_the_connection() -> None:
    output, exit_code, is_alive = one_call("flood")
    assert output == "MCP server 'raw' is gone: it sent a message of more than 16 MiB"
    assert (exit_code, is_alive) == (1, False)


def test_a_result_that_is_none_is_a_failed_call() -> None:
    output, exit_code, is_alive = one_call("wrong")
    assert output.startswith("MCP server 'raw' failed in 'wrong': its answer breaks the protocol: content: ")
    assert (exit_code, is_alive) == (1, True)


def test_a_refusal_is_told_as_far_as_it_is_useful() -> None:
    output, exit_code, is_alive = one_call("refuse")
    assert output.startswith("MCP server 'raw' failed in 'refuse': bad bad")
    assert len(output) < 2100
    assert (exit_code, is_alive) == (1, True)


def test_a_server_that_closes_its_output_is_gone_though_it_lives() -> None:
    assert one_call("hangup") == ("MCP server 'raw' is gone: it has closed its output", 1, False)


def test_a_server_that_closes_its_input_is_gone_with_the_next_call() -> None:
    async def main() -> None:
        async with connected(raw_settings()) as server:
            deaf = asyncio.create_task(called(server, "deaf"))
            while server.is_alive:
                await asyncio.wait([asyncio.create_task(called(server, "mute"))], timeout=0.05)
            assert "it reads its input no more" in (await deaf).output

    asyncio.run(main())


def test_a_daemon_that_holds_the_pipes_does_not_hide_a_death() -> None:
    output, exit_code, is_alive = one_call("daemon", text="25")
    assert output.startswith("MCP server 'raw' is gone: it exited with code 7")
    assert (exit_code, is_alive) == (1, False)


@pytest.mark.parametrize(
    ("name", "said"),
    [("chatter", "said all"), ("loud", "quiet again"), ("ask_back", "error -32600")],
)
def test_logs_notifications_and_questions_do_no_harm(name: str, said: str) -> None:
    assert one_call(name) == (said, 0, True)


def test_a_flood_of_nothing_leaves_the_loop_to_others() -> None:
    async def main() -> float:
        async with connected(raw_settings()) as server:
            flood = asyncio.create_task(called(server, "blank"))
            began = time.monotonic()
            for _ in range(50):
                await asyncio.sleep(0.001)
            took = time.monotonic() - began
            assert not flood.done()
            flood.cancel()
        return took

    assert asyncio.run(main()) < 5.0  # a tenth of a second; 20 if all that is there were read at once


def test_a_long_output_is_cut_and_says_by_how_much() -> None:
    async def main() -> str:
        async with connected(sdk_settings()) as server:
            whole = await called(server, "big", size=MAX_OUTPUT_BYTES - 2)
            assert whole.output == "<" + "é" * (MAX_OUTPUT_BYTES // 2 - 1) + ">"
            return (await called(server, "big", size=3_000_000)).output

    output = asyncio.run(main())
    assert len(output.encode()) <= MAX_OUTPUT_BYTES
    head, left_out, tail = re.fullmatch(r"(<é+)\n\[\.\.\. (\d+) bytes left out; .*\]\n(é+>)", output).groups()  # type: ignore[union-attr]
    assert abs(len((head + tail).encode()) + int(left_out) - 3_000_002) <= 2  # one character was cut through


def test_each_tool_has_a_valid_name_of_its_own_and_is_called_by_its_own() -> None:
    own_names = ["vérité/été", "a.b", "a/b", "a_b", "x" * 200, "x" * 199 + "y", "__init__", ""]

    async def main() -> None:
        async with connected(raw_settings()) as server:
            names = list(server.tools)
            assert all(re.fullmatch(r"mcp__raw__[A-Za-z0-9_-]{1,54}", name) for name in names)
            assert [name for name, each in server.tools.items() if each.spec.name != name] == []
            answers = [(await each.run({}, scope())).output for each in server.tools.values() if is_odd(each.spec.name)]
            assert answers == [f"{own}: " for own in own_names]
            assert "mcp__raw__a_b" in names
            assert "mcp__raw____init__" in names

    def is_odd(name: str) -> bool:
        return re.search(r"v_rit|__a_b|xxx|init|raw___e3b0", name) is not None

    asyncio.run(main())


def test_schemas_that_nobody_could_use_are_left_out() -> None:
    async def main() -> None:
        async with connected(raw_settings()) as server:
            anything = {"type": "object", "properties": {}}
            assert tool(server, "remote_ref").spec.parameters == anything
            assert tool(server, "huge_schema").spec.parameters == anything
            assert tool(server, "draft_7").spec.parameters["properties"] == {"n": {"$ref": "#/definitions/n"}}
            assert len(tool(server, "long_story").spec.description) == MAX_DESCRIPTION_CHARS
            assert (await called(server, "remote_ref", a=1)).output == "remote_ref: "

    asyncio.run(main())


def test_all_pages_of_a_list_are_read() -> None:
    async def names(manner: str) -> list[str]:
        async with connected(raw_settings(manner)) as server:
            return list(server.tools)

    async def main() -> None:
        assert await names("pages=7") == await names("pages=1")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("pages=endless", "it lists more than 10,000 tools, or more than 1,000 pages of them"),
        ("unsound", r"what it says breaks the protocol: tools\.\d+\.inputSchema\.type: Input should be 'object'"),
    ],
)
def test_a_list_that_cannot_be_used_fails_the_start(manner: str, reason: str) -> None:
    with pytest.raises(McpError, match=reason):
        asyncio.run(connect(raw_settings(manner)))


@pytest.mark.parametrize("value", ["\ud800", {1: object()}], ids=["surrogate", "object"])
def test_arguments_that_cannot_be_sent_cost_one_call(value: object) -> None:
    async def main() -> None:
        async with connected(raw_settings()) as server:
            await check(server)

    async def check(server: ToolServer) -> None:
        answer = await tool(server, "echo").run({"text": value}, scope())
        assert answer.exit_code == 1
        assert answer.output.startswith("The arguments of 'echo' are no JSON")
        assert (await tool(server, "echo").run({"text": float("nan")}, scope())).output == "echo: None"

    asyncio.run(main())
