"""Servers: the MCP servers of the configuration."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fanfold.contracts.settings import McpServerSettings
from fanfold.env import Clock
from fanfold.errors import FanfoldError
from fanfold.foreign import logger
from fanfold.protocols import ToolServer
from fanfold.session.closing import close_together

RETRY_MS = 60_000


class Servers:
    """Started when the first session is opened, shared by all. One that cannot be started is tried again by a session
    that is opened `RETRY_MS` later, or more: until then nobody waits for it again."""

    def __init__(self, settings: Mapping[str, McpServerSettings], clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._failed_ms: dict[str, int] = {}
        self._running: dict[str, ToolServer] = {}
        self._starting = asyncio.Lock()
        self._starts: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._faults: dict[str, str] = {}

    @property
    def warnings(self) -> list[str]:
        """Why servers are missing."""
        return list(self._faults.values())

    async def started(self, root: Path) -> Mapping[str, ToolServer]:
        """All that could be started; those that died are started again. What failed is told in `warnings`. None is
        started once `close` has begun, which also ends this."""
        if not self._settings:
            return self._running
        async with self._starting:
            if self._is_closed:
                return self._running
            self._starts = {asyncio.create_task(self._start(each, root)) for each in self._due()}
            try:
                if self._starts:
                    await asyncio.wait(self._starts)
            finally:
                starts, self._starts = self._starts, set()
                await _end(starts)
            for start in starts:
                if not start.cancelled():
                    start.result()
        return self._running

    def _due(self) -> list[McpServerSettings]:
        """Those to be started now."""
        now = self._clock.monotonic_ms()
        missing = [
            each
            for name, each in self._settings.items()
            if name not in self._running or not self._running[name].is_alive
        ]
        return [each for each in missing if now - self._failed_ms.get(each.name, now - RETRY_MS) >= RETRY_MS]

    async def _start(self, settings: McpServerSettings, root: Path) -> None:
        from fanfold.mcp.connect import connect

        dead = self._running.pop(settings.name, None)
        if dead is not None:
            await dead.close()
        self._faults.pop(settings.name, None)
        try:
            self._running[settings.name] = await connect(settings, workspace=root)
        except FanfoldError as error:
            self._failed_ms[settings.name] = self._clock.monotonic_ms()
            self._faults[settings.name] = str(error)
            logger.warning("%s", error)

    async def close(self) -> None:
        self._is_closed = True
        await _end(set(self._starts))
        running, self._running = list(self._running.values()), {}
        await close_together(server.close for server in running)


async def _end(starts: "set[asyncio.Task[None]]") -> None:
    """Cancel those that are not done, and wait until nothing is left of them."""
    rest = {each for each in starts if not each.done()}
    for each in rest:
        each.cancel()
    if rest:
        await asyncio.wait(rest)


async def connect_given(given: Mapping[str, Any], root: Path) -> ToolServer:
    """Start the server that `Session.add_mcp` was given."""
    from fanfold.mcp.connect import connect
    from fanfold.mcp.parsing import parse_server

    return await connect(parse_server(given), workspace=root)
