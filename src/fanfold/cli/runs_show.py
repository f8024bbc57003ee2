"""`fanfold runs show`: one run, from its snapshot and its journal."""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

import fanfold
from fanfold.cli.cells import one_line
from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.render import table
from fanfold.cli.run_tree_rows import money_text
from fanfold.cli.runs_here import (
    counts_text,
    decisions_of,
    decisions_text,
    failure_lines,
    fault_text,
    find_run,
    first_of,
    has_parked,
    must_be_mended,
    next_command,
    run_files,
    status_text,
    summary_json,
)
from fanfold.cli.tally import seconds_text, tokens_text
from fanfold.cli.waiting_text import time_text
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.record import JsonObject, Record
from fanfold.contracts.workflow_runs import RunFault, RunSummary, WorkflowSnapshot
from fanfold.control.parked_runs import waits_for_person
from fanfold.errors import ParkedError, WorkflowInputError
from fanfold.kernel.run_entries import RunEntry
from fanfold.kernel.run_view import RunJournalView
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.runs import read_view, run_summary

_STATUSES = {"ok": "done", "error": "failed"}
_MOST_FAILURES = 20
_FRAME = '  File "'
_OWN_FRAME = f"{_FRAME}{Path(fanfold.__file__).parent}{os.sep}"


class RunAgent(Record, frozen=True, kw_only=True):
    """One call of an agent, as the journal has it."""

    where: str
    label: str
    phase: str | None = None
    status: str
    """`done`, `failed`, `cancelled`, `skipped`, `parked`; `running`, `waiting`, or `interrupted` when nobody runs it
    any more."""
    attempt: int
    """That ran it; 0: the run that this one was forked from."""
    is_cached: bool = False
    """An earlier attempt ran it."""
    total_tokens: int | None = None
    cost_usd: float | None = None
    tools: int = 0
    duration_ms: int | None = None
    error: JsonObject | None = None
    branch: str | None = None
    """With what it has changed in a worktree of its own."""


class _Shown(msgspec.Struct, frozen=True, kw_only=True):
    run: RunSummary
    output_file: str
    agents: Sequence[RunAgent] = ()
    total_tokens: int | None = None
    """Of all attempts, as the journal has it: the snapshot lags behind while the run goes on."""
    cost_usd: float | None = None
    problem: str | None = None
    """Why something cannot be told."""


@click.command("show")
@click.argument("run")
@json_option
@workspace_option
@console_options
def command(*, console: Console, run: str, as_json: bool) -> None:
    """How RUN stands: its agents, what they took, what went wrong, and how to go on."""
    with refusals():
        shown = asyncio.run(_read(run_files(), run))
    again, decisions = next_command(shown.run), decisions_of(shown.run)
    if as_json:
        document = {"schema": "fanfold/run/v1", **summary_json(shown.run), "output_file": shown.output_file}
        if shown.run.snapshot is not None:
            document["snapshot"] = shown.run.snapshot.to_dict()
        if shown.total_tokens is not None:
            document["total_tokens"] = shown.total_tokens
        document["agents"] = [each.to_dict() for each in shown.agents]
        notes = {"journal_problem": shown.problem, "next_command": again, "next_commands": decisions or None}
        console.write_json(document | {name: note for name, note in notes.items() if note is not None})
        return
    console.write(_text(shown, console.out_width))
    if shown.problem is not None:
        console.warn(f"note: {shown.problem}")
    if has_parked(shown.run):
        console.say("see what waits with: fanfold inbox")
    if decisions:
        console.say(f"agents wait for a decision, for they were begun before; {decisions_text(decisions)}")
    if again is not None:
        snapshot = shown.run.snapshot
        is_broken = snapshot is not None and must_be_mended(shown.run.status, snapshot.error, snapshot.failures)
        first = "mend the script, then " if is_broken else first_of(None if snapshot is None else snapshot.reason)
        console.say(f"{first}resume with: {again}")
    elif shown.run.is_alive:
        console.say(f"follow it with: fanfold logs -f {shown.run.run_id}")


async def _read(files: WorkflowFiles, typed: str) -> _Shown:
    run_id = await find_run(files, typed)
    run = await run_summary(files, run_id)
    try:
        view = await read_view(files, run_id)
    except WorkflowInputError as error:
        return _Shown(run=run, output_file=files.output_path(run_id), problem=str(error))
    return _Shown(
        run=run,
        output_file=files.output_path(run_id),
        agents=agents_of(view, is_alive=run.is_alive),
        total_tokens=view.usage.total_tokens,
        cost_usd=view.cost,
        problem=run.problem,
    )


def agents_of(view: RunJournalView, *, is_alive: bool) -> list[RunAgent]:
    """The calls of a run in the order in which they were made; of several at one place the last."""
    entries = [entry for entry in view.places().values() if not entry.is_superseded]
    return [_agent(entry, view.attempts, is_alive) for entry in sorted(entries, key=lambda entry: entry.seq)]


