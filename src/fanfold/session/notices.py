"""Notices: what waits to be told to one conversation, and the runs by which an idle session hears of it.

A notice is recorded as a fact of its own id, so that it is told once, however often and from wherever it is given:
by `post`, which this process remembers, or by an `Outbox`, which keeps it until it hears that the fact is durable.
A run under way records what waits before its next model call. An idle session is woken: it starts a run of its own,
unless its turn is unfinished, for then whoever goes on with that turn decides. Everything here is for the session's
loop.
"""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

from fanfold.contracts.events import AgentResult
from fanfold.contracts.notices import Notice
from fanfold.errors import RunCancelledError, SessionBusyError, UsageError
from fanfold.foreign import call_foreign, described, logger
from fanfold.kernel.plain_text import is_plain, plain
from fanfold.protocols import EventSink
from fanfold.runs.operations import Operations, cancel_once
from fanfold.runs.runs import Run

MAX_WAKES = 32
"""Runs in a row that notices start, with no prompt between them: background work that begets more of it ends there."""
TITLE_CHARACTERS = 120

inside: ContextVar[Run | None] = ContextVar("inside", default=None)
"""The run that the running code is a part of."""


class Outbox(Protocol):
    """Notices that outlive this process. What it raises is logged, and it is asked again at the next run."""

    async def pending(self) -> Sequence[Notice]:
        """Those that were not `delivered`, oldest first. Asked at the start of each run: be quick where there are
        none."""
        ...

    async def delivered(self, id: str) -> None:
        """The conversation has it for good. Told again when it is pending all the same."""
        ...


class Sleeper(Protocol):
    """The conversation that is woken."""

    @property
    def is_at_rest(self) -> bool:
        """Nothing of its last turn is left to do, and somebody still holds its session."""
        ...

    @property
    def waits_for_person(self) -> bool:
        """The run under way does."""
        ...

    def wake(self, title: str, listener: EventSink | None) -> Run:
        """Start the run that records what waits."""
        ...

    def keep_for(self, task: "asyncio.Task[Any]") -> None:
        """Let the session live as long as `task` does."""
        ...


