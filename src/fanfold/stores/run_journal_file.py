"""The journal of one run on disk: lines that are appended in one piece, and read without asking its writer."""

import os
from collections.abc import Sequence
from pathlib import Path

from fanfold.errors import LogWriteError
from fanfold.protocols import JournalRead
from fanfold.stores.durable_file import read_file
from fanfold.stores.line_file import LineFile
from fanfold.stores.run_lock import create_empty


class RunJournalFile:
    """For whoever has the lock of the run. Blocking; one caller at a time; LogWriteError when the file system refuses.

    The file is opened when it is first written to, and locked too from then on: should somebody remove the lock of the
    run, there are still no two writers. It is never created here, for a journal that has gone must not begin anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: LineFile | None = None
        self._is_named = False
        """Its directory is known to have its name on the disk."""

    def append(self, lines: Sequence[bytes], *, is_durable: bool) -> None:
        """Write them all or none, behind whole lines only."""
        file = self._opened()
        if file.size and file.read(file.size - 1, file.size) != b"\n":
            raise LogWriteError(path=str(self._path), reason="it ends within a line, which is to be cut off first")
        data = b"\n".join(lines) + b"\n"
        file.write(data)
        if is_durable:
            try:
                if not self._is_named:
                    file.sync_name()
                file.sync()
            except LogWriteError:
                file.take_back()
                raise
            self._is_named = True
        file.keep(len(data))

    def cut(self, whole_lines: int) -> str | None:
        """Keep that many lines; returns the name of the file that the rest is in now, None when there is no rest."""
        if not self.is_there():
            return None
        file = self._opened()
        data = file.read(0, file.size)
        end = end_of_lines(data, whole_lines)
        return file.cut(end).name if end < len(data) else None

    def is_there(self) -> bool:
        return os.path.lexists(self._path)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        is_empty = file.size == 0
        file.close()
        if is_empty and not self.is_there():
            create_empty(self._path)  # a line file without a line goes when it is closed; a journal stays

    def _opened(self) -> LineFile:
        if self._file is None:
            if not self.is_there():
                raise LogWriteError(path=str(self._path), reason="it is not there any more")
            self._file = LineFile.try_open(self._path)
            if self._file is None:
                raise LogWriteError(path=str(self._path), reason="another process writes to it")
        return self._file


def read_journal(path: Path) -> JournalRead | None:
    """None when there is none. What is being written just now may look like a torn end. Raises LogWriteError."""
    data = read_file(path)
    return None if data is None else lines_of(data)


def lines_of(data: bytes) -> JournalRead:
    # At newlines alone: text may hold characters that other ways of splitting take for the end of a line.
    lines = data.split(b"\n")
    rest = lines.pop()
    return JournalRead(lines=lines, has_torn_end=bool(rest))


def end_of_lines(data: bytes, count: int) -> int:
    """Bytes of the first `count` whole lines, or of all when there are fewer."""
    end = 0
    for _ in range(count):
        newline = data.find(b"\n", end)
        if newline < 0:
            break
        end = newline + 1
    return end
