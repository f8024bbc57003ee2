"""What each system calls "it is on the disk itself now"."""

import os
import sys
from pathlib import Path

if sys.platform == "darwin":
    import fcntl

    def sync_data(fd: int) -> None:
        """Return when the file's bytes and its size are on the disk."""
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync there stops at the drive's own cache

elif sys.platform == "win32":

    def sync_data(fd: int) -> None:
        """Return when the file's bytes and its size are on the disk."""
        os.fsync(fd)

else:

    def sync_data(fd: int) -> None:
        """Return when the file's bytes and its size are on the disk."""
        os.fdatasync(fd)


def sync_directory(directory: Path) -> None:
    """Return when the directory's entries are on the disk; Windows has no such call and needs none."""
    if sys.platform == "win32":
        return
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
