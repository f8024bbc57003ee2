"""The fact log of the seeds: one JSONL file per thread, locked while it is held, appended to without being read.

`<directory>/<thread>.jsonl`, one fact a line (decisions 2.1-2.4). The lines of an append are written in one piece
behind the known end of the file, then made durable together with the appends of other threads (`group_commit`,
`commit_journal`). What a holder has to know (keys, line ends) is remembered after the release and stays good for as
long as the file's inode, size and time of change are the same; of a file that only grew, only the growth is read.

A thread's file is created when it is held, for it is what the lock is on, and removed again if nothing was written.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from fanfold.contracts.codec import decode_fact, encode_fact
from fanfold.contracts.facts import Fact, NewFact
from fanfold.errors import CorruptLogError, LogWriteError, SessionBusyError
from fanfold.stores.append_rules import require_same, stored_seqs, used_after_release
from fanfold.stores.commit_journal import FOLDER, CommitJournal, encode_batch
from fanfold.stores.directory import files_in, make_directory, names_in, refuse_links
from fanfold.stores.file_lock import holder_name
from fanfold.stores.group_commit import GroupCommit
from fanfold.stores.landing import Landing, in_worker
from fanfold.stores.line_file import FileStamp, LineFile
from fanfold.stores.recovery import recover
from fanfold.stores.thread_index import Fault, ThreadIndex
from fanfold.stores.thread_name import file_name, thread_of

T = TypeVar("T")

_POLL_SECONDS = 0.01
_INLINE_BYTES = 64 * 1024
"""More than this is read in a worker thread; less takes about a millisecond."""
_REMEMBERED_THREADS = 256
_EDGE_BYTES = 256


@dataclass(frozen=True, slots=True)
class _Remembered:
    stamp: FileStamp
    index: ThreadIndex
    edges: bytes
    """The first and the last bytes of what `index` covers."""

    def is_beginning_of(self, file: LineFile, stamp: FileStamp) -> bool:
        """True when the file is as it was or only grew, as far as its stamp and its first and last known bytes tell."""
        has_grown = self.stamp.inode == stamp.inode and self.stamp.size < stamp.size
        return (has_grown or self.stamp == stamp) and self.edges == _edges(file, self.index.size)


class JsonlFactLog:
    """Used from one event loop; any number of processes may share the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal = CommitJournal(directory)
        self._commits = GroupCommit(self._commit_of)
        self._remembered: dict[str, _Remembered] = {}
        self._recovery = asyncio.Lock()
        self._is_recovered = False
        self.names: object = None
        """`names_in` the directory behind the last batch."""

    async def hold(self, thread: str, *, wait_seconds: float = 0.0) -> "JsonlThread":
        path = self._directory / file_name(thread)
        refuse_links(self._directory)
        await self._recover_once()
        if not self._directory.is_dir():
            await in_worker(lambda: make_directory(self._directory))
        file = await _lock(thread, path, wait_seconds)
        try:
            index, facts, torn_tail = await self._know(thread, file)
        except BaseException:
            file.close()
            raise
        return JsonlThread(self, thread, file, index, facts, torn_tail)

    async def threads(self) -> Sequence[str]:
        return await in_worker(lambda: _threads_in(self._directory))

    async def close(self) -> None:
        """Wait for what is under way and sync every file. A thread that is still held cannot append any more."""
        await self._commits.close()
        if self._journal.is_used:
            await in_worker(self._journal.close)

    def write(self, file: LineFile, data: bytes) -> Landing:
        """Put `data` behind the known end of `file`, to be durable together with whatever else is on its way."""
        self._commits.require_open()
        file.write(data)
        return self._commits.submit((file, data))

    def remember(self, thread: str, file: LineFile, index: ThreadIndex) -> None:
        """Keep `index` for the next hold, unless somebody else wrote to the file or cut it meanwhile."""
        stamp = file.stamp()
        if stamp.size != index.size:
            return
        self._remembered[thread] = _Remembered(stamp, index, _edges(file, index.size))
        if len(self._remembered) > _REMEMBERED_THREADS:
            del self._remembered[next(iter(self._remembered))]

    async def _recover_once(self) -> None:
        if self._is_recovered:
            return
        async with self._recovery:
            if not self._is_recovered and os.path.lexists(self._directory / FOLDER):
                await in_worker(lambda: recover(self._directory))
            self._is_recovered = True

    async def _know(self, thread: str, file: LineFile) -> tuple[ThreadIndex, list[Fact], Path | None]:
        """The index of the whole file, those facts that had to be read for it, and where its torn tail is now."""
        stamp = file.stamp()
        known = self._remembered.pop(thread, None)
        index, facts, fault = ThreadIndex(), list[Fact](), None
        if known is not None and known.is_beginning_of(file, stamp):
            index = known.index
            if index.size == stamp.size:
                return index, [], None
            facts, fault = await _read_on(file, index)
        if not facts:  # never read, or what follows does not fit what is known: begin anew
            index = ThreadIndex()
            facts, fault = await _read_on(file, index)
        if fault is None:
            return index, facts, None
        if not fault.is_torn:
            raise CorruptLogError(thread=thread, line=index.last_seq + 1, reason=fault.reason)
        return index, facts, file.cut(fault.start)

    def _commit_of(self, batch: Sequence[tuple[LineFile, bytes]]) -> Callable[[], None]:
        new = next((file for file, _ in batch if file.is_new), None)
        if len(batch) == 1:
            return partial(self._commit, new, batch[0][0].sync)
        names = [file.name for file, _ in batch]
        return partial(self._commit, new, partial(self._journal.commit, encode_batch(batch), names))

    def _commit(self, new: LineFile | None, sync: Callable[[], None]) -> None:
        if new is not None:
            new.sync_name()  # and with it those of all the others, which lie in the same directory
        sync()
        self.names = names_in(self._directory)


