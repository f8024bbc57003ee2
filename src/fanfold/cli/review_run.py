"""The run behind `fanfold review`: a session that may only look, and the workflow `review-changes` in it."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fanfold.agent import Agent
from fanfold.cli.console import Console
from fanfold.cli.opening import open_agent, open_session, require_models
from fanfold.cli.review_changes import Changes
from fanfold.cli.serving import served
from fanfold.cli.waiting_note import WaitingNote
from fanfold.cli.workflow_job import Heard, Setup
from fanfold.contracts.policy import PermissionPolicy
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import WorkflowLaunch, WorkflowLimits, WorkflowResult
from fanfold.errors import ConfigError, UsageError
from fanfold.kernel.permissions import may_read, parse_rule
from fanfold.options import SessionOptions
from fanfold.portal import complete
from fanfold.session.session import Session

WORKFLOW_NAME = "review-changes"
_LOOKING_TOOLS = ("read", "search", "ls", "git", "update_plan")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    changes: Changes | None
    """None: those of the run that is gone on with."""
    more: JsonObject
    """Other arguments of the workflow."""
    run_id: str | None
    """The run that is gone on with."""


async def run_review(
    job: Job, setup: Setup, heard: Heard, console: Console, *, is_told: bool
) -> tuple[WorkflowResult, JsonObject]:
    """What the run came to, and its arguments. The view is open, and hears everything, while it goes on.

    Cancelling stops the run in order: what its agents had finished is recorded.

    Raises:
        WorkflowInputError, ConfigError, UsageError: before anything was started.
    """
    async with await open_agent(setup.config) as agent, await _opened(agent, setup) as session, heard.view:
        launch = await _launched(job, setup, heard, agent, session)
        heard.run_id = launch.run_id
        try:
            async with served(session, console, known_as=launch.run_id, is_needed=setup.wait, is_told=is_told):
                if setup.wait and is_told:
                    heard.note = WaitingNote(launch.run_id, session.session_id)
                result = await session.workflows.wait_async(launch.run_id)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_told:
                # Not the console's `err`: while a live view is up, `sys.stderr` is what prints above it.
                print("stopping; what has ended is kept (again: at once)", file=sys.stderr, flush=True)
            heard.standing = await complete(session.workflows.stop_async(launch.run_id))
            raise
        snapshot = (await session.workflows.status_async(launch.run_id)).snapshot
        return result, {} if snapshot is None else snapshot.args


async def _opened(agent: Agent, setup: Setup) -> AbstractAsyncContextManager[Session]:
    await require_models(agent, (("--model", setup.model),))
    options = SessionOptions(model=setup.model, max_parallel_tasks=setup.concurrency)
    if setup.wait:
        return await open_session(agent, setup.allow, options.merged(approvals="park"))
    policy = looking_only(agent.settings.permissions, setup.allow)
    return await agent.session_async(Path.cwd(), options.merged(approvals="refuse", permission_policy=policy))


async def _launched(job: Job, setup: Setup, heard: Heard, agent: Agent, session: Session) -> WorkflowLaunch:
    args = None
    if job.changes is not None:
        # Only sent is what the agents might read too.
        readable = partial(may_read, agent.settings.permissions)
        args = {**job.changes.sendable(readable).args(), **job.more}
    return await session.workflows.launch_async(
        WORKFLOW_NAME,
        args,
        resume_from_run_id=job.run_id,
        budget_tokens=setup.budget,
        limits=WorkflowLimits(concurrency=setup.concurrency or agent.settings.max_parallel_tasks),
        events=heard,
    )


def looking_only(policy: PermissionPolicy, allow: Sequence[str]) -> PermissionPolicy:
    """The policy under which nobody is asked: what it would ask about is denied, and the agents go on without it. Where
    a person must be asked and cannot be, an agent ends.

    Raises:
        UsageError: an --allow that is no rule.
    """
    for rule in allow:
        try:
            parse_rule(rule)
        except ConfigError as error:
            raise UsageError(f"--allow: {error.problems[0]}") from error
    asks = [parse_rule(rule) for rule in policy.ask]
    # A rule to ask about some of a tool's calls bars these; one to ask about all leaves those that are allowed.
    unasked = [tool for tool in _LOOKING_TOOLS if not any(each.covers_everything and each.names(tool) for each in asks)]
    barred = [each.text for each in asks if not each.covers_everything and any(map(each.names, unasked))]
    return replace(
        policy,
        allow=(*policy.allow, *allow, *unasked, f"Workflow({WORKFLOW_NAME})"),
        deny=(*policy.deny, *barred),
        ask=(),
        default_decision="deny",
    )
