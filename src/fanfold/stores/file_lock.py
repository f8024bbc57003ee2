"""An exclusive lock on an open file that dies with its holder: `flock`, or a byte range on Windows.

`flock` belongs to the opening of a file, of which a fork makes no second one. So a child would keep the locks of its
parent for as long as it lives. Hence a lock is let go by its name and not by closing the file, and a child gets
nothing of what was locked.
"""

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    # Windows locks are mandatory and block readers of the locked byte, so it lies where no log reaches.
    _LOCKED_BYTE = 2**31 - 1

    def try_lock(fd: int) -> bool:
        """Take the lock if nobody has it, in this process or another."""
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(fd: int) -> None:
        """Let go of the lock; the next one may take it before the file is closed."""
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    _locked: set[int] = set()
    """Descriptors of this process that hold a lock."""

    def _leave_to_parent() -> None:
        # Not closed: whatever an inherited log object still does must not meet another file of the same number.
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd in _locked:
            os.dup2(nothing, fd, inheritable=False)
        os.close(nothing)
        _locked.clear()

    os.register_at_fork(after_in_child=_leave_to_parent)

    def try_lock(fd: int) -> bool:
        """Take the lock if nobody has it, in this process or another.

        `flock` and not `lockf`: it belongs to the open file, so two openings inside one process exclude each other,
        and closing some other descriptor of the file does not let it go.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _locked.add(fd)
        return True

    def unlock(fd: int) -> None:
        """Let go of the lock; the next one may take it before the file is closed."""
        _locked.discard(fd)
        fcntl.flock(fd, fcntl.LOCK_UN)


def holder_name(path: Path) -> str | None:
    """Who has the lock of `path`, in words, as far as the system tells (Linux does)."""
    if sys.platform == "win32":
        return None
    try:
        status = path.stat()
        table = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for row in table.splitlines():
        # "7: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF"; a waiter's row has "->" in front of its kind
        words = row.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == place and int(words[4]) > 0:
            return "this process" if int(words[4]) == os.getpid() else f"process {words[4]}"
    return None
