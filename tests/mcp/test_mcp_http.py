"""Servers over streamable HTTP: the same promises, kept across a network."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fanfold.contracts.settings import McpServerSettings
from fanfold.errors import McpError
from fanfold.mcp.connect import connect
from tests.support.mcp_calls import LONG_MS, called, connected, http_server, lines, until

KINDS = pytest.mark.parametrize("options", [(), ("--json",), ("--old",)], ids=["events", "json", "of 2025"])


def settings(url: str, timeout_ms: int = LONG_MS, **headers: str) -> McpServerSettings:
    return McpServerSettings(name="net", url=url, headers=headers, timeout_ms=timeout_ms)


@KINDS
def test_tools_are_listed_and_called(options: tuple[str, ...]) -> None:
    async def main() -> None:
        async with http_server(*options) as (url, _), connected(settings(url)) as server:
            assert server.tools["mcp__net__echo"].spec.is_parallel_safe
            answers = await asyncio.gather(*(called(server, "echo", text=str(i)) for i in range(150)))
            assert [answer.output for answer in answers] == [str(i) for i in range(150)]
            failure = await called(server, "fail", text="no such page")
            assert (failure.output, failure.exit_code) == ("no such page", 1)

    asyncio.run(main())


@KINDS
def test_a_call_without_an_answer_ends_in_time_and_the_next_one_works(options: tuple[str, ...], tmp_path: Path) -> None:
    async def main() -> None:
        async with http_server(*options) as (url, _), connected(settings(url, timeout_ms=2000)) as server:
            late = await called(server, "hang", mark=str(tmp_path / "mark"))
            assert late.output == "MCP server 'net' gave no answer to 'hang' within 2000 ms"
            assert (await called(server, "echo", text="on")).output == "on"

    asyncio.run(main())


@pytest.mark.parametrize("options", [(), ("--old",)], ids=["events", "of 2025"])
def test_cancelling_a_call_cancels_it_at_the_server(options: tuple[str, ...], tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def main() -> None:
        async with http_server(*options) as (url, _), connected(settings(url)) as server:
            task = asyncio.create_task(called(server, "hang", mark=str(mark)))
            await until(lambda: lines(mark) == ["started"])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: lines(mark) == ["started", "cancelled"])

    asyncio.run(main())


@KINDS
def test_a_death_fails_all_pending_calls_and_later_ones(options: tuple[str, ...], tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def main() -> None:
        async with http_server(*options) as (url, process), connected(settings(url)) as server:
            pending = [asyncio.create_task(called(server, "hang", mark=str(mark))) for _ in range(20)]
            await until(lambda: lines(mark) == ["started"] * 20)
            process.kill()
            async with asyncio.timeout(1):
                answers = await asyncio.gather(*pending)
            assert all(answer.exit_code == 1 for answer in answers)
            assert all("connection" in answer.output for answer in answers)
            await until(lambda: not server.is_alive)
            assert (await called(server, "echo", text="late")).output.startswith("MCP server 'net' is gone: ")

    asyncio.run(main())


@pytest.mark.parametrize("options", [(), ("--old",)], ids=["events", "of 2025"])
def test_changes_of_the_list_are_followed(options: tuple[str, ...]) -> None:
    async def main() -> None:
        async with http_server(*options) as (url, _), connected(settings(url)) as server:
            await called(server, "grow", name="more")
            await until(lambda: "mcp__net__more" in server.tools)

    asyncio.run(main())


def test_nobody_at_the_address_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(McpError, match=r"server 'net': no connection: "):
        asyncio.run(connect(settings(f"http://127.0.0.1:{port}/mcp")))


def test_a_server_that_wants_a_key_says_so_and_gets_it_from_headers() -> None:
    async def main() -> None:
        async with http_server("--key", "k-1") as (url, _):
            with pytest.raises(McpError, match="HTTP 401 Unauthorized; give it in headers what it asks for"):
                await connect(settings(url))
            async with connected(settings(url, Authorization="Bearer k-1")) as server:
                assert (await called(server, "echo", text="in")).output == "in"
            with pytest.raises(McpError, match="HTTP 404 Not Found"):
                await connect(settings(url + "/other", Authorization="Bearer k-1"))

    asyncio.run(main())


# ---- servers that break the protocol ---------------------------------------------------------------------------------

Answer = Callable[[web.Request, Any], Awaitable[web.StreamResponse | dict[str, Any]]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """A server of 2025 whose calls of tools are answered by `answer`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        match message["method"]:
            case "initialize":
                info = {"name": "odd", "version": "1"}
                result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
                return web.json_response(reply(message, result), headers={"mcp-session-id": "s-1"})
            case "tools/list":
                tool = {"name": "odd", "inputSchema": {"type": "object"}}
                return web.json_response(reply(message, {"tools": [tool]}))
            case "tools/call":
                answered = await answer(request, message)
                return web.json_response(answered) if isinstance(answered, dict) else answered
            case "server/discover":
                return web.Response(status=400)
            case _:
                return web.Response(status=202)

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/mcp", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


