"""What waits for a person, as text and as JSON, with the commands that answer it."""

import shlex
from datetime import UTC, datetime

from fanfold.cli.call_text import call_text
from fanfold.cli.cells import one_line
from fanfold.contracts.record import JsonObject
from fanfold.control.waiting import Waiting
from fanfold.kernel.workflow_meta import is_run_id

_KINDS = {"live": "session", "session": "session", "workflow": "workflow"}


def commands_for(waiting: Waiting) -> list[str]:
    named = shlex.quote(waiting.id)
    if named.startswith("-"):
        named = f"-- {named}"  # or it would be taken for an option
    if waiting.kind == "question":
        return [f"fanfold answer {named} TEXT"]
    return [f"fanfold approve {named}", f"fanfold deny {named}"]


def waiting_json(waiting: Waiting) -> JsonObject:
    """The record, with its time in words too, and its commands."""
    since = {} if waiting.since_ms is None else {"since": time_text(waiting.since_ms)}
    return {**waiting.to_dict(), **since, "commands": commands_for(waiting)}


def waiting_text(waiting: Waiting) -> str:
    """A few lines: whose it is, what it would do or what is asked, and how to answer."""
    return "\n".join([_whose(waiting), *(f"  {line}" for line in [*_what(waiting), *commands_for(waiting)])]) + "\n"


def what_text(waiting: Waiting) -> str:
    """Likewise, without whose it is: for who knows."""
    kind = "an approval" if waiting.kind == "approval" else "an answer"
    return "\n".join([f"waits for {kind}:", *(f"  {line}" for line in [*_what(waiting), *commands_for(waiting)])])


def time_text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _whose(waiting: Waiting) -> str:
    is_run = is_run_id(waiting.owner)
    parts = [f"{'workflow run' if is_run else _KINDS.get(waiting.source)} {waiting.owner}"]
    if is_run and waiting.about is not None:
        parts.append(f"agent {waiting.about}")
    elif waiting.step is not None:
        parts.append(f"step {waiting.step}" + ("" if waiting.about is None else f" ({waiting.about})"))
    # A live one of no time was left parked, in a session that is open.
    is_parked = waiting.process is None or (waiting.source == "live" and waiting.since_ms is None)
    parts.append(
        ("parked" if is_parked else "its run waits")
        + ("" if waiting.process is None else f" in process {waiting.process}")
    )
    if waiting.since_ms is not None:
        parts.append(f"since {time_text(waiting.since_ms)}")
    return " · ".join(" ".join(part.split()) for part in parts)


def _what(waiting: Waiting) -> list[str]:
    if waiting.kind == "approval":
        if waiting.is_cut:
            return [f"{waiting.tool} (its arguments are too long to be shown here)"]
        return [call_text(waiting.tool, waiting.args)]
    lines = (waiting.question or "").splitlines() or [""]
    return [*lines, *(f"{number}. {one_line(option)}" for number, option in enumerate(waiting.options or (), 1))]
