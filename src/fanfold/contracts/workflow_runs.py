"""Workflow runs as people see them: meta data, limits, the snapshot of a run, its result, the plan of a resume."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.record import JsonObject, JsonValue, Record

SNAPSHOT_VERSION = 1
MAX_FAILURES_TOLD = 100
"""Failure records that a snapshot, a result and a notification hold; the counts tell of all."""

RunStatus = Literal["running", "completed", "completed_with_failures", "failed", "stopped", "paused"]
AgentStatus = Literal["queued", "started", "done", "cached", "failed", "cancelled", "skipped"]
SourceKind = Literal["registered", "file", "shipped", "inline"]
RunVerb = Literal["stop", "pause"]
PlanAction = Literal["cached", "re-run", "new", "not run", "skip", "ask"]
"""`not run` only of a resume of what failed: the call fails, for nothing is recorded that answers it. `skip`, `ask`:
what a call that may not simply be run again comes to."""
Repeat = Literal["rerun", "skip", "ask"]
"""What a resume does with a call whose agent was begun before and has given no answer; `ask`: a person decides."""
RepeatDecision = Literal["rerun", "skip"]
"""Of that person."""
REPEAT_UNDECIDED = "REPEAT_UNDECIDED"
"""Code of a call that waits for the decision; its run ends `paused`, `parked`."""


class WorkflowMeta(Record, frozen=True, kw_only=True):
    name: str
    """1-64 letters, digits, `.`, `_`, `-`; the first a letter or digit."""
    description: str
    phases: tuple[str, ...] | None = None
    """Titles by which progress is grouped."""
    when_to_use: str | None = None
    args_schema: JsonObject | None = None
    """JSON Schema of `args`, checked before launch."""


class WorkflowLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run may take. Whatever would pass a limit raises; nothing is ever cut short in silence."""

    concurrency: Annotated[int, Meta(ge=1, le=4096)] = 8
    """Agents at once, over the whole run."""
    max_agents: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """Live launches of one attempt, nested workflows included; answers from the journal are free."""
    max_items: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    """Of one `parallel` or `pipeline`."""
    max_args_bytes: Annotated[int, Meta(ge=2)] = 1_048_576
    break_after: Annotated[int, Meta(ge=1)] = 8
    """So many agents in a row that fail at the model's side, none succeeding in between, pause the run."""


class WorkflowInfo(Record, frozen=True, kw_only=True):
    """A workflow that can be launched, or the reason why it cannot."""

    name: str
    description: str = ""
    phases: tuple[str, ...] | None = None
    when_to_use: str | None = None
    args_schema: JsonObject | None = None
    kind: SourceKind
    path: str | None = None
    sha256: str | None = None
    """Of the script's text; absent for a registered function."""
    needs_approval: bool = False
    """A project file that is new or has changed since it was approved."""
    problem: str | None = None


class WorkflowLaunch(Record, frozen=True, kw_only=True):
    """The answer to a launch: the run goes on in the background."""

    status: Literal["async_launched"] = "async_launched"
    task_id: str
    task_type: Literal["local_workflow"] = "local_workflow"
    run_id: str
    workflow_name: str
    attempt: int = 1


class RunCounts(Record, frozen=True, kw_only=True):
    """Agents of one attempt."""

    launched: int = 0
    """Run live."""
    done: int = 0
    """Of those, succeeded."""
    cached: int = 0
    """Answered from the journal."""
    failed: int = 0
    skipped: int = 0
    null_results: int = 0
    """Slots of `parallel` and `pipeline` that became None by a failure."""
    unclaimed: int = 0
    """Recorded results that nothing asked for."""
    rejected: int = 0
    """Recorded results that could not be used: damaged, or against their schema."""


class RunFailure(Record, frozen=True, kw_only=True):
    where: str
    """Path of the call or slot in the run, as the journal has it."""
    code: str
    message: str
    label: str | None = None
    index: int | None = None
    """Of the slot in its `parallel` or the item in its `pipeline`."""
    stage: int | None = None
    line: int | None = None
    """Of the script."""


class RunFault(Record, frozen=True, kw_only=True):
    code: str
    message: str
    line: int | None = None
    """Of the script."""
    trace: str | None = None


class RunBudget(Record, frozen=True, kw_only=True):
    spent_tokens: int
    """By all attempts."""
    limit_tokens: int | None = None


