"""SessionState: everything that a session is, as folded from its log."""

from typing import Literal

import msgspec

from fanfold.contracts.facts import RecordedCall
from fanfold.contracts.messages import NO_USAGE, Entry, Usage

Phase = Literal["idle", "infer", "calls", "done"]
"""`idle`: nothing was asked yet. `infer`: the model is next. `calls`: recorded calls wait, for a tool, an approval or
an answer. `done`: the turn is over. Compaction and denial are choices of `decide`, not states of the log."""


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    # A msgspec Struct and not a dataclass: `replace` is on the path of every fact and costs a tenth there.
    phase: Phase = "idle"
    last_seq: int = 0
    facts: int = 0
    """Facts that drove the fold (notes are not counted)."""
    turn: int = 0
    """User messages so far, steers and notices included."""
    is_notice: bool = False
    """What began the turn was no user's word, but tells of work in the background."""
    cycle: int = 0
    """Settled tool rounds of this turn."""
    transcript: Entry | None = None
    """What the model is shown."""
    shown: Entry | None = None
    """The transcript without the turns that are aside: that of prompts with an explicit history (seed 002)."""
    is_aside: bool = False
    history: Entry | None = None
    """`shown` as it was when the last turn was over: what a turn that failed said is no part of it."""
    context_tokens: int = 0
    """What the next model call will carry: the last reported usage plus bytes / 4 of what came after it."""
    pending: tuple[RecordedCall, ...] = ()
    """Recorded calls without a result, in the model's order."""
    approved: frozenset[str] = frozenset()
    """Ids of pending calls that a person approved."""
    rounds: int = 0
    """Model turns of this turn that asked for tools."""
    successes: int = 0
    """Tool results of this turn that were ok."""
    compacted_turn: int = 0
    steps: int = 0
    """Transitions of this run: model turns, tool results, compactions."""
    usage: Usage = NO_USAGE
    """Of this run."""
    session_usage: Usage = NO_USAGE
    """Of all runs together."""
    tool_results: int = 0
    """Of this run."""
    questions: int = 0
    """Answered in this run."""
    text: str = ""
    """The last prose of the assistant in this turn."""
    reasoning: str = ""
    """What the model thought before the answer that ended this turn."""
    stop_reason: str = "stop"


EMPTY = SessionState()
