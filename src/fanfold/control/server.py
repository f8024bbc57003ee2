"""ControlServer: has live sessions answered, steered and cancelled from other processes of the same user.

It listens on a local socket that only this user can reach (see `place`), and holds no state of its own: what it is
asked, it asks the sessions. Whoever connects can do no more than that: what is no request is refused, what is too long
or too slow is cut off, and the sessions' runs never wait for a client.
"""

import asyncio
import functools
import os
import socket
from collections import OrderedDict
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from fanfold.control import place
from fanfold.control.waiting import Waiting, of_confirmation, of_question, waiting_id
from fanfold.control.wire import (
    MAX_REQUEST_BYTES,
    VERSION,
    Answer,
    Cancel,
    Confirm,
    Done,
    LiveSession,
    Look,
    Refused,
    Reply,
    Request,
    Steer,
    decode_request,
    encode_line,
    seen,
)
from fanfold.errors import ControlError, FanfoldError, RunControlError, UsageError
from fanfold.foreign import call_foreign, described, logger
from fanfold.nearest import did_you_mean
from fanfold.portal import Portal, blocking, complete, on_loop, start_kept
from fanfold.session.session import Session

MAX_CONNECTIONS = 32
"""At one time; further ones are closed at once."""
IDLE_SECONDS = 30.0
"""How long a client may keep a connection without a whole request, and then without taking the reply."""
_PAUSE_SECONDS = 0.1
"""Before the next connection when the system has just refused one (too many open files, say)."""
_MAX_REMEMBERED = 256
"""Answers that went through this server: who comes second is told what the first one said."""
_LONGEST_HELP = 400


