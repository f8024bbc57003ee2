"""`fanfold sessions`: what the logs of this workspace hold."""

import asyncio
from typing import Any

import click

from fanfold.cli.call_text import call_text
from fanfold.cli.cells import cut, one_line
from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.render import table
from fanfold.cli.thread_reader import ThreadView, read_thread
from fanfold.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from fanfold.kernel.transcript import as_history
from fanfold.live_sessions import LOG_DIRECTORY
from fanfold.stores.jsonl import JsonlFactLog

_LONGEST_OUTPUT = 400
"""Characters of a tool's output that `show` prints; --json has all of it."""


@click.group("sessions")
def command() -> None:
    """List and show the sessions of a workspace."""


@command.command("list")
@json_option
@workspace_option
@console_options
def list_sessions(*, console: Console, as_json: bool) -> None:
    """The sessions of this workspace, the latest last."""
    threads = asyncio.run(_threads())
    views = sorted((read_thread(thread) for thread in threads), key=lambda view: view.changed_at)
    if as_json:
        console.write_json({"schema": "fanfold/sessions/v1", "sessions": [_summary(view) for view in views]})
    elif not views:
        console.say("there are no sessions here yet")
    else:
        head = ["session", "changed", "facts", "status", "first prompt"]
        rows = [[str(value) for value in _summary(view).values()] for view in views]
        console.write(table(head, rows, width=console.out_width, to_right=("facts",)))


async def _threads() -> list[str]:
    log = JsonlFactLog(LOG_DIRECTORY)
    try:
        return list(await log.threads())
    finally:
        await log.close()


def _summary(view: ThreadView) -> dict[str, Any]:
    return {
        "session_id": view.thread,
        "changed_at": view.changed_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "facts": len(view.facts),
        "status": view.status(),
        "first_prompt": view.first_prompt,
    }


@command.command("show")
@click.argument("session_id", metavar="ID")
@json_option
@workspace_option
@console_options
def show_session(*, console: Console, session_id: str, as_json: bool) -> None:
    """The transcript of one session."""
    view = read_thread(session_id)
    transcript = view.state().transcript
    if as_json:
        document = {"schema": "fanfold/session/v1", **_summary(view), "messages": as_history(transcript)}
        console.write_json(document)
        return
    for message in transcript or ():
        console.write(_shown(message) + "\n")
    console.say(f"session {session_id}: {view.status()}")


def _shown(message: Message) -> str:
    match message:
        case UserMessage():
            return f"> {message.text}"
        case AssistantMessage():
            calls = (f"· {call_text(call.name, call.args)}" for call in message.calls)
            return "\n".join([*([message.text] if message.text else []), *calls])
        case ToolMessage():
            mark = "" if message.ok else "failed: "
            return f"  {mark}{cut(one_line(message.output), _LONGEST_OUTPUT)}"
