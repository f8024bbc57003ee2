"""A workflow run that this process holds: its files, for as long as nobody else may write them."""

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from fanfold.errors import LifecycleError
from fanfold.kernel.plain_text import is_plain
from fanfold.protocols import JournalRead
from fanfold.stores.durable_file import replace_file
from fanfold.stores.group_commit import GroupCommit
from fanfold.stores.landing import in_worker
from fanfold.stores.line_file import LineFile
from fanfold.stores.run_blobs import put_blob, read_blob
from fanfold.stores.run_events import EventFile
from fanfold.stores.run_journal_file import RunJournalFile, read_journal
from fanfold.stores.run_place import RunPlace, bad_script, used_after_release
from fanfold.stores.run_removal import remove_run_files
from fanfold.stores.run_request import Requests
from fanfold.stores.store_rules import require_records

T = TypeVar("T")


class FileHeldRun:
    """Used from one event loop. What changes a file first looks whether the lock is still where others look for it."""

    def __init__(self, place: RunPlace, lock: LineFile, requests: Requests) -> None:
        self._place = place
        self._lock = lock
        self._requests = requests
        self._journal = RunJournalFile(place.journal)
        self._commits: GroupCommit[Callable[[], None]] = GroupCommit(lambda batch: batch[0])
        """For its thread, and its way to do without one; there is one append at a time."""
        self._events = EventFile(place.events, place.old_events)
        self._turn = asyncio.Lock()
        """Of the journal."""
        self._file_turn = asyncio.Lock()
        """Of all the other files that are written in a worker thread."""
        self._pid = os.getpid()
        self._release: asyncio.Task[None] | None = None

    @property
    def run_id(self) -> str:
        return self._place.run_id

    # ---- journal ----

    async def has_journal(self) -> bool:
        self._require_held()
        return self._journal.is_there()

    async def read_journal(self) -> JournalRead:
        self._require_held()
        async with self._turn:
            return await in_worker(partial(read_journal, self._place.journal)) or JournalRead(lines=())

    async def append(self, lines: Sequence[bytes], *, is_durable: bool = True) -> None:
        require_records(self.run_id, lines)
        self._require_held()
        await self._turn.acquire()  # `async with` costs a coroutine more each way
        try:
            if lines and is_durable:
                await self._commits.submit(partial(self._append, lines, is_durable=True)).wait()
            elif lines:
                self._append(lines, is_durable=False)  # into the page cache, which takes less than the way to a thread
        finally:
            self._turn.release()

    async def cut_journal(self, whole_lines: int) -> str | None:
        return await self._change(self._turn, partial(self._journal.cut, whole_lines))

    # ---- what is written as a whole ----

    async def put_blob(self, data: bytes) -> str:
        return await self._change(self._file_turn, partial(put_blob, self._place.blobs, data))

    async def blob(self, name: str) -> bytes | None:
        self._require_held()
        return await in_worker(partial(read_blob, self._place.blobs, name))

    async def write_snapshot(self, data: bytes) -> None:
        await self._change(self._file_turn, partial(replace_file, self._place.snapshot, data))

    async def write_output(self, data: bytes) -> None:
        await self._change(self._file_turn, partial(replace_file, self._place.output, data))

    async def write_script(self, text: str) -> None:
        if not is_plain(text):
            raise bad_script(self.run_id)
        await self._change(self._file_turn, partial(replace_file, self._place.script, text.encode()))

    # ---- what comes and goes ----

    async def append_events(self, lines: Sequence[bytes]) -> None:
        require_records(self.run_id, lines)
        self._require_held()
        self._lock.require_in_place(self._lock.size)
        self._events.append(lines)  # into the page cache

    async def requested(self) -> bytes | None:
        self._require_held()
        return self._requests.newest()

    async def delete(self) -> int:
        self._require_held()
        freed: list[int] = []
        self._release = asyncio.create_task(self._let_go(lambda: freed.append(self._delete())))
        await self.release()
        return freed[0]

    async def release(self) -> None:
        if self._pid != os.getpid():
            return  # a forked child has nothing of what its parent holds
        if self._release is None:
            self._release = asyncio.create_task(self._let_go())
        try:
            await asyncio.shield(self._release)
        except asyncio.CancelledError:
            await asyncio.wait([self._release])  # the next one may hold the run as soon as this returns
            self._release.exception()  # seen
            raise

    async def _let_go(self, at_last: Callable[[], None] | None = None) -> None:
        async with self._turn, self._file_turn:
            await self._commits.close()
            try:
                self._events.close()
                self._journal.close()
                if at_last is not None:
                    await in_worker(at_last)
            finally:
                self._lock.close()

    def _delete(self) -> int:
        self._lock.require_in_place(self._lock.size)
        freed = remove_run_files(self._place)
        self._lock.size = 0
        self._lock.take_back()  # closing it removes it when it is empty
        return freed

    def _append(self, lines: Sequence[bytes], *, is_durable: bool) -> None:
        self._lock.require_in_place(self._lock.size)
        self._journal.append(lines, is_durable=is_durable)

    async def _change(self, turn: asyncio.Lock, work: Callable[[], T]) -> T:
        """What `work` returns, done in a worker thread when it is its turn. A release comes behind it."""
        self._require_held()
        async with turn:
            return await in_worker(partial(self._in_place, work))

    def _in_place(self, work: Callable[[], T]) -> T:
        self._lock.require_in_place(self._lock.size)
        return work()

    def _require_held(self) -> None:
        if self._release is not None:
            raise used_after_release(self.run_id)
        if self._pid != os.getpid():
            raise LifecycleError(f"workflow run '{self.run_id}' is held by the process that this one was forked from")
