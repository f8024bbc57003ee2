"""One log on disk: records appended under the file's lock, read without it, and not read twice to be appended to."""

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

import msgspec

from fanfold.errors import CorruptLogError, LogWriteError
from fanfold.stores.file_lock import holder_name
from fanfold.stores.line_file import FileStamp, LineFile, refused
from fanfold.stores.record_lines import Decoded, begin_with_batch, decode_batches, encode_batch

ReadSpan = Callable[[int, int], bytes]
"""Bytes of a file from one offset to another, fewer where it ends before."""

_FLAGS = ("O_NOFOLLOW", "O_BINARY", "O_CLOEXEC", "O_NONBLOCK")  # the last: a pipe in place of a file keeps nobody
_OPEN: int = sum(getattr(os, flag, 0) for flag in _FLAGS)
_EDGE_BYTES = 64
_POLL_SECONDS = 0.001
_PATIENCE_SECONDS = 10.0
"""The holder of a lock is done after a write and a sync; one that takes longer is stopped or stuck."""


class KnownLog(msgspec.Struct, frozen=True):
    """How a file was when all of it was good."""

    stamp: FileStamp
    seq: int
    edge: bytes
    """Its last bytes."""
    is_named: bool
    """Its directory is known to have its name on the disk."""

    def is_beginning_of(self, stamp: FileStamp, read: ReadSpan) -> bool:
        """True when the file is as it was or only grew, as far as its stamp and its last known bytes tell."""
        has_grown = self.stamp.inode == stamp.inode and self.stamp.size < stamp.size
        return (has_grown or self.stamp == stamp) and self.edge == _edge(read, self.stamp.size)


_NOTHING = KnownLog(FileStamp(0, 0, 0, 0), 0, b"", is_named=False)


class LockedLog:
    """A log whose file is locked by whoever made this object, and for as long as it is."""

    def __init__(self, name: str, file: LineFile, known: KnownLog | None, what: str = "log") -> None:
        """The log in `file`, of which nothing is read that is `known`.

        Raises:
            CorruptLogError: a line that is no record, and not the torn end.
        """
        stamp = file.stamp()
        if known is None or not known.is_beginning_of(stamp, file.read):
            known = _NOTHING
        found = decode_batches(file.read(known.stamp.size, stamp.size))
        _require_whole(name, file.path, found, known.seq, what)
        self.last_seq = known.seq + len(found.records)
        self.is_named = known.is_named
        self._file = file
        self._good_size = known.stamp.size + found.size

    def append(self, records: Sequence[bytes]) -> None:
        """Write them in one piece behind what is good of the file, and make them durable.

        Raises:
            LogWriteError: none of them will be read.
        """
        file, data = self._file, encode_batch(records)
        if file.size > self._good_size:
            file.cut(self._good_size)
        file.write(data)
        try:
            if not self.is_named:
                file.sync_name()
            file.sync()
        except LogWriteError:
            file.take_back()
            raise
        file.keep(len(data))
        self.last_seq += len(records)
        self.is_named = True
        self._good_size = file.size

    def known(self) -> KnownLog | None:
        """For the next one who opens it; None when not all of it is good."""
        stamp = self._file.stamp()
        return _known(stamp, self.last_seq, self._file.read, self.is_named) if stamp.size == self._good_size else None


def wait_for_file(path: Path) -> LineFile:
    """The file, created if need be, as soon as nobody else has it.

    Raises:
        LogWriteError: the file system refuses, or somebody keeps it.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (file := LineFile.try_open(path)) is None:
        if time.monotonic() > deadline:
            raise LogWriteError(path=str(path), reason=f"{holder_name(path) or 'another process'} keeps it locked")
        time.sleep(_POLL_SECONDS)  # in a worker thread
    return file


def read_log(name: str, path: Path, after_seq: int, known: KnownLog | None) -> tuple[list[bytes], KnownLog | None]:
    """The records behind `after_seq`, and what is known of the file now; nobody is waited for.

    Raises:
        CorruptLogError: a line that is no record, and not the torn end.
        LogWriteError: the file system refuses, or it is a symbolic link.
    """
    try:
        with os.fdopen(_open(path), "rb", buffering=0) as file:
            return _read(name, path, file, after_seq, known)
    except FileNotFoundError:
        return [], None
    except OSError as error:
        raise refused(path, error, "read") from error


def has_records(path: Path) -> bool:
    """True also for damaged ones, and for what cannot be read. Mostly reads no more than the first batch."""
    try:
        with os.fdopen(_open(path), "rb") as file:
            if begin_with_batch(file):
                return True
            file.seek(0)
            found = decode_batches(file.read())
            return bool(found.records or found.bad_line)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # whoever reads it is told why not


def remove_log(path: Path) -> bool:
    """Remove the file, which may be a corrupt one; False when it had no records. Raises LogWriteError."""
    if not path.exists():
        return False
    file = wait_for_file(path)
    try:
        is_log = has_records(path)
        file.size = 0
        file.take_back()  # an empty log is none, and closing the file removes it
        file.sync()
    finally:
        file.close()
    return is_log


def _read(
    name: str, path: Path, file: FileIO, after_seq: int, known: KnownLog | None
) -> tuple[list[bytes], KnownLog | None]:
    def read(start: int, end: int) -> bytes:
        file.seek(start)
        return file.read(end - start) or b""

    while True:
        stamp = _stamp(file)
        base = known if known is not None and known.is_beginning_of(stamp, read) else _NOTHING
        is_named = base.is_named
        if base.seq > after_seq:
            base = _NOTHING
        found = decode_batches(read(base.stamp.size, stamp.size))
        if found.bad_line == 0 or stamp == _stamp(file):
            break  # else a writer took back what it could not finish, under our eyes: look again
    _require_whole(name, path, found, base.seq)
    is_whole = base.stamp.size + found.size == stamp.size
    now_known = _known(stamp, base.seq + len(found.records), read, is_named) if is_whole else None
    return found.records[max(after_seq - base.seq, 0) :], now_known


def _known(stamp: FileStamp, seq: int, read: ReadSpan, is_named: bool) -> KnownLog:
    return KnownLog(stamp, seq, _edge(read, stamp.size), is_named)


def _edge(read: ReadSpan, size: int) -> bytes:
    return read(max(0, size - _EDGE_BYTES), size)


def _open(path: Path) -> int:
    fd = os.open(path, _OPEN)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return fd


def _stamp(file: FileIO) -> FileStamp:
    status = os.fstat(file.fileno())
    return FileStamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _require_whole(name: str, path: Path, found: Decoded, known_seq: int, what: str = "log") -> None:
    if found.bad_line:
        reason = "the line does not have the checksum that it should begin with"
        error = CorruptLogError(thread=name, line=known_seq + found.bad_line, reason=reason, what=what)
        error.hint = f"to begin anew delete it (fanfold checkpoints delete), or put a good copy of {path} there"
        raise error
