"""The workflow runs of the current directory's workspace: found by what people type, and told in short."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from fanfold.cli.cells import cut, one_line
from fanfold.cli.default_model import default_model
from fanfold.cli.endings import NotThereError
from fanfold.cli.waiting_text import time_text
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import (
    REPEAT_UNDECIDED,
    RepeatDecision,
    RunCounts,
    RunFailure,
    RunFault,
    RunSummary,
    WorkflowSnapshot,
)
from fanfold.errors import ParkedError, SandboxError, WorkflowAgentError
from fanfold.kernel.reason_text import reason_text
from fanfold.nearest import did_you_mean
from fanfold.protocols import WorkflowFiles
from fanfold.stores.run_files import open_run_files

_MOST_CANDIDATES = 10
_LONGEST_HELP = 200
_RECORDS = ".a3s"
_LONGEST_NAME = 60
_LONGEST_REASON = 300
_LONGEST_FAULT = 1_000
_MOST_NAMES = 5
_NOT_BY_SCRIPT = frozenset({WorkflowAgentError.code, "agent_cap", "cancelled"})
_BY_SCRIPT = frozenset({SandboxError.code, "not_serialisable"})
_UNKNOWN_AGENT = "UNKNOWN_AGENT"
_HEX = frozenset("0123456789abcdef")
_TOLD = (
    "workflow",
    "reason",
    "reset_ms",
    "attempt",
    "parent_run_id",
    "model",
    "counts",
    "phase",
    "cost_usd",
    "process",
)
_COUNTED = ("done", "cached", "failed", "skipped")
MENDED_INLINE = ("--file", "PATH.py")
"""With which a resume takes the script of an inline run once that is mended."""
_FIRST = {
    "auth": "once the provider takes the key, ",
    "quota": "once the provider's limit allows it, ",
    "unreachable": "once the model's side answers again, ",
}
_NEEDED = {"budget_exhausted": ("--budget", "TOKENS"), "parked": ("--wait",)}
"""Without which a resume would end as the run did, by its reason."""


def run_files() -> WorkflowFiles:
    return open_run_files(Path.cwd())


async def find_run(files: WorkflowFiles, typed: str) -> str:
    """The id of the run that `typed` means: the whole id, its beginning, or the beginning or end of its digits.

    Raises:
        NotThereError: no run is called so.
        click.UsageError: it may mean several.
    """
    # An empty name, of a variable of a shell that is not set, would be the beginning of each id.
    ids = await files.run_ids() if typed else ()
    if typed in ids:
        return typed
    are_digits = _HEX.issuperset(typed)
    found = [each for each in ids if each.startswith(typed) or (are_digits and _has_digits(each, typed))]
    if len(found) == 1:
        return found[0]
    if found:
        listed = "".join(f"\n  {each}" for each in found[:_MOST_CANDIDATES])
        raise click.UsageError(f"'{typed}' may mean {len(found)} runs; give more of the id:{listed}")
    near = cut(did_you_mean(typed, ids), _LONGEST_HELP) if ids else ""
    raise NotThereError(f"there is no workflow run '{typed}' here{near}").with_hint(listing("fanfold runs list"))


def listing(command: str) -> str:
    """What lists those that there are: here, or where the project is in whose subdirectory somebody stands."""
    here = Path.cwd()
    for place in (here, *here.parents):
        if (place / _RECORDS).is_dir():
            return f"see: {command}" + ("" if place == here else f" -C {shlex.quote(os.path.relpath(place))}")
        if (place / ".git").exists():
            break
    return f"see: {command}"


def elsewhere(command: str) -> str:
    """The end of a sentence that says that here is nothing; empty where no other place may have it."""
    where = listing(command)
    return f"; {where}" if " -C " in where else ""


def _has_digits(run_id: str, typed: str) -> bool:
    digits = run_id.rpartition("_")[2]
    return digits.startswith(typed) or digits.endswith(typed)


def summary_json(run: RunSummary) -> JsonObject:
    """The run in short: absent is what is not known."""
    told: JsonObject = {"run_id": run.run_id, "status": run.status, "is_alive": run.is_alive}
    if run.problem is not None:
        told["problem"] = run.problem
    snapshot = run.snapshot
    if snapshot is None:
        return told
    fields = snapshot.to_dict()
    told |= {name: fields[name] for name in _TOLD if name in fields}
    return {
        **told,
        "total_tokens": snapshot.usage.total_tokens,
        "duration_ms": snapshot.duration_ms,
        "started": time_text(snapshot.started_ms),
        "started_ms": snapshot.started_ms,
        "updated": time_text(snapshot.updated_ms),
        "updated_ms": snapshot.updated_ms,
    }


def status_text(run: RunSummary) -> str:
    """`paused (quota)`, `completed with failures`."""
    text = run.status.replace("_", " ")
    if run.snapshot is not None and run.snapshot.reason is not None:
        text += f" ({run.snapshot.reason.replace('_', ' ')})"
    return text


def counts_text(counts: RunCounts) -> str:
    """`3 done, 2 cached`; `none has ended`."""
    told = counts.to_dict()
    return ", ".join(f"{told[name]} {name}" for name in _COUNTED if told[name]) or "none has ended"


def failure_lines(failures: Sequence[RunFailure], most: int, told: str = "") -> list[str]:
    """What went wrong, in one line for all that say the same: `security (/0.1#0): NO_ANSWER: it broke off`.

    None when that is one thing, which has been `told`.
    """
    who: dict[tuple[str, str], list[str]] = {}
    for each in failures:
        who.setdefault((each.code, each.message), []).append(_name_of(each))
    if len(who) == 1 and told.endswith(failures[0].message):
        return []
    lines = [
        f"  {_names(names)}: {reason_text(code, cut(one_line(message), _LONGEST_REASON))}"
        for (code, message), names in list(who.items())[:most]
    ]
    return [*lines, f"  … and {len(who) - most} more"] if len(who) > most else lines


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_MOST_NAMES])} and {more} more"


def _name_of(failure: RunFailure) -> str:
    line = "" if failure.line is None else f", line {failure.line}"
    return f"{cut(failure.label, _LONGEST_NAME)} ({failure.where}{line})" if failure.label else f"{failure.where}{line}"


def fault_text(fault: RunFault, place: str = "") -> str:
    """`LLM error: no answer (line 3)`, in one line; `place` says of what."""
    line = "" if fault.line is None else f" (line {fault.line}{place})"
    return f"{reason_text(fault.code, cut(one_line(fault.message), _LONGEST_FAULT))}{line}"


def must_be_mended(status: str, fault: RunFault | None, failures: Sequence[RunFailure]) -> bool:
    """The script is at fault, and would fail again as it stands."""
    if status != "failed":
        return False
    if any(each.code == _UNKNOWN_AGENT for each in failures):
        return True
    if fault is None or fault.code in _NOT_BY_SCRIPT:
        return False
    return fault.line is not None or fault.code in _BY_SCRIPT


def first_of(reason: str | None) -> str:
    """What must be before a resume of a run that is paused for that reason, or it ends as before."""
    return _FIRST.get(reason or "", "")


def next_command(run: RunSummary) -> str | None:
    """What goes on with it; None for one that is complete, that runs just now, that waits for a decision and nothing
    else (`decisions_of`), or of which nothing is known."""
    snapshot = run.snapshot
    if run.is_alive or snapshot is None or run.status == "completed" or (decisions_of(run) and not has_parked(run)):
        return None
    if snapshot.kind == "inline" and must_be_mended(run.status, snapshot.error, snapshot.failures):
        return resume_command(snapshot, *MENDED_INLINE)
    return resume_command(snapshot, *_NEEDED.get(snapshot.reason or "", ()))


def has_parked(run: RunSummary) -> bool:
    """It is paused, and an agent of it waits for an approval or an answer."""
    return _waits_with(run, ParkedError.code)


def decisions_of(run: RunSummary) -> list[str]:
    """The commands that go on with it either way, where agents of it wait to be run again or left out."""
    if run.snapshot is None or not _waits_with(run, REPEAT_UNDECIDED):
        return []
    return [resume_command(run.snapshot, "--repeat", how) for how in get_args(RepeatDecision)]


def _waits_with(run: RunSummary, code: str) -> bool:
    snapshot = run.snapshot
    if snapshot is None or run.is_alive or run.status != "paused" or snapshot.reason != "parked":
        return False
    return any(each.code == code for each in snapshot.failures)


def decisions_text(commands: Sequence[str]) -> str:
    rerun, skip = commands
    return f"run again with: {rerun}\nor leave out with: {skip}"


def resume_command(run: WorkflowSnapshot, *options: str) -> str:
    """What goes on with it on the model that it had."""
    model = () if run.model is None or run.model == default_model() else ("--model", run.model)
    return command_for("resume", run.run_id, (*model, *options))


def command_for(verb: str, run_id: str, options: Sequence[str] = ()) -> str:
    return shlex.join(["fanfold", "workflow", verb, run_id, *options])
