"""`fanfold review`: the changes of a git repository, through the workflow `review-changes`."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from fanfold.cli.cells import cut
from fanfold.cli.console import Console
from fanfold.cli.endings import FailedStepsError, StoppedBySignal, WaitingError
from fanfold.cli.opening import open_agent, open_session, require_models
from fanfold.cli.options import agent_options, console_options, fan_out_options
from fanfold.cli.out_file import OutFile, open_out
from fanfold.cli.review_changes import Changes, collect_changes
from fanfold.cli.review_report import SEVERITIES, Found, ReportFormat, Review, Severity, read_found, render_review
from fanfold.cli.run_tree import RunView, run_view_for
from fanfold.cli.serving import served
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.waiting_note import WaitingNote
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.messages import NO_USAGE
from fanfold.contracts.policy import PermissionPolicy
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowResult
from fanfold.errors import BudgetExhaustedError, ConfigError, FanfoldError, RunError, UsageError
from fanfold.kernel.permissions import may_read, parse_rule
from fanfold.options import SessionOptions
from fanfold.orchestration.ledger import RESOURCE
from fanfold.session.session import Session
from fanfold.workflow.shipped.review_changes import DIMENSIONS

WORKFLOW_NAME = "review-changes"
_LOOKING_TOOLS = ("read", "search", "ls", "git", "update_plan")
_FORMATS: dict[str, ReportFormat] = {".md": "markdown", ".json": "json"}
_LONGEST_LIST = 500


class FindingsError(FanfoldError):
    """The review was done, and has found what `--fail-on` was to fail on."""

    code = "FINDINGS"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    changes: Changes | None
    """None: those of the run that is resumed."""
    more: JsonObject
    """Other arguments of the workflow."""
    resume: str | None
    config: Path | None
    model: str | None
    concurrency: int | None
    budget: int | None
    allow: Sequence[str]
    wait: bool


@click.command("review")
@click.argument("path", default=".")
@click.option("--base", metavar="REV", help="Review all since the branch or commit REV, uncommitted work included.")
@click.option(
    "--dimension",
    "dimensions",
    multiple=True,
    metavar="NAME",
    help=f"Look for this only: {', '.join(DIMENSIONS)}, or a word of your own.",
)
@click.option("--min-severity", type=click.Choice(SEVERITIES), help="Leave out what is less severe.")
@click.option("--format", type=click.Choice(["table", "markdown", "json"]), default="table", show_default=True)
@click.option("--output", "--out", "out", type=click.Path(path_type=Path), help="Also write the report: .md .json")
@click.option("--fail-on", type=click.Choice(SEVERITIES), help="Exit with 1 if something so severe is confirmed.")
@click.option("--resume", metavar="RUN", help="Go on with the review of that run id: what it has is not asked again.")
@fan_out_options
@agent_options
@console_options
def command(
    *,
    console: Console,
    path: str,
    base: str | None,
    dimensions: Sequence[str],
    min_severity: Severity | None,
    format: ReportFormat,
    out: Path | None,
    fail_on: Severity | None,
    resume: str | None,
    allow_failures: bool,
    **rest: Any,
) -> None:
    """Review the uncommitted changes of a git repository, or the last commit when there are none.

    Agents audit the change in several dimensions at once, and each of their findings is verified by another agent
    that tries to refute it. They only look at files: give --allow bash to let them run commands. PATH limits the
    review to a file or folder.
    """
    more: JsonObject = {"dimensions": list(dimensions)} if dimensions else {}
    more |= {"min_severity": min_severity} if min_severity else {}
    if resume is not None and (more or base is not None or path != "."):
        raise click.UsageError("--resume goes on with the changes and options that the run was given; leave them out")
    file = None if out is None else _out_file(out)
    changes = None
    if resume is None:
        changes = asyncio.run(collect_changes(Path.cwd(), path, base, report=None if file is None else file.target))
        if not changes.files:
            console.say("nothing to review: nothing has changed")
            _show(console, _nothing(changes), format, file)
            return
        console.say(f"reviewing {_files(len(changes.files))}: {changes.what}")
    job = Job(changes=changes, more=more, resume=resume, **rest)
    result, args = _run(job, console)
    _end(
        console, result, _reported(console, result, args, changes, format, file), fail_on, allow_failures=allow_failures
    )


def _out_file(name: Path) -> OutFile:
    if name.suffix not in _FORMATS:
        raise UsageError(f"--output {name}: the suffix must be one of {', '.join(_FORMATS)}")
    return open_out(name)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


# ---- the run --------------------------------------------------------------------------------------------------------


def _run(job: Job, console: Console) -> tuple[WorkflowResult, JsonObject]:
    heard = _Heard(run_view_for(console))
    try:
        return run_until_stopped(_reviewed(job, heard, console))
    except StoppedBySignal as stop:
        if heard.run_id is not None:
            stop.message = "stopped; what was finished is kept"
            stop.hint = _go_on(heard.run_id)
        raise


def _go_on(run_id: str) -> str:
    return f"go on with: fanfold review --resume {run_id}"


class _Heard:
    """Passes events on to the view, and remembers of which run they are."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.note: WaitingNote | None = None
        self.run_id: str | None = None

    def __call__(self, event: AgentEvent) -> None:
        if event.type == "async_launched":
            self.run_id = event.payload["run_id"]
        self.view.event(event)
        if self.note is not None:
            self.note(event)


