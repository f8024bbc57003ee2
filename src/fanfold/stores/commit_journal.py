"""One fsync for the appends of many threads: their lines go into a common file first (a redo log).

Why: 64 threads are 64 files, and a disk takes them one flush at a time. Measured on ext4 with 64 writers and 2 cores,
against one file that is written and synced in batches: 64 files through `fdatasync`, with 1 to 64 worker threads, reach
0.04-0.18 of its rate; preallocated files are no faster; `syncfs` reaches half of it, but makes everybody wait for
whatever else is being written to that file system. So a batch with several threads is made durable here, with one write
and one sync. (A batch with one thread needs no journal: that thread's file is synced itself.)

The promise that makes this safe: the lines are in the thread's own file (in the page cache) *before* they come here. So
a killed process loses nothing and whoever reads next sees whole files; only a power failure can leave a file behind its
journal. `recovery` then fills in what is missing. It runs before a log object holds its first thread, and a journal
goes away only after every file that it speaks of has been synced.

A journal belongs to one log object, which keeps it locked: an unlocked one has lost its owner. It consists of batches,
`<length> <crc32>\\n` and then for each write `<file name> <inode> <offset> <length>\\n` and its bytes. The first batch
that does not check ends it.
"""

import itertools
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fanfold.errors import LogWriteError
from fanfold.stores.directory import make_directory, refuse_links
from fanfold.stores.disk_sync import sync_data
from fanfold.stores.line_file import LineFile, refused

FOLDER = "commits"
_RECOVERY_LOCK = "recovery.lock"
SUFFIX = ".redo"
_CATCH_UP_BYTES = 16 * 2**20
"""Size at which the threads' own files are synced and the journal starts anew."""


@dataclass(frozen=True, slots=True)
class RedoEntry:
    """Bytes that belong at one place of one thread's file."""

    name: str
    inode: int
    offset: int
    data: bytes

    def is_lost_in(self, found: bytes) -> bool:
        """True when `found`, the bytes at its place, is what a power failure leaves: the beginning, then NULs."""
        return found != self.data and self.data.startswith(found.rstrip(b"\0"))


class CommitJournal:
    """Blocking; used by one worker thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: LineFile | None = None
        self._behind: set[str] = set()
        """Files whose newest bytes only the journal has on disk."""

    def commit(self, batch: bytes, names: Sequence[str]) -> None:
        """Return when an encoded batch, which speaks of the files `names`, is durable.

        Raises:
            LogWriteError: nothing of it will be replayed.
        """
        file = self._file = self._file or _create(self._directory)
        if file.size > _CATCH_UP_BYTES:
            self._catch_up(file)
        file.write(batch)
        try:
            file.sync()
        except LogWriteError:
            file.take_back()
            raise
        self._behind.update(names)
        try:
            file.keep(len(batch))
        except LogWriteError:
            self.close()  # somebody removed it: then the files themselves are synced, and the next batch has a new one

    @property
    def is_used(self) -> bool:
        """False when `close` has nothing to do."""
        return self._file is not None

    def close(self) -> None:
        """Sync every thread's own file, then remove the journal."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            self._catch_up(file)
        finally:
            file.close()  # removes it when it is empty; else it is left for a recovery

    def _catch_up(self, file: LineFile) -> None:
        for name in self._behind:
            try:
                sync_file(self._directory / name)
            except OSError as error:
                raise refused(self._directory / name, error) from error
        self._behind.clear()
        file.size = 0
        file.take_back()


def encode_batch(writes: Sequence[tuple[LineFile, bytes]]) -> bytes:
    """The batch of these bytes, each of which stands behind the known end of its file."""
    entries = [
        b"%s %d %d %d\n%s" % (file.name.encode(), file.inode, file.size, len(data), data) for file, data in writes
    ]
    body = b"".join(entries)
    return b"%d %d\n%s" % (len(body), zlib.crc32(body), body)


def read_batches(data: bytes) -> Iterator[RedoEntry]:
    """The entries of all whole batches; what follows the last of them was never reported as done."""
    at = 0
    while (head_end := data.find(b"\n", at)) >= 0:
        try:
            length, crc = map(int, data[at:head_end].split())
        except ValueError:
            return
        at = head_end + 1 + length
        body = data[head_end + 1 : at]
        if len(body) < length or zlib.crc32(body) != crc:
            return
        yield from _entries_of(body)


def _entries_of(body: bytes) -> Iterator[RedoEntry]:
    at = 0
    while at < len(body):
        head_end = body.index(b"\n", at)
        name, inode, offset, length = body[at:head_end].decode("ascii").split(" ")
        at = head_end + 1 + int(length)
        yield RedoEntry(name, int(inode), int(offset), body[head_end + 1 : at])


def _create(directory: Path) -> LineFile:
    refuse_links(directory, FOLDER)
    folder = directory / FOLDER
    make_directory(folder)
    # Under the recovery lock: nobody may take the new file for an ownerless one before it is locked.
    lock = wait_for_recovery_lock(folder)
    try:
        paths = (folder / f"{os.getpid()}-{number}{SUFFIX}" for number in itertools.count(1))
        path = next(path for path in paths if not path.exists())
        file = LineFile.try_open(path)
    finally:
        lock.close()
    if file is None:
        raise LogWriteError(path=str(path), reason="it was locked before it was there")
    try:
        file.sync_name()
    except LogWriteError:
        file.close()
        raise
    return file


def wait_for_recovery_lock(folder: Path) -> LineFile:
    while (lock := LineFile.try_open(folder / _RECOVERY_LOCK)) is None:
        time.sleep(0.005)  # in a worker thread; the holder is done after a few syncs
    return lock


def sync_file(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        try:
            sync_data(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        pass  # removed by its owner: nothing is left to be kept