class ControlServer:
    """Made by `of`; a context manager, sync and async. Serves from `start` to `close`, on the loop of its session."""

    def __init__(self, workspace: str | Path, portal: Portal, *, uid: int | None = None) -> None:
        """`uid`: the user who may ask, this process's own unless given."""
        self.portal = portal
        self._workspace = workspace
        self._uid = uid
        self._sessions: dict[str, Session] = {}
        self._answered: OrderedDict[str, str] = OrderedDict()
        self._connections: set[asyncio.Task[None]] = set()
        self._serving: asyncio.Task[None] | None = None
        self._path: Path | None = None

    @classmethod
    def of(cls, session: Session, *more: Session) -> Self:
        """A server for these sessions, which work in one folder, each known by its id. Not started yet."""
        server = cls(session.workspace, session.portal)
        for each in (session, *more):
            server.add(each)
        return server

    # ---- what is served ----

    def add(self, session: Session, known_as: str | None = None) -> None:
        """Serve this session too. `known_as`: what people call it, its id unless given (a workflow's id, say).

        Raises:
            UsageError: it works in another folder, or something else is served under that name.
        """
        name = session.session_id if known_as is None else known_as
        if os.path.realpath(session.workspace) != os.path.realpath(self._workspace):
            raise UsageError(f"session '{name}' works in {session.workspace}, and this server is for {self._workspace}")
        if self._sessions.get(name, session) is not session:
            raise UsageError(f"another session is served as '{name}'")
        self._sessions[name] = session

    def remove(self, session: Session) -> None:
        """Serve this session no longer."""
        self._sessions = {name: each for name, each in self._sessions.items() if each is not session}

    @property
    def path(self) -> Path | None:
        """Of its socket, while it serves."""
        return self._path

    # ---- life ----

    @on_loop
    async def start_async(self) -> None:
        """Take connections from now on; does nothing while it serves.

        Raises:
            ControlError: `CONTROL_UNAVAILABLE`, there can be no such socket here; the text says why.
        """
        if self._serving is None:
            listener, self._path = place.open_listener(self._workspace)
            self._serving = start_kept(self._serve(listener))
            # A done callback, for the task may be cancelled before its first step.
            self._serving.add_done_callback(functools.partial(_leave, listener, self._path))

    start = blocking(start_async)

    @on_loop
    async def close_async(self) -> None:
        """Take no more connections, and leave nothing behind. A request under way is answered first. Closing twice does
        nothing more."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await complete(_ended(serving))
            self._path = None

    close = blocking(close_async)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close_async()

    # ---- connections ----

    async def _serve(self, listener: socket.socket) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                peer = await _next_peer(listener)
                process = None if peer is None else place.process_of_peer(peer, uid=self._uid)
                if peer is None or process is None or len(self._connections) >= MAX_CONNECTIONS:
                    _close(peer)
                    continue
                talk = tasks.create_task(call_foreign(self._talk(peer, process), _broke_off))
                self._connections.add(talk)
                talk.add_done_callback(self._connections.discard)

    async def _talk(self, peer: socket.socket, process: int) -> None:
        place.not_for_children(peer)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=peer, limit=MAX_REQUEST_BYTES)
        except BaseException:
            peer.close()
            raise
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    line = await _line(reader)
                if line == b"":
                    return
                # Whole, though this server is closed meanwhile: who asked is told what came of it.
                await complete(self._reply(line, process, writer))
                if line is None:
                    return  # where the next request begins is not known
                async with asyncio.timeout(IDLE_SECONDS):
                    await writer.drain()
        except (TimeoutError, OSError):
            return  # the client is slow, or has gone
        finally:
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            writer.close()

    async def _reply(self, line: bytes | None, process: int, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_line(await call_foreign(self._answer_to(line, process), _refusal)))

    async def _answer_to(self, line: bytes | None, process: int) -> Reply:
        if line is None:
            raise ControlError("INVALID_REQUEST", f"a request may have {MAX_REQUEST_BYTES} bytes at most")
        return await self._perform(decode_request(line), f"process {process}" if process else "another process")

    # ---- requests ----

    async def _perform(self, request: Request, who: str) -> Reply:
        match request:
            case Look():
                return self._seen()
            case Confirm():
                return await self._confirm(request, who)
            case Answer():
                return await self._answer(request, who)
            case Steer():
                options = {} if request.request_id is None else {"request_id": request.request_id}
                receipt = await self._session(request.session).steer_async(request.text, options)
                return Done(v=VERSION, goes_on=True, receipt=receipt)
            case Cancel():
                return await self._cancel(request)

    def _seen(self) -> Reply:
        sessions: list[LiveSession] = []
        waiting: list[Waiting] = []
        for name, session in self._live().items():
            run = session.current_run()
            run_id = None if run is None or run.is_terminal else run.id
            sessions.append(LiveSession(name=name, session_id=session.session_id, run_id=run_id))
            waiting += _waiting_in(session, name)
        return seen(os.getpid(), sessions, waiting, self._answered)

    async def _confirm(self, request: Confirm, who: str) -> Reply:
        session = self._session(request.session)
        waits = {each.tool_id for each in session.pending_confirmations() if each.since_ms is not None}
        if not await session.confirm_tool_use_async(request.call_id, request.approved, request.reason or None):
            raise self._not_waiting(request)
        self._remember(request, f"{'approved' if request.approved else 'denied'} by {who}")
        return Done(v=VERSION, goes_on=request.call_id in waits)

    async def _answer(self, request: Answer, who: str) -> Reply:
        session = self._session(request.session)
        waits = {each.question_id for each in session.pending_questions() if each.since_ms is not None}
        if not await session.answer_question_async(request.call_id, request.text):
            raise self._not_waiting(request)
        self._remember(request, f"answered by {who}")
        return Done(v=VERSION, goes_on=request.call_id in waits)

    async def _cancel(self, request: Cancel) -> Reply:
        session = self._session(request.session)
        if request.step is not None:
            return await self._cancel_step(session, request.step)
        try:
            receipt = await session.interrupt_async({"reason": request.reason})
        except RunControlError as error:
            if error.code != "NO_ACTIVE_RUN" or not (cancelled := session.cancel_fan_outs()):
                raise
            return Done(v=VERSION, cancelled=cancelled)
        return Done(v=VERSION, receipt=receipt)

    async def _cancel_step(self, session: Session, step: str) -> Reply:
        if not await session.cancel_subagent_task_async(step) and not session.cancel_step(step):
            running = [task.task_id for task in session.pending_subagent_tasks()]
            near = did_you_mean(step, running)[:_LONGEST_HELP] if running else "; none does"
            raise ControlError("NO_ACTIVE_RUN", f"no step '{step}' runs in '{session.session_id}'{near}")
        return Done(v=VERSION, cancelled=1)

    def _live(self) -> dict[str, Session]:
        self._sessions = {name: each for name, each in self._sessions.items() if not each.is_closed()}
        return self._sessions

    def _session(self, name: str) -> Session:
        session = self._live().get(name)
        if session is None:
            raise ControlError("NOT_SERVED", f"process {os.getpid()} serves no session '{name}'")
        return session

    def _remember(self, request: Confirm | Answer, what: str) -> None:
        self._answered[waiting_id(request.session, request.call_id)] = what
        while len(self._answered) > _MAX_REMEMBERED:
            self._answered.popitem(last=False)

    def _not_waiting(self, request: Confirm | Answer) -> ControlError:
        name = waiting_id(request.session, request.call_id)
        earlier = self._answered.get(name)
        if earlier is None:
            return ControlError("NOT_WAITING", f"nothing waits as '{name}' any more")
        return ControlError("ALREADY_ANSWERED", f"'{name}' does not wait any more: it was {earlier}")


def _waiting_in(session: Session, name: str) -> list[Waiting]:
    """Oldest first."""
    known: dict[str, Any] = {"owner": name, "session_id": session.session_id, "process": os.getpid()}
    items = [
        *(of_confirmation(each, **known) for each in session.pending_confirmations()),
        *(of_question(each, **known) for each in session.pending_questions()),
    ]
    return sorted((_with_about(each, session) for each in items), key=lambda each: each.since_ms or 0)


def _with_about(waiting: Waiting, session: Session) -> Waiting:
    task = None if waiting.step is None else session.subagent_task(waiting.step)
    return waiting if task is None or not task.description else replace(waiting, about=task.description)


async def _ended(serving: "asyncio.Task[None]") -> None:
    await asyncio.wait({serving})
    if not serving.cancelled() and (error := serving.exception()) is not None:
        logger.error("the control server had failed", exc_info=error)


async def _next_peer(listener: socket.socket) -> socket.socket | None:
    try:
        peer, _ = await asyncio.get_running_loop().sock_accept(listener)
    except OSError:
        await asyncio.sleep(_PAUSE_SECONDS)
        return None
    return peer


async def _line(reader: asyncio.StreamReader) -> bytes | None:
    """The next line; empty when there is none any more, None for one that is too long."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError:
        return b""
    except asyncio.LimitOverrunError:
        return None


def _leave(listener: socket.socket, path: Path, _: "asyncio.Task[None]") -> None:
    listener.close()
    place.remove(path)


def _close(peer: socket.socket | None) -> None:
    if peer is not None:
        peer.close()


def _broke_off(error: BaseException) -> None:
    # A bug of ours in one connection, which neither the others nor a run may suffer from.
    logger.error("a connection of the control server failed", exc_info=error)


def _refusal(error: BaseException) -> Reply:
    if isinstance(error, FanfoldError):
        return Refused(v=VERSION, code=error.code, message=str(error))
    logger.error("the control server failed at a request", exc_info=error)
    return Refused(v=VERSION, code="INTERNAL_ERROR", message=described(error))
