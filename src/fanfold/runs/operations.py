"""What runs in a session right now: one transcript operation at a time, any number of fan-outs, all ended by close."""

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fanfold.errors import LifecycleError, RunCancelledError, SessionBusyError, SessionClosedError
from fanfold.portal import start_kept

R = TypeVar("R")
_cancelled: "weakref.WeakSet[asyncio.Task[Any]]" = weakref.WeakSet()


def cancel_once(task: "asyncio.Task[Any]") -> None:
    """Cancel it, unless that was done here before: a second time would cut off the clean-up that the first began."""
    if task not in _cancelled:
        _cancelled.add(task)
        task.cancel()


class Operations:
    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._tasks: set[asyncio.Task[Any]] = set()
        self._exclusive: asyncio.Task[Any] | None = None
        self._is_closed = False

    def require(self, *, is_exclusive: bool) -> None:
        """Raise what `start` would raise now."""
        if self._is_closed:
            raise SessionClosedError(session_id=self._session_id)
        if is_exclusive and self.is_busy:
            raise SessionBusyError(session_id=self._session_id)

    def start(self, work: Coroutine[Any, Any, R], *, is_exclusive: bool) -> asyncio.Task[R]:
        """Run `work` as a task of the session. Refuses at once, before `work` has done anything.

        Raises:
            SessionClosedError: the session was closed.
            SessionBusyError: `is_exclusive`, and another exclusive operation has not fully stopped yet.
        """
        try:
            self.require(is_exclusive=is_exclusive)
        except LifecycleError:
            work.close()
            raise
        task = start_kept(work)
        self._tasks.add(task)
        if is_exclusive:
            self._exclusive = task
        task.add_done_callback(self._ended)
        return task

    async def run(self, work: Coroutine[Any, Any, R], *, is_exclusive: bool) -> R:
        """Run `work` to its end; cancelling the caller cancels it and waits until it has stopped.

        Raises:
            RunCancelledError: somebody else cancelled it, by `cancel` or by closing the session.
        """
        return await self.join(self.start(work, is_exclusive=is_exclusive))

    async def join(self, task: asyncio.Task[R]) -> R:
        """The result of a task that `start` gave; otherwise as `run`."""
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise RunCancelledError(session_id=self._session_id) from None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._exclusive is task:
            self._exclusive = None

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_busy(self) -> bool:
        # Done is done, though nobody has been told yet.
        return self._exclusive is not None and not self._exclusive.done()

    def when_free(self, told: Callable[[], None]) -> None:
        """Call `told` as soon as the exclusive operation under way has ended."""
        if self._exclusive is not None:
            self._exclusive.add_done_callback(lambda _: told())

    async def until_free(self) -> None:
        """Return when the exclusive operation under way has ended, whoever waits for its result."""
        if self._exclusive is not None:
            await asyncio.wait({self._exclusive})

    async def close(self) -> None:
        """Refuse new work, cancel all that runs, return when it has stopped."""
        self._is_closed = True
        tasks = set(self._tasks)
        for task in tasks:
            cancel_once(task)
        if tasks:
            await asyncio.wait(tasks)
