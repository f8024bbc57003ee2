"""Records of a workflow run's journal, `<runId>.journal.jsonl` (spec-workflow 5.4): one JSON object a line.

Each line ends with `,"crc":"<8 hex digits>"}`, the CRC-32 of all that stands before. `header` opens each attempt;
`started` and `result` belong to one call and have its `seq`; `turns` are facts of an agent under way, so that it can go
on from its last one; `moved` says where a replayed call stands now; `attempt_end` closes an attempt. A reader passes
over types that it does not know.
"""

from typing import Literal

import msgspec

from fanfold.contracts.messages import Usage
from fanfold.contracts.steps import Worktree
from fanfold.contracts.workflow_runs import RunStatus, WorkflowMeta

JOURNAL_VERSION = 1

Identity = str
"""SHA-256 of what a call means, 64 hex digits."""
ResultStatus = Literal["ok", "error", "cancelled", "skipped"]


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="header"):
    v: int = JOURNAL_VERSION
    run_id: str
    workflow: str
    script_sha: str | None = None
    meta: WorkflowMeta
    args_sha: str
    attempt: int
    runtime: str
    """Version of fanfold."""
    at_ms: int
    seed: str = ""
    """What `random` and `uuid` of the script are derived from: the id of the run that was launched first."""
    first_ms: int = 0
    """When that was."""
    parent: str | None = None
    """The run that the entries before the first `started` were copied from."""


class Started(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="started"):
    seq: int
    """1-based over the whole run, in the order of issue."""
    id: Identity
    path: str
    label: str = ""
    phase: str | None = None
    key: str
    """The idempotency key that its tools get."""
    attempt: int
    """0: copied from the run that this one was forked from."""
    call: msgspec.Raw = msgspec.Raw(b"null")
    """What was asked, the JSON that `id` is the digest of: for plans and people."""


class CallFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    message: str
    raw: str | None = None
    """The text of an answer that did not match its schema, for salvage."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="result"):
    seq: int
    id: Identity
    path: str
    status: ResultStatus
    value: msgspec.Raw = msgspec.Raw(b"null")
    """What the script gets, unless it lies in a blob."""
    blob: str | None = None
    """SHA-256 of a value's JSON that was too long for the journal."""
    usage: Usage | None = None
    """None: unknown, which is not zero."""
    cost: float | None = None
    tools: int = 0
    ms: int = 0
    attempt: int = 1
    error: CallFault | None = None
    degraded: int | None = None
    """Attempts or repairs that it took beyond the first."""
    worktree: Worktree | None = None


class Turns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="turns"):
    seq: int
    facts: tuple[msgspec.Raw, ...]
    """As the fact log writes them; the first has seq 1 when the agent begins anew."""
    is_answer: bool = False
    """A person's, recorded while nobody ran the agent: what it answers has not been gone on with."""


class Moved(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="moved"):
    """What is recorded as `seq` answered a call at another place, for the script was edited: it stands there from now
    on, so that of several equal calls each gets the same answer in every later attempt."""

    seq: int
    path: str


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="attempt_end"):
    attempt: int
    status: RunStatus
    at_ms: int


RunRecord = Header | Started | Result | Turns | Moved | AttemptEnd
