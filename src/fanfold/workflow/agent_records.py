"""What an agent is asked for a call, and what the journal keeps of its beginning and of its end."""

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import NO_USAGE
from fanfold.contracts.record import JsonValue, own_copy
from fanfold.contracts.run_journal import CallFault, Result, ResultStatus, Started
from fanfold.contracts.steps import SCHEMA_MISMATCH, AgentStepSpec, StepOutcome, failure_reason
from fanfold.kernel.run_entries import Claim
from fanfold.kernel.workflow_meta import agent_id_of
from fanfold.workflow.host import PlacedCall

_REASON_CHARACTERS = 2_000
_NOTHING = msgspec.Raw(b"null")


def step_of(placed: PlacedCall, claim: Claim) -> AgentStepSpec:
    call = placed.call
    return AgentStepSpec(
        # The same in each attempt at this call, for what it has begun is found under this name: its worktree, say.
        task_id=agent_id_of(claim.key),
        agent=call.agent_type,
        description=placed.title,
        prompt=call.prompt,
        max_steps=call.max_steps,
        # Not the script's own dict, which it may have changed while the call waited for its place.
        output_schema=None if placed.schema is None else own_copy(placed.schema.schema),
        model=call.model,
        timeout_ms=call.timeout_ms,
        retries=call.retries,
        isolation=call.isolation,
    )


def started(placed: PlacedCall, claim: Claim, seq: int, attempt: int) -> Started:
    return Started(
        seq=seq,
        id=placed.identity,
        path=placed.where,
        label=placed.title,
        phase=placed.phase,
        key=claim.key,
        attempt=attempt,
        call=msgspec.Raw(placed.written),
    )


def ended(
    placed: PlacedCall, outcome: StepOutcome, *, seq: int, attempt: int, status: ResultStatus, tools: int
) -> Result:
    fault: CallFault | None = None
    if status in ("error", "cancelled"):
        raw = outcome.output if outcome.error_code == SCHEMA_MISMATCH else None
        message = failure_reason(outcome)[:_REASON_CHARACTERS]
        fault = CallFault(code=outcome.error_code or "FAILED", message=message, raw=raw)
    return Result(
        seq=seq,
        id=placed.identity,
        path=placed.where,
        status=status,
        value=msgspec.Raw(encode_json(_value(placed, outcome))) if status == "ok" else _NOTHING,
        usage=outcome.usage,
        cost=outcome.cost_usd,
        tools=tools,
        ms=outcome.duration_ms or 0,
        attempt=attempt,
        error=fault,
        degraded=outcome.repairs,
        worktree=outcome.worktree,
    )


def left_out(placed: PlacedCall, seq: int, attempt: int) -> Result:
    """The end of a call that was not run again: None, at no cost."""
    return Result(seq=seq, id=placed.identity, path=placed.where, status="skipped", usage=NO_USAGE, attempt=attempt)


def _value(placed: PlacedCall, outcome: StepOutcome) -> JsonValue:
    value: JsonValue = outcome.output if placed.schema is None else outcome.structured
    if placed.call.isolation is None:
        return value
    tree = outcome.worktree
    left = {} if tree is None else {"branch": tree.branch, "commit": tree.commit, "diff": tree.diff}
    return {
        "result": value,
        "branch": None,
        "commit": None,
        "diff": "",
        **left,
        "files": [] if tree is None else list(tree.files),
        "is_cut": tree is not None and tree.is_cut,
    }
