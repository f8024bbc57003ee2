"""Group commit over any store: what is submitted while one append is on its way goes together in the next one.

No timer: a record that finds the queue idle waits only for the tasks that are ready in the same turn of the loop; under
load a batch is filled for as long as the store takes for the one before.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from fanfold.errors import FencedError, StoreConflictError
from fanfold.foreign import copy_of

ROOM = 1024
"""Records that may wait for their append before whoever brings more should wait too."""

Append = Callable[[list[bytes]], Awaitable[None]]
"""Writes records behind the log, all or nothing, durable when it returns."""


class Line(Protocol):
    """A record on its way into the log. (Not two functions: the collector would look at those too, again and again.)"""

    def encode(self) -> bytes:
        """Make the record. Called when its append is due: a whole batch at once is encoded in half the time."""
        ...

    def written(self) -> None:
        """It is durable. Called in the order of the log."""
        ...


class _Entry(msgspec.Struct):
    line: Line
    landed: "asyncio.Future[None] | None" = None
    """Of who waits for it."""
    is_written: bool = False

    def written(self) -> None:
        self.is_written = True
        self.line.written()
        if self.landed is not None and not self.landed.done():
            self.landed.set_result(None)

    def failed(self, error: Exception) -> None:
        if self.landed is not None and not self.landed.done():
            self.landed.set_exception(copy_of(error))

    def abandoned(self) -> None:
        if self.landed is not None:
            self.landed.cancel()


class AppendQueue:
    """The only writer of one log."""

    def __init__(self, append: Append, before_batch: Callable[[], None] | None = None) -> None:
        """`before_batch` is called before the records of each append are made."""
        self._append = append
        self._loop = asyncio.get_running_loop()
        self._before_batch = before_batch
        self._ahead: list[bytes] = []
        self._entries: list[_Entry] = []
        """Not durable yet, in their order."""
        self._watchers: list[asyncio.Future[None]] = []
        """Of those who wait for the flusher to be done; one each, for `asyncio.wait` takes three times as long."""
        self._flusher: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        """Why the last append failed; its records are entries still."""

    def precede(self, *records: bytes) -> None:
        """Have `records` written in front of whatever is appended next: on their own they are worth no append."""
        self._ahead += records

    def submit(self, line: Line) -> None:
        """Have a record written.

        Raises:
            LogWriteError: an earlier append failed, and nobody was told yet. What it held is tried again with the next.
            FencedError, StoreConflictError: somebody else has the log, and nothing will be written any more.
        """
        self._submit(_Entry(line))

    def _submit(self, entry: _Entry) -> None:
        self._raise_error()
        self._entries.append(entry)
        self._start()

    @property
    def is_crowded(self) -> bool:
        """Whoever submits more should wait until it is `idle`."""
        return len(self._entries) > ROOM

    async def append(self, line: Line) -> None:
        """`submit`, and wait until it is durable, also when the caller is cancelled: it is written all the same, and
        whoever goes on from there must find it."""
        landed: asyncio.Future[None] = self._loop.create_future()
        entry = _Entry(line, landed)
        self._submit(entry)
        try:
            await landed
        except asyncio.CancelledError:
            while not entry.is_written and self._error is None and self._flusher is not None:
                await self.idle()
            raise

    async def flush(self) -> None:
        """Wait until everything that was submitted is durable. Raises as `submit`."""
        self._raise_error()
        self._start()
        await self.idle()
        self._raise_error()

    async def idle(self) -> None:
        """Return when no append is under way or due."""
        while self._flusher is not None:
            watcher: asyncio.Future[None] = self._loop.create_future()
            self._watchers.append(watcher)
            await watcher

    def _start(self) -> None:
        if self._entries and self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
            self._flusher.add_done_callback(self._flushed)

    def _raise_error(self) -> None:
        error = self._error
        if error is None:
            return
        if not isinstance(error, StoreConflictError | FencedError):
            self._error = None
        raise copy_of(error)

    async def _flush(self) -> None:
        batch: tuple[_Entry, ...] = ()
        try:
            while self._entries and self._error is None:
                batch = tuple(self._entries)
                if self._before_batch is not None:
                    self._before_batch()
                await self._write([entry.line.encode() for entry in batch])
                del self._entries[: len(batch)]
                for entry in batch:
                    entry.written()
        except Exception as error:  # noqa: BLE001  whoever comes next raises it
            self._error = error
            for entry in (*batch, *self._entries):  # nobody waits for an append that is not going to be
                entry.failed(error)

    def _flushed(self, flusher: "asyncio.Task[None]") -> None:
        self._flusher = None
        if flusher.cancelled():  # as all tasks are at the end of their loop, and some before they have begun
            for entry in self._entries:
                entry.abandoned()
        elif self._error is None:
            self._start()  # for what came in this turn of the loop
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def _write(self, records: list[bytes]) -> None:
        ahead = tuple(self._ahead)
        await self._append([*ahead, *records])
        del self._ahead[: len(ahead)]
