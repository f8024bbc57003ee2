"""What another process asks of whoever runs a run: one small file, of which the newest asker's bytes count.

A request that was there before the run was held was meant for somebody else, who is gone: it is passed over and left
where it is.
"""

import os
from pathlib import Path

from fanfold.stores.durable_file import read_file, replace_file
from fanfold.stores.line_file import FileStamp, refused
from fanfold.stores.record_file import wait_for_file


def leave_request(path: Path, data: bytes) -> None:
    """Blocking. Raises LogWriteError."""
    lock = wait_for_file(path.with_name(path.name + ".lock"))
    try:
        replace_file(path, data)
    finally:
        lock.close()


def request_stamp(path: Path) -> FileStamp | None:
    """Which request there is. Raises LogWriteError."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refused(path, error, "read") from error
    return FileStamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Requests:
    """Those that are left from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = request_stamp(path)

    def newest(self) -> bytes | None:
        """A look at one name when there is none. Raises LogWriteError."""
        stamp = request_stamp(self._path)
        return None if stamp is None or stamp == self._before else read_file(self._path)
