"""The runs of a workspace as their files tell of them: looked at, and ended, by whoever comes by."""

import asyncio

import msgspec
from msgspec.structs import replace

from fanfold.contracts.codec import encode_json
from fanfold.contracts.record import JsonValue
from fanfold.contracts.workflow_runs import RunSummary, RunVerb, WorkflowResult, WorkflowSnapshot
from fanfold.errors import AlreadyActiveError, StorageError, WorkflowInputError
from fanfold.kernel.run_journal import read_run_journal
from fanfold.kernel.run_view import RunJournalView
from fanfold.kernel.workflow_meta import is_run_id
from fanfold.protocols import WorkflowFiles

LOOK_SECONDS = 0.1
_NO_SNAPSHOT = "it has no snapshot: it never began, or its deletion was cut off"


async def all_runs(files: WorkflowFiles) -> list[RunSummary]:
    """Newest first; one whose snapshot or lock cannot be read is told with its problem."""
    found = [await _listed(files, run_id) for run_id in await files.run_ids()]
    runs = [summary for summary in found if summary is not None]
    return sorted(runs, key=lambda run: 0 if run.snapshot is None else run.snapshot.started_ms, reverse=True)


async def _listed(files: WorkflowFiles, run_id: str) -> RunSummary | None:
    try:
        return await _summary(files, run_id)
    except StorageError as error:  # one damaged run must not hide all the others
        return RunSummary(run_id=run_id, problem=str(error))


async def run_summary(files: WorkflowFiles, run_id: object) -> RunSummary:
    """Raises WorkflowInputError: `bad_run_id`, `run_not_found`."""
    summary = await _summary(files, checked_id(run_id))
    if summary is None:
        raise WorkflowInputError("run_not_found", f"there is no run {run_id} in {files.directory}")
    return summary


async def _summary(files: WorkflowFiles, run_id: str) -> RunSummary | None:
    look = await files.look(run_id)
    if look is None:
        return None
    if look.snapshot is None:
        return RunSummary(run_id=run_id, is_alive=look.is_held, problem=_NO_SNAPSHOT)
    try:
        snapshot = msgspec.json.decode(look.snapshot, type=WorkflowSnapshot)
    except (msgspec.DecodeError, RecursionError) as error:
        return RunSummary(run_id=run_id, is_alive=look.is_held, problem=f"its snapshot cannot be read: {error}")
    if snapshot.run_id != run_id:
        return RunSummary(run_id=run_id, is_alive=look.is_held, problem=f"its snapshot is of run {snapshot.run_id}")
    return RunSummary(run_id=run_id, snapshot=snapshot, is_alive=look.is_held)


async def snapshot_of(files: WorkflowFiles, run_id: object) -> WorkflowSnapshot:
    """Raises WorkflowInputError: `bad_run_id`, `run_not_found`, `journal_refused`."""
    summary = await run_summary(files, run_id)
    if summary.snapshot is None:
        raise WorkflowInputError("journal_refused", f"run {run_id}: {summary.problem}")
    return summary.snapshot


async def until_free(files: WorkflowFiles, run_id: str) -> WorkflowSnapshot:
    """The snapshot once nobody runs it any more. Raises WorkflowInputError: `bad_run_id`, `run_not_found`."""
    while True:
        if not (await run_summary(files, run_id)).is_alive:
            return await snapshot_of(files, run_id)
        await asyncio.sleep(LOOK_SECONDS)  # another process tells nobody that it has let go


async def end_run(files: WorkflowFiles, run_id: str, verb: RunVerb, now_ms: int) -> RunSummary:
    """Stop or pause a run that another process runs, or that nobody does; returns when it has ended.

    Raises:
        WorkflowInputError: `bad_run_id`, `run_not_found`.
    """
    summary = await run_summary(files, run_id)
    if summary.is_alive:
        await files.request(run_id, verb.encode())
        await until_free(files, run_id)
        return await run_summary(files, run_id)
    if summary.snapshot is None or summary.status not in ("interrupted", "paused", "stopped"):
        return summary
    status = "paused" if verb == "pause" else "stopped"
    if summary.snapshot.status != status:
        try:
            held = await files.hold(run_id)
        except AlreadyActiveError:  # somebody was quicker, and it runs
            return await end_run(files, run_id, verb, now_ms)
        try:
            snapshot = await snapshot_of(files, run_id)  # somebody may have gone on with it meanwhile
            if snapshot.status in ("running", "paused", "stopped"):
                ended = replace(snapshot, status=status, reason="requested", updated_ms=now_ms)
                await held.write_snapshot(encode_json(ended))
        finally:
            await held.release()
    return await run_summary(files, run_id)


async def recorded_result(files: WorkflowFiles, snapshot: WorkflowSnapshot) -> WorkflowResult:
    """What the files tell of a run that has ended. Raises WorkflowInputError, `wrong_moment`: it was cut off."""
    if snapshot.status == "running":
        raise WorkflowInputError("wrong_moment", f"run {snapshot.run_id} was cut off; resume it")
    return WorkflowResult(
        run_id=snapshot.run_id,
        workflow=snapshot.workflow,
        status=snapshot.status,
        value=await output_of(files, snapshot.run_id),
        counts=snapshot.counts,
        failures=snapshot.failures,
        usage=snapshot.attempt_usage,
        total_usage=snapshot.usage,
        cost_usd=snapshot.cost_usd,
        duration_ms=snapshot.duration_ms,
        output_file=files.output_path(snapshot.run_id),
        reason=snapshot.reason,
        reset_ms=snapshot.reset_ms,
        error=snapshot.error,
    )


async def output_of(files: WorkflowFiles, run_id: str) -> JsonValue:
    """The value that the run gave last; None for one that gave none."""
    data = await files.output(run_id)
    try:
        output: JsonValue = None if data is None else msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return output.get("result") if isinstance(output, dict) else None


async def read_view(files: WorkflowFiles, run_id: str, *, strict: bool = False) -> RunJournalView:
    """The journal of a run that need not be held. Raises WorkflowInputError: `journal_missing`, `journal_refused`."""
    read = await files.journal(run_id)
    if read is None:
        raise WorkflowInputError("journal_missing", f"the journal of run {run_id} is gone")
    return read_run_journal(read.lines, run_id, has_torn_end=read.has_torn_end, strict=strict)


def checked_id(run_id: object) -> str:
    """Raises WorkflowInputError, `bad_run_id`."""
    if not isinstance(run_id, str) or not is_run_id(run_id):
        raise WorkflowInputError("bad_run_id", f"{run_id!r:.100} is no run id: wf_<workflow>_<16 hex digits>")
    return run_id
