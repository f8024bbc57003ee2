"""`fanfold runs prune`."""

import shlex
import time

import click
import msgspec

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.render import table
from fanfold.cli.runs_deleting import Deleted, delete_runs, is_wanted, left_json, size_text
from fanfold.cli.runs_here import run_files, status_text
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.waiting_text import time_text
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.workflow_runs import RunSummary
from fanfold.errors import WorkflowInputError
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.runs import all_runs
from fanfold.workflow.upkeep import DAY_MS, prunable, require_told


class _Chosen(msgspec.Struct, frozen=True):
    runs: list[RunSummary]
    left: dict[str, WorkflowInputError]
    """Those that might go by their age and number, and may not."""


@click.command("prune")
@click.option("--keep", type=click.IntRange(0), metavar="N", help="The latest N that have ended stay.")
@click.option("--older-than", "days", type=click.IntRange(0), metavar="DAYS", help="What has changed since then stays.")
@click.option("--dry-run", is_flag=True, help="Show which would be deleted; delete nothing.")
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
@json_option
@workspace_option
@console_options
def command(
    *, console: Console, keep: int | None, days: int | None, dry_run: bool, is_sure: bool, as_json: bool
) -> None:
    """Delete the old runs that nobody runs any more, also those that could be resumed.

    With both options a run stays that either of them keeps. One stays too whose conversation has not been told of its
    end, or whose snapshot cannot be read.
    """
    if keep is None and days is None:
        raise click.UsageError("say which runs may go: --older-than DAYS, --keep N, or both")
    files = run_files()
    before_ms = None if days is None else time.time_ns() // 1_000_000 - days * DAY_MS
    with refusals():
        chosen = run_until_stopped(_chosen(files, keep or 0, before_ms))
    run_ids = [run.run_id for run in chosen.runs]
    if dry_run and as_json:
        document = {"schema": "fanfold/runs-deleted/v1", "is_dry_run": True, "runs": run_ids}
        console.write_json({**document, "left": left_json(chosen.left)})
        return
    if chosen.runs and not as_json and (dry_run or not is_sure):
        _show(console, chosen.runs)
    if dry_run or (run_ids and not is_sure and not run_until_stopped(is_wanted(console, run_ids))):
        console.say("nothing was deleted")
        _tell_left(console, chosen.left)
        return
    with refusals():
        deleted = run_until_stopped(delete_runs(console, files, run_ids, untold=False))
    deleted.left |= chosen.left
    if as_json:
        console.write_json(deleted.to_json())
    else:
        console.say(_sum(deleted))
        _tell_left(console, deleted.left)


async def _chosen(files: WorkflowFiles, keep: int, before_ms: int | None) -> _Chosen:
    chosen = _Chosen([], {})
    for run in prunable(await all_runs(files), keep=keep, before_ms=before_ms):
        try:
            await require_told(files, run.run_id)
            chosen.runs.append(run)
        except WorkflowInputError as error:
            chosen.left[run.run_id] = error
    return chosen


def _show(console: Console, runs: list[RunSummary]) -> None:
    rows = [
        [run.run_id, time_text(run.snapshot.started_ms), time_text(run.snapshot.updated_ms), status_text(run)]
        for run in runs
        if run.snapshot is not None
    ]
    console.write(table(["run", "started", "changed", "status"], rows, width=console.out_width, whole=("run",)))


def _sum(deleted: Deleted) -> str:
    return (
        f"freed {size_text(deleted.freed_bytes)}" if deleted.runs or deleted.freed_bytes else "no run is to be deleted"
    )


def _tell_left(console: Console, left: dict[str, WorkflowInputError]) -> None:
    untold = [run_id for run_id, error in left.items() if error.code == "untold"]
    if untold:
        command = shlex.join(["fanfold", "runs", "delete", "--untold", *untold])
        console.say(f"note: of {len(untold)} more their conversations have not been told; delete them with: {command}")
    for run_id, error in left.items():
        if run_id not in untold:
            console.warn(f"note: {run_id} stays: {error}")
