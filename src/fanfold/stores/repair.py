"""`fanfold log check` and `fanfold log repair`: every fault of a log with its line, and the bad part set aside.

Repair moves, it never deletes: what follows the good beginning goes to `<thread>.jsonl.torn-<n>` beside the log.
"""

from pathlib import Path

from fanfold.contracts.facts import Fact
from fanfold.contracts.record import Record
from fanfold.errors import SessionBusyError, UsageError
from fanfold.stores.file_lock import holder_name
from fanfold.stores.line_file import LineFile
from fanfold.stores.recovery import recover
from fanfold.stores.thread_index import ThreadIndex, scan
from fanfold.stores.thread_name import thread_of


class LogProblem(Record, frozen=True, kw_only=True):
    line: int
    """1-based."""
    reason: str


class LogReport(Record, frozen=True, kw_only=True):
    thread: str
    path: str
    good_facts: int
    """Facts before the first problem: those that a repair keeps."""
    problems: tuple[LogProblem, ...]
    is_self_healing: bool
    """The one problem is a torn tail, which the next session that opens the log sets aside by itself."""


class RepairReport(Record, frozen=True, kw_only=True):
    thread: str
    path: str
    kept_facts: int
    moved_lines: int
    moved_bytes: int
    moved_to: str | None
    """None: the log was good and nothing was changed."""


def check(path: Path) -> LogReport:
    """What is wrong with the log at `path`; changes nothing and waits for nobody.

    Raises:
        UsageError: there is no log.
    """
    thread = _thread_at(path)
    keys: dict[str, int] = {}
    problems: list[LogProblem] = []
    good_facts, is_torn = 0, False
    for line, (_, found) in enumerate(scan(path.read_bytes(), 0, 0, keys), 1):
        if isinstance(found, Fact):
            keys[found.key] = found.seq
            good_facts += not problems
        else:
            problems.append(LogProblem(line=line, reason=found.reason))
            is_torn = found.is_torn
    return LogReport(
        thread=thread,
        path=str(path),
        good_facts=good_facts,
        problems=tuple(problems),
        is_self_healing=len(problems) == 1 and is_torn,
    )


def repair(path: Path) -> RepairReport:
    """Keep the facts up to the first problem and move the rest aside. Blocking.

    Raises:
        UsageError: there is no log.
        SessionBusyError: somebody is working with it.
        LogWriteError: the rest could not be moved; the log is as it was.
    """
    thread = _thread_at(path)
    recover(path.parent)
    file = LineFile.try_open(path)
    if file is None:
        raise SessionBusyError(session_id=thread, holder=holder_name(path))
    try:
        return _set_aside(thread, file)
    finally:
        file.close()


def _set_aside(thread: str, file: LineFile) -> RepairReport:
    index = ThreadIndex()
    _, fault = index.absorb(file.read(0, file.size))
    rest = b"" if fault is None else file.read(fault.start, file.size)
    moved_to = None if fault is None else file.cut(fault.start)
    return RepairReport(
        thread=thread,
        path=str(file.path),
        kept_facts=index.last_seq,
        moved_lines=len(rest.splitlines()),
        moved_bytes=len(rest),
        moved_to=None if moved_to is None else str(moved_to),
    )


def _thread_at(path: Path) -> str:
    if not path.is_file():
        raise UsageError(f"no fact log at {path}")
    return thread_of(path.name) or path.name
