"""`fanfold parallel`: the steps of a JSON file, all at once; with --workflow each finished one is kept."""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from fanfold.cli.console import Console
from fanfold.cli.endings import StoppedBySignal
from fanfold.cli.named_input import STDIN, read_stdin, read_text
from fanfold.cli.options import agent_options, console_options, fan_out_options, output_options
from fanfold.cli.parallel_job import Job, plan_job, refuse_changed, run_job
from fanfold.cli.plan_text import PlanLine, plan_text
from fanfold.cli.progress import View, view_for
from fanfold.cli.render import render
from fanfold.cli.report import Hints, end, tell
from fanfold.cli.results import Row, row_of
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.tally import Tally
from fanfold.cli.waiting_here import parked_in_workflow
from fanfold.contracts.codec import decode_json
from fanfold.contracts.events import event
from fanfold.contracts.steps import AgentStepSpec, BudgetSnapshot, StepOutcome
from fanfold.errors import UsageError
from fanfold.orchestration.specs import parse_specs

Output = Literal["json", "jsonl"] | None


@click.command("parallel")
@click.argument("specs", metavar="SPECS.json")
@click.option("--workflow", metavar="ID", help="Keep each finished step as ID: run again, only the rest runs.")
@click.option("--strict", is_flag=True, help="Refuse steps that changed since --workflow recorded them.")
@click.option("--plan", "is_plan", is_flag=True, help="Show what --workflow would run, and why; spend nothing.")
@fan_out_options
@output_options
@agent_options
@console_options
@click.pass_obj
def command(
    typed: str,
    /,
    *,
    console: Console,
    output: Output,
    specs: str,
    workflow: str | None,
    strict: bool,
    is_plan: bool,
    allow_failures: bool,
    **rest: Any,
) -> None:
    """Run the agent steps of a JSON file in parallel; `-` reads it from stdin.

    \b
    [{"task_id": "deps", "agent": "explore", "prompt": "Which dependencies are unused?"},
     {"task_id": "docs", "agent": "explore", "prompt": "Which options are undocumented?"}]

    A step may also have description, max_steps, output_schema, model, timeout_ms, retries and metadata.

    With --workflow each finished step is kept. Stopped or killed, the same command runs only what is missing or
    has changed, and a step that used tools goes on from its last recorded turn.
    """
    if workflow is None and (strict or is_plan):
        raise click.UsageError(f"{'--strict' if strict else '--plan'} needs --workflow ID")
    job = Job(steps=read_specs(specs), workflow=workflow, strict=strict, **rest)
    if is_plan and workflow is not None:
        _plan(job, workflow, console, output)
        return
    tally = Tally(len(job.steps), job.budget)
    view = view_for(console, tally, title="parallel", output=output)
    start = time.monotonic()
    again = f"give the same steps to: {typed}" if specs == STDIN else typed
    outcomes, spent = _run(job, view, tally, again, console, is_told=output is None)
    rows = [row_of(outcome.task_id, outcome) for outcome in outcomes]
    _print(console, output, rows, outcomes, spent)
    if output is None:
        tell(console, tally, rows, noun="steps", seconds=time.monotonic() - start)
    end(rows, noun="steps", allow_failures=allow_failures, hints=_hints(workflow, again, rows))


def read_specs(source: str) -> list[AgentStepSpec]:
    """The steps of the file, or of stdin for `-`, all checked.

    Raises:
        UsageError: it cannot be read, or a step is invalid (names its index and field).
    """
    text = read_stdin(sys.stdin.buffer) if source == STDIN else read_text(Path(source))
    label = "stdin" if source == STDIN else source
    try:
        found: list[Any] = decode_json(text, list[Any])
    except msgspec.DecodeError as error:
        example = '[{"task_id": "a", "agent": "explore", "prompt": "..."}]'
        raise UsageError(f"{label} is no JSON list of steps like {example}: {error}") from error
    if not found:
        raise UsageError(f"{label} has no steps")
    steps = parse_specs(found)
    for index, step in enumerate(steps):
        if not step.prompt.strip():
            raise UsageError(f"specs[{index}].prompt: the prompt is empty")
    return steps


def _run(
    job: Job, view: View, tally: Tally, again: str, console: Console, *, is_told: bool
) -> tuple[list[StepOutcome], BudgetSnapshot | None]:
    try:
        return run_until_stopped(run_job(job, view, tally, console, is_told=is_told))
    except StoppedBySignal as stop:
        if job.workflow is None:
            stop.message = f"stopped: {tally.finished} of {tally.total} steps had ended"
            stop.hint = _NOT_KEPT
        else:
            stop.message = f"stopped: {tally.done} of {tally.total} steps are done and kept"
            stop.hint = f"go on with: {again}"
        raise


_NOT_KEPT = "nothing is kept without --workflow ID; with it the same command runs only what is not finished"


_NOT_PARKED = (
    "what could not be asked is lost; with --workflow ID it would wait for fanfold approve, and the same command go on"
)


def _hints(workflow: str | None, again: str, rows: Sequence[Row]) -> Hints:
    if workflow is None:
        is_parked = any(row.is_parked for row in rows)
        return Hints(
            after_failures=f"{_NOT_KEPT}\n{_NOT_PARKED}" if is_parked else _NOT_KEPT,
            after_budget="nothing is kept without --workflow ID; run it again with a larger --budget",
            after_parked=None,
        )
    return Hints(
        after_failures=f"the finished steps are kept; only the rest runs with: {again}",
        after_budget=f"the budget covers the earlier runs of workflow '{workflow}' too; the finished steps are kept: "
        "run the same command with a larger --budget",
        after_parked=f"then go on with: {again}",
        waiting=parked_in_workflow(workflow) if any(row.is_parked for row in rows) else (),
    )


def _plan(job: Job, workflow: str, console: Console, output: Output) -> None:
    if output == "jsonl":
        raise click.UsageError("a plan has no events for --jsonl; use --json")
    plan = asyncio.run(plan_job(job, workflow))
    if output == "json":
        console.write_json({"schema": "fanfold/plan/v1", **plan.to_dict()})
    else:
        lines = [
            PlanLine(step.task_id, step.action, step.reason, step.estimated_tokens, step.changes or ())
            for step in plan.steps
        ]
        if plan.dropped:
            console.say(f"note: {len(plan.dropped)} recorded steps are not asked for any more; they stay recorded")
        console.write(plan_text("task", lines, spent_tokens=plan.spent_tokens, width=console.out_width))
    if job.strict:
        asyncio.run(refuse_changed(job, workflow))


def _print(
    console: Console,
    output: Output,
    rows: list[Row],
    outcomes: Sequence[StepOutcome],
    spent: BudgetSnapshot | None,
) -> None:
    result: dict[str, Any] = {"outcomes": [outcome.to_dict() for outcome in outcomes]}
    if spent is not None:
        result["budget"] = spent.to_dict()
    if output == "json":
        console.write_json({"schema": "fanfold/parallel/v1", **result})
    elif output == "jsonl":
        console.write_json(event("parallel_end", **result).to_dict())
    else:
        console.write(render(rows, "table", width=console.out_width))
