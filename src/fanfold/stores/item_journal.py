"""The journal of a `map`: each finished item once, durable, so that the same command continues where it was.

JSONL of `{"identity", "outcome"}`. One file takes the records of all items: a group commit is one write and one sync.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from fanfold.contracts.codec import encode_readable, read_json
from fanfold.contracts.steps import StepOutcome
from fanfold.errors import CorruptLogError, LogWriteError, SessionBusyError, UsageError
from fanfold.stores.directory import make_directory, refuse_links
from fanfold.stores.file_lock import holder_name
from fanfold.stores.group_commit import GroupCommit
from fanfold.stores.landing import in_worker
from fanfold.stores.line_file import LineFile
from fanfold.stores.thread_index import is_json


class _Line(msgspec.Struct, frozen=True):
    identity: str
    outcome: StepOutcome


_decoder = msgspec.json.Decoder(_Line)


class JsonlItemJournal:
    """Use `open`; held exclusively until `close`."""

    def __init__(self, file: LineFile, finished: dict[str, StepOutcome]) -> None:
        self._file = file
        self._finished = finished
        self._commits = GroupCommit[bytes](lambda lines: partial(self._write, b"".join(lines)))

    @classmethod
    async def open(cls, path: Path) -> "JsonlItemJournal":
        """The journal at `path` with everything that it has, created if need be.

        A half-written last line is moved to `<name>.torn-<n>`; its item counts as not finished.

        Raises:
            SessionBusyError: another map has it open.
            CorruptLogError: a line in the middle is no record; nothing was changed.
            UsageError: a directory of ours on the way is a symbolic link.
        """
        refuse_links(path.parent)
        if not path.parent.is_dir():
            await in_worker(lambda: make_directory(path.parent))
        file = LineFile.try_open(path)
        if file is None:
            raise _busy(path)
        try:
            return cls(file, await in_worker(lambda: _read(file)))
        except BaseException:
            file.close()
            raise

    @property
    def finished(self) -> Mapping[str, StepOutcome]:
        return MappingProxyType(self._finished)

    async def record(self, identity: str, outcome: StepOutcome) -> None:
        """Durable when it returns; of two records of one item the later one counts.

        Raises:
            LogWriteError: it is not in the file.
            UsageError: it could not be read back, so it was not written.
        """
        try:
            line = encode_readable(_Line(identity, outcome), _decoder) + b"\n"
        except ValueError as error:
            raise UsageError(f"the outcome of item {identity!r} was not written: {error}") from error
        self._commits.require_open()
        landing = self._commits.submit(line)
        try:
            await landing.wait()
        finally:  # also when this task was cancelled: how it ended is known by now
            if landing.error is None:
                self._finished[identity] = outcome

    async def close(self) -> None:
        if not self._commits.is_closed:
            await self._commits.close()
            self._file.close()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        try:
            self._file.sync()
            if self._file.is_new:
                self._file.sync_name()
        except LogWriteError:
            self._file.take_back()
            raise
        self._file.keep(len(data))


def _read(file: LineFile) -> dict[str, StepOutcome]:
    finished: dict[str, StepOutcome] = {}
    lines = file.read(0, file.size).splitlines(keepends=True)
    start = 0
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the line has no end")
            record = read_json(line, _decoder)
        except ValueError as error:
            if number < len(lines) or (line.endswith(b"\n") and is_json(line)):
                raise _corrupt(file.path, number, str(error)) from error
            file.cut(start)
            break
        finished[record.identity] = record.outcome
        start += len(line)
    return finished


def _busy(path: Path) -> SessionBusyError:
    holder = holder_name(path) or "another process"
    return SessionBusyError(session_id=path.stem, holder=f"{holder}, which is running this map").with_hint(
        "wait until it is done, or stop it; then the same command continues"
    )


def _corrupt(path: Path, line: int, reason: str) -> CorruptLogError:
    error = CorruptLogError(thread=path.stem, line=line, reason=reason, what="item journal")
    error.hint = f"move {path} aside to run every item again, or remove that line to run its item again"
    return error
