"""`fanfold run`: one prompt to one session, its answer on stdout."""

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import click

from fanfold.cli.console import Console
from fanfold.cli.endings import NotThereError, StoppedBySignal
from fanfold.cli.going_on import command_for, how_to_go_on, parked_run
from fanfold.cli.named_input import STDIN, read_stdin
from fanfold.cli.opening import open_agent, open_session
from fanfold.cli.options import MODEL_VARIABLE, agent_options, console_options, output_options, wait_option
from fanfold.cli.parked import Answers, Asking, settle_parked
from fanfold.cli.run_background import Background
from fanfold.cli.run_screen import RunScreen
from fanfold.cli.serving import served
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.thread_reader import read_thread
from fanfold.cli.waiting_note import WaitingNote
from fanfold.contracts.events import AgentResult
from fanfold.env import UuidIds
from fanfold.errors import ParkedError, RunError, UsageError
from fanfold.options import SessionOptions
from fanfold.runs.stream import EventStream
from fanfold.session.session import Session

_BROKEN = {
    "incomplete": "the model's answer broke off before its end",
    "content_filter": "the provider's content filter stopped the answer",
    "denied": "a tool call was denied",
    "tool_budget": "the tool budget of this turn was spent before an answer; "
    "max_tool_rounds in the configuration raises it",
}
"""Stop reasons with which a run has not done what it was asked."""


@click.command("run")
@click.argument("prompt", required=False)
@click.option("--session", "session_id", metavar="ID", help="Go on in this session, or start it under this id.")
@click.option("--resume", is_flag=True, help="Without a prompt: go on where the session stopped.")
@click.option("--approve", is_flag=True, help="Like --resume, and the tool call that waits may run.")
@click.option("--deny", is_flag=True, help="Like --resume, and the tool call that waits may not run.")
@click.option("--answer", metavar="TEXT", help="Like --resume, with the answer to the question that waits.")
@wait_option
@click.option("--model", envvar=MODEL_VARIABLE, help="provider/model-id.  [default: the configuration's]")
@click.option("--allow", multiple=True, metavar="RULE", help="Let it use a tool unasked: bash, 'bash(git log:*)'.")
@output_options
@agent_options
@console_options
def command(
    *,
    console: Console,
    output: Literal["json", "jsonl"] | None,
    prompt: str | None,
    session_id: str | None,
    resume: bool,
    approve: bool,
    deny: bool,
    answer: str | None,
    **rest: Any,
) -> None:
    """Give an agent one task; `-` reads it from stdin.

    The agent may look at files; what changes something asks you first. Without a terminal nobody can be
    asked: then the command ends with exit code 5, the session is kept, and --approve or --deny goes on. With
    --wait it waits until another process answers: see fanfold inbox.
    """
    answers = Answers(approved=approve if approve or deny else None, text=answer)
    is_resumed = resume or answers.is_given
    if is_resumed == (prompt is not None) or (approve and deny):
        raise UsageError("give either a PROMPT or one of --resume, --approve, --deny, --answer")
    if is_resumed and session_id is None:
        raise UsageError("--resume, --approve, --deny and --answer need --session ID; see: fanfold sessions list")
    text = None if prompt is None else _prompt(prompt)
    session_id = UuidIds().new_id() if session_id is None else session_id
    screen = RunScreen(console, output, session_id)
    try:
        result = run_until_stopped(_run(screen, session_id, text, answers, **rest))
    except StoppedBySignal as stop:
        stop.message = f"stopped; the session is kept: {command_for(session_id)} --resume"
        raise
    except RunError as error:
        error.hint = how_to_go_on(error, session_id)
        raise
    screen.end(result)
    if result.stop_reason == "length":
        console.warn("note: the answer was cut at the model's output limit")
    why = _BROKEN.get(result.stop_reason) or ("" if result.text.strip() else "the model gave no answer")
    if why:
        raise RunError(why).with_hint(f"go on with a further prompt: {command_for(session_id)} PROMPT")


def _prompt(argument: str) -> str:
    text = read_stdin(sys.stdin.buffer) if argument == STDIN else argument
    if not text.strip():
        raise UsageError("the prompt is empty")
    return text


async def _run(
    screen: RunScreen,
    session_id: str,
    prompt: str | None,
    answers: Answers,
    *,
    wait: bool,
    config: Path | None,
    model: str | None,
    allow: Sequence[str],
) -> AgentResult:
    if prompt is None and not read_thread(session_id).facts:
        raise NotThereError(f"there is nothing in session '{session_id}' to go on from")
    can_wait = wait or screen.console.may_ask
    screen.nobody_answers = not can_wait
    options = SessionOptions(session_id=session_id, model=model, approvals="park" if can_wait else "refuse")
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(await open_agent(config))
        session = await stack.enter_async_context(await open_session(agent, allow, options))
        await stack.enter_async_context(
            served(session, screen.console, is_needed=wait and not screen.console.may_ask, is_told=screen.is_for_people)
        )
        try:
            note = WaitingNote(session.session_id, session.session_id)
            is_noted = wait and screen.is_for_people and not screen.console.may_ask
            background = Background(session, screen)
            stream = await _started(session, screen, prompt, answers)
            result = await _converse(session, screen, stream, note if is_noted else None)
            return await background.settled(result)
        except ParkedError as error:
            raise parked_run(error, session) from error


async def _started(session: Session, screen: RunScreen, prompt: str | None, answers: Answers) -> EventStream:
    if prompt is None:
        if answers.is_given and await settle_parked(session, answers) == 0:
            raise NotThereError(f"nothing waits for an approval or an answer in session '{session.session_id}'")
        return await session.resume_stream_async()
    for waiting in session.pending_confirmations():
        screen.console.warn(
            f"note: the call of {waiting.tool_name} that waits for an approval is given up by this prompt"
        )
    return await session.stream_async(prompt)


async def _converse(session: Session, screen: RunScreen, stream: EventStream, note: WaitingNote | None) -> AgentResult:
    async with stream, Asking(session, screen.console) as asking:
        async for event in stream:
            screen.show(event)
            if note is not None:
                note(event)
            await asking.look()
        return await stream.result_async()