def _agent(entry: RunEntry, newest: int, is_alive: bool) -> RunAgent:
    result = entry.result
    if result is None:
        is_running = is_alive and entry.attempt == newest
        return RunAgent(
            where=entry.path,
            label=entry.label,
            phase=entry.phase,
            status="interrupted" if not is_running else "waiting" if waits_for_person(entry) else "running",
            attempt=entry.attempt,
        )
    is_parked = result.error is not None and result.error.code == ParkedError.code
    return RunAgent(
        where=entry.path,
        label=entry.label,
        phase=entry.phase,
        status="parked" if is_parked else _STATUSES.get(result.status, result.status),
        attempt=result.attempt,
        is_cached=entry.is_answer and result.attempt < newest,
        total_tokens=None if result.usage is None else result.usage.total_tokens,
        cost_usd=result.cost,
        tools=result.tools,
        duration_ms=result.ms,
        error=None if result.error is None else {"code": result.error.code, "message": result.error.message},
        branch=None if result.worktree is None else result.worktree.branch,
    )


def _text(shown: _Shown, width: int | None) -> str:
    snapshot = shown.run.snapshot
    lines = [f"{shown.run.run_id}: {status_text(shown.run)}"]
    if snapshot is not None:
        lines += [f"{name:<9} {value}" for name, value in _facts(snapshot, shown)]
    text = "\n".join(lines) + "\n"
    if snapshot is not None and snapshot.status == "failed" and snapshot.error is not None:
        frames = _frames_of(snapshot.error)
        text += f"\n{frames}\n" if frames else ""
    if shown.agents:
        head = ["phase", "agent", "status", "tokens", "cost", "time"]
        text += "\n" + table(head, [_row(each) for each in shown.agents], width=width, to_right=head[3:])
    if snapshot is not None:
        told = "" if snapshot.error is None else snapshot.error.message
        failures = failure_lines(snapshot.failures, _MOST_FAILURES, told)
        text += "\n" + "\n".join(failures) + "\n" if failures else ""
    return text


def _facts(snapshot: WorkflowSnapshot, shown: _Shown) -> list[tuple[str, str]]:
    times = [time_text(snapshot.started_ms), seconds_text(snapshot.duration_ms / 1000)]
    if snapshot.attempt > 1:
        times.append(f"attempt {snapshot.attempt}")
    tokens = snapshot.usage.total_tokens if shown.total_tokens is None else shown.total_tokens
    spent = [f"{tokens_text(tokens)} tokens{' (partly estimated)' if snapshot.usage.is_estimated else ''}"]
    if snapshot.attempt > 1:
        spent.append(f"{tokens_text(snapshot.attempt_usage.total_tokens)} of them in this attempt")
    cost = snapshot.cost_usd if shown.cost_usd is None else shown.cost_usd
    if cost is not None:
        spent.append(money_text(cost))
    if snapshot.budget is not None and snapshot.budget.limit_tokens is not None:
        spent.append(f"of a budget of {tokens_text(snapshot.budget.limit_tokens)}")
    facts = [
        ("workflow", " · ".join([snapshot.workflow, snapshot.kind, *([snapshot.path] if snapshot.path else [])])),
        ("started", " · ".join(times)),
        ("agents", _agents_text(shown, snapshot)),
        ("spent", " · ".join(spent)),
        *([] if snapshot.model is None else [("model", snapshot.model)]),
        ("args", one_line(msgspec.json.encode(snapshot.args).decode())),
    ]
    if snapshot.status != "running":
        facts.append(("output", shown.output_file))
    if snapshot.parent_run_id is not None:
        facts.append(("forked", f"from {snapshot.parent_run_id}"))
    if snapshot.reset_ms is not None:
        facts.append(("reset", time_text(snapshot.reset_ms)))
    if snapshot.error is not None:
        facts.append(("error", fault_text(snapshot.error)))
    return facts


def _frames_of(fault: RunFault) -> str:
    """Its traceback without the frames of fanfold, for where the script failed is what can be mended, and without what
    is told as the error itself. Empty where no frame is left."""
    kept: list[str] = []
    is_kept = True
    told = rf"^(?:[\w.]+: )?{re.escape(fault.message)}\n?"
    for line in re.sub(told, "", fault.trace or "", flags=re.MULTILINE).splitlines():
        if line.startswith(_FRAME):
            is_kept = not line.startswith(_OWN_FRAME)
        elif not line.startswith(" "):
            is_kept = True
        if is_kept:
            kept.append(line)
    return "\n".join(kept) if any(line.startswith(_FRAME) for line in kept) else ""


def _agents_text(shown: _Shown, snapshot: WorkflowSnapshot) -> str:
    if snapshot.status != "running" or not shown.agents:
        return counts_text(snapshot.counts)
    standing = Counter(agent.status for agent in shown.agents)
    return ", ".join(f"{count} {status}" for status, count in standing.items())


def _row(agent: RunAgent) -> list[str]:
    status = f"{agent.status} (attempt {agent.attempt})" if agent.is_cached else agent.status
    if agent.is_cached and not agent.attempt:
        status = f"{agent.status} (copied)"
    return [
        agent.phase or "",
        agent.label or agent.where,
        status,
        "" if agent.total_tokens is None else tokens_text(agent.total_tokens),
        "" if agent.cost_usd is None else money_text(agent.cost_usd),
        "" if agent.duration_ms is None else seconds_text(agent.duration_ms / 1000),
    ]
