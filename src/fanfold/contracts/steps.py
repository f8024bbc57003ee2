"""What to run (`AgentStepSpec`), independent of where, and what came of it (`StepOutcome`)."""

from collections.abc import Callable
from typing import Any, Literal, cast

import msgspec

from fanfold.contracts.messages import Usage
from fanfold.contracts.record import JsonObject, JsonValue, Record


class AgentStepSpec(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    task_id: str
    """Stable id chosen by the caller; it names the step in events, outcomes and journals."""
    agent: str
    """Name or alias of a registered agent: explore, plan, general, review, verification, or your own."""
    description: str = ""
    """Short label for people; not part of the step's meaning."""
    prompt: str
    max_steps: int | None = None
    """Cap on tool rounds; after it the model sees no tools and must answer in text."""
    parent_session_id: str | None = None
    output_schema: Any = None
    """JSON Schema (draft 2020-12), or on input a pydantic model, dataclass or msgspec Struct class."""
    model: str | None = None
    """`provider/model-id` when it is not the session's own."""
    timeout_ms: int | None = None
    """Longest run of one attempt, from when it starts, not from when it is queued."""
    retries: int | None = None
    """How often a failed step is tried again before its failure counts."""
    metadata: Any = None
    """The caller's own, as JSON; passed on, no part of the step's meaning."""
    isolation: Literal["worktree"] | None = None
    """`worktree`: it works in a git worktree of its own, begun from HEAD, and leaves its changes as a branch with one
    commit (see `Worktree`)."""


class Worktree(Record, frozen=True, kw_only=True):
    """What a step with `isolation="worktree"` left behind: a branch with one commit, or nothing."""

    branch: str | None = None
    """None: it changed nothing, and nothing was kept."""
    commit: str | None = None
    base: str
    """The commit that it began from."""
    files: tuple[str, ...] = ()
    diff: str = ""
    """Unified; cut at 64 KiB, see `is_cut`."""
    is_cut: bool = False


class SourceAnchor(Record, frozen=True, kw_only=True):
    """A place that a successful tool of the step read."""

    tool: str
    url_or_path: str


class StepOutcome(Record, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    task_id: str
    session_id: str = ""
    """Of the child that ran it; an executor may leave it out, then it is `child_session_id(task_id)`."""
    agent: str
    output: str
    """The final text; for a failure the reason."""
    success: bool
    structured: JsonValue = None
    """The value that matches `output_schema`; absent without a schema or without a valid value."""
    source_anchors: tuple[SourceAnchor, ...] | None = None
    usage: Usage | None = None
    """Of all attempts; `is_estimated` where something of it was not reported."""
    cost_usd: float | None = None
    """By the model's prices; absent when they are not configured."""
    duration_ms: int | None = None
    error_code: str | None = None
    """Of a failure, to branch on: the `code` of the error that ended it (`BUDGET_EXHAUSTED`, `LLM_ERROR`, `PARKED`,
    `STEP_LIMIT`, ...), `RUN_CANCELLED`, `TIMEOUT`, `UNKNOWN_AGENT`, `NO_ANSWER` (broken off, filtered, denied, empty),
    `SCHEMA_MISMATCH`, `ISOLATION`, or `EXECUTOR_ERROR`. Absent where an executor of your own gives none."""
    stop_reason: str | None = None
    """Present when the answer did not end by itself, for example `length`."""
    blocked_by: Literal["auth", "quota"] | None = None
    """Present when the model's side refuses every further call until somebody acts or `reset_ms` is past."""
    reset_ms: int | None = None
    """When that is said to end, Unix ms."""
    repairs: int | None = None
    """Answers against the `output_schema` before this one; absent for none."""
    worktree: Worktree | None = None
    """What a step with `isolation="worktree"` left behind."""

    @property
    def parsed(self) -> Any:
        """`structured` as an instance of the class that was given as `output_schema`; None without one.

        It lives in this object only: no part of its JSON, keys, equality, copies or pickles.
        """
        return self.__dict__.get("parsed")


class BudgetSnapshot(Record, frozen=True, kw_only=True):
    """A shared token ledger at one moment. `limit_tokens` None: uncapped."""

    consumed_tokens: int
    limit_tokens: int | None = None
    estimated_tokens: int | None = None
    """How many of the consumed ones nobody reported, so that they were estimated; absent for none."""

    @property
    def remaining_tokens(self) -> int | None:
        return None if self.limit_tokens is None else max(0, self.limit_tokens - self.consumed_tokens)

    @property
    def is_exhausted(self) -> bool:
        return self.limit_tokens is not None and self.consumed_tokens >= self.limit_tokens


class ParallelResult(Record, frozen=True, kw_only=True):
    """What `parallel` gives when it was given a budget."""

    outcomes: list[StepOutcome]
    budget: BudgetSnapshot


SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
CANCELLED = "Task cancelled by caller"
"""The output of a step that was cancelled while it ran."""


_BY_TASK, _BY_SCHEMA = "Task failed: ", "[structured output failed: "
_SAID_CHARACTERS = 200


def failure_reason(outcome: StepOutcome) -> str:
    """Why a step failed, for somebody who says that it did; then what it had said, if anything, in short."""
    output = outcome.output
    if outcome.error_code == SCHEMA_MISMATCH and _BY_SCHEMA in output:
        said, _, why = output.rpartition(_BY_SCHEMA)
        why = why.removesuffix("]")
    elif output.startswith(_BY_TASK):
        why, _, said = output.removeprefix(_BY_TASK).partition("\n\n")
    else:
        return output
    said = " ".join(said.split())
    if not said:
        return why
    return f"{why}; it said: {said}" if len(said) <= _SAID_CHARACTERS else f"{why}; it said: {said[:_SAID_CHARACTERS]}…"


def child_session_id(task_id: str) -> str:
    """Session id of the child that runs the step `task_id`, also when it never started."""
    return f"task-run-{task_id}"


def failed(
    spec: AgentStepSpec,
    reason: str,
    *,
    code: str | None = None,
    usage: Usage | None = None,
    duration_ms: int | None = None,
) -> StepOutcome:
    """The outcome of a step that did not succeed: across the executor seam failure is a value."""
    return StepOutcome(
        task_id=spec.task_id,
        session_id=child_session_id(spec.task_id),
        agent=spec.agent,
        output=reason,
        success=False,
        error_code=code,
        usage=usage,
        duration_ms=duration_ms,
    )


def schema_of(source: Any) -> JsonObject | bool | None:
    """JSON Schema of what the caller gave as `output_schema`: a dict (or boolean schema) as it is, a pydantic model,
    dataclass, TypedDict or Struct class by its own schema.

    Raises:
        TypeError: not a schema and not a class that has one.
    """
    if source is None or isinstance(source, dict | bool):
        return cast("JsonObject | bool | None", source)
    make: Callable[[], JsonObject] | None = getattr(source, "model_json_schema", None)
    return msgspec.json.schema(source) if make is None else make()
