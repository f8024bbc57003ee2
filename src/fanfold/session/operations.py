"""What runs in a session right now: one transcript operation at a time, any number of fan-outs, all ended by close."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fanfold.errors import LifecycleError, RunCancelledError, SessionBusyError, SessionClosedError
from fanfold.portal import start_kept

R = TypeVar("R")


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
        if is_exclusive and self._exclusive is not None:
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
        return self._exclusive is not None

    async def cancel(self) -> bool:
        """Cancel the transcript operation and wait until it has stopped. False when there was none."""
        if self._exclusive is None:
            return False
        await _stop({self._exclusive})
        return True

    async def close(self) -> None:
        """Refuse new work, cancel all that runs, return when it has stopped."""
        self._is_closed = True
        await _stop(set(self._tasks))


async def _stop(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
