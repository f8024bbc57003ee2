"""Upkeep of runs: which of them may go, and forgetting those that nobody runs any more, each as a whole."""

from collections.abc import Sequence

from fanfold.contracts.workflow_runs import RunSummary
from fanfold.errors import AlreadyActiveError, WorkflowInputError
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.runs import checked_id

DAY_MS = 86_400_000


async def delete_run(files: WorkflowFiles, run_id: object, *, untold: bool = False) -> int:
    """See `WorkflowRuntime.delete_async`."""
    return await remove_run(files, run_id, untold=untold) + await files.sweep_blobs()


async def remove_run(files: WorkflowFiles, run_id: object, *, untold: bool = False) -> int:
    """`delete_run` but for its blobs, which whoever removes several runs sweeps once, behind the last.

    Raises:
        WorkflowInputError: as there.
    """
    run_id = checked_id(run_id)
    if not untold:
        # Before it is held too: while it is, it seems to run, and its conversation might be told nothing.
        await require_told(files, run_id)
    try:
        held = await files.hold(run_id)
    except AlreadyActiveError as error:
        holder = f" in {error.holder}" if error.holder else ""
        reason = f"run {run_id} is running{holder}; stop it before it is deleted"
        raise WorkflowInputError("already_active", reason) from None
    try:
        if not untold:
            await require_told(files, run_id)
        await files.remove_notices(run_id)  # first: behind the run a notice would be one of nothing
    except BaseException:
        await held.release()
        raise
    return await held.delete()


async def require_told(files: WorkflowFiles, run_id: str) -> None:
    """Return when no conversation waits to hear of the run's end. (One that never began was promised to nobody.)

    Raises:
        WorkflowInputError: `untold`.
    """
    if await files.has_notice(run_id):
        look = await files.look(run_id)
        if look is not None and look.snapshot is not None:
            raise WorkflowInputError(
                "untold",
                f"the conversation that launched run {run_id} has not been told of its end, and would never be; it is "
                "told at its next prompt",
            )


def prunable(runs: Sequence[RunSummary], *, keep: int, before_ms: int | None) -> list[RunSummary]:
    """Those of `runs`, the newest first, that may go: ended, behind the newest `keep` that have, and not changed since
    `before_ms` (Unix ms). One whose snapshot cannot be read has no age, and stays."""
    ended = [run for run in runs if run.snapshot is not None and not run.is_alive]
    return [
        run
        for run in ended[keep:]
        if run.snapshot is not None and (before_ms is None or run.snapshot.updated_ms < before_ms)
    ]
