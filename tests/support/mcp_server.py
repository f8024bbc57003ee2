"""A well-behaved MCP server, made with the SDK: `python -m tests.support.mcp_server stdio|http [options]`.

`http` prints `PORT <number>` and serves `http://127.0.0.1:<number>/mcp`; with `--json` its answers are JSON, without
they are streams of events; with `--key K` it wants `Authorization: Bearer K`; with `--old` it knows only the handshake
of 2025. `--stubborn` (stdio) starts a child
whose command line holds the given token, and ignores SIGTERM and the end of its input, as the child does.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import mcp_types
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

server = MCPServer("test server")
READ_ONLY = mcp_types.ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READ_ONLY)
def echo(text: str) -> mcp_types.CallToolResult:
    """Give back the text."""
    return answer(text)


@server.tool(annotations=mcp_types.ToolAnnotations(read_only_hint=True, destructive_hint=True))
def contradictory() -> mcp_types.CallToolResult:
    return answer("done")


@server.tool()
def fail(text: str) -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(content=[mcp_types.TextContent(text=text)], is_error=True)


@server.tool()
def numbers() -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(content=[], structured_content={"sum": 3, "of": [1, 2]})


@server.tool()
def mixed() -> mcp_types.CallToolResult:
    page = mcp_types.TextResourceContents(uri="file:///notes.txt", text="the notes")
    blob = mcp_types.BlobResourceContents(uri="file:///a.bin", blob="AAAA", mime_type="application/x-bin")
    return mcp_types.CallToolResult(
        content=[
            mcp_types.TextContent(text="first"),
            mcp_types.ImageContent(data="A" * 400, mime_type="image/png"),
            mcp_types.AudioContent(data="A" * 40, mime_type="audio/wav"),
            mcp_types.ResourceLink(name="report", uri="https://example.com/report"),
            mcp_types.EmbeddedResource(resource=page),
            mcp_types.EmbeddedResource(resource=blob),
            mcp_types.TextContent(text="last"),
        ]
    )


@server.tool()
def nothing() -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(content=[])


@server.tool()
def big(size: int) -> mcp_types.CallToolResult:
    return answer("<" + "é" * (size // 2) + ">")


@server.tool()
async def hang(mark: str) -> mcp_types.CallToolResult:
    """Wait until it is cancelled; `mark` is a file that says how far it is."""
    note(mark, "started")
    try:
        await asyncio.Event().wait()
    finally:
        note(mark, "cancelled")
    return answer("never")


@server.tool()
def die(code: int) -> mcp_types.CallToolResult:
    print("something terrible has happened", file=sys.stderr, flush=True)
    os._exit(code)


@server.tool()
def where() -> mcp_types.CallToolResult:
    """The folder, the process, and the names of the environment, one a line."""
    return answer("\n".join([os.getcwd(), str(os.getpid()), *sorted(os.environ)]))


@server.tool()
def key(context: Context[Any]) -> mcp_types.CallToolResult:
    meta: Any = context.request_context.meta
    return answer(str(dict(meta or {}).get("fanfold/idempotency-key")))


@server.tool()
def spawn(token: str) -> mcp_types.CallToolResult:
    """A child that outlives the end of the server's input."""
    start_child(token)
    return answer("started")


@server.tool()
async def grow(name: str, context: Context[Any]) -> mcp_types.CallToolResult:
    """One more tool, and a word to the client about it."""
    server.add_tool(nothing, name=name)
    await context.session.send_tool_list_changed()  # in the way of 2025
    await context.notify_tools_changed()  # and in that of 2026
    return answer("grown")


@server.tool()
async def question(context: Context[Any]) -> mcp_types.CallToolResult:
    found = await context.session.list_roots()  # what no client of ours can answer
    return answer(str(found))


def answer(text: str) -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(content=[mcp_types.TextContent(text=text)])


def note(mark: str | Path, line: str) -> None:
    with open(mark, "a") as file:
        print(line, file=file)


def start_child(token: str) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    subprocess.Popen([sys.executable, "-c", code, token])


def be_stubborn(token: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_child(token)
    try:
        server.run("stdio")
    finally:
        while True:
            signal.pause()


class Locked:
    """Only who has the key gets in."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app = app
        self.key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or Request(scope).headers.get("authorization") == f"Bearer {self.key}":
            await self.app(scope, receive, send)
        else:
            response: Response = JSONResponse({"error": "invalid_token"}, 401)
            await response(scope, receive, send)


class Old:
    """Knows only the handshake of 2025."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body = await Request(scope, receive).body()
        request = json.loads(body)
        if request["method"] == "server/discover":
            error = {"code": -32601, "message": "Method not found"}
            response = JSONResponse({"jsonrpc": "2.0", "id": request["id"], "error": error})
            await response(scope, receive, send)
            return
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Any:
            return next(messages, None) or await receive()

        await self.app(scope, again, send)


def serve_http(options: argparse.Namespace) -> None:
    app: ASGIApp = server.streamable_http_app(json_response=options.json)
    if options.key:
        app = Locked(app, options.key)
    if options.old:
        app = Old(app)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"PORT {listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listener])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=["stdio", "http"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--key", default="")
    parser.add_argument("--stubborn", default="", metavar="TOKEN")
    options = parser.parse_args()
    if options.transport == "http":
        serve_http(options)
    elif options.stubborn:
        be_stubborn(options.stubborn)
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
