"""The event file of a run: lines for people and live views, which keeps the newest 4 to 8 MiB and is never synced.

A full file becomes the old one, in place of the one that was, and a new one begins. The first line of each says at
which position it begins, `{"from":<position>}`: a position counts the bytes of all event lines that there ever were,
so those who follow go on over a rotation. Only whoever holds the run writes.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fanfold.errors import LogWriteError
from fanfold.stores.line_file import LineFile, refused

FULL_BYTES = 4 * 2**20
_FLAGS = ("O_NOFOLLOW", "O_BINARY", "O_CLOEXEC", "O_NONBLOCK")  # the last: a pipe in place of a file keeps nobody
_OPEN: int = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in _FLAGS)
_HEAD = b'{"from":'
_HEAD_ROOM = 64
_TRIES = 3


class EventFile:
    """Blocking; one caller at a time. After an error it begins anew with whatever file there is."""

    def __init__(self, path: Path, old_path: Path) -> None:
        self._path = path
        self._old_path = old_path
        self._file: LineFile | None = None
        self._begin = 0
        """Position at which the file begins."""
        self._head = 0
        """Length of its first line."""
        self._end = 0
        """Position behind what was written last."""

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines. On failure the first ones may have been written.

        Raises:
            LogWriteError: the file system refuses, or somebody removed or replaced the file.
        """
        start = 0
        try:
            while start < len(lines):
                file = self._opened()
                room, stop = FULL_BYTES - file.size, start
                while stop < len(lines) and room > 0:
                    room -= len(lines[stop]) + 1
                    stop += 1
                self._write(file, b"\n".join(lines[start:stop]) + b"\n")
                start = stop
        except LogWriteError:
            self.close()
            raise

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write(self, file: LineFile, data: bytes) -> None:
        head = b"" if file.size else b"%b%d}\n" % (_HEAD, self._begin)
        file.write(head + data)
        file.keep(len(head) + len(data))
        self._head = self._head or len(head)
        self._end = self._begin + file.size - self._head

    def _opened(self) -> LineFile:
        """The file, with room for a line at least."""
        file = self._file
        if file is None:
            file = self._open()
        if file.size >= FULL_BYTES:
            self.close()  # Windows renames no open file
            try:
                os.replace(self._path, self._old_path)
            except OSError as error:
                raise refused(self._path, error) from error
            file = self._open()
        return file

    def _open(self) -> LineFile:
        file = LineFile.try_open(self._path)
        if file is None:
            raise LogWriteError(path=str(self._path), reason="somebody else has it locked")
        self._file = file
        if file.size and file.read(file.size - 1, file.size) != b"\n":
            # Its writer was killed. Nobody was given that half line, so the position behind it is free.
            file.cut(file.read(0, file.size).rfind(b"\n") + 1)
        if file.size:
            self._begin, self._head = _head_of(file.read(0, _HEAD_ROOM))
        else:
            old = _Piece.read(self._old_path)
            self._begin, self._head = max(self._end, 0 if old is None else old.end), 0
        self._end = max(self._end, self._begin + file.size - self._head)
        return file


def read_events(path: Path, old_path: Path, after: int) -> tuple[list[bytes], int]:
    """The lines behind the position `after`, and the position behind them. Blocking.

    Raises:
        LogWriteError: the file system refuses, or one of them is a symbolic link.
    """
    old: _Piece | None = None
    current: _Piece | None = None
    for _ in range(_TRIES):
        current = _Piece.read(path, after)
        if current is not None and current.start == after:
            return current.lines()
        old = _Piece.read(old_path, after)
        if old is None or current is None or old.end == current.begin:
            break  # else a rotation came in between
    pieces = [each for each in (old, current) if each is not None]
    lines: list[bytes] = []
    position = 0
    for piece in pieces:
        found, position = piece.lines()
        lines += found
    return lines, position


@dataclass(frozen=True, slots=True)
class _Piece:
    begin: int
    end: int
    start: int
    """Position of `data`."""
    data: bytes

    @classmethod
    def read(cls, path: Path, after: int | None = None) -> "_Piece | None":
        """What stands behind the position `after`; all of it when that is none that it has, or lies within a line."""
        try:
            with os.fdopen(os.open(path, _OPEN), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
                    return None  # a new one gets its first lines at once
                begin, head = _head_of(file.read(_HEAD_ROOM))
                size = status.st_size
                offset = head if after is None else head + after - begin
                if offset != head and not (offset > head and _byte_before(file, offset) == b"\n"):
                    offset = head
                file.seek(offset)
                return cls(begin, begin + size - head, begin + offset - head, file.read(size - offset))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refused(path, error, "read") from error

    def lines(self) -> tuple[list[bytes], int]:
        whole = self.data.rfind(b"\n") + 1  # a line that is just being written is none yet
        return self.data[:whole].split(b"\n")[:-1], self.start + whole


def _byte_before(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset - 1)
    return file.read(1)


def _head_of(data: bytes) -> tuple[int, int]:
    """The position that a file says to begin at, and the length of the line that says so."""
    line, newline, _ = data.partition(b"\n")
    number = line.removeprefix(_HEAD).removesuffix(b"}")
    if newline and len(number) == len(line) - len(_HEAD) - 1 and number.isdigit():
        return int(number), len(line) + 1
    return 0, 0
