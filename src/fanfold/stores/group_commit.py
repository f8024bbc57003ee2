"""Group commit: what is queued while one batch is on its way to the disk goes together in the next one.

No timer. An item that finds the worker idle waits only for the tasks that are ready in the same turn of the
loop; under load the batch grows by itself, because it is filled for as long as the disk takes.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Generic, TypeVar

from fanfold.errors import LifecycleError
from fanfold.stores.landing import Landing

T = TypeVar("T")

INLINE_SECONDS = 0.0005
"""A lone item is synced on the loop itself while the disk answers faster than this: a tool round, which has two such,
then costs 0.22 ms of CPU instead of 0.42, for the way to a thread and back costs more than such a sync. A slower answer
blocks the loop once; then the thread takes over until the disk is fast again."""


class GroupCommit(Generic[T]):
    """Belongs to one event loop.

    `prepare` makes of a batch the work that puts it on the disk: one batch at a time, in a worker thread, or on the
    loop for a lone item on a fast disk (`INLINE_SECONDS`).
    `prepare` itself runs on the loop: what a second thread reads of each item, the loop's processor has to fetch back.
    """

    def __init__(
        self, prepare: Callable[[Sequence[T]], Callable[[], None]], *, inline_seconds: float = INLINE_SECONDS
    ) -> None:
        self._prepare = prepare
        self._inline_seconds = inline_seconds
        self._items: list[T] = []
        self._landing: Landing | None = None
        """Of the batch that `_items` will be."""
        self._is_busy = False
        self._end: Landing | None = None
        """Lands when there is nothing more to do."""
        self.is_closed = False
        self._batches: SimpleQueue[tuple[Callable[[], None], Landing] | None] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._seconds = 0.0
        """What the last batch took; at first taken for fast."""

    def require_open(self) -> None:
        if self.is_closed:
            raise LifecycleError("the log is closed; open it again to write to it")

    def submit(self, item: T) -> Landing:
        """Lands when the batch with `item` is on the disk, with the error of its batch if that failed."""
        landing = self._landing
        if landing is None:
            loop = asyncio.get_running_loop()
            landing = self._landing = Landing(loop)
            if not self._is_busy:
                self._is_busy = True
                loop.call_soon(self._start, loop)
        self._items.append(item)
        return landing

    async def close(self) -> None:
        """Wait for what is queued, then end the worker."""
        self.is_closed = True
        if self._is_busy:
            self._end = self._end or Landing(asyncio.get_running_loop())
            await self._end.wait()
        worker, self._worker = self._worker, None
        if worker is not None:
            self._batches.put(None)
            worker.join()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        items, self._items = self._items, []
        landing, self._landing = self._landing, None
        if landing is not None:
            work = self._prepare(items)
            if len(items) == 1 and self._seconds < self._inline_seconds:
                self._land(loop, landing, self._timed(work))
                return
            if self._worker is None:
                self._worker = self._new_worker(loop)
            self._batches.put((work, landing))
            return
        self._is_busy = False
        if self._end is not None:
            self._end.land(None)

    def _new_worker(self, loop: asyncio.AbstractEventLoop) -> threading.Thread:
        # A bare thread and a queue: through a ThreadPoolExecutor the way there and back costs 60 us more, which is
        # half of what a small append costs at all. A daemon, for a log that nobody closed must not hang the exit; a
        # batch that the exit cuts off was not reported.
        worker = threading.Thread(target=self._work, args=(loop,), name="fanfold-commit", daemon=True)
        worker.start()
        return worker

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (batch := self._batches.get()) is not None:
            work, landing = batch
            error = self._timed(work)
            try:
                loop.call_soon_threadsafe(self._land, loop, landing, error)
            except RuntimeError:
                return  # the loop has ended, and with it everybody who waited

    def _timed(self, work: Callable[[], None]) -> BaseException | None:
        """Do `work`, and note how long the disk took; the error is for those who wait for the batch."""
        start = perf_counter()
        try:
            work()
        except BaseException as raised:  # noqa: BLE001  they raise it
            return raised
        finally:
            self._seconds = perf_counter() - start
        return None

    def _land(self, loop: asyncio.AbstractEventLoop, landing: Landing, error: BaseException | None) -> None:
        landing.land(error)
        # Behind the tasks that were just woken: what they append at once belongs to the next batch.
        loop.call_soon(self._start, loop)
