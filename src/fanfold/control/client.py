"""The client's side: finds the processes that serve sessions of a workspace, and asks one of them."""

import asyncio
import socket
from pathlib import Path

import msgspec

from fanfold.control import place
from fanfold.control.wire import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Done,
    Look,
    Refused,
    Reply,
    Request,
    Seen,
    decode_reply,
    encode_line,
)
from fanfold.errors import ControlError

TIMEOUT_SECONDS = 5.0


class LiveServer(msgspec.Struct, frozen=True):
    """A process that serves sessions."""

    path: Path
    process: int


class Found(msgspec.Struct, frozen=True):
    answered: list[tuple[LiveServer, Seen]]
    silent: list[tuple[LiveServer, ControlError]]
    """They take connections and gave no answer."""


async def look(workspace: str | Path, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Found:
    """What all live processes serve of `workspace`, and what waits there. Sockets of dead ones are removed."""
    servers = [LiveServer(path, process) for path, process in place.sockets_of(workspace)]
    found = Found([], [])
    for server, reply in zip(
        servers, await asyncio.gather(*(_looked(each, timeout_seconds) for each in servers)), strict=True
    ):
        match reply:
            case Seen():
                found.answered.append((server, reply))
            case ControlError():
                found.silent.append((server, reply))
            case None:
                pass
    return found


async def ask(server: LiveServer, request: Request, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Done:
    """Have it done.

    Raises:
        ControlError: it was refused (`code` says why), or no answer came, and then it may have been done or not.
    """
    reply = await _exchange(server, request, timeout_seconds)
    match reply:
        case Done():
            return reply
        case Refused():
            raise ControlError(reply.code, reply.message)
        case None:  # nothing was asked, which is surer than no answer
            raise ControlError("NOT_SERVED", f"process {server.process} is not there any more")
        case Seen():
            raise _unreachable(server, "gave an answer to something else")


async def _looked(server: LiveServer, timeout_seconds: float) -> Seen | ControlError | None:
    try:
        reply = await _exchange(server, Look(), timeout_seconds)
    except ControlError as error:
        return error
    match reply:
        case Seen() | None:
            return reply
        case Refused():
            return ControlError(reply.code, reply.message)
        case Done():
            return _unreachable(server, "gave an answer to something else")


async def _exchange(server: LiveServer, request: Request, timeout_seconds: float) -> Reply | None:
    """The reply; None where nobody takes connections any more."""
    line = encode_line(request)
    if len(line) > MAX_REQUEST_BYTES:
        raise ControlError("INVALID_REQUEST", f"the request has {len(line)} bytes, and may have {MAX_REQUEST_BYTES}")
    place.require_unix_sockets()
    try:
        async with asyncio.timeout(timeout_seconds):
            peer = await _connected(server)
            return None if peer is None else decode_reply(await _asked(peer, line))
    except TimeoutError:
        raise _unreachable(server, f"did not answer within {timeout_seconds:g} s") from None
    except asyncio.LimitOverrunError:
        raise _unreachable(server, f"answered with more than {MAX_REPLY_BYTES} bytes") from None
    except (OSError, asyncio.IncompleteReadError):
        raise _unreachable(server, "ended before it answered") from None


async def _connected(server: LiveServer) -> socket.socket | None:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, str(server.path))
        if place.process_of_peer(peer) is None:
            raise _unreachable(server, "belongs to another user")
        return peer
    except (ConnectionRefusedError, FileNotFoundError):
        peer.close()
        place.remove_if_dead(server.path, server.process)
        return None
    except BaseException:
        peer.close()
        raise


async def _asked(peer: socket.socket, line: bytes) -> bytes:
    try:
        reader, writer = await asyncio.open_unix_connection(sock=peer, limit=MAX_REPLY_BYTES)
    except BaseException:
        peer.close()
        raise
    try:
        writer.write(line)
        await writer.drain()
        return await reader.readuntil(b"\n")
    finally:
        writer.transport.abort()


def _unreachable(server: LiveServer, why: str) -> ControlError:
    return ControlError("CONTROL_UNREACHABLE", f"process {server.process} {why}")
