"""Checkpoints of workflows: what their journals come to, for people and programs; listing and removing them."""

import asyncio

from fanfold.contracts.codec import encode_json
from fanfold.contracts.workflow import CheckpointSummary, ResultReceipt, WorkflowCheckpoint, WorkflowStepRecord
from fanfold.errors import CheckpointRefusedError, StorageError
from fanfold.kernel.journal import JournalView, Recorded
from fanfold.kernel.step_identity import digest
from fanfold.orchestration.journal import KIND, log_name, read_journal
from fanfold.protocols import SessionStore

SUITE = "sha-256-128"


async def list_checkpoints(store: SessionStore) -> list[CheckpointSummary]:
    """One summary for each workflow that has a journal, sorted by id; also of those that cannot be resumed."""
    return [await _summary(store, workflow_id) for workflow_id in await store.logs(KIND)]


async def load_checkpoint(store: SessionStore, workflow_id: str) -> WorkflowCheckpoint | None:
    """The checkpoint of one workflow, None where it has none. Also while it runs.

    Raises:
        CheckpointRefusedError: its journal cannot be trusted.
    """
    view = await read_journal(store, workflow_id)
    return None if view.opened is None else checkpoint_of(view)


async def delete_checkpoint(store: SessionStore, workflow_id: str) -> bool:
    """Forget everything that a workflow has recorded; False when there was nothing.

    Raises:
        AlreadyActiveError: it runs just now.
    """
    lease = await store.acquire(log_name(workflow_id))
    try:
        return await store.delete(lease.name, lease)
    finally:
        await asyncio.shield(store.release(lease))


def checkpoint_of(view: JournalView) -> WorkflowCheckpoint:
    return WorkflowCheckpoint(
        workflow_id=view.workflow_id,
        steps=[_step_record(end) for end in view.succeeded.values()],
        failed=[_step_record(end) for end in view.failed.values()],
        interrupted=interrupted(view),
        usage=view.spent,
        cost_usd=view.cost_usd,
        checkpoint_ms=view.newest_ms,
    )


def interrupted(view: JournalView) -> list[str]:
    """Places of steps that were cut off in the middle, or run just now."""
    return [place for place, thread in view.threads.items() if not thread.has_failed]


async def _summary(store: SessionStore, workflow_id: str) -> CheckpointSummary:
    view, problem = JournalView(workflow_id), None
    try:
        view = await read_journal(store, workflow_id)
    except CheckpointRefusedError as error:
        problem = error.reason
    except StorageError as error:
        problem = str(error)
    return CheckpointSummary(
        workflow_id=workflow_id,
        succeeded=len(view.succeeded),
        failed=len(view.failed),
        interrupted=len(interrupted(view)),
        total_tokens=view.spent.total_tokens,
        checkpoint_ms=view.newest_ms,
        problem=problem,
    )


def _step_record(end: Recorded) -> WorkflowStepRecord:
    return WorkflowStepRecord(
        task_id=end.outcome.task_id, place=end.place, outcome=end.outcome, result_receipt=receipt(end)
    )


def receipt(end: Recorded) -> ResultReceipt:
    outcome = end.outcome
    result = encode_json((outcome.output, outcome.structured))
    return ResultReceipt(
        identity=f"{SUITE}:{end.identity}",
        outcome="succeeded" if outcome.success else "failed",
        result_digest=f"{SUITE}:{digest(result)}" if outcome.success else None,
        result_bytes=len(result) if outcome.success else 0,
        evidence_digest=f"{SUITE}:{digest(encode_json(outcome.source_anchors or ()))}",
    )
