"""`fanfold review`: the changes of a git repository, through the workflow `review-changes`."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from fanfold.cli.cells import cut
from fanfold.cli.console import Console
from fanfold.cli.endings import StoppedBySignal
from fanfold.cli.options import agent_options, console_options, fan_out_options
from fanfold.cli.out_file import OutFile, open_out
from fanfold.cli.review_changes import Changes, collect_changes
from fanfold.cli.review_report import SEVERITIES, Found, ReportFormat, Review, Severity, read_found, render_review
from fanfold.cli.review_run import Job, run_review
from fanfold.cli.run_tree import run_view_for
from fanfold.cli.runs_here import command_for, find_run, run_files
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.workflow_endings import Again, end, stopped
from fanfold.cli.workflow_job import Heard, Setup, place_in
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.messages import NO_USAGE
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import WorkflowResult
from fanfold.errors import FanfoldError, UsageError
from fanfold.workflow.shipped.review_changes import DIMENSIONS

_FORMATS: dict[str, ReportFormat] = {".md": "markdown", ".json": "json"}
_LONGEST_LIST = 500


class FindingsError(FanfoldError):
    """The review was done, and has found what `--fail-on` was to fail on."""

    code = "FINDINGS"


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
@click.pass_obj
def command(
    typed: str,
    /,
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
    config: Path | None,
    model: str | None,
    concurrency: int | None,
    budget: int | None,
    allow: tuple[str, ...],
    wait: bool,
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
    setup = Setup(
        config=config,
        model=model,
        concurrency=concurrency,
        max_agents=None,
        budget=budget,
        allow=allow,
        wait=wait,
        place=place_in(typed),
    )
    heard, again = Heard(run_view_for(console)), _again(setup)
    with refusals():
        resume = None if resume is None else asyncio.run(find_run(run_files(), resume))
    with refusals(resume):
        result, args = _run(Job(changes=changes, more=more, run_id=resume), setup, heard, console)
    if result.status in ("completed", "completed_with_failures"):
        review = _review_of(result, args, changes)
        _show(console, review, format, file)
        _sum_up(console, review.found)
        if format == "table" and file is None and review.found.confirmed:
            console.say(f"details: {again('resume', result.run_id, '--format', 'markdown')}")
        _fail_on(fail_on, review.found, hint=None if result.status == "completed" else again("resume", result.run_id))
    end(result, allow_failures=allow_failures, again=again, tools=heard.unanswered)


def _run(job: Job, setup: Setup, heard: Heard, console: Console) -> tuple[WorkflowResult, JsonObject]:
    try:
        return run_until_stopped(run_review(job, setup, heard, console, is_told=not console.is_quiet))
    except StoppedBySignal as stop:
        stopped(stop, heard.standing, heard.run_id, _again(setup))
        raise


def _again(setup: Setup) -> Again:
    def again(verb: str, run_id: str, *more: str) -> str:
        command = setup.again(verb, run_id, *more)
        return command.replace(command_for(verb, run_id), f"fanfold review --resume {run_id}", 1)

    return again


# ---- the report -----------------------------------------------------------------------------------------------------


def _out_file(name: Path) -> OutFile:
    if name.suffix not in _FORMATS:
        raise UsageError(f"--output {name}: the suffix must be one of {', '.join(_FORMATS)}")
    return open_out(name)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _review_of(result: WorkflowResult, args: JsonObject, changes: Changes | None) -> Review:
    return Review(
        run_id=result.run_id,
        status=result.status,
        what=f"the changes of run {result.run_id}" if changes is None else changes.what,
        base=args.get("base"),
        files=args.get("files", []),
        found=read_found(result.value),
        usage=result.total_usage,
        cost_usd=result.cost_usd,
    )


def _nothing(changes: Changes) -> Review:
    found = Found(confirmed=())
    return Review(
        run_id=None, status="completed", what=changes.what, base=changes.base, files=(), found=found, usage=NO_USAGE
    )


def _sum_up(console: Console, found: Found) -> None:
    for missed in found.not_audited():
        console.warn(f"not audited: {cut(missed, _LONGEST_LIST)}")
    console.say(found.summary())


def _show(console: Console, review: Review, format: ReportFormat, file: OutFile | None) -> None:
    try:
        if file is not None:
            file.write_whole(render_review(review, _FORMATS[file.name.suffix]))
    finally:  # it was paid for: a full disk must not take it away
        console.write(render_review(review, format, width=console.out_width))


def _fail_on(severity: Severity | None, found: Found, *, hint: str | None) -> None:
    count = 0 if severity is None else found.at_least(severity)
    if count:
        error = FindingsError(f"confirmed findings that are {severity} or worse: {count}")
        raise error if hint is None else error.with_hint(f"some agents failed too; resume with: {hint}")
