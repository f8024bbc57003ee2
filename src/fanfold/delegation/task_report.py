"""What a call of `task` tells of its children: a text for the model and the metadata for the host (notes 5.7)."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import AgentStepSpec, SourceAnchor, StepOutcome

CONTEXT_BYTES = 4_000
"""Of one child's text that a model is shown as it is; of a longer one a head and a tail."""
HEAD_BYTES, TAIL_BYTES = 3_000, 800
EXCERPT_BYTES = 1_024
MAX_ANCHORS = 64
"""Over the whole call, those of successes first."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How one call went, apart from its outcomes."""

    needed: int
    """Successes."""
    allow_partial_failure: bool = False
    min_success_count: int | None = None
    timeout_ms: int | None = None
    timed_out: bool = False
    returned_early: bool = False
    duration_ms: int = 0


def report(
    specs: Sequence[AgentStepSpec],
    outcomes: Sequence[StepOutcome],
    verdict: Verdict,
    kept: Mapping[str, str],
) -> ToolOutput:
    """Args: `kept` has, by task id, where `read` shows the whole of a text that is shown in part."""
    successes = sum(outcome.success for outcome in outcomes)
    rows = _rows(outcomes, kept)
    texts = [shown(outcome.output, kept.get(outcome.task_id)) for outcome in outcomes]
    metadata = _metadata(rows, successes, verdict) if len(outcomes) > 1 else {**rows[0], **_extras(verdict)}
    if failure := _error_kind(outcomes, successes, verdict):
        metadata["error_kind"] = failure
    return ToolOutput(
        output=texts[0] if len(texts) == 1 else _sections(specs, outcomes, texts, successes),
        exit_code=1 if failure else 0,
        artifact=kept.get(outcomes[0].task_id) if len(outcomes) == 1 else None,
        metadata=metadata,
    )


def refused(message: str) -> ToolOutput:
    """The answer to a call that cannot be meant so."""
    return ToolOutput(
        output=message, exit_code=1, metadata={"error_kind": {"kind": "invalid_argument", "message": message}}
    )


def is_long(text: str) -> bool:
    return len(text) > CONTEXT_BYTES // 4 and len(text.encode("utf-8", "replace")) > CONTEXT_BYTES


def shown(text: str, kept: str | None = None) -> str:
    """`text`, or the ends of a long one with a line that says how much is missing."""
    if not is_long(text):
        return text
    encoded = text.encode("utf-8", "replace")
    # A character that the cut went through is dropped from both ends.
    head = encoded[:HEAD_BYTES].decode("utf-8", "ignore")
    tail = encoded[-TAIL_BYTES:].decode("utf-8", "ignore")
    missing = len(encoded) - len(head.encode()) - len(tail.encode())
    where = "" if kept is None else f"; the whole text: read {kept} with offset and limit"
    return f"{head}\n[... {missing} bytes omitted{where} ...]\n{tail}"


def _sections(
    specs: Sequence[AgentStepSpec], outcomes: Sequence[StepOutcome], texts: Sequence[str], successes: int
) -> str:
    parts = [f"{successes} of {len(outcomes)} tasks succeeded."]
    for number, (spec, outcome, text) in enumerate(zip(specs, outcomes, texts, strict=True), 1):
        label = f"{spec.agent}: {spec.description}" if spec.description else spec.agent
        parts.append(f"## {number}. {label} ({'succeeded' if outcome.success else 'failed'})\n{text}")
    return "\n\n".join(parts)


def _metadata(rows: list[JsonObject], successes: int, verdict: Verdict) -> JsonObject:
    failures = len(rows) - successes
    return {
        "task_count": len(rows),
        "result_count": len(rows),
        "success_count": successes,
        "failed_count": failures,
        "all_success": failures == 0,
        "partial_failure": 0 < failures < len(rows),
        "allow_partial_failure": verdict.allow_partial_failure,
        "timeout_ms": verdict.timeout_ms,
        "timed_out": verdict.timed_out,
        "min_success_count": verdict.min_success_count,
        "returned_early": verdict.returned_early,
        "duration_ms": verdict.duration_ms,
        "results": rows,
    }


def _extras(verdict: Verdict) -> JsonObject:
    extras: JsonObject = {"duration_ms": verdict.duration_ms}
    if verdict.timed_out:
        extras["timed_out"] = True
    return extras


def _error_kind(outcomes: Sequence[StepOutcome], successes: int, verdict: Verdict) -> JsonObject | None:
    if successes >= verdict.needed:
        return None
    return {"kind": "partial_failure", "failed": len(outcomes) - successes, "total": len(outcomes)}


def _rows(outcomes: Sequence[StepOutcome], kept: Mapping[str, str]) -> list[JsonObject]:
    anchors = _anchors(outcomes)
    return [_row(outcome, anchors[index], kept.get(outcome.task_id)) for index, outcome in enumerate(outcomes)]


def _row(outcome: StepOutcome, anchors: list[SourceAnchor], kept: str | None) -> JsonObject:
    encoded = outcome.output.encode("utf-8", "replace")
    row: JsonObject = {
        "task_id": outcome.task_id,
        "session_id": outcome.session_id,
        "agent": outcome.agent,
        "success": outcome.success,
        "output_excerpt": _excerpt(encoded),
        "output_bytes": len(encoded),
        "truncated_for_context": len(encoded) > CONTEXT_BYTES,
        "artifact_id": f"task-output:{outcome.task_id}",
        "artifact_uri": kept or f"a3s://tasks/{outcome.session_id}/runs/{outcome.task_id}/output",
    }
    if not outcome.success:
        row["error_message"] = _excerpt(encoded)
        row |= _present(error_code=outcome.error_code)
    row |= _present(structured=outcome.structured, stop_reason=outcome.stop_reason)
    if anchors:
        row["source_anchors"] = [anchor.to_dict() for anchor in anchors]
    if outcome.usage is not None:
        row["usage"] = outcome.usage.to_dict()
    return row


def _present(**values: Any) -> JsonObject:
    return {name: value for name, value in values.items() if value is not None}


def _excerpt(encoded: bytes) -> str:
    return encoded[:EXCERPT_BYTES].decode("utf-8", "ignore")


def _anchors(outcomes: Sequence[StepOutcome]) -> list[list[SourceAnchor]]:
    """Of each outcome the anchors that are told; together at most `MAX_ANCHORS`."""
    told: list[list[SourceAnchor]] = [[] for _ in outcomes]
    room = MAX_ANCHORS
    for index in sorted(range(len(outcomes)), key=lambda index: not outcomes[index].success):
        told[index] = list((outcomes[index].source_anchors or ())[:room])
        room -= len(told[index])
    return told
