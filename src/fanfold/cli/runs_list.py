"""`fanfold runs list`."""

import asyncio
from typing import get_args

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.render import table
from fanfold.cli.runs_here import counts_text, elsewhere, run_files, status_text, summary_json
from fanfold.cli.tally import seconds_text, tokens_text
from fanfold.cli.waiting_text import time_text
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.workflow_runs import RunCounts, RunStatus, RunSummary
from fanfold.workflow.runs import all_runs

_STATUSES = (*get_args(RunStatus), "interrupted", "unreadable")


@click.command("list")
@click.option("--status", type=click.Choice(_STATUSES), help="Only runs that stand so.")
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The latest N of them.")
@json_option
@workspace_option
@console_options
def command(*, console: Console, as_json: bool, status: str | None, workflow: str | None, limit: int | None) -> None:
    """The runs of this workspace, the latest first.

    `interrupted` is a run whose process ended before it did: it can be resumed like any other.
    """
    with refusals():
        found = asyncio.run(all_runs(run_files()))
    runs = [each for each in found if _is_wanted(each, status, workflow)][:limit]
    if as_json:
        console.write_json({"schema": "fanfold/runs/v1", "runs": [summary_json(each) for each in runs]})
    elif not runs:
        none = f"there are no workflow runs here yet{elsewhere('fanfold runs list')}"
        console.say("there are no such runs here" if found else none)
    else:
        head = ["run", "started", "status", "agents", "tokens", "time"]
        rows = [_row(each) for each in runs]
        console.write(table(head, rows, width=console.out_width, to_right=("tokens", "time"), whole=("run",)))


def _is_wanted(run: RunSummary, status: str | None, workflow: str | None) -> bool:
    if workflow is not None and (run.snapshot is None or run.snapshot.workflow != workflow):
        return False
    return status is None or run.status == status


def _row(run: RunSummary) -> list[str]:
    snapshot = run.snapshot
    if snapshot is None:
        return [run.run_id, "", f"{run.status}: {run.problem}", "", "", ""]
    tokens, seconds = tokens_text(snapshot.usage.total_tokens), seconds_text(snapshot.duration_ms / 1000)
    return [
        run.run_id,
        time_text(snapshot.started_ms),
        status_text(run),
        # What the snapshot of one that was cut off does not tell, its journal may: see `show`.
        "" if run.status == "interrupted" and snapshot.counts == RunCounts() else counts_text(snapshot.counts),
        tokens,
        seconds,
    ]
