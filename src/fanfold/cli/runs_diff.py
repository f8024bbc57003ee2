"""`fanfold runs diff`: two runs side by side, by their journals and outputs."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

import click

from fanfold.cli.cells import cut
from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.run_tree_rows import money_text
from fanfold.cli.runs_here import find_run, run_files
from fanfold.cli.tally import tokens_text
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.workflow_runs import ComparedCall, RunComparison
from fanfold.kernel.run_compare import compare_runs
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.runs import output_of, read_view

_MARKS = {"result": "~", "call": "~", "added": "+", "removed": "-"}
_WORDS = {
    "same": "same",
    "result": "with another result",
    "call": "asked otherwise",
    "added": "added",
    "removed": "removed",
}
_INDENT = "    "
_LONGEST_NAME = 80
_MOST_LINES = 20
"""Of one change on a terminal; elsewhere all are shown."""


@click.command("diff")
@click.argument("before")
@click.argument("after")
@json_option
@workspace_option
@console_options
def command(*, console: Console, before: str, after: str, as_json: bool) -> None:
    """What the run AFTER did and gave differently from the run BEFORE."""
    with refusals():
        compared = asyncio.run(_compared(run_files(), before, after))
    if as_json:
        console.write_json({"schema": "fanfold/run-diff/v1", **compared.to_dict()})
    else:
        console.write("\n".join(_lines(compared, console.out_width)) + "\n")


async def _compared(files: WorkflowFiles, before: str, after: str) -> RunComparison:
    old, new = await find_run(files, before), await find_run(files, after)
    views = await read_view(files, old), await read_view(files, new)
    return compare_runs(*views, await output_of(files, old), await output_of(files, new))


def _lines(compared: RunComparison, width: int | None) -> Iterator[str]:
    counts: Counter[str] = Counter(call.change for call in compared.calls)
    yield "agents: " + (", ".join(f"{counts[name]} {word}" for name, word in _WORDS.items() if counts[name]) or "none")
    yield f"tokens: {' -> '.join(map(tokens_text, compared.tokens))}{_cost(compared)}"
    for call in compared.calls:
        if call.change != "same":
            yield _title(call)
            yield from _shown(call.detail or (), width)
    if compared.is_output_equal:
        yield "the outputs are equal"
    else:
        yield "output:"
        yield from _shown(compared.output_changes or (), width)


def _cost(compared: RunComparison) -> str:
    costs = ["?" if cost is None else money_text(cost) for cost in compared.cost_usd]
    return "" if costs == ["?", "?"] else f", {' -> '.join(costs)}"


def _title(call: ComparedCall) -> str:
    return f"{_MARKS[call.change]} {cut(call.label or call.where, _LONGEST_NAME)} ({call.where}): {_WORDS[call.change]}"


def _shown(changes: Sequence[str], width: int | None) -> list[str]:
    lines = [_INDENT + line for line in (changes if width is None else changes[:_MOST_LINES])]
    if len(changes) > len(lines):
        lines.append(f"{_INDENT}… and {len(changes) - len(lines)} more changed lines")
    return lines if width is None else [cut(line, width) for line in lines]
