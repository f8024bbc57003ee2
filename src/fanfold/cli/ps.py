"""`fanfold ps`: the workflow runs of this workspace that some process runs just now."""

import asyncio
import time
from collections.abc import Sequence

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.render import table
from fanfold.cli.runs_here import listing, run_files, summary_json
from fanfold.cli.tally import seconds_text, tokens_text
from fanfold.cli.waiting_in_runs import waiting_in
from fanfold.cli.waiting_text import waiting_json, waiting_text
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import RunSummary
from fanfold.control.waiting import Waiting
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.runs import all_runs


@click.command("ps")
@json_option
@workspace_option
@console_options
def command(*, console: Console, as_json: bool) -> None:
    """The workflow runs of this workspace that go on just now, in whichever process, and which of their agents wait
    for a person."""
    with refusals():
        runs, waiting = asyncio.run(_looked(run_files()))
    if as_json:
        told = [_json(each, waiting.get(each.run_id, ())) for each in runs]
        console.write_json({"schema": "fanfold/ps/v1", "runs": told})
    elif not runs:
        console.say(f"no workflow runs here just now; {listing('fanfold runs list')}")
    else:
        head = ["run", "phase", "agents", "tokens", "age", "process"]
        rows = [_row(each, len(waiting.get(each.run_id, ())), time.time() * 1000) for each in runs]
        console.write(table(head, rows, width=console.out_width, to_right=head[3:], whole=("run",)))
        for each in (each for some in waiting.values() for each in some):
            console.write(f"\n{waiting_text(each)}")


async def _looked(files: WorkflowFiles) -> tuple[list[RunSummary], dict[str, list[Waiting]]]:
    runs = [each for each in await all_runs(files) if each.is_alive]
    return runs, await waiting_in(files, runs)


def _json(run: RunSummary, waiting: Sequence[Waiting]) -> JsonObject:
    return {**summary_json(run), **({"waiting": [waiting_json(each) for each in waiting]} if waiting else {})}


def _row(run: RunSummary, waiting: int, now_ms: float) -> list[str]:
    snapshot = run.snapshot
    if snapshot is None:
        return [run.run_id, "(it begins)", "", "", "", ""]
    counts = snapshot.counts
    parts = [f"{counts.done}/{counts.launched} done"]
    told = (("cached", counts.cached), ("failed", counts.failed), ("waiting", waiting))
    parts += [f"{count} {name}" for name, count in told if count]
    return [
        run.run_id,
        snapshot.phase or "",
        ", ".join(parts),
        tokens_text(snapshot.usage.total_tokens),
        seconds_text(max(0, now_ms - (snapshot.updated_ms - snapshot.duration_ms)) / 1000),  # of this attempt
        str(snapshot.process or ""),
    ]
