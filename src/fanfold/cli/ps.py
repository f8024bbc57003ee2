"""`fanfold ps`: the workflow runs of this workspace that some process runs just now."""

import asyncio
import time

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.render import table
from fanfold.cli.runs_here import run_files, summary_json
from fanfold.cli.tally import seconds_text, tokens_text
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.workflow_runs import RunSummary
from fanfold.workflow.runs import all_runs


@click.command("ps")
@json_option
@workspace_option
@console_options
def command(*, console: Console, as_json: bool) -> None:
    """The workflow runs of this workspace that go on just now, in whichever process."""
    with refusals():
        runs = [each for each in asyncio.run(all_runs(run_files())) if each.is_alive]
    if as_json:
        console.write_json({"schema": "fanfold/ps/v1", "runs": [summary_json(each) for each in runs]})
    elif not runs:
        console.say("no workflow runs here just now; see: fanfold runs list")
    else:
        head = ["run", "phase", "agents", "tokens", "age", "process"]
        rows = [_row(each, time.time() * 1000) for each in runs]
        console.write(table(head, rows, width=console.out_width, to_right=head[3:], whole=("run",)))


def _row(run: RunSummary, now_ms: float) -> list[str]:
    snapshot = run.snapshot
    if snapshot is None:
        return [run.run_id, "(it begins)", "", "", "", ""]
    counts = snapshot.counts
    parts = [f"{counts.done}/{counts.launched} done"]
    parts += [f"{count} {name}" for name, count in (("cached", counts.cached), ("failed", counts.failed)) if count]
    return [
        run.run_id,
        snapshot.phase or "",
        ", ".join(parts),
        tokens_text(snapshot.usage.total_tokens),
        seconds_text(max(0, now_ms - (snapshot.updated_ms - snapshot.duration_ms)) / 1000),  # of this attempt
        str(snapshot.process or ""),
    ]
