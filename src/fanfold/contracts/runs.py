"""Runs as their session tells of them, and how a run under way is steered (notes 5 and 6; seed 003 for the limits)."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.record import Record

RunStatus = Literal["created", "planning", "executing", "verifying", "completed", "failed", "cancelled"]
TERMINAL: frozenset[RunStatus] = frozenset({"completed", "failed", "cancelled"})
RECEIPT_SCHEMA = "a3s.code.run-control-receipt.v1"


class RunSnapshot(Record, frozen=True, kw_only=True):
    id: str
    session_id: str
    status: RunStatus
    """The last three of them are final."""
    prompt: str
    created_at_ms: int
    updated_at_ms: int
    result_text: str | None = None
    error: str | None = None
    error_code: str | None = None
    event_count: int = 0
    """All events so far, those that are not kept any more included."""
    usage: Usage = NO_USAGE

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL


class RunEventPage(Record, frozen=True, kw_only=True):
    """Events of one run behind a cursor; sequences begin at 0 and count all events that ever were."""

    events: list[AgentEvent]
    first_available_sequence: int
    latest_sequence_exclusive: int
    next_after_sequence: int | None
    """The cursor for the next page; None while nothing was read from the beginning."""
    retention_gap: bool
    """Events between the cursor and the first one here are not kept any more."""
    has_more: bool


class SpawnedRun(Record, frozen=True, kw_only=True):
    snapshot: RunSnapshot
    replayed: bool
    """The id was known with the same input: nothing was started."""


class RunControlSnapshot(Record, frozen=True, kw_only=True):
    session_id: str
    run_id: str
    active: bool
    turn_id: str | None = None
    turn_revision: int
    """Rises with each recorded model turn and with each control that was applied."""
    queued_controls: int
    interrupt_requested: bool
    last_sequence: int


class RunControlFault(Record, frozen=True, kw_only=True):
    code: str
    message: str


class RunControlReceipt(Record, frozen=True, kw_only=True):
    schema: str = RECEIPT_SCHEMA
    request_id: str
    session_id: str
    run_id: str
    operation: Literal["steer", "interrupt"]
    state: Literal["accepted", "applied", "settled"]
    """`settled`: the run ended before it came to it; `error` says so."""
    sequence: int
    turn_id: str | None = None
    turn_revision: int
    accepted_at_ms: int
    applied_at_ms: int | None = None
    error: RunControlFault | None = None


class SessionRetentionLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of its past a session keeps in memory (seed 003). Soft: what is beyond a limit drops the oldest."""

    max_runs_retained: Annotated[int, Meta(ge=1)] = 64
    max_events_per_run: Annotated[int, Meta(ge=0)] = 2_048
    max_event_bytes_per_run: Annotated[int, Meta(ge=0)] = 8 * 1024 * 1024
    max_trace_events: Annotated[int, Meta(ge=0)] = 8_192
    """Of all runs together, when a new one begins."""
    max_terminal_subagent_tasks: Annotated[int, Meta(ge=0)] = 512
    unbounded: bool = False
    """True: none of the limits holds."""
