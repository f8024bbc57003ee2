"""Group commit: what is queued while one batch is on its way to the disk goes together in the next one.

No timer. An item that finds the worker idle waits only for the tasks that are ready in the same turn of the
loop; under load the batch grows by itself, because it is filled for as long as the disk takes.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from fanfold.errors import LifecycleError
from fanfold.stores.landing import Landing

T = TypeVar("T")


class GroupCommit(Generic[T]):
    """Belongs to one event loop; `flush` runs in one worker thread of its own, one batch at a time."""

    def __init__(self, flush: Callable[[Sequence[T]], None]) -> None:
        self._flush = flush
        self._items: list[T] = []
        self._landings: list[Landing] = []
        self._is_busy = False
        self.is_closed = False
        # Not the loop's default pool: there the commits could stand behind a host's slow callbacks.
        self._worker = ThreadPoolExecutor(1, "fanfold-commit")

    def require_open(self) -> None:
        if self.is_closed:
            raise LifecycleError("the log is closed; open it again to write to it")

    def submit(self, item: T) -> Landing:
        """Lands when the batch with `item` has been flushed, with the error that `flush` raised if it failed."""
        loop = asyncio.get_running_loop()
        landing = Landing(loop)
        self._items.append(item)
        self._landings.append(landing)
        if not self._is_busy:
            self._is_busy = True
            loop.call_soon(self._start, loop)
        return landing

    async def close(self) -> None:
        """Wait for what is queued, then end the worker."""
        self.is_closed = True
        if self._is_busy:
            end = Landing(asyncio.get_running_loop())
            self._landings.append(end)  # no item: it lands with the last batch, or right behind it
            await end.wait()
        self._worker.shutdown()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        items, self._items = self._items, []
        landings, self._landings = self._landings, []
        if items:
            flushed = loop.run_in_executor(self._worker, self._flush, items)
            flushed.add_done_callback(lambda done: self._land(loop, landings, done.exception()))
        else:
            self._is_busy = False
            _land_all(landings, None)

    def _land(self, loop: asyncio.AbstractEventLoop, landings: Sequence[Landing], error: BaseException | None) -> None:
        _land_all(landings, error)
        # Behind the tasks that were just woken: what they append at once belongs to the next batch.
        loop.call_soon(self._start, loop)


def _land_all(landings: Sequence[Landing], error: BaseException | None) -> None:
    for landing in landings:
        landing.land(error)
