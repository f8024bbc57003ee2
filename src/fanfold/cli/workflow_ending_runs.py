"""The work behind `fanfold workflow stop` and `pause`."""

import asyncio
import time

from fanfold.cli.console import Console
from fanfold.cli.endings import NotThereError
from fanfold.cli.runs_here import counts_text, find_run, next_command, run_files, status_text, summary_json
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.workflow_runs import RunSummary, RunVerb
from fanfold.workflow.runs import end_run, run_summary

_PATIENCE_SECONDS = 3.0
"""Then it is told why nothing happens: a script may take longer to end, or its process hang."""
_ENDED = ("completed", "completed_with_failures", "failed")


def end_from_here(console: Console, typed: str, verb: RunVerb, *, as_json: bool) -> None:
    """Return when the run has ended, and say how it stands.

    Raises:
        NotThereError: there is no such run, or it has ended by itself.
    """
    with refusals():
        run = run_until_stopped(_ended(console, typed, verb))
    again = next_command(run)
    if as_json:
        more = {} if again is None else {"next_command": again}
        console.write_json({"schema": "fanfold/workflow-end/v1", **summary_json(run), **more})
        return
    counts = "" if run.snapshot is None else f": {counts_text(run.snapshot.counts)}"
    console.say(f"{run.run_id} is {status_text(run)}{counts}")
    if again is not None:
        console.say(f"resume with: {again}")


async def _ended(console: Console, typed: str, verb: RunVerb) -> RunSummary:
    files = run_files()
    run = await run_summary(files, await find_run(files, typed))
    if run.status in _ENDED and not run.is_alive:
        raise NotThereError(f"run {run.run_id} has ended already: it is {status_text(run)}")
    ending = asyncio.ensure_future(end_run(files, run.run_id, verb, time.time_ns() // 1_000_000))
    if not (await asyncio.wait({ending}, timeout=_PATIENCE_SECONDS))[0]:
        process = None if run.snapshot is None else run.snapshot.process
        console.warn(f"process {process or '?'} was asked to end it, and has not done so yet; waiting for it")
    return await ending
