"""`fanfold parallel`: the steps of a JSON file, all at once."""

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
from fanfold.cli.opening import open_agent, open_session, require_models, require_role
from fanfold.cli.options import agent_options, console_options, fan_out_options, output_options
from fanfold.cli.progress import View, view_for
from fanfold.cli.render import render
from fanfold.cli.report import end, tell
from fanfold.cli.results import Row, row_of
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.tally import Tally
from fanfold.contracts.codec import decode_json
from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, BudgetSnapshot, ParallelResult, StepOutcome
from fanfold.errors import UsageError
from fanfold.options import SessionOptions
from fanfold.orchestration.specs import parse_specs


@click.command("parallel")
@click.argument("specs", metavar="SPECS.json")
@fan_out_options
@output_options
@agent_options
@console_options
def command(
    *,
    console: Console,
    output: Literal["json", "jsonl"] | None,
    specs: str,
    budget: int | None,
    allow_failures: bool,
    **rest: Any,
) -> None:
    """Run the agent steps of a JSON file in parallel; `-` reads it from stdin.

    \b
    [{"task_id": "deps", "agent": "explore", "prompt": "Which dependencies are unused?"},
     {"task_id": "docs", "agent": "explore", "prompt": "Which options are undocumented?"}]

    A step may also have description, max_steps, output_schema and model.
    """
    steps = read_specs(specs)
    tally = Tally(len(steps), budget)
    view = view_for(console, tally, title="parallel", output=output)
    start = time.monotonic()
    try:
        outcomes, spent = run_until_stopped(_parallel(steps, view, tally, budget=budget, **rest))
    except StoppedBySignal as stop:
        stop.message = f"stopped: {tally.finished} of {tally.total} steps had ended; parallel keeps no results"
        raise
    rows = [row_of(outcome.task_id, outcome) for outcome in outcomes]
    _print(console, output, rows, outcomes, spent)
    if output is None:
        tell(console, tally, rows, noun="steps", seconds=time.monotonic() - start)
    end(rows, noun="steps", allow_failures=allow_failures)


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
        require_role(step.agent, f"specs[{index}].agent")
        if not step.prompt.strip():
            raise UsageError(f"specs[{index}].prompt: the prompt is empty")
    return steps


async def _parallel(
    steps: Sequence[AgentStepSpec],
    view: View,
    tally: Tally,
    *,
    config: Path | None,
    model: str | None,
    concurrency: int | None,
    budget: int | None,
    allow: Sequence[str],
) -> tuple[list[StepOutcome], BudgetSnapshot | None]:
    ended: set[str] = set()

    def on_event(item: AgentEvent) -> None:
        view.event(item)
        if item.type == "subagent_end" and item.payload["output"] != CANCELLED:
            ended.add(item.payload["task_id"])
            view.finish(_row_of_end(item))

    options = SessionOptions(model=model, max_parallel_tasks=concurrency, approvals="refuse")
    async with await open_agent(config) as agent:
        await require_models(agent, ((f"specs[{index}].model", step.model) for index, step in enumerate(steps)))
        async with await open_session(agent, allow, options) as session, view:
            result = await session.parallel_async(steps, budget, events=on_event)
            outcomes: list[StepOutcome] = result.outcomes if isinstance(result, ParallelResult) else result
            for outcome in outcomes:
                if outcome.task_id not in ended:  # it could not even start
                    tally.never_started += 1
                    view.finish(row_of(outcome.task_id, outcome))
    return outcomes, result.budget if isinstance(result, ParallelResult) else None


def _row_of_end(end_event: AgentEvent) -> Row:
    payload = end_event.payload
    return Row(
        item=payload["task_id"],
        success=payload["success"],
        output=payload["output"],
        total_tokens=payload["usage"]["total_tokens"],
        seconds=(payload["duration_ms"] or 0) / 1000,
    )


def _print(
    console: Console,
    output: str | None,
    rows: list[Row],
    outcomes: list[StepOutcome],
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