class Notices:
    __slots__ = (
        "_busy_parts",
        "_change",
        "_held_off",
        "_is_stale",
        "_operations",
        "_outboxes",
        "_sleeper",
        "_told",
        "_waiting",
        "_wakes",
        "_wakes_in_a_row",
        "_waking",
        "_working",
        "listener",
    )

    def __init__(self, operations: Operations, *, wakes: bool = True) -> None:
        self._operations = operations
        self._wakes = wakes
        self._sleeper: Callable[[], Sleeper | None] = _nobody
        self.listener: EventSink | None = None
        """Hears the runs that notices start."""
        # Most sessions need none of these.
        self._waiting: dict[str, tuple[Notice, Outbox | None]] | None = None
        self._told: set[str] | None = None
        """Ids that the log has, as far as this process knows."""
        self._outboxes: tuple[Outbox, ...] = ()
        self._busy_parts: tuple[Callable[[], bool], ...] = ()
        self._working: set[asyncio.Task[Any]] | None = None
        self._change: asyncio.Event | None = None
        self._waking: Run | None = None
        self._wakes_in_a_row = 0
        self._held_off = 0
        self._is_stale = False
        """The outboxes are to be asked."""

    def belongs_to(self, sleeper: Sleeper) -> None:
        self._sleeper = weakref.ref(sleeper)

    # ---- where notices come from ----

    def post(self, notice: Notice) -> None:
        """Have the conversation be told of it, once.

        Raises:
            UsageError: its id or text is none that a log can hold.
        """
        if not notice.id or not (is_plain(notice.id) and is_plain(notice.text)):
            raise UsageError(f"a notice has an id and is text that can be written as UTF-8, got {notice!r}")
        self._take(notice, None)
        self.look()

    def connect(self, outbox: Outbox, is_busy: Callable[[], bool] | None = None) -> None:
        """Ask `outbox` too, from the next run on, and whenever `look` or `post` says that there is something.

        Args:
            is_busy: work goes on that will end in a notice. Whoever gives it calls `look` when it is over.
        """
        self._outboxes += (outbox,)
        if is_busy is not None:
            self._busy_parts += (is_busy,)

    def look(self) -> None:
        """There is something new: in an outbox, or in that a part is busy no more."""
        self._is_stale = bool(self._outboxes)
        self._stir()
        self.changed()

    def launch(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start background work of the session. Raises SessionClosedError."""
        task = self._operations.start(work, is_exclusive=False)
        self._working = self._working or set()
        self._working.add(task)
        task.add_done_callback(self._worked)
        sleeper = self._sleeper()
        if sleeper is not None:
            sleeper.keep_for(task)
        return task

    def launch_task(self, _name: str, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """`launch`, for the `task` tool."""
        return self.launch(work)

    def _worked(self, task: "asyncio.Task[Any]") -> None:
        if self._working is not None:
            self._working.discard(task)
        self.changed()

    def _take(self, notice: Notice, outbox: Outbox | None) -> None:
        if self._told is None or notice.id not in self._told:
            self._waiting = self._waiting or {}
            self._waiting[notice.id] = (notice, outbox)

    # ---- for a run that records them ----

    @property
    def has_any(self) -> bool:
        """Some wait, or may wait in an outbox."""
        return bool(self._waiting) or self._is_stale

    def expect(self) -> None:
        """A run begins: the outboxes are to be asked."""
        self._is_stale = bool(self._outboxes)

    async def ask(self) -> None:
        """Ask the outboxes, if they have not been asked since somebody said so."""
        if not self._is_stale:
            return
        self._is_stale = False
        for outbox in self._outboxes:
            for notice in await call_foreign(_pending(outbox), _none_known):
                if self._told is not None and notice.id in self._told:
                    await self._tell(outbox, notice.id)
                else:
                    self._take(notice, outbox)

    def waiting(self) -> list[Notice]:
        return [notice for notice, _ in (self._waiting or {}).values()]

    async def delivered(self, notice: Notice) -> None:
        """The log has it."""
        self._told = self._told or set()
        self._told.add(notice.id)
        _, outbox = (self._waiting or {}).pop(notice.id, (notice, None))
        if outbox is not None:
            await self._tell(outbox, notice.id)
        self.changed()

    async def _tell(self, outbox: Outbox, id: str) -> None:
        def failed(error: BaseException) -> None:
            logger.warning("notice '%s' was recorded, and its outbox does not take that in: %s", id, described(error))

        await call_foreign(_delivered(outbox, id), failed)

    # ---- waking an idle session ----

    def _stir(self) -> None:
        """Wake the session for what waits, if it is idle; otherwise as soon as it is."""
        if not (self._wakes and self.has_any) or self._held_off or self._operations.is_closed:
            return
        if self._operations.is_busy:
            self._operations.when_free(self._stir)
            return
        sleeper = self._sleeper()
        if sleeper is None or not sleeper.is_at_rest:
            return
        if self._is_stale:
            self.launch(self._ask_and_stir())
        else:
            self._wake(sleeper)

    async def _ask_and_stir(self) -> None:
        await self.ask()
        self._stir()

    def _wake(self, sleeper: Sleeper) -> None:
        if self._wakes_in_a_row == MAX_WAKES:
            logger.warning("%s waits for the next prompt: %d runs in a row told of others", self._title(), MAX_WAKES)
            return
        self._wakes_in_a_row += 1
        self._waking = run = sleeper.wake(self._title(), self.listener)
        run.task.add_done_callback(partial(self._woke, run))

    def _title(self) -> str:
        first, *others = self._waiting or ("",)
        more = f" and {len(others)} more" if others else ""
        return f"<task_notification {first[:TITLE_CHARACTERS]}{more}>"

    def _woke(self, run: Run, task: "asyncio.Task[AgentResult]") -> None:
        if self._waking is run:  # whoever heard of its end may have given reason for the next one
            self._waking = None
        self.changed()
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RunCancelledError):  # nobody else gets it
            logger.warning("session %s: run %s failed: %s", run.snapshot().session_id, run.prompt, described(error))

    # ---- waiting ----

    @asynccontextmanager
    async def held_off(self, *, is_prompt: bool = False) -> AsyncGenerator[None]:
        """Wait for the end of a run that a notice started, and let none be started within the block.

        A prompt does not wait for a person: a run that does is cut off, to be gone on with or given up by the prompt
        as any parked turn. Whatever else comes then meets a session that is busy; so does what that run does itself.
        """
        if is_prompt:
            self._wakes_in_a_row = 0
        self._held_off += 1
        try:
            while (run := self._waking) is not None and inside.get() is not run:
                sleeper = self._sleeper()
                if sleeper is None or not sleeper.waits_for_person:
                    await self._changing()
                elif is_prompt:
                    cancel_once(run.task)
                    await asyncio.wait({run.task})
                else:
                    break
            yield
        finally:
            self._held_off -= 1
            self._stir()
            self.changed()

    async def settled(self) -> None:
        """Return when no run and no background work is under way, nor about to begin.

        Raises:
            SessionBusyError: a run waits for its own end.
        """
        run = inside.get()
        while True:
            if run is not None and run.is_active:
                raise SessionBusyError(session_id=run.snapshot().session_id)
            if self._operations.is_busy:
                await self._operations.until_free()
            elif self._working or self._held_off or any(is_busy() for is_busy in self._busy_parts):
                await self._changing()
            else:
                return

    async def _changing(self) -> None:
        if self._change is None:
            self._change = asyncio.Event()
        await self._change.wait()

    def changed(self) -> None:
        """Have those who wait look again: a run waits for a person now, say."""
        change, self._change = self._change, None
        if change is not None:
            change.set()


def _nobody() -> None:
    return None


async def _pending(outbox: Outbox) -> list[Notice]:
    return [Notice(each.id, plain(each.text)) for each in await outbox.pending() if each.id and is_plain(each.id)]


async def _delivered(outbox: Outbox, id: str) -> None:
    await outbox.delivered(id)


def _none_known(error: BaseException) -> list[Notice]:
    logger.warning("an outbox does not say which notices wait: %s", described(error))
    return []