async def _reviewed(job: Job, heard: _Heard, console: Console) -> tuple[WorkflowResult, JsonObject]:
    """What the run came to, and its arguments."""
    async with heard.view, await open_agent(job.config) as agent:
        await require_models(agent, (("--model", job.model),))
        policy = agent.settings.permissions
        options = SessionOptions(model=job.model, max_parallel_tasks=job.concurrency)
        if job.wait:
            session = await open_session(agent, job.allow, options.merged(approvals="park"))
        else:
            looking = _looking_only(policy, job.allow)
            options = options.merged(approvals="refuse", permission_policy=looking)
            session = await agent.session_async(Path.cwd(), options)
        async with session, served(session, console, is_needed=job.wait, is_told=not console.is_quiet):
            if job.wait and not console.is_quiet:
                heard.note = WaitingNote(session.session_id, session.session_id)
            changes = None if job.changes is None else job.changes.sendable(partial(may_read, policy))
            args = None if changes is None else {**changes.args(), **job.more}
            result = await run_review(session, args, job, heard)
            snapshot = (await session.workflows.status_async(result.run_id)).snapshot
            return result, {} if snapshot is None else snapshot.args


async def run_review(session: Session, args: JsonObject | None, job: Job, heard: _Heard) -> WorkflowResult:
    """A new run with these arguments; None: go on with the one of the job."""
    return await session.workflows.run_async(
        WORKFLOW_NAME,
        args,
        resume_from_run_id=job.resume,
        budget_tokens=job.budget,
        limits=None if job.concurrency is None else WorkflowLimits(concurrency=job.concurrency),
        events=heard,
    )


def _looking_only(policy: PermissionPolicy, allow: Sequence[str]) -> PermissionPolicy:
    """What is not allowed is denied where it would be asked about: then the agents go on without it. A refusal by a
    person, or for want of one, would end them."""
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


# ---- its end --------------------------------------------------------------------------------------------------------


def _reported(
    console: Console,
    result: WorkflowResult,
    args: JsonObject,
    changes: Changes | None,
    format: ReportFormat,
    file: OutFile | None,
) -> Found | None:
    """Print and write what was found; None when the run has not come to a result."""
    if result.status not in ("completed", "completed_with_failures"):
        return None
    found = read_found(result.value)
    review = Review(
        run_id=result.run_id,
        status=result.status,
        what=f"the changes of run {result.run_id}" if changes is None else changes.what,
        base=args.get("base"),
        files=args.get("files", []),
        found=found,
        usage=result.total_usage,
        cost_usd=result.cost_usd,
    )
    _show(console, review, format, file)
    for missed in found.not_audited():
        console.warn(f"not audited: {cut(missed, _LONGEST_LIST)}")
    console.say(found.summary())
    if format == "table" and file is None and found.confirmed:
        console.say("details: --format markdown")
    return found


def _nothing(changes: Changes) -> Review:
    found = Found(confirmed=())
    return Review(
        run_id=None, status="completed", what=changes.what, base=changes.base, files=(), found=found, usage=NO_USAGE
    )


def _show(console: Console, review: Review, format: ReportFormat, file: OutFile | None) -> None:
    if file is not None:
        file.write_whole(render_review(review, _FORMATS[file.name.suffix]))
    console.write(render_review(review, format, width=console.out_width))


def _end(
    console: Console, result: WorkflowResult, found: Found | None, fail_on: Severity | None, *, allow_failures: bool
) -> None:
    """Return when all is well.

    Raises:
        FindingsError, FailedStepsError, BudgetExhaustedError, WaitingError, RunError
    """
    go_on = _go_on(result.run_id)
    if found is not None and fail_on is not None and (count := found.at_least(fail_on)):
        error = FindingsError(f"confirmed findings that are {fail_on} or worse: {count}")
        raise error if result.status == "completed" else error.with_hint(f"some agents failed; {go_on}")
    match result.status, result.reason:
        case "completed", _:
            return
        case "completed_with_failures", _:
            if not allow_failures:
                raise FailedStepsError(f"{result.counts.failed} agents failed").with_hint(
                    f"what is finished is kept; only the rest runs with: {go_on}"
                )
        case "paused", "budget_exhausted":
            why = (result.error.message if result.error else "").removeprefix(f"Budget exhausted on '{RESOURCE}': ")
            raise BudgetExhaustedError(resource=RESOURCE, reason=why).with_hint(
                f"what is finished is kept; with a larger budget {go_on} --budget TOKENS"
            )
        case "paused", "parked":
            raise WaitingError("agents wait for an approval or an answer", {"run_id": result.run_id}).with_hint(
                f"{go_on} --wait, and answer from another terminal"
            )
        case status, reason:
            why = result.error.message if result.error else (reason or "").replace("_", " ")
            raise RunError(f"the review {'has failed' if status == 'failed' else f'is {status}'}: {why}").with_hint(
                go_on
            )
