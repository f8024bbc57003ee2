"""Reading a file that somebody named: with a limit, and without waiting for a pipe or a device."""

import errno
import os
import stat
from pathlib import Path

_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_PIECE = 1024 * 1024


def read_regular(path: Path, max_bytes: int | None = None, *, may_be_pipe: bool = False) -> bytes:
    """The content of the regular file at `path`.

    `may_be_pipe` also takes a pipe, for what a person names on a command line: `<(command)` is one. A pipe that nobody
    writes into is empty.

    Raises:
        OSError: it cannot be read, is something else than a file, or is larger than `max_bytes`; `strerror` says which.
    """
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        mode = os.fstat(descriptor).st_mode
        if may_be_pipe and stat.S_ISFIFO(mode):
            os.set_blocking(descriptor, True)
        elif stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        pieces: list[bytes] = []
        size = 0
        while piece := os.read(descriptor, _PIECE):
            pieces.append(piece)
            size += len(piece)
            if max_bytes is not None and size > max_bytes:
                raise too_large(max_bytes, str(path))
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def too_large(max_bytes: int, name: str) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", name)