class WorkflowSnapshot(Record, frozen=True, kw_only=True):
    """`<runId>.json`: what a run is, and how it stands."""

    version: int = SNAPSHOT_VERSION
    run_id: str
    task_id: str
    workflow: str
    kind: SourceKind
    path: str | None = None
    script_sha256: str | None = None
    args: JsonObject
    status: RunStatus
    """`running` of a run whose owner is gone means that it was cut off; see `is_alive` where it is listed."""
    reason: str | None = None
    """Why it is paused or stopped, in one word: `budget_exhausted`, `quota`, `auth`, `unreachable`, `requested`."""
    reset_ms: int | None = None
    """When the provider's limit is said to end, Unix ms."""
    attempt: int = 1
    parent_run_id: str | None = None
    """It was forked from that run."""
    session_id: str | None = None
    """Whose conversation is told of its end."""
    launch_key: str | None = None
    """Of the launch that began this attempt, where that may be made again after a crash."""
    model: str | None = None
    """`provider/model-id` of this attempt's session: what agents ran on that name no other."""
    limits: WorkflowLimits = WorkflowLimits()
    counts: RunCounts = RunCounts()
    """Of this attempt."""
    failures: tuple[RunFailure, ...] = ()
    usage: Usage = NO_USAGE
    """Of all attempts."""
    attempt_usage: Usage = NO_USAGE
    cost_usd: float | None = None
    """Of all attempts, as far as they have a price."""
    tool_uses: int = 0
    budget: RunBudget | None = None
    phase: str | None = None
    """Announced last, or that of the agent that was started since."""
    error: RunFault | None = None
    started_ms: int
    updated_ms: int
    duration_ms: int = 0
    """Of this attempt."""
    process: int | None = None
    """Of the owner, for people."""


class WorkflowResult(Record, frozen=True, kw_only=True):
    """What one attempt of a run came to."""

    run_id: str
    workflow: str
    status: RunStatus
    value: JsonValue = None
    """What the script returned."""
    counts: RunCounts
    failures: tuple[RunFailure, ...] = ()
    usage: Usage = NO_USAGE
    """Of this attempt: answers from the journal cost nothing."""
    total_usage: Usage = NO_USAGE
    """Of all attempts."""
    cost_usd: float | None = None
    """Of all attempts."""
    duration_ms: int
    output_file: str
    reason: str | None = None
    reset_ms: int | None = None
    error: RunFault | None = None


class RunSummary(Record, frozen=True, kw_only=True):
    """One line of a list of runs."""

    run_id: str
    snapshot: WorkflowSnapshot | None = None
    is_alive: bool = False
    """Somebody runs it just now."""
    problem: str | None = None

    @property
    def status(self) -> str:
        """`interrupted`: it was running when its owner died."""
        if self.snapshot is None:
            return "unreadable"
        if self.snapshot.status == "running" and not self.is_alive:
            return "interrupted"
        return self.snapshot.status


class PlannedCall(Record, frozen=True, kw_only=True):
    where: str
    label: str
    phase: str | None = None
    action: PlanAction
    reason: str
    """`recorded`, `prompt changed`, `schema changed`, `failed before: ...`, `in doubt`, `not recorded`, ..."""
    changes: tuple[str, ...] | None = None
    """Changed lines of the prompt, `-` before and `+` after."""
    estimated_tokens: int = 0


class WorkflowPlan(Record, frozen=True, kw_only=True):
    """What a resume would do, as far as that is known without running an agent. Making it changes nothing."""

    run_id: str
    workflow: str
    calls: tuple[PlannedCall, ...]
    is_complete: bool
    """False: what comes behind the calls that would be run depends on their results."""
    unclaimed: tuple[str, ...] = ()
    """Recorded calls that were not asked for, or not yet."""
    script_changed: bool = False
    spent_tokens: int = 0
    """By the run so far; a fork has spent nothing."""
    is_fork: bool = False
    """Of a new run, which leaves this one as it is."""
    only_failed: bool = False
    error: RunFault | None = None
    """With which the script ends, as far as it is played."""

    def count(self, action: PlanAction) -> int:
        return sum(call.action == action for call in self.calls)

    @property
    def estimated_tokens(self) -> int:
        return sum(call.estimated_tokens for call in self.calls)


class ComparedCall(Record, frozen=True, kw_only=True):
    where: str
    label: str
    change: Literal["same", "result", "call", "added", "removed"]
    """`result`: the same call gave something else; `call`: another call stands at that place."""
    detail: tuple[str, ...] | None = None
    """Changed lines."""


class RunComparison(Record, frozen=True, kw_only=True):
    before: str
    after: str
    calls: tuple[ComparedCall, ...]
    is_output_equal: bool
    output_changes: tuple[str, ...] | None = None
    tokens: tuple[int, int]
    cost_usd: tuple[float | None, float | None]
