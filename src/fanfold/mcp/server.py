"""McpServer: one server behind one owner task, which opens its client, serves it, and closes it.

The SDK's cancel scopes belong to the task that entered them, so nobody else may open or close the client. Callers
leave their calls in the owner's inbox and wait for a future; each call then runs in a task of the owner's, for the SDK
may take seconds to tell the server of a cancellation, and the caller shall not wait for that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import mcp_types
from mcp.client import Client, IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.record import JsonObject
from fanfold.contracts.settings import McpServerSettings
from fanfold.errors import ConfigError, McpError
from fanfold.foreign import call_foreign, described
from fanfold.mcp.answers import failed
from fanfold.mcp.call import PendingCall, ask, faults, plain, refusal
from fanfold.mcp.http import HttpLink
from fanfold.mcp.link import Link
from fanfold.mcp.stdio import StdioLink
from fanfold.mcp.tools import tools_of
from fanfold.protocols import Tool, ToolScope

MAX_PAGES = 1000
MAX_TOOLS = 10_000
FAREWELL_SECONDS = 1.0
"""For the cancellations of pending calls to reach a server that is being closed."""
CLOSE_SECONDS = 5.0
"""Then the owner is cancelled, which kills the process and cuts the connections."""

T = TypeVar("T")
logger = logging.getLogger("fanfold.mcp")


class McpServer:
    """A `ToolServer`. `start` comes first; after a failed one nothing is left of it."""

    def __init__(self, settings: McpServerSettings, link: Link) -> None:
        self._settings = settings
        self._link = link
        self._tools: dict[str, Tool] = {}
        self._owner: asyncio.Task[None] | None = None
        self._inbox: asyncio.Queue[PendingCall | None] = asyncio.Queue()
        """None: stop."""
        self._pending: set[PendingCall] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_list_old = asyncio.Event()
        self._is_ready = False
        self._is_closed = False
        self._end: str | None = None
        """Why no call can be made any more."""

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def tools(self) -> Mapping[str, Tool]:
        """A new mapping each time the server says that its tools have changed."""
        return self._tools

    @property
    def is_alive(self) -> bool:
        return self._is_ready and self._end is None

    async def start(self) -> None:
        """Raises:
        McpError: it is not ready within `timeout_ms`, or has failed before.
        """
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(started), name=f"MCP server {self.name}")
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1000):
                await started
        except TimeoutError:
            await self._end_owner(self._owner)
            raise self._error(f"it was not ready within {self._settings.timeout_ms} ms") from None
        except BaseException:
            await self._end_owner(self._owner)
            raise

    async def call(self, tool: str, args: JsonObject, scope: ToolScope) -> ToolOutput:
        """What the server answers; whatever goes wrong is told by the output. Cancelling cancels it there too."""
        if not self.is_alive:
            return failed(self._obituary())
        try:
            pending = PendingCall(tool, plain(args), scope.idempotency_key)
        except ValueError as error:
            return failed(f"The arguments of '{tool}' are no JSON that could be sent: {error}")
        self._pending.add(pending)
        self._inbox.put_nowait(pending)
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1000):
                return await pending.answer
        except TimeoutError:
            limit = self._settings.timeout_ms
            return failed(f"MCP server '{self.name}' gave no answer to '{tool}' within {limit} ms")
        finally:
            self._pending.discard(pending)
            pending.answer.cancel()

    async def close(self) -> None:
        self._is_closed = True
        self._lose("it was closed")
        if self._owner is not None:
            try:
                await asyncio.wait([self._owner], timeout=CLOSE_SECONDS)
            finally:
                await self._end_owner(self._owner)

    # ---- the owner's side -------------------------------------------------------------------------------------------

    async def _own(self, started: asyncio.Future[None]) -> None:
        try:
            outcome = await _outcome(self._serve("auto", started))
            if self._link.is_old and not started.done() and not self._is_closed:
                self._end, self._inbox = None, asyncio.Queue()
                outcome = await _outcome(self._serve("legacy", started))
            if outcome is not None:
                logger.debug("the connection to MCP server %s ended", self.name, exc_info=outcome)
                self._lose(_reason(outcome))
            if not started.done():
                started.set_exception(self._error(self._end or "it went away"))
        finally:
            self._lose("it was closed")
            await self._dismiss()

    async def _serve(self, mode: str, started: asyncio.Future[None]) -> None:
        async with Client(
            self._link.connection(self._lose),
            mode=mode,
            cache=None,  # we ask for the list only when it is new
            client_info=mcp_types.Implementation(name="fanfold", version=_version()),
            message_handler=self._hear,
        ) as client:
            self._tools = await self._listed(client)
            self._is_ready = True
            if not started.done():
                started.set_result(None)
            self._spawn(self._listen(client))
            self._spawn(self._list_again(client))
            while (pending := await self._inbox.get()) is not None:
                self._begin(client, pending)
            await self._dismiss()

    def _begin(self, client: Client, pending: PendingCall) -> None:
        if pending.answer.done():
            return
        task = self._spawn(self._perform(client, pending))
        pending.answer.add_done_callback(lambda answer: task.cancel() if answer.cancelled() else None)

    async def _perform(self, client: Client, pending: PendingCall) -> None:
        pending.settle(await call_foreign(ask(client, pending), lambda error: self._refusal(pending, error)))

    def _refusal(self, pending: PendingCall, error: BaseException) -> ToolOutput:
        if isinstance(error, MCPError) and error.code == mcp_types.CONNECTION_CLOSED:
            self._is_list_old.set()  # one stream of many may have broken, or all: the next answer tells
        return failed(refusal(self.name, pending.tool, error, self._link.last_words()))

    def _lose(self, reason: str) -> None:
        """From now on there is no server: what waits for it ends at once, and so does the owner."""
        if self._end is None:
            self._end = reason
        for pending in self._pending:
            pending.settle(failed(self._obituary()))
        self._inbox.put_nowait(None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _dismiss(self) -> None:
        """End the owner's tasks; the second time without a word to the server."""
        for _ in range(2):
            if self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks, timeout=FAREWELL_SECONDS)

    async def _end_owner(self, owner: asyncio.Task[None]) -> None:
        owner.cancel()
        await asyncio.wait([owner], timeout=CLOSE_SECONDS)

    # ---- the list of tools ------------------------------------------------------------------------------------------

    async def _listed(self, client: Client) -> dict[str, Tool]:
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        async with asyncio.timeout(self._settings.timeout_ms / 1000):
            for _ in range(MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor
                if len(found) > MAX_TOOLS:
                    break
                if not cursor:
                    return tools_of(self.name, found, self.call)
        reason = f"it lists more than {MAX_TOOLS:,} tools, or more than {MAX_PAGES:,} pages of them"
        raise McpError(server=self.name, reason=reason)

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._is_list_old.set()

    async def _list_again(self, client: Client) -> None:
        """List the tools each time that they have changed."""
        while await self._is_list_old.wait():
            self._is_list_old.clear()
            tools = await _outcome(self._listed(client))
            if isinstance(tools, dict):
                self._tools = tools
            elif isinstance(tools, MCPError) and tools.code == mcp_types.CONNECTION_CLOSED:
                self._lose("the connection was lost")
            else:
                logger.warning("MCP server %s does not tell how its tools changed: %s", self.name, _reason(tools))

    async def _listen(self, client: Client) -> None:
        """Ask for changes of the list, which servers of 2026 tell only who asks; `_hear` gets them.

        Where the stream for them is cut, they are not heard of any more.
        """
        capability = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or capability is None or not capability.list_changed:
            return

        async def changes() -> None:
            async with client.listen(tools_list_changed=True) as heard:
                async for _ in heard:
                    pass

        await _outcome(changes())
        self._is_list_old.set()  # to ask once more, which finds out whether the server is still there

    # ---- texts ------------------------------------------------------------------------------------------------------

    def _error(self, reason: str) -> McpError:
        words = self._link.last_words()
        return McpError(server=self.name, reason=f"{reason}; {words}" if words and words not in reason else reason)

    def _obituary(self) -> str:
        return f"MCP server '{self.name}' is gone: {self._error(self._end or 'it was not started').reason}"


def link_to(settings: McpServerSettings, folder: Path | None) -> Link:
    """The way to the server of `settings`; a command is to run in `folder`."""
    if settings.command is not None:
        return StdioLink(settings, settings.command, folder)
    if settings.url is not None:
        return HttpLink(settings, settings.url)
    raise ConfigError(f"MCP server '{settings.name}' needs command or url")


async def _outcome(work: Awaitable[T]) -> T | BaseException:
    """What `work` gives, or the error that it raises."""

    async def whole() -> T | BaseException:
        return await work

    return await call_foreign(whole(), lambda error: error)


def _reason(error: BaseException) -> str:
    """The first cause in words, however many task groups it came through."""
    match error:
        case BaseExceptionGroup() as group:
            return _reason(group.exceptions[0])
        case McpError(reason=reason):
            return reason
        case MCPError(message=message):
            return f"it refused the connection: {message}"
        case ValidationError() as invalid:
            return f"what it says breaks the protocol: {faults(invalid)}"
        case _:
            return described(error)


def _version() -> str:
    try:
        return metadata.version("fanfold")
    except metadata.PackageNotFoundError:
        return "unknown"
