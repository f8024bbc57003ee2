"""Real MCP servers for tests, and calls of their tools as a session makes them."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs

from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.settings import McpServerSettings
from fanfold.mcp.connect import connect
from fanfold.protocols import Tool, ToolScope, ToolServer

ROOT = Path(__file__).parents[2]
RAW = str(ROOT / "tests" / "support" / "mcp_raw_server.py")
LONG_MS = 24 * 60 * 60 * 1000
"""A limit that no test waits for: what ends before it, ends for another reason."""


def scope(key: str = "k-1") -> ToolScope:
    return ToolScope(session_id="s-1", call_id="c-1", idempotency_key=key, emit=lambda event: None)


def sdk_settings(*options: str, name: str = "demo", timeout_ms: int = LONG_MS, **env: str) -> McpServerSettings:
    args = ("-m", "tests.support.mcp_server", "stdio", *options)
    return McpServerSettings(name=name, command=sys.executable, args=args, timeout_ms=timeout_ms, env=env)


def raw_settings(*manners: str, name: str = "raw", timeout_ms: int = LONG_MS) -> McpServerSettings:
    return McpServerSettings(name=name, command=sys.executable, args=(RAW, *manners), timeout_ms=timeout_ms)


@asynccontextmanager
async def connected(settings: McpServerSettings, workspace: Path = ROOT) -> AsyncIterator[ToolServer]:
    server = await connect(settings, workspace=workspace)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def http_server(*options: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The address of a server in a process of its own, and that process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.mcp_server", "http", *options, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        yield f"http://127.0.0.1:{int(line.split()[1])}/mcp", process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def tool(server: ToolServer, name: str) -> Tool:
    return server.tools[f"mcp__{server.name}__{name}"]


async def called(server: ToolServer, name: str, /, **args: Any) -> ToolOutput:
    """What a session gets, whose gate checks the arguments first."""
    found = tool(server, name)
    jsonschema_rs.validate(found.spec.parameters, args)
    return await found.run(args, scope())


async def until(condition: Callable[[], bool]) -> None:
    """Polls; the test's own timeout ends it."""
    while not condition():
        await asyncio.sleep(0.01)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def processes_with(token: str) -> list[int]:
    """Ids of the living processes whose command line holds a text."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and int(entry.name) != os.getpid() and token in _command(entry):
                found.append(int(entry.name))
        except OSError:
            continue  # it ended while we looked
    return found


def _command(entry: Path) -> str:
    return (entry / "cmdline").read_bytes().decode("utf-8", "replace")
