"""`fanfold checkpoints`: what resumable work has finished, by workflow."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from fanfold.cli.ask import ask_yes_no
from fanfold.cli.cells import cut, one_line
from fanfold.cli.console import Console
from fanfold.cli.endings import NotThereError
from fanfold.cli.opening import STORE
from fanfold.cli.options import Command, console_options, json_option, workspace_option
from fanfold.cli.render import table
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.tally import tokens_text
from fanfold.contracts.codec import encode_json
from fanfold.contracts.steps import StepOutcome
from fanfold.contracts.workflow import CheckpointSummary, WorkflowCheckpoint
from fanfold.errors import UsageError
from fanfold.nearest import did_you_mean
from fanfold.orchestration.checkpoints import delete_checkpoint, list_checkpoints, load_checkpoint
from fanfold.orchestration.journal import KIND
from fanfold.stores.file_store import FileSessionStore
from fanfold.stores.sqlite_store import SqliteSessionStore

_DATABASES = (".db", ".sqlite", ".sqlite3")
_LONGEST_HELP = 200


def _store_option(command: Command) -> Command:
    return click.option(
        "--store",
        "place",
        type=click.Path(path_type=Path),
        help=f"Directory, or {' '.join(_DATABASES)} file of a session store.  [default: {STORE.as_posix()}]",
    )(command)


@click.group("checkpoints")
def command() -> None:
    """List, show and delete what resumable work has finished."""


# ---- list --------------------------------------------------------------------------------------------------


@command.command("list")
@json_option
@_store_option
@workspace_option
@console_options
def list_command(*, console: Console, place: Path | None, as_json: bool) -> None:
    """The workflows that something is recorded of, by id."""
    summaries = asyncio.run(_summaries(place))
    if as_json:
        listed = [each.to_dict() for each in summaries]
        console.write_json({"schema": "fanfold/checkpoints/v1", "checkpoints": listed})
    elif not summaries:
        console.say("there are no checkpoints here")
    else:
        head = ["workflow", "changed", "done", "failed", "unfinished", "tokens"]
        has_problem = any(each.problem for each in summaries)
        rows = [[*_cells(each), *([each.problem or ""] if has_problem else [])] for each in summaries]
        head += ["cannot be resumed"] if has_problem else []
        console.write(table(head, rows, width=console.out_width, to_right=head[2:6]))


async def _summaries(place: Path | None) -> list[CheckpointSummary]:
    async with _open(place) as store:
        return await list_checkpoints(store)


def _cells(summary: CheckpointSummary) -> list[str]:
    counts = (summary.succeeded, summary.failed, summary.interrupted)
    changed = _time(summary.checkpoint_ms)
    return [summary.workflow_id, changed, *map(str, counts), tokens_text(summary.total_tokens)]


# ---- show --------------------------------------------------------------------------------------------------


@command.command("show")
@click.argument("workflow_id", metavar="ID")
@json_option
@_store_option
@workspace_option
@console_options
def show_command(*, console: Console, workflow_id: str, place: Path | None, as_json: bool) -> None:
    """The steps of one workflow, and what they took."""
    checkpoint = asyncio.run(_loaded(place, workflow_id))
    if as_json:
        console.write_json({"schema": "fanfold/checkpoint/v1", **checkpoint.to_dict()})
    else:
        console.write(_shown(checkpoint, console.out_width))


async def _loaded(place: Path | None, workflow_id: str) -> WorkflowCheckpoint:
    async with _open(place) as store:
        checkpoint = await load_checkpoint(store, workflow_id)
        if checkpoint is None:
            raise _not_there(workflow_id, await store.logs(KIND))
        return checkpoint


def _shown(checkpoint: WorkflowCheckpoint, width: int | None) -> str:
    rows = [
        *([step.place, "done", *_came_of(step.outcome)] for step in checkpoint.steps),
        *([step.place, "failed", *_came_of(step.outcome)] for step in checkpoint.failed),
        *([place, "unfinished", "", "goes on from its last recorded turn"] for place in checkpoint.interrupted),
    ]
    text = table(["step", "outcome", "tokens", "output"], rows, width=width, to_right=("tokens",)) if rows else ""
    return text + _totals(checkpoint)


def _came_of(outcome: StepOutcome) -> tuple[str, str]:
    tokens = "" if outcome.usage is None else tokens_text(outcome.usage.total_tokens)
    value = outcome.output if outcome.structured is None else encode_json(outcome.structured).decode()
    return tokens, value.strip().partition("\n")[0]


def _totals(checkpoint: WorkflowCheckpoint) -> str:
    counts = (len(checkpoint.steps), len(checkpoint.failed), len(checkpoint.interrupted))
    named = ", ".join(f"{count} {name}" for count, name in zip(counts, ("done", "failed", "unfinished"), strict=True))
    about = " (partly estimated)" if checkpoint.usage.is_estimated else ""
    cost = "" if checkpoint.cost_usd is None else f", ${checkpoint.cost_usd:.4f}"
    spent = f"{tokens_text(checkpoint.usage.total_tokens)} tokens{about}{cost}"
    return f"{checkpoint.workflow_id}: {named}; {spent}; changed {_time(checkpoint.checkpoint_ms)}\n"


# ---- delete ------------------------------------------------------------------------------------------------


@command.command("delete")
@click.argument("workflow_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
@_store_option
@workspace_option
@console_options
def delete_command(*, console: Console, workflow_ids: Sequence[str], is_sure: bool, place: Path | None) -> None:
    """Forget all that the workflows have finished. One that runs just now is refused."""
    run_until_stopped(_delete(console, place, list(dict.fromkeys(workflow_ids)), is_sure))


async def _delete(console: Console, place: Path | None, workflow_ids: Sequence[str], is_sure: bool) -> None:
    async with _open(place) as store:
        known = await store.logs(KIND)
        for each in workflow_ids:
            if each not in known:
                raise _not_there(each, known)
        if not is_sure and not await _is_wanted(console, workflow_ids):
            console.say("nothing was deleted")
            return
        for each in workflow_ids:
            await delete_checkpoint(store, each)
            console.say(f"deleted {each}")


async def _is_wanted(console: Console, workflow_ids: Sequence[str]) -> bool:
    if not console.may_ask:
        raise UsageError("nobody can be asked here whether to delete; --yes says so")
    return await ask_yes_no(console, f"Forget all that {', '.join(map(one_line, workflow_ids))} finished?")


# ---- all of them -------------------------------------------------------------------------------------------


def _open(place: Path | None) -> FileSessionStore | SqliteSessionStore:
    """The store, which has to be there if it was named: opening one for reading must not make it.

    Raises:
        NotThereError, UsageError: it is not there, or no store.
    """
    if place is None:
        return FileSessionStore(STORE)
    if not place.exists():
        raise NotThereError(f"there is no session store at {place}")
    if place.is_dir():
        return FileSessionStore(place)
    if place.suffix not in _DATABASES:
        raise UsageError(f"--store {place}: neither a directory nor a file named {', '.join(_DATABASES)}")
    return SqliteSessionStore(place)


def _not_there(workflow_id: str, known: Sequence[str]) -> NotThereError:
    near = cut(did_you_mean(workflow_id, known), _LONGEST_HELP)
    return NotThereError(f"there is no checkpoint '{workflow_id}' here{near}")


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if ms else ""
