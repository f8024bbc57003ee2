"""StdioLink: messages over the standard streams of a process, one line of JSON each.

Not the SDK's own client for it, which hears that a server is dead only when its children are too, keeps no limit on a
line, and leaves the children of a server alive that ends by itself.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, jsonrpc_message_adapter

from fanfold.contracts.settings import McpServerSettings
from fanfold.errors import McpError
from fanfold.mcp.link import OnLost
from fanfold.mcp.process import MAX_MESSAGE_BYTES, ServerProcess, launch, minimal_environment

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)
"""How a memory stream says that nobody is at its other end."""


_MAX_STRAY_BYTES = 200
_UNHEARD = ("notifications/message", "notifications/progress")


class StdioLink:
    def __init__(self, settings: McpServerSettings, command: str, folder: Path | None) -> None:
        self._settings = settings
        self._command = command
        self._folder = folder
        self._process: ServerProcess | None = None
        self._is_dead = False
        self._stray = ""

    @property
    def is_old(self) -> bool:
        return self._is_dead

    def last_words(self) -> str:
        if self._process is None or not self._process.is_over:
            return ""  # what a living server logs has nothing to do with one call
        words = self._process.last_words()
        said = [f"it said on stderr: {words}"] if words else []
        stray = [f"it printed what is no message: {self._stray}"] if self._stray else []
        return "; ".join(said + stray)

    @asynccontextmanager
    async def connection(self, on_lost: OnLost) -> AsyncGenerator[tuple[Incoming, Outgoing]]:
        """Start the process, and end it; see `ServerProcess.end`.

        Raises:
            McpError: it could not be started.
        """
        process = await self._launch()
        self._process, self._is_dead, self._stray = process, False, ""
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception]()
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage]()
        tasks = [
            asyncio.create_task(self._read(process, to_session, on_lost)),
            asyncio.create_task(_write(process, from_session, on_lost)),
        ]
        try:
            yield incoming, outgoing
        finally:
            for task in tasks:
                task.cancel()
            try:
                await process.end()
            finally:
                for stream in (to_session, incoming, outgoing, from_session):
                    stream.close()
            await asyncio.wait(tasks)

    async def _launch(self) -> ServerProcess:
        environment = minimal_environment(os.environ) | self._settings.env
        argv = [self._command, *self._settings.args]
        try:
            return await launch(argv, folder=self._folder, environment=environment)
        except OSError as error:
            reason = f"cannot start '{self._command}': {self._fault(error)}"
            raise McpError(server=self._settings.name, reason=reason) from error

    def _fault(self, error: OSError) -> str:
        if self._folder is not None and not self._folder.is_dir():
            return f"the folder {self._folder} does not exist"
        if not isinstance(error, FileNotFoundError):
            return error.strerror or str(error)
        if " " in self._command and not self._settings.args:
            return "there is no such command; its arguments belong into args"
        return "there is no such command on the PATH that the server gets"

    async def _read(
        self, process: ServerProcess, to_session: MemoryObjectSendStream[SessionMessage | Exception], on_lost: OnLost
    ) -> None:
        """Hand on what the server says, until it dies or the session has left."""
        try:
            while line := await process.output.readuntil():
                message = _message(line)
                if message is not None and not _is_unheard(message):
                    await to_session.send(message)
                    continue
                if message is None and line.strip():
                    self._stray = repr(line[:_MAX_STRAY_BYTES].decode("utf-8", "replace").strip())
                await asyncio.sleep(0)  # to read a line that is there already does not let others run
        except asyncio.IncompleteReadError:
            self._is_dead = True
            on_lost(await process.ending() or "it has closed its output")
        except asyncio.LimitOverrunError:
            on_lost(f"it sent a message of more than {MAX_MESSAGE_BYTES // 1024**2} MiB")
        except _GONE:
            pass
        finally:
            to_session.close()


def _message(line: bytes) -> SessionMessage | None:
    """None for what is no message: banners and prints that stray onto stdout are as common as they are forbidden."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


def _is_unheard(message: SessionMessage) -> bool:
    """Nobody asked for it, and the SDK would make a task of it; a server may send many thousands."""
    return isinstance(message.message, JSONRPCNotification) and message.message.method in _UNHEARD


async def _write(
    process: ServerProcess, from_session: MemoryObjectReceiveStream[SessionMessage], on_lost: OnLost
) -> None:
    """Hand on what the session says. When it fails the session's sends fail too, for the stream is closed."""
    with from_session:
        async for item in from_session:
            try:
                await process.send(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            except BrokenPipeError:
                on_lost(await process.ending() or "it reads its input no more")
                return
