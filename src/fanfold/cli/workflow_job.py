"""The work behind `fanfold workflow run` and `resume`: opens what is needed, launches, watches, and stops in order."""

import asyncio
import shlex
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fanfold.agent import Agent
from fanfold.cli.console import Console
from fanfold.cli.opening import open_agent, open_session
from fanfold.cli.run_tree import RunView
from fanfold.cli.runs_here import command_for
from fanfold.cli.serving import served
from fanfold.cli.waiting_note import WaitingNote
from fanfold.cli.workflow_plan_text import plan_line, plan_notes
from fanfold.cli.workflow_refusals import RunFailedError
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import (
    RepeatDecision,
    RunSummary,
    WorkflowLaunch,
    WorkflowLimits,
    WorkflowPlan,
    WorkflowResult,
)
from fanfold.errors import FanfoldError
from fanfold.foreign import call_foreign, described
from fanfold.options import SessionOptions
from fanfold.portal import complete
from fanfold.session.session import Session
from fanfold.workflow.runtime import WorkflowRuntime
from fanfold.workflow.scripts import Script

_PLAN_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the agents of a run work with."""

    config: Path | None
    model: str | None
    concurrency: int | None
    max_agents: int | None
    budget: int | None
    allow: Sequence[str]
    wait: bool
    """For approvals and answers from other processes."""
    place: str | None
    """The directory that was named with -C."""

    def again(self, verb: str, run_id: str, *more: str) -> str:
        """The command that goes on with a run as it was asked for: with other models its calls would be others."""
        named = (("-C", self.place), ("--config", self.config), ("--model", self.model))
        options = [word for option, value in named if value is not None for word in (option, str(value))]
        options += [word for rule in self.allow for word in ("--allow", rule)]
        return command_for(verb, run_id, [*options, *(["--wait"] if self.wait else []), *more])


def place_in(typed: str) -> str | None:
    """The directory that a command line names with -C."""
    words = shlex.split(typed)
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word in ("-C", "--workspace"):
            return following
        for option in ("-C", "--workspace="):
            if word.startswith(option) and word != option:
                return word.removeprefix(option)
    return None


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run: a workflow by its name, a `script`, or the rest of a run."""

    name: str | None = None
    script: Script | None = None
    """Of kind `inline` for the sandbox; one of kind `file` lies outside of the project's folder."""
    is_inline: bool = False
    """It runs in the sandbox; a run that is resumed has its script kept."""
    args: JsonObject | None = None
    run_id: str | None = None
    fork: bool = False
    only_failed: bool = False
    strict: bool = False
    repeat: RepeatDecision | None = None

    @property
    def inline_text(self) -> str | None:
        """None: there is none, or the one that is kept with the run."""
        return self.script.text if self.script is not None and self.is_inline else None


class Heard:
    """Hears a run on behalf of its view, and keeps what the end is told with."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.note: WaitingNote | None = None
        self.unanswered: set[str] = set()
        """Tools that wanted an approval."""
        self.run_id: str | None = None
        self.standing: RunSummary | None = None
        """Of a run that was stopped here."""

    def __call__(self, item: AgentEvent) -> None:
        self.view.event(item)
        if item.type == "confirmation_required":
            self.unanswered.add(str(item.payload.get("tool_name")))
        if self.note is not None:
            self.note(item)


async def run_job(launch: Launch, setup: Setup, heard: Heard, console: Console, *, is_told: bool) -> WorkflowResult:
    """What the run came to. The view is open, and hears everything, while it goes on.

    Cancelling stops the run in order: what its agents had finished is recorded.

    Raises:
        WorkflowInputError, ConfigError, UsageError: before anything was started.
    """
    async with opened(launch, setup) as (agent, session):
        if launch.run_id is not None and is_told:
            await _tell_plan(session.workflows, launch, console)
        async with heard.view:
            started = await _launched(session.workflows, launch, setup, agent, heard)
            heard.run_id = started.run_id
            try:
                async with served(session, console, known_as=started.run_id, is_needed=setup.wait, is_told=is_told):
                    if setup.wait and is_told and console.is_quiet:  # otherwise the view tells of it
                        heard.note = WaitingNote(started.run_id, session.session_id)
                    return await session.workflows.wait_async(started.run_id)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and is_told:
                    # Not the console's `err`: while a live view is up, `sys.stderr` is what prints above it.
                    print("stopping; what has ended is kept (again: at once)", file=sys.stderr, flush=True)
                heard.standing = await complete(session.workflows.stop_async(started.run_id))
                raise


async def plan_job(launch: Launch, setup: Setup) -> WorkflowPlan:
    """What `run_job` would do.

    Raises:
        RunFailedError: the script raises before its first agent.
        WorkflowInputError, ConfigError, UsageError: as there.
    """
    async with opened(launch, setup) as (_, session):
        planned = await call_foreign(_planned(session.workflows, launch), lambda error: error)
    if isinstance(planned, WorkflowPlan):
        return planned
    if isinstance(planned, FanfoldError):
        raise planned
    raise RunFailedError(f"the script fails on its way to its first agent: {described(planned)}") from planned


async def _tell_plan(workflows: WorkflowRuntime, launch: Launch, console: Console) -> None:
    """One line, where it can be had soon; whatever is wrong the run itself will tell."""
    try:
        async with asyncio.timeout(_PLAN_SECONDS):
            planned = await call_foreign(_planned(workflows, launch), lambda error: error)
    except TimeoutError:
        return
    if isinstance(planned, WorkflowPlan) and planned.count("cached") < len(planned.calls):
        console.say(f"plan: {plan_line(planned)}")
        for note in plan_notes(planned):
            console.warn(f"note: {note}")


async def _planned(workflows: WorkflowRuntime, launch: Launch) -> WorkflowPlan | BaseException:
    return await workflows.plan_async(
        launch.run_id or "",
        args=launch.args,
        script=launch.inline_text,
        fork=launch.fork,
        only_failed=launch.only_failed,
        repeat=launch.repeat,
    )


@asynccontextmanager
async def opened(launch: Launch, setup: Setup) -> AsyncGenerator[tuple[Agent, Session]]:
    """An agent, and a session of it that knows the workflow."""
    options = SessionOptions(
        model=setup.model,
        max_parallel_tasks=setup.concurrency,
        approvals="park" if setup.wait else "refuse",
        inline_workflows=launch.is_inline,
    )
    async with (
        await open_agent(setup.config) as agent,
        await open_session(agent, setup.allow, options) as session,
    ):
        script = launch.script
        if script is not None and script.path is not None and script.text is not None and not launch.is_inline:
            session.workflows.add_file(script.path, script.text)  # as it was read and approved
        yield agent, session


async def _launched(
    workflows: WorkflowRuntime, launch: Launch, setup: Setup, agent: Agent, heard: Heard
) -> WorkflowLaunch:
    limits = WorkflowLimits(concurrency=setup.concurrency or agent.settings.max_parallel_tasks)
    if setup.max_agents is not None:
        limits = msgspec.structs.replace(limits, max_agents=setup.max_agents)
    return await workflows.launch_async(
        launch.name,
        launch.args,
        script=launch.inline_text,
        resume_from_run_id=launch.run_id,
        fork=launch.fork,
        only_failed=launch.only_failed,
        strict=launch.strict,
        repeat=launch.repeat,
        budget_tokens=setup.budget,
        limits=limits,
        events=heard,
    )
