"""What is known of each step's worktree, kept beside it: `<name>.json` for the folder `<name>`.

Its owner holds a lock on that file, which ends with the process: what nobody holds and is not ended was left by one
that died. Lines are only added, and the last whole one counts. Blocking, as all of this module; POSIX only. A
repository may bring such files along, so none is believed that names another branch than one of ours.
"""

import fcntl
import os
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec

from fanfold.tools.workspace import OPEN_FLAGS

MOST_BYTES = 65_536
"""Of its end, that are read."""
SUFFIX = ".json"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    state: Literal["making", "working", "ended"]
    """`making`: no tool has run in it yet, so nothing in it is worth keeping. `ended`: its folder is gone."""
    task_id: str
    key: str = ""
    """Of a step that may go on later, the same for each attempt at it."""
    base: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40,64}$")]
    """The commit that it began from."""
    branch: Annotated[str, msgspec.Meta(pattern="^fanfold[/-].")] | None = None
    """The one that was made for it; None when nothing was changed, and before that."""


_lines = msgspec.json.Decoder(Record)


class Claim:
    """The lock on one worktree, and its record."""

    def __init__(self, folder: Path, file: int, last: Record | None) -> None:
        self.folder = folder
        """Of the worktree."""
        self._file = file
        self.last = last
        """None: there is none yet, or none that can be read."""

    @classmethod
    def take(cls, folder: Path) -> Self | None:
        """None: somebody works in it, here or in another process. Short enough to need no thread, in which a
        cancellation would lose it."""
        path = record_path(folder)
        file = os.open(path, (OPEN_FLAGS & ~os.O_RDONLY) | os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.lstat(path)):  # else its last owner removed it meanwhile
                return cls(folder, file, _last(os.pread(file, MOST_BYTES, max(0, os.fstat(file).st_size - MOST_BYTES))))
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return None

    @property
    def written_at(self) -> float:
        """Unix seconds, as the file system has it."""
        return os.fstat(self._file).st_mtime

    def write(self, record: Record) -> None:
        """Durable when it returns."""
        os.write(self._file, b"\n" + msgspec.json.encode(record) + b"\n")  # on a line of its own, whatever was cut
        os.fsync(self._file)
        self.last = record

    def release(self, *, forget: bool = False) -> None:
        """Let go, for good, and remove a record that tells nobody anything, or `forget` it in any case."""
        if self._file >= 0:
            is_blank = self.last is None and os.fstat(self._file).st_size == 0
            is_over = self.last is not None and self.last.state == "ended" and not self.last.key
            if forget or is_blank or is_over:
                record_path(self.folder).unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


def record_path(folder: Path) -> Path:
    return folder.with_name(folder.name + SUFFIX)


def _last(data: bytes) -> Record | None:
    for line in reversed(data.split(b"\n")):
        try:
            return _lines.decode(line)
        except msgspec.DecodeError:
            continue
    return None