class JsonlThread:
    """A held thread. Appends of several tasks to it go one after the other."""

    def __init__(
        self,
        log: JsonlFactLog,
        name: str,
        file: LineFile,
        index: ThreadIndex,
        decoded: list[Fact],
        torn_tail: Path | None,
    ) -> None:
        self._log = log
        self._torn_tail = torn_tail
        self._name = name
        self._file = file
        self._index = index
        self._decoded = decoded
        """Facts that were read to hold the thread, kept for the first `read`, which would read them again."""
        self._turn = asyncio.Lock()
        self._is_released = False

    @property
    def last_seq(self) -> int:
        return self._index.last_seq

    @property
    def lineage(self) -> object:
        return self._index

    @property
    def torn_tail(self) -> str | None:
        return None if self._torn_tail is None else str(self._torn_tail)

    async def read(self, after_seq: int = 0) -> Sequence[Fact]:
        async with self._turn:
            self._require_held()
            decoded, self._decoded = self._decoded, []
            if decoded and decoded[0].seq <= after_seq + 1 and decoded[-1].seq == self.last_seq:
                return decoded[after_seq + 1 - decoded[0].seq :]
            if after_seq >= self.last_seq:
                return []
            start, end = self._index.start_of(after_seq + 1), self._index.size
            return await _in_worker_if_big(end - start, lambda: _decode(self._file.read(start, end)))

    async def append(self, facts: Sequence[NewFact]) -> Sequence[Fact]:
        await self._turn.acquire()  # `async with` costs a coroutine more each way
        try:
            self._require_held()
            if seqs := stored_seqs(self._name, self._index.keys, facts):
                return self._stored(facts, seqs)
            added: list[Fact] = []
            lines: list[bytes] = []
            for seq, new in enumerate(facts, self._index.last_seq + 1):
                fact = new.at(seq)
                added.append(fact)
                lines.append(encode_fact(fact))
            if lines:
                data = b"".join(lines)
                landing = self._log.write(self._file, data)
                try:
                    await landing.wait()
                finally:  # also when this task was cancelled: how it ended is known by now
                    self._settle(landing, added, lines, len(data))
                self._file.require_unspoiled()
            return added
        finally:
            self._turn.release()

    async def set_aside(self) -> None:
        async with self._turn:
            self._require_held()
            if self._index.size:
                await in_worker(self._file.set_aside)
                self._index, self._decoded = ThreadIndex(), []

    async def release(self) -> None:
        async with self._turn:
            if self._is_released:
                return
            self._is_released = True
            self._log.remember(self._name, self._file, self._index)
            self._file.close()

    def _require_held(self) -> None:
        if self._is_released:
            raise used_after_release(self._name)

    def _stored(self, facts: Sequence[NewFact], seqs: Sequence[int]) -> list[Fact]:
        self._file.require_in_place(self._file.size)
        spans = [self._index.span(seq) for seq in seqs]
        stored = [decode_fact(self._file.read(start, end)) for start, end in spans]
        require_same(self._name, stored, facts)
        return stored

    def _settle(self, landing: Landing, added: Sequence[Fact], lines: Sequence[bytes], length: int) -> None:
        try:
            if landing.error is None:
                self._file.keep(length, self._log.names)
                self._index.extend(added, lines)
            else:
                self._file.take_back()
        except LogWriteError:
            pass  # the file remembers why it is spoiled; raised here it would hide that the task was cancelled


def _edges(file: LineFile, size: int) -> bytes:
    return file.read(0, min(size, _EDGE_BYTES)) + file.read(max(0, size - _EDGE_BYTES), size)


def _decode(data: bytes) -> list[Fact]:
    return [decode_fact(line) for line in data.split(b"\n")[:-1]]


async def _lock(thread: str, path: Path, wait_seconds: float) -> LineFile:
    clock = asyncio.get_running_loop().time
    deadline = clock() + wait_seconds
    while (file := LineFile.try_open(path)) is None:
        if clock() >= deadline:
            raise SessionBusyError(session_id=thread, holder=holder_name(path))
        await asyncio.sleep(_POLL_SECONDS)  # the system wakes nobody without a thread that blocks
    return file


async def _read_on(file: LineFile, index: ThreadIndex) -> tuple[list[Fact], Fault | None]:
    start = index.size
    return await _in_worker_if_big(file.size - start, lambda: index.absorb(file.read(start, file.size)))


async def _in_worker_if_big(size: int, work: Callable[[], T]) -> T:
    return work() if size <= _INLINE_BYTES else await in_worker(work)


def _threads_in(directory: Path) -> list[str]:
    names = [name for name, status in files_in(directory).items() if status.st_size]
    return sorted(thread for name in names if (thread := thread_of(name)) is not None)
