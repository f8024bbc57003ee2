"""An append-only file of lines that its opener has for itself: locked, all-or-nothing, with its torn tail cut off.

Both logs of this room stand on it. A write goes through three steps: `write` puts bytes behind the known size, the
caller makes them durable, then `keep` moves the known size or `take_back` cuts the file to it again.

A lock binds only who asks for it. Anybody may remove, replace or cut a file meanwhile, and bytes in a file that has no
name any more are lost however durable they are: so `keep` looks once more whether all is as it should be.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from fanfold.errors import LogWriteError
from fanfold.stores.disk_sync import sync_data, sync_directory
from fanfold.stores.file_lock import try_lock, unlock

_OPEN = os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_SYMLINK: int = getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Tells whether a file is still the one that was read: equal stamps mean nothing was written since."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    """What nobody can set back, where the system has it (on Windows it is the time of creation)."""


class LineFile:
    """Use `try_open`; everything raises LogWriteError when the file system refuses."""

    __slots__ = ("_fd", "_path", "_seen_among", "_spoiled_by", "inode", "is_new", "name", "path", "size")

    def __init__(self, path: Path, fd: int, inode: int, size: int) -> None:
        self.path = path
        self.name = path.name
        self.inode = inode
        self.size = size
        """Bytes that are known to be good; `write` goes behind them."""
        self.is_new = size == 0
        """Its directory may not have it on disk yet: `sync_name` is due before anything is reported as done."""
        self._fd = fd
        self._path = str(path)
        self._seen_among: object = None
        self._spoiled_by = ""
        """Why nothing can be written any more."""

    @classmethod
    def try_open(cls, path: Path) -> "LineFile | None":
        """The file, created if need be; None while somebody else has it."""
        try:
            while (fd := _open_locked(path)) is not None:
                try:
                    status = os.fstat(fd)
                    is_named = _has_inode(path, status.st_ino)
                except OSError:
                    _let_go(fd)
                    raise
                if is_named:
                    return cls(path, fd, status.st_ino, status.st_size)
                _let_go(fd)  # its last holder left it empty and so removed it
        except OSError as error:
            raise refused(path, error) from error
        return None

    def stamp(self) -> FileStamp:
        status = os.fstat(self._fd)
        return FileStamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

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
        self.require_unspoiled()
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

    def keep(self, length: int, names: object = None) -> None:
        """Count the last `length` bytes among the known ones.

        With the `names_in` its directory the file is looked at only when they are others than the last time.

        Raises:
            LogWriteError: they are not where a reader looks, see `require_in_place`.
        """
        if names is None or names != self._seen_among:
            self.require_in_place(self.size + length)
            self._seen_among = names
        self.size += length
        self.is_new = False

    def require_in_place(self, size: int) -> None:
        """Return when the name still leads to this file and it has `size` bytes.

        Raises:
            LogWriteError: somebody removed, replaced or changed it, and nothing more can be written to it.
        """
        try:
            status = os.lstat(self._path)
            if status.st_ino != self.inode:
                self._spoiled_by = "it was replaced by another file while it was in use"
            elif status.st_size != size:
                self._spoiled_by = "somebody else changed it while it was in use"
        except FileNotFoundError:
            self._spoiled_by = "it was removed while it was in use"
        except OSError as error:
            self._spoiled_by = _reason(error)
        self.require_unspoiled()

    def require_unspoiled(self) -> None:
        if self._spoiled_by:
            raise LogWriteError(path=self._path, reason=self._spoiled_by)

    def take_back(self) -> None:
        """Cut the file to the known size, so that no later reader sees what failed."""
        try:
            if os.fstat(self._fd).st_size > self.size:  # it is shorter when somebody else cut it
                os.ftruncate(self._fd, self.size)
        except OSError as error:
            self._spoiled_by = "an earlier write failed and could not be undone"
            raise refused(self.path, error) from error

    def cut(self, start: int) -> Path:
        """Move everything from `start` on into the first free `<name>.torn-<n>` beside the file; returns its path."""
        try:
            kept_in = _write_beside(self.path, "torn", self.read(start, self.stamp().size))
            try:
                os.ftruncate(self._fd, start)
            except OSError:
                kept_in.unlink()
                raise
            self.size = start
            sync_data(self._fd)
        except OSError as error:
            raise refused(self.path, error) from error
        return kept_in

    def set_aside(self) -> Path:
        """Keep everything in the first free `<name>.aside-<n>` and be an empty file from here on; returns that path.

        The empty one is another file of the same name: whoever remembers the old one, as a reader or in a journal, does
        not take what is written next for a part of it. (Windows, which replaces no open file, has the same one cut.)
        """
        try:
            kept_in = _write_beside(self.path, "aside", self.read(0, self.stamp().size))
            if os.name == "nt":
                os.ftruncate(self._fd, 0)
                sync_data(self._fd)
            else:
                self._replace()
            self.size = 0
        except OSError as error:
            raise refused(self.path, error) from error
        return kept_in

    def _replace(self) -> None:
        path = self.path.with_name(self.name + ".new")  # only the holder of our lock has it
        path.unlink(missing_ok=True)  # left by one who died here
        fd = _open_locked(path)
        if fd is None:
            raise OSError(errno.EAGAIN, "it was locked before it was there")
        try:
            inode = os.fstat(fd).st_ino
            os.replace(path, self.path)
            sync_directory(self.path.parent)
        except OSError:
            _let_go(fd)
            raise
        old, self._fd, self.inode, self._seen_among = self._fd, fd, inode, None
        _let_go(old)

    def close(self) -> None:
        """Let the file go; one in which nothing was ever written is removed, if it still has its name."""
        try:
            status = os.fstat(self._fd)
            # In a forked child the descriptor leads nowhere (see `file_lock`), and the file is the parent's.
            is_ours = status.st_ino == self.inode and _has_inode(self.path, self.inode)
            if os.name != "nt" and status.st_size == 0 and is_ours:
                self.path.unlink()  # Windows cannot remove an open file
        except OSError:
            pass  # an empty file left behind reads the same as none
        _let_go(self._fd)


def _open_regular(path: Path) -> int:
    if not _NO_SYMLINK and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link")
    fd = os.open(path, _OPEN | _NO_SYMLINK | os.O_CREAT, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return fd


def _open_locked(path: Path) -> int | None:
    fd = _open_regular(path)
    try:
        is_locked = try_lock(fd)
    except OSError:
        os.close(fd)
        raise
    if not is_locked:
        os.close(fd)
        return None
    return fd


def _let_go(fd: int) -> None:
    try:
        unlock(fd)
    finally:
        os.close(fd)


def _has_inode(path: Path, inode: int) -> bool:
    try:
        return path.lstat().st_ino == inode
    except FileNotFoundError:
        return False


def _write_beside(path: Path, kept_as: str, data: bytes) -> Path:
    number = 1
    while True:
        kept_in = path.with_name(f"{path.name}.{kept_as}-{number}")
        try:
            fd = os.open(kept_in, _OPEN | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            number += 1
            continue
        try:
            try:
                _write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)
            sync_directory(path.parent)
        except OSError:
            kept_in.unlink()  # or each try on a full disk would leave another one
            raise
        return kept_in


def _write_all(fd: int, data: bytes) -> None:
    written = 0
    while written < len(data):  # a disk that fills up first takes a part, then says why it takes no more
        written += os.write(fd, memoryview(data)[written:])


def refused(path: Path, error: OSError, action: str = "write") -> LogWriteError:
    """The one error that all file trouble of this room becomes."""
    return LogWriteError(path=str(path), reason=_reason(error), action=action)


def _reason(error: OSError) -> str:
    return "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
