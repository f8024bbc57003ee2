"""What users see of a workflow: its checkpoint (the folded view of its journal), a plan to resume it, its phases."""

from typing import Literal

from fanfold.contracts.messages import Usage
from fanfold.contracts.record import Record
from fanfold.contracts.steps import StepOutcome

SCHEMA_VERSION = 1
"""Of the journal and of the view; a later one is refused (spec-orchestration 4.3)."""


class ResultReceipt(Record, frozen=True, kw_only=True):
    """Binds a result to the step that it is of, by digests alone: nothing of prompt or output stands in it.

    Digests are SHA-256 cut to 128 bits, written `sha-256-128:<hex>` (the suite of that name in RFC 6920).
    """

    identity: str
    """Of the step's meaning: agent, prompt, max_steps, output_schema, model."""
    outcome: Literal["succeeded", "failed"]
    result_digest: str | None = None
    """Of the JSON of `output` and `structured`; only for a success."""
    result_bytes: int = 0
    evidence_digest: str
    """Of the JSON of `source_anchors`."""


class WorkflowStepRecord(Record, frozen=True, kw_only=True):
    task_id: str
    place: str
    """Where in the workflow: the task id, behind its phase (`audit/deps`) if it has one."""
    outcome: StepOutcome
    result_receipt: ResultReceipt


class WorkflowCheckpoint(Record, frozen=True, kw_only=True):
    """What a workflow has finished so far (seed 001)."""

    schema_version: int = SCHEMA_VERSION
    workflow_id: str
    steps: list[WorkflowStepRecord]
    """Successes only, in the order in which they were first recorded."""
    failed: list[WorkflowStepRecord]
    """Steps whose last attempt failed: they run again."""
    interrupted: list[str]
    """Places of steps that were cut off and go on from their own recorded turns."""
    usage: Usage
    """All that was spent, failures and interrupted steps included."""
    cost_usd: float | None = None
    checkpoint_ms: int
    """When the newest record was written, Unix ms."""


class CheckpointSummary(Record, frozen=True, kw_only=True):
    workflow_id: str
    succeeded: int
    failed: int
    interrupted: int
    total_tokens: int
    checkpoint_ms: int
    problem: str | None = None
    """Why it cannot be resumed; absent when it can."""


PlannedAction = Literal["cached", "continue", "re-run", "new"]


class PlannedStep(Record, frozen=True, kw_only=True):
    task_id: str
    action: PlannedAction
    """`continue`: it was cut off and goes on from its last recorded turn."""
    reason: str
    """`recorded`, `prompt changed`, `failed before: ...`, `not recorded`, ..."""
    changes: tuple[str, ...] | None = None
    """The changed lines, `-` before and `+` after; absent when nothing changed."""
    estimated_tokens: int = 0
    """What it will take, by what it or its siblings took; 0 for a cached one."""


class ResumePlan(Record, frozen=True, kw_only=True):
    """What `parallel_resumable` would do with these specs. Making it costs nothing and changes nothing."""

    workflow_id: str
    steps: list[PlannedStep]
    """In input order."""
    dropped: list[str]
    """Recorded places that these specs do not have; they stay recorded."""
    spent_tokens: int
    """Already, by all earlier calls."""

    def count(self, action: PlannedAction) -> int:
        return sum(step.action == action for step in self.steps)

    @property
    def estimated_tokens(self) -> int:
        return sum(step.estimated_tokens for step in self.steps)


class PhaseReport(Record, frozen=True, kw_only=True):
    """What one `phase`, `parallel` or `pipeline` of a workflow came to."""

    name: str
    index: int
    succeeded: int
    failed: int
    cached: int
    """Of those, how many were not run, for they were recorded."""
    usage: Usage
    """Of those that were run; cached ones cost nothing now."""
    cost_usd: float | None = None
    """Absent when no step has a price."""
    unpriced: int
    """Steps that were run and have no price: `cost_usd` leaves them out."""
    stopped: int = 0
    """Chains of a pipeline that a stage ended by an error or by no valid spec."""