def reply(message: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def odd_calls(answer: Answer, count: int = 1) -> tuple[list[str], bool]:
    """What calls in a row gave, and whether the server was alive after them."""

    async def main() -> tuple[list[str], bool]:
        async with answering(answer) as url, connected(settings(url)) as server:
            outputs = [(await called(server, "odd")).output for _ in range(count)]
            return outputs, server.is_alive

    return asyncio.run(main())


def test_an_answer_of_gigabytes_is_not_read() -> None:
    async def huge(request: web.Request, message: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        for _ in range(2048):
            await response.write(b" " * 1024 * 1024)
        return response

    outputs, is_alive = odd_calls(huge)
    assert "more than 16 MiB" in outputs[0]
    assert is_alive


def test_an_event_of_gigabytes_is_not_read() -> None:
    async def huge(request: web.Request, message: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: ")
        for _ in range(2048):
            await response.write(b" " * 1024 * 1024)
        return response

    outputs, is_alive = odd_calls(huge)
    assert outputs[0].startswith("MCP server 'net' failed in 'odd': ")
    assert is_alive


def test_an_answer_that_unpacks_to_gigabytes_is_not_unpacked() -> None:
    async def bomb(request: web.Request, message: Any) -> web.StreamResponse:
        assert request.headers["accept-encoding"] == "identity"
        packed = gzip.compress(b" " * 32 * 1024 * 1024)
        return web.Response(body=packed, headers={"content-type": "application/json", "content-encoding": "gzip"})

    outputs, is_alive = odd_calls(bomb)
    assert outputs[0].startswith("MCP server 'net' failed in 'odd': Failed to parse JSON response")
    assert is_alive


def test_an_error_of_http_costs_one_call() -> None:
    statuses = iter([503, 200])

    async def at_first(request: web.Request, message: Any) -> web.StreamResponse | dict[str, Any]:
        status = next(statuses)
        return web.Response(status=status) if status != 200 else reply(message, text("better"))

    outputs, is_alive = odd_calls(at_first, 2)
    assert outputs[0].endswith("HTTP 503 Service Unavailable")
    assert outputs[1] == "better"
    assert is_alive


def test_a_stream_that_breaks_costs_one_call() -> None:
    counter = iter(range(9))

    async def at_first(request: web.Request, message: Any) -> web.StreamResponse | dict[str, Any]:
        if next(counter):
            return reply(message, text("better"))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": hello\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    outputs, is_alive = odd_calls(at_first, 2)
    assert outputs == ["MCP server 'net' failed in 'odd': the connection was lost before an answer came", "better"]
    assert is_alive


def test_a_server_that_has_forgotten_us_is_gone() -> None:
    async def forget(request: web.Request, message: Any) -> web.StreamResponse:
        assert request.headers["mcp-session-id"] == "s-1"
        return web.Response(status=404)

    outputs, is_alive = odd_calls(forget)
    assert "it does not know the session any more" in outputs[0]
    assert not is_alive


def test_no_key_goes_where_a_redirect_leads() -> None:
    heard: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        heard.append(request.path)
        return web.Response()

    async def main() -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", elsewhere)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        other = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"

        async def redirect(request: web.Request, message: Any) -> web.StreamResponse:
            return web.Response(status=307, headers={"location": other})

        try:
            async with answering(redirect) as url, connected(settings(url, Authorization="Bearer k-1")) as server:
                return (await called(server, "odd")).output
        finally:
            await runner.cleanup()

    assert "not followed" in asyncio.run(main())
    assert heard == []


def test_closing_does_not_wait_for_a_server_that_hangs() -> None:
    async def main() -> None:
        hung = asyncio.Event()
        released = asyncio.Event()

        async def hang(request: web.Request, message: Any) -> dict[str, Any]:
            hung.set()
            await released.wait()
            return reply(message, text("at last"))

        async with answering(hang) as url:
            server = await connect(settings(url))
            pending = asyncio.create_task(called(server, "odd"))
            await hung.wait()
            await server.close()
            assert (await pending).output == "MCP server 'net' is gone: it was closed"
            released.set()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
