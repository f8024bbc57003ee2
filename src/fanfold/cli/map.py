"""`fanfold map`: one agent step, or a chain of them, over many items."""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click

from fanfold.cli.console import Console
from fanfold.cli.endings import StoppedBySignal
from fanfold.cli.items import load_items
from fanfold.cli.map_job import Job, plan_job, run_job, workflow_id_of
from fanfold.cli.map_steps import DEFAULT_AGENT, check_prompts, first_step, next_step
from fanfold.cli.named_input import STDIN
from fanfold.cli.options import agent_options, console_options, fan_out_options, output_options
from fanfold.cli.out_file import open_out
from fanfold.cli.plan_text import PlanLine, plan_text
from fanfold.cli.progress import View, view_for
from fanfold.cli.render import Format, render
from fanfold.cli.report import Hints, end, tell
from fanfold.cli.results import Row
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.tally import Tally
from fanfold.cli.waiting_here import parked_in_workflow
from fanfold.contracts.events import event


@click.command("map")
@click.argument("sources", nargs=-1, metavar="[GLOB | FILE.jsonl | FILE.csv | -]...")
@click.option("--items", "records", multiple=True, type=click.Path(path_type=Path), help="More items: JSONL or CSV.")
@click.option("--prompt", help="What to ask about each item; {content}, {path}, {item} or a field's {name}.")
@click.option("--prompt-file", type=click.Path(path_type=Path), help="The prompt from a file.")
@click.option("--schema", type=click.Path(path_type=Path), help="JSON Schema that each answer has to fit.")
@click.option("--then", multiple=True, metavar="STEP", help="A further step: a prompt with {previous}, or @FILE.json.")
@click.option("--agent", default=DEFAULT_AGENT, show_default=True, help="Who does the first step.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the results: .jsonl .csv .md .json")
@click.option("--format", type=click.Choice(["table", "jsonl", "csv", "markdown"]), default="table", show_default=True)
@click.option("--fresh", is_flag=True, help="Forget what is recorded, and run every item again.")
@click.option(
    "--plan", "is_plan", is_flag=True, help="Show what would run, and what is answered already; spend nothing."
)
@fan_out_options
@output_options
@agent_options
@console_options
def command(
    *,
    console: Console,
    output: Literal["json", "jsonl"] | None,
    sources: Sequence[str],
    records: Sequence[Path],
    prompt: str | None,
    prompt_file: Path | None,
    schema: Path | None,
    then: Sequence[str],
    agent: str,
    model: str | None,
    out: Path | None,
    format: Format,
    fresh: bool,
    is_plan: bool,
    allow_failures: bool,
    **rest: Any,
) -> None:
    """Ask an agent about many files, lines or records, in parallel.

    \b
    fanfold map 'src/**/*.py' --prompt 'What is this file for? {content}'
    git ls-files | fanfold map - --prompt 'Is {item} a test?' --schema yes-no.json

    Results come in input order. Each finished item is kept: stopped or killed, the same command goes on where
    it was, and answers without asking again what it has answered before.
    """
    steps = [
        first_step(prompt, prompt_file, schema, agent, model),
        *(next_step(each, model) for each in then),
    ]
    if is_plan and fresh:
        raise click.UsageError("--fresh runs every item again, so there is nothing to plan")
    out_file = None if out is None or is_plan else open_out(out)
    stdin = sys.stdin.buffer if STDIN in sources else None
    items = load_items(sources, records, workspace=Path.cwd(), stdin=stdin)
    check_prompts(steps, items)
    job = Job(items=items, steps=steps, is_fresh=fresh, **rest)
    if is_plan:
        _plan(job, console, output)
        return
    tally = Tally(len(items), job.budget)
    view = view_for(console, tally, title="map", output=output)
    start = time.monotonic()
    rows = _run(job, view, tally, console, is_told=output is None)
    try:
        if out_file is not None:
            out_file.write_whole(render(rows, out_file.format))
    finally:  # also when the file could not be written: then this is the only place where the results are
        _print(console, output, rows, tally, format)
    if output is None:
        tell(console, tally, rows, noun="items", seconds=time.monotonic() - start)
    end(rows, noun="items", allow_failures=allow_failures, hints=_hints(job, rows))


def _hints(job: Job, rows: Sequence[Row]) -> Hints:
    again = _again(job)
    is_parked = any(row.is_parked for row in rows)
    return Hints(
        after_failures=f"what is done is kept; {again} to ask only the rest",
        after_budget=f"what is done is kept; {again}, with a larger --budget",
        after_parked=f"then {again}, and they go on",
        waiting=parked_in_workflow(workflow_id_of(job)) if is_parked else (),
    )


def _run(job: Job, view: View, tally: Tally, console: Console, *, is_told: bool) -> list[Row]:
    try:
        return run_until_stopped(run_job(job, view, tally, console, is_told=is_told))
    except StoppedBySignal as stop:
        stop.message = f"stopped: {tally.done} of {tally.total} items are done and kept; {_again(job)} to continue"
        raise


def _again(job: Job) -> str:
    return "run it without --fresh" if job.is_fresh else "run the same command"


def _plan(job: Job, console: Console, output: str | None) -> None:
    if output == "jsonl":
        raise click.UsageError("a plan has no events for --jsonl; use --json")
    plan = asyncio.run(plan_job(job))
    if output == "json":
        unreadable = [{"key": item.key, "error": item.problem} for item in job.items if item.problem is not None]
        console.write_json({"schema": "fanfold/map-plan/v1", **plan.to_dict(), "unreadable": unreadable})
        return
    planned = iter(plan.rows)
    lines: list[PlanLine] = []
    for item in job.items:
        if item.problem is not None:
            lines.append(PlanLine(item.key, "unreadable", item.problem))
        else:
            row = next(planned)
            lines.append(PlanLine(item.key, row.action, row.reason, row.estimated_tokens))
    console.write(plan_text("item", lines, spent_tokens=plan.spent_tokens, width=console.out_width))


def _print(console: Console, output: str | None, rows: list[Row], tally: Tally, format: Format) -> None:
    counts = {
        "total": tally.total,
        "from_journal": tally.from_journal,
        "run": tally.ran,
        "failed": tally.failed,
        "total_tokens": tally.total_tokens,
    }
    if output == "json":
        console.write_json({"schema": "fanfold/map/v1", "items": [row.record() for row in rows], **counts})
    elif output == "jsonl":
        console.write_json(event("map_end", **counts).to_dict())
    else:
        console.write(render(rows, format, width=console.out_width))
