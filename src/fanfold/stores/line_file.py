"""An append-only file of lines that its opener has for itself: locked, all-or-nothing, with its torn tail cut off.

Both logs of this room stand on it. A write goes through three steps: `write` puts bytes behind the known size, the
caller makes them durable, then `keep` moves the known size or `take_back` cuts the file to it again.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from fanfold.errors import LogWriteError
from fanfold.stores.disk_sync import sync_data, sync_directory
from fanfold.stores.file_lock import try_lock

_OPEN = os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_SYMLINK: int = getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Tells whether a file is still the one that was read: equal stamps mean nothing was written since."""

    inode: int
    size: int
    modified_ns: int


class LineFile:
    """Use `try_open`; everything raises LogWriteError when the file system refuses."""

    __slots__ = ("_fd", "_is_spoiled", "inode", "is_new", "name", "path", "size")

    def __init__(self, path: Path, fd: int, inode: int, size: int) -> None:
        self.path = path
        self.name = path.name
        self.inode = inode
        self.size = size
        """Bytes that are known to be good; `write` goes behind them."""
        self.is_new = size == 0
        """Its directory may not have it on disk yet: `sync_name` is due before anything is reported as done."""
        self._fd = fd
        self._is_spoiled = False

    @classmethod
    def try_open(cls, path: Path) -> "LineFile | None":
        """The file, created if need be; None while somebody else has it."""
        while True:
            try:
                fd = _open_regular(path)
                try:
                    if not try_lock(fd):
                        os.close(fd)
                        return None
                    status = os.fstat(fd)
                    # The last holder removes a file that it left empty: then the lock is on a file without a name.
                    if _has_inode(path, status.st_ino):
                        return cls(path, fd, status.st_ino, status.st_size)
                except BaseException:
                    os.close(fd)
                    raise
                os.close(fd)
            except OSError as error:
                raise refused(path, error) from error

    def stamp(self) -> FileStamp:
        status = os.fstat(self._fd)
        return FileStamp(status.st_ino, status.st_size, status.st_mtime_ns)

    def read(self, start: int, end: int) -> bytes:
        pieces: list[bytes] = []
        os.lseek(self._fd, start, os.SEEK_SET)
        while start < end:
            piece = os.read(self._fd, end - start)
            if not piece:
                break
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces)

    def write(self, data: bytes) -> None:
        """Put `data` behind the known size, in the page cache only; on failure nothing of it stays in the file."""
        if self._is_spoiled:
            raise LogWriteError(path=str(self.path), reason="an earlier write failed and could not be undone")
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                _write_all(self._fd, data[written:])
        except OSError as error:
            self.take_back()
            raise refused(self.path, error) from error

    def sync(self) -> None:
        try:
            sync_data(self._fd)
        except OSError as error:
            raise refused(self.path, error) from error

    def sync_name(self) -> None:
        """Return when the file's directory has its name on the disk; the same call does it for its new neighbours."""
        try:
            sync_directory(self.path.parent)
        except OSError as error:
            raise refused(self.path.parent, error) from error

    def keep(self, length: int) -> None:
        self.size += length
        self.is_new = False

    def take_back(self) -> None:
        """Cut the file to the known size, so that no later reader sees what failed."""
        try:
            os.ftruncate(self._fd, self.size)
        except OSError as error:
            self._is_spoiled = True
            raise refused(self.path, error) from error

    def cut(self, start: int) -> Path:
        """Move everything from `start` on into the first free `<name>.torn-<n>` beside the file; returns its path."""
        try:
            kept_in = _write_torn(self.path, self.read(start, self.stamp().size))
            os.ftruncate(self._fd, start)
            sync_data(self._fd)
        except OSError as error:
            raise refused(self.path, error) from error
        self.size = start
        return kept_in

    def close(self) -> None:
        """Let the file go; one in which nothing was ever written is removed."""
        try:
            if os.fstat(self._fd).st_size == 0 and os.name != "nt":  # Windows cannot remove an open file
                self.path.unlink(missing_ok=True)
        except OSError:
            pass  # an empty file left behind reads the same as none
        finally:
            os.close(self._fd)


def make_directory(directory: Path) -> None:
    """Create `directory` and its parents so that a power failure cannot take one of them away."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for each in missing:
            sync_directory(each.parent)
    except OSError as error:
        raise refused(directory, error) from error


def _open_regular(path: Path) -> int:
    if not _NO_SYMLINK and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link")
    fd = os.open(path, _OPEN | _NO_SYMLINK | os.O_CREAT, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return fd


def _has_inode(path: Path, inode: int) -> bool:
    try:
        return path.lstat().st_ino == inode
    except FileNotFoundError:
        return False


def _write_torn(path: Path, data: bytes) -> Path:
    number = 1
    while True:
        kept_in = path.with_name(f"{path.name}.torn-{number}")
        try:
            fd = os.open(kept_in, _OPEN | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            number += 1
            continue
        try:
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(path.parent)
        return kept_in


def _write_all(fd: int, data: bytes) -> None:
    written = 0
    while written < len(data):  # a disk that fills up first takes a part, then says why it takes no more
        written += os.write(fd, memoryview(data)[written:])


def refused(path: Path, error: OSError) -> LogWriteError:
    """The one error that all file trouble of this room becomes."""
    reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
    return LogWriteError(path=str(path), reason=reason)
