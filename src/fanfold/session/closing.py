"""Closing: an end that many may ask for, and that happens once and completely."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fanfold.errors import LifecycleError
from fanfold.portal import Call, Portal, start_kept, would_block

Close = Callable[[], Coroutine[Any, Any, None]]


class Closing:
    """The first who asks starts it, each waits for its end, and nobody who is cut off cuts it off.

    Whoever asks after its end, or when the loop that it would have to run on has ended, has nothing to wait for. The
    work is given with each call and not kept, so that its owner is not tied into a circle.
    """

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._task: asyncio.Task[None] | None = None
        self.is_begun = False

    async def wait(self, close: Close) -> None:
        """From any loop. Raises what `close` raised, to those who were waiting for it."""
        if self._portal.is_current():
            await self._join(close)
        elif (call := self.submit(close)) is not None:
            await call.arrive()

    def block(self, close: Close) -> None:
        """From any thread but the loop's own."""
        if self._is_over:
            return
        if self._portal.is_current():
            raise would_block("close")
        if (call := self.submit(close)) is not None:
            call.result()

    def submit(self, close: Close) -> Call[None] | None:
        """Ask for it without waiting. None when there is nothing to wait for."""
        if self._is_over:
            return None
        try:
            return self._portal.submit(self._join(close))
        except LifecycleError:
            self.is_begun = True
            return None

    @property
    def _is_over(self) -> bool:
        return self._task is not None and self._task.done()

    async def _join(self, close: Close) -> None:
        if self._is_over:
            return
        if self._task is None:
            self.is_begun = True
            self._task = start_kept(close())
        task = self._task
        await asyncio.wait({task})
        task.result()


async def close_all(parts: Iterable[Close]) -> None:
    """Close one after the other, each though another failed; then raise the first error."""
    first: BaseException | None = None
    for close in parts:
        try:
            await close()
        except BaseException as error:  # noqa: BLE001  raised below, when all are closed
            first = first or error
    if first is not None:
        raise first


async def close_together(parts: Iterable[Close]) -> None:
    """Likewise, all at the same time."""
    for outcome in await asyncio.gather(*(close() for close in parts), return_exceptions=True):
        if outcome is not None:
            raise outcome
