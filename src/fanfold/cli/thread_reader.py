"""Reading a thread's log without taking it: another process may be running it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fanfold.cli.endings import NotThereError
from fanfold.contracts.facts import Fact, UserMessaged
from fanfold.contracts.messages import ASK_USER
from fanfold.errors import CorruptLogError
from fanfold.kernel.fold import fold
from fanfold.kernel.state import EMPTY, SessionState
from fanfold.live_sessions import LOG_DIRECTORY
from fanfold.regular_file import read_regular
from fanfold.stores.thread_index import Fault, ThreadIndex
from fanfold.stores.thread_name import file_name


@dataclass(frozen=True, slots=True)
class ThreadView:
    thread: str
    facts: list[Fact]
    """Up to the first fault."""
    fault: Fault | None
    changed_at: datetime

    @property
    def first_prompt(self) -> str:
        return next((fact.payload.text for fact in self.facts if isinstance(fact.payload, UserMessaged)), "")

    def state(self) -> SessionState:
        return fold(self.facts, EMPTY)

    def status(self) -> str:
        """`done`, `waits for an approval`, `waits for an answer`, `unfinished`, `damaged`."""
        if self.fault is not None and not self.fault.is_torn:
            return "damaged"
        try:
            state = self.state()
        except CorruptLogError:
            return "damaged"
        waiting = [call for call in state.pending if call.id not in state.approved]
        if any(call.name == ASK_USER for call in waiting):
            return "waits for an answer"
        if any(call.needs_confirmation for call in waiting):
            return "waits for an approval"
        return "done" if state.phase in ("done", "idle") else "unfinished"


def read_thread(thread: str) -> ThreadView:
    """The thread's log in the current directory, as far as it can be read.

    Raises:
        NotThereError: there is no such thread.
    """
    path = Path(LOG_DIRECTORY) / file_name(thread)
    try:
        data, stat = read_regular(path), path.stat()
    except FileNotFoundError:
        raise NotThereError(f"there is no session '{thread}' here; see: fanfold sessions list") from None
    facts, fault = ThreadIndex().absorb(data)
    return ThreadView(thread, facts, fault, datetime.fromtimestamp(stat.st_mtime, UTC))
