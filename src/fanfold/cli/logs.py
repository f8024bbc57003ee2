"""`fanfold logs`: what a workflow run tells, from its event file, while it runs or afterwards."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import click
import msgspec

from fanfold.cli.console import Console
from fanfold.cli.event_fields import text_of
from fanfold.cli.options import console_options, workspace_option
from fanfold.cli.run_tree import PlainRun
from fanfold.cli.run_tree_state import RunTree
from fanfold.cli.runs_here import decisions_of, decisions_text, find_run, next_command, run_files, status_text
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.events import AgentEvent
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.runs import run_summary

_LOOK_SECONDS = 0.2
_WORDS = {"queued": "queue", "started": "start"}
Line = tuple[AgentEvent, int]
"""An event, and the position behind it."""


@click.command("logs")
@click.argument("run")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@click.option("--agent", metavar="LABEL", help="Only this agent, with its tool calls; a pattern such as 'audit:*'.")
@click.option("--since", type=click.IntRange(0), default=0, metavar="POSITION", help="Only what comes behind it.")
@click.option("--jsonl", is_flag=True, help="Each event as a line of JSON, with its `position`.")
@workspace_option
@console_options
def command(*, console: Console, run: str, follow: bool, agent: str | None, since: int, jsonl: bool) -> None:
    """What the workflow run RUN told, on stdout; with -f as long as it goes on.

    The file keeps the newest few MiB of a run.
    """
    with refusals():
        run_until_stopped(_show(console, run, follow=follow, agent=agent, since=since, jsonl=jsonl))


async def _show(console: Console, typed: str, *, follow: bool, agent: str | None, since: int, jsonl: bool) -> None:
    files = run_files()
    run_id = await find_run(files, typed)
    position, count = since, 0
    chosen = _Chosen(agent)
    # Not the console's stderr: here the lines are what was asked for.
    out = replace(console, err=console.out, is_quiet=False)
    lines = PlainRun(out, RunTree(run_id), has_phases=agent is None)
    async with lines:
        async for item, position in _events(files, run_id, since, follow=follow):
            if not chosen(item):
                continue
            count += 1
            if jsonl:
                console.write_json({**item.to_dict(), "position": position})
            else:
                text = None if agent is None else _detail(item)
                if text is not None:
                    console.write(text + "\n")
                lines.event(item)
    run = await run_summary(files, run_id)
    if jsonl:
        return
    if run.is_alive:
        console.say(f"go on from here with: fanfold logs {run_id} --since {position}")
    elif not count:
        console.say(f"{run_id} has told nothing of this; it is {status_text(run)}")
    if (again := next_command(run)) is not None:
        console.say(f"{run_id} is {status_text(run)}; resume with: {again}")
    if decisions := decisions_of(run):
        console.say(f"agents of {run_id} wait for a decision, for they were begun before; {decisions_text(decisions)}")


async def _events(files: WorkflowFiles, run_id: str, since: int, *, follow: bool) -> AsyncIterator[Line]:
    position, is_over = since, False
    while True:
        # Before the events: what is told until a run is let go of is written by then.
        is_over = not follow or not (await run_summary(files, run_id)).is_alive
        lines, position = await files.events(run_id, position)
        for line in _positioned(lines, position):
            yield line
        if is_over:
            return
        await asyncio.sleep(_LOOK_SECONDS)


def _positioned(lines: Sequence[bytes], end: int) -> Iterator[Line]:
    """A position counts the bytes of all lines, their newlines too."""
    position = end - sum(len(line) + 1 for line in lines)
    for line in lines:
        position += len(line) + 1
        try:
            yield msgspec.json.decode(line, type=AgentEvent), position
        except (msgspec.DecodeError, RecursionError):
            continue  # of a later version, or damaged: for people that is no reason to see nothing at all


class _Chosen:
    """Whether an event is of the agent that was asked for."""

    def __init__(self, label: str | None) -> None:
        self._label = label
        self._places: set[object] = set()

    def __call__(self, item: AgentEvent) -> bool:
        wanted, told = self._label, item.payload
        if wanted is None:
            return True
        if item.type != "task_progress":
            return False
        label, where = text_of(told.get("label")), told.get("where")
        if label and (label == wanted or where == wanted or fnmatchcase(label, wanted)):
            self._places.add(where)
        return where in self._places


def _detail(item: AgentEvent) -> str | None:
    """What is no news of a whole run, but of one agent."""
    told = item.payload
    match told.get("type"):
        case "workflow_agent" if told.get("status") in _WORDS:
            return f"{_WORDS[told['status']]}  {text_of(told.get('label'))}"
        case "workflow_activity":
            return f"tool   {text_of(told.get('tool'))}"
        case _:
            return None
