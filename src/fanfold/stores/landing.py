"""Waiting for blocking work that is under way and cannot be called back.

A caller that is cancelled meanwhile waits on (a disk takes milliseconds) and is cancelled then: so it knows whether
its bytes are in the file before anybody else can look, and no file is closed under a thread that reads it.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fanfold.foreign import copy_of

T = TypeVar("T")


class Landing:
    """The end of one piece of work, for any number of tasks. (`asyncio.shield` does the same in twice the time.)"""

    __slots__ = ("_loop", "_waiters", "error", "is_over")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_over = False
        self.error: BaseException | None = None
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []

    def land(self, error: BaseException | None) -> None:
        self.is_over = True
        self.error = error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Return when the work is over; raise what it raised.

        Raises:
            CancelledError: the caller was cancelled; the work is over too, and `error` says how it ended.
        """
        try:
            if not self.is_over:
                await self._landed()
        except asyncio.CancelledError:
            while not self.is_over:
                try:
                    await self._landed()
                except asyncio.CancelledError:
                    continue  # cancelled once more; the first one is raised below
            raise
        if self.error is not None:
            raise copy_of(self.error) from self.error  # the tasks of one batch each need an error of their own

    def _landed(self) -> "asyncio.Future[None]":
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter


async def in_worker(work: Callable[[], T]) -> T:
    """What `work` returns, run in a thread of the loop's pool."""
    loop = asyncio.get_running_loop()
    landing = Landing(loop)
    future = loop.run_in_executor(None, work)
    future.add_done_callback(lambda done: landing.land(done.exception()))
    await landing.wait()
    return future.result()
