"""What a session store keeps of sessions: the saved session, and the checkpoint of a run under way (notes 8.2-8.3).

Both say how much of the session's facts they stand for; the facts themselves are a log of the store that only grows,
so that saving after each turn, or each round of tools, costs what is new and not what there is.
"""

import msgspec

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunControlReceipt, RunSnapshot
from fanfold.contracts.tasks import SubagentTask

CHECKPOINT_VERSION = 1
SESSION_VERSION = 1


class SavedFacts(msgspec.Struct, frozen=True):
    log: str
    """A log of the store, one fact a record."""
    last_seq: int
    """How many of its records count: those that came later are not part of what was saved."""


class LoopCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands, for a node that has only the store. It gives facts, not decisions."""

    schema_version: int = 0
    """0 for one that does not say."""
    run_id: str
    session_id: str
    turn: int
    """Tool rounds of its turn so far, from 1 on; 0 before the first has ended (a run that waits for a person)."""
    facts: SavedFacts
    total_usage: Usage = NO_USAGE
    """Of the whole run: that of its facts, and of the model calls of which no fact tells (plans, goals)."""
    tool_calls_count: int = 0
    checkpoint_ms: int = 0


class SavedTags(msgspec.Struct, frozen=True, kw_only=True):
    tenant_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    correlation_id: str | None = None

    def given(self) -> dict[str, str]:
        """Those that are set."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class SavedControl(msgspec.Struct, frozen=True, kw_only=True):
    fingerprint: str
    """Of the request: the same id with another one is a conflict."""
    receipt: RunControlReceipt


class SavedRun(msgspec.Struct, frozen=True, kw_only=True):
    snapshot: RunSnapshot
    events: str
    """A log of the store with the run's events."""
    first_sequence: int
    """Of the first event in it."""
    controls: tuple[SavedControl, ...] = ()


class SavedSession(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of a session: replaced as a whole, or not at all."""

    schema_version: int = 0
    session_id: str
    workspace: str
    created_at_ms: int
    updated_at_ms: int
    tags: SavedTags = SavedTags()
    options: JsonObject = {}
    """Those that a resumed session takes up again where the caller sets none. Never keys, guards, hooks or stores."""
    role: AgentDefinition | None = None
    """Of a session that was opened for a named agent: its prompt, its tools, and what narrows its permissions."""
    facts: SavedFacts
    total_usage: Usage = NO_USAGE
    runs: tuple[SavedRun, ...] = ()
    tasks: tuple[SubagentTask, ...] = ()
