"""A recording under way: `<cassette>.part`, to which each call is added at once, so that a crash loses none of them.

One line of JSON for each call, behind one for the capabilities. Its lock is what makes one recorder at a time.
"""

import os
import weakref
from pathlib import Path
from typing import TypeVar

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.errors import UsageError
from fanfold.protocols import ModelCapabilities
from fanfold.stores.file_lock import holder_name, try_lock, unlock
from fanfold.stores.line_file import refused
from fanfold.testing.cassette_file import VERSION, corrupt
from fanfold.testing.recorded_call import Recording

T = TypeVar("T")
_OPEN = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fanfold_cassette: int
    capabilities: ModelCapabilities


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    asked: int
    recording: Recording


class PartContent(msgspec.Struct, frozen=True):
    capabilities: ModelCapabilities
    recordings: tuple[Recording, ...]
    """In the order in which they were asked for."""


def part_path(cassette: Path) -> Path:
    return cassette.with_name(cassette.name + ".part")


class CassettePart:
    """The file, open and locked until `remove`, or until it is dropped."""

    def __init__(self, cassette: Path) -> None:
        """Raises UsageError when somebody else is recording that cassette, LogWriteError when the system refuses."""
        self._path = part_path(cassette)
        try:
            cassette.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _locked(self._path, cassette)
        except OSError as error:
            raise refused(self._path, error) from error
        self._let_go = weakref.finalize(self, _let_go, self._fd)

    def read(self) -> PartContent | None:
        """What a recorder that crashed has left; None when that is nothing. Half a line at the end is cut off.

        Raises:
            CorruptLogError: something else is wrong with it.
        """
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.ftruncate(self._fd, len(whole))
        head, *lines = whole.splitlines() or [b""]
        if not head:
            return None
        made = _decoded(self._path, 1, head, _Head)
        if made.fanfold_cassette != VERSION:
            raise corrupt(self._path, 1, f"version {made.fanfold_cassette} of the format is not known here")
        found = [_decoded(self._path, number, line, _Line) for number, line in enumerate(lines, 2)]
        found.sort(key=lambda line: line.asked)
        return PartContent(made.capabilities, tuple(line.recording for line in found))

    def begin(self, capabilities: ModelCapabilities) -> None:
        """Empty it for a recording from the first call on."""
        self._write(encode_json(_Head(VERSION, capabilities)), truncate=True)

    def keep(self, asked: int, recording: Recording) -> None:
        """Add a call, the `asked`th that was asked for."""
        self._write(encode_json(_Line(asked, recording)))

    def _write(self, line: bytes, *, truncate: bool = False) -> None:
        try:
            if truncate:
                os.ftruncate(self._fd, 0)
            os.write(self._fd, line + b"\n")
        except OSError as error:
            raise refused(self._path, error) from error

    def release(self) -> None:
        """Let others have it, as it is; one that is empty goes."""
        if os.fstat(self._fd).st_size:
            self._let_go()
        else:
            self.remove()

    def remove(self) -> None:
        """Its recordings stand in the cassette by now."""
        os.ftruncate(self._fd, 0)
        try:
            self._path.unlink(missing_ok=True)
            self._let_go()
        except PermissionError:  # Windows keeps a file that is open
            self._let_go()
            self._path.unlink(missing_ok=True)


def _locked(path: Path, cassette: Path) -> int:
    while True:
        fd = os.open(path, _OPEN, 0o644)
        if not try_lock(fd):
            os.close(fd)
            holder = holder_name(path)
            raise UsageError(
                f"the cassette {cassette} is being recorded by another Cassette{f' in {holder}' if holder else ''}; "
                "share that one, or give each a path of its own"
            )
        if _is_at(path, fd):
            return fd
        _let_go(fd)  # its recorder removed it before we had the lock


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _let_go(fd: int) -> None:
    unlock(fd)
    os.close(fd)


def _decoded(path: Path, number: int, line: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=type)
    except (msgspec.DecodeError, RecursionError) as error:
        raise corrupt(path, number, str(error)) from None
