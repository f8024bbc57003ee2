"""Answers from another process: what `fanfold approve`, `deny` and `answer` do, wherever it is that waits."""

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import click
import msgspec

from fanfold.cli.console import Console
from fanfold.cli.going_on import command_for
from fanfold.cli.opening import open_store
from fanfold.cli.runs_here import resume_command, run_files
from fanfold.cli.waiting_here import Here, look_here
from fanfold.cli.waiting_text import commands_for
from fanfold.control import client, wire
from fanfold.control.parked import record_answer
from fanfold.control.parked_calls import Answer
from fanfold.control.waiting import Waiting
from fanfold.env import HostEnv
from fanfold.errors import AlreadyActiveError, ControlError, SessionBusyError
from fanfold.session.inbox import Approval
from fanfold.workflow.runs import snapshot_of

MAP_PREFIX = "map-"
_IN_PROGRAM = "session.workflows.run(resume_from_run_id='{}'), in the program that has its script"
_KINDS = {"approval": "a tool call, which waits for an approval", "question": "a question, which waits for an answer"}


What = Literal["approved", "denied", "answered"]


class Settled(msgspec.Struct, frozen=True):
    waiting: Waiting
    what: What
    goes_on: bool
    """Its run does, by itself."""
    resume: str | None = None
    """What goes on with the workflow run that it was recorded in."""
    torn: str | None = None
    """The file that a torn end of the journal of that run is in now."""

    @property
    def next_command(self) -> str | None:
        """What to run now; None where there is nothing, or no command that could be known."""
        if self.waiting.source != "session":
            return self.resume
        return f"{command_for(self.waiting.owner)} {'PROMPT' if self.what == 'denied' else '--resume'}"

    def text(self) -> str:
        return f"{self.what} {self.waiting.id}; {self._and_now()}"

    def _and_now(self) -> str:
        owner = self.waiting.owner
        match self.waiting.source:
            case "live" if self.goes_on:
                return f"its run goes on in process {self.waiting.process}"
            case "live":
                return f"recorded: process {self.waiting.process} goes on from it when it resumes session '{owner}'"
            case "session" if self.what == "denied":
                return f"its turn is over; go on with a further prompt: {self.next_command}"
            case "session":
                return f"go on with: {self.next_command}"
            case "workflow":
                return f"recorded: {_again(owner)}" + (" (the step ends as denied)" if self.what == "denied" else "")
            case "run":
                so = "its agent ends as denied; " if self.what == "denied" else ""
                return f"{so}go on with: {self.resume or _IN_PROGRAM.format(owner)}"


def settle(console: Console, typed: str, answer_to: Callable[[Waiting], Answer], kind: str, *, as_json: bool) -> None:
    """Give the answer that `answer_to` makes to what waits as `typed`, and say how it goes on.

    Raises:
        NotThereError, click.UsageError: nothing waits so, several do, or it is of the other `kind`.
        ControlError, LifecycleError: it was answered by somebody else, or cannot be reached.
    """
    settled = asyncio.run(_settle(console, typed, answer_to, kind))
    if settled.torn is not None:
        owner = settled.waiting.owner
        console.warn(f"note: the journal of {owner} had a torn end, which is put aside as {settled.torn}")
    if as_json:
        told = {"id": settled.waiting.id, "answer": settled.what, "goes_on": settled.goes_on}
        next_command = {} if settled.next_command is None else {"next_command": settled.next_command}
        console.write_json({"schema": "fanfold/answer/v1", **told, **next_command})
    else:
        console.say(settled.text())


async def _settle(console: Console, typed: str, answer_to: Callable[[Waiting], Answer], kind: str) -> Settled:
    here = await look_here()
    waiting = here.find(typed)
    if waiting.kind != kind:
        raise click.UsageError(f"'{waiting.id}' is {_KINDS[waiting.kind]}: {' or '.join(commands_for(waiting))}")
    answer = answer_to(waiting)
    if waiting.source == "live":
        return Settled(waiting, _what(answer), await _asked(here, waiting, answer))
    torn = await _recorded(waiting, answer)
    return Settled(waiting, _what(answer), False, await _resume(waiting), torn)


async def _resume(waiting: Waiting) -> str | None:
    """None where nothing was recorded in a run, and for one that only its program can go on with."""
    if waiting.source != "run":
        return None
    run = await snapshot_of(run_files(), waiting.owner)
    return None if run.kind == "registered" else resume_command(run)


def _what(answer: Answer) -> What:
    if isinstance(answer, str):
        return "answered"
    return "approved" if answer.approved else "denied"


async def _recorded(waiting: Waiting, answer: Answer) -> str | None:
    try:
        async with open_store() as store:
            return await record_answer(waiting, answer, Path.cwd(), store, HostEnv())
    except (SessionBusyError, AlreadyActiveError) as error:
        raise error.with_hint(_while_it_runs(waiting)) from None


def _while_it_runs(waiting: Waiting) -> str:
    if waiting.source == "run" and waiting.process is None:
        return f"that agent was parked, and can be answered when the run has ended: fanfold logs -f {waiting.owner}"
    return "it runs just now, and can only be answered there"


async def _asked(here: Here, waiting: Waiting, answer: Answer) -> bool:
    server = here.server_of(waiting)
    if server is None:
        raise ControlError("NOT_SERVED", f"no process serves '{waiting.owner}' any more")
    owner, call_id = waiting.owner, waiting.call_id
    request: wire.Request
    if isinstance(answer, Approval):
        request = wire.Confirm(session=owner, call_id=call_id, approved=answer.approved, reason=answer.reason)
    else:
        request = wire.Answer(session=owner, call_id=call_id, text=answer)
    return (await client.ask(server, request)).goes_on


def _again(workflow_id: str) -> str:
    if workflow_id.startswith(MAP_PREFIX):
        return "run the same `fanfold map` again, and it goes on"
    return f"run the same `fanfold parallel ... --workflow {shlex.quote(workflow_id)}` again, and it goes on"
