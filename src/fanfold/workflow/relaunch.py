"""A launch that is made again: what it began before is found, so that no second run is begun.

A tool call whose process died before its answer was recorded is made again, with the same key (`ToolScope`). The id of
its run is drawn from that key in place of chance, and the snapshot of each attempt has the key that it was launched by.
"""

import hashlib

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import RunSummary, WorkflowSnapshot
from fanfold.errors import WorkflowInputError
from fanfold.kernel.workflow_meta import run_id_of
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.runs import run_summary

MAX_LIVES = 32


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What launches of one key have come to so far."""

    run_id: str
    """Of a run that there need not be yet."""
    snapshot: WorkflowSnapshot | None = None
    """None: nothing but, at most, the beginning of a journal."""
    is_done: bool = False
    """It goes on, or has ended and will be told: there is nothing left to launch."""


async def find_new(files: WorkflowFiles, session_id: str, name: str, args: JsonObject, key: str) -> Standing:
    """The run of the workflow `name` that a launch of that key begins, or has begun.

    A log that was removed may give its keys out again. Then there is a run that has ended and was told, which no launch
    that is made again can have behind it, and the next id is taken.
    """
    for life in range(MAX_LIVES):
        run_id = run_id_of(name, hashlib.sha256(encode_json([key, args, life])).hexdigest()[:16])
        look = await files.look(run_id)
        if look is None or look.snapshot is None:
            return Standing(run_id=run_id)
        standing = await _standing(files, session_id, await run_summary(files, run_id))
        if standing is not None:
            return standing
    raise WorkflowInputError("store_unwritable", f"no unused run id for workflow '{name}' was found")


async def find_resumed(files: WorkflowFiles, session_id: str, run_id: object, key: str) -> Standing | None:
    """How the attempt stands that a launch of that key has begun of the run; None when it has begun none.

    Raises:
        WorkflowInputError: `bad_run_id`, `run_not_found`.
    """
    summary = await run_summary(files, run_id)
    if summary.snapshot is None or summary.snapshot.launch_key != key:
        return None
    return await _standing(files, session_id, summary)


async def _standing(files: WorkflowFiles, session_id: str, run: RunSummary) -> Standing | None:
    """None for one that cannot be read, or that has ended and was told."""
    snapshot = run.snapshot
    if snapshot is None:
        return None
    is_cut_off = not run.is_alive and (
        snapshot.status == "running" or (snapshot.status == "stopped" and snapshot.reason == "closed")
    )
    if run.is_alive or is_cut_off:
        return Standing(run_id=run.run_id, snapshot=snapshot, is_done=run.is_alive)
    if run.run_id not in dict(await files.notices(session_id)):
        return None
    return Standing(run_id=run.run_id, snapshot=snapshot, is_done=True)
