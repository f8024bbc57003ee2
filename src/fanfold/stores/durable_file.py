"""Small files that are written as a whole: a reader finds the old bytes or the new ones, and nothing in between."""

import errno
import os
import stat
from pathlib import Path

from fanfold.stores.disk_sync import sync_directory
from fanfold.stores.line_file import refused

_NO_SYMLINK: int = getattr(os, "O_NOFOLLOW", 0)
_BINARY: int = getattr(os, "O_BINARY", 0)
_NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
"""For a pipe that somebody has put in the file's place: opening it would wait for its other end."""
_READ = os.O_RDONLY | _NO_SYMLINK | _BINARY | _NO_WAIT
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_SYMLINK | _BINARY | _NO_WAIT


def read_file(path: Path) -> bytes | None:
    """All bytes of the file; None when there is none.

    Raises:
        LogWriteError: the file system refuses, or it is a symbolic link, a pipe or a device.
    """
    try:
        with os.fdopen(os.open(path, _READ), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refused(path, error, "read") from error


def replace_file(path: Path, data: bytes) -> None:
    """Return when the file consists of `data` on the disk. One writer at a time.

    Raises:
        LogWriteError: it is as it was (or new already, when the directory is all that could not be synced).
    """
    new = path.with_name(path.name + ".tmp")
    try:
        try:
            with os.fdopen(os.open(new, _CREATE, 0o644), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise refused(path, error) from error


def remove_file(path: Path) -> None:
    """Return when the file has gone from the disk. Raises LogWriteError."""
    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise refused(path, error) from error
