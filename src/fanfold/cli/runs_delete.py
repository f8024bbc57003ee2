"""`fanfold runs delete`."""

from collections.abc import Sequence

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.runs_deleting import Deleted, delete_runs, is_wanted, size_text
from fanfold.cli.runs_here import find_run, run_files
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.workflow_refusals import refusals
from fanfold.errors import WorkflowInputError
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.runs import run_summary
from fanfold.workflow.upkeep import require_told


@click.command("delete")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--untold", is_flag=True, help="Also one whose conversation has not been told of its end; nor will it be."
)
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
@json_option
@workspace_option
@console_options
def command(*, console: Console, runs: Sequence[str], untold: bool, is_sure: bool, as_json: bool) -> None:
    """Forget each RUN: its journal, output and events. Afterwards it can neither be looked at nor resumed.

    One that is running is refused, and then none of them is deleted.
    """
    files = run_files()
    deleted = run_until_stopped(_delete(console, files, runs, untold=untold, is_sure=is_sure))
    if deleted is None:
        console.say("nothing was deleted")
        return
    if as_json:
        console.write_json(deleted.to_json())
    else:
        console.say(f"freed {size_text(deleted.freed_bytes)}")
    for run_id, error in deleted.left.items():
        with refusals(run_id):
            raise error


async def _delete(
    console: Console, files: WorkflowFiles, typed: Sequence[str], *, untold: bool, is_sure: bool
) -> Deleted | None:
    """None: somebody was asked, and says no."""
    with refusals():
        runs = {run_id: await run_summary(files, run_id) for run_id in [await find_run(files, each) for each in typed]}
    for run_id, run in runs.items():
        process = None if run.snapshot is None else run.snapshot.process
        with refusals(run_id, None if process is None else f"process {process}"):
            if run.is_alive:
                raise WorkflowInputError("already_active", f"run {run_id} is running")
            if not untold:
                await _require_told(files, run_id)
    if not is_sure and not await is_wanted(console, list(runs)):
        return None
    with refusals():
        return await delete_runs(console, files, list(runs), untold=untold)


async def _require_told(files: WorkflowFiles, run_id: str) -> None:
    try:
        await require_told(files, run_id)
    except WorkflowInputError as error:
        if error.code != "untold":
            raise
        raise error.with_hint("to delete it all the same add --untold") from None
