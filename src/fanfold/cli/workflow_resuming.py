"""The work behind `fanfold workflow resume` and `continue`: which run, with which script, and what it would cost."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from fanfold.cli.console import Console
from fanfold.cli.out_file import OutFile
from fanfold.cli.runs_here import find_run, next_command, run_files, status_text
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.workflow_args import parse_arguments
from fanfold.cli.workflow_attend import attend, require_approved
from fanfold.cli.workflow_job import Launch, Setup, plan_job
from fanfold.cli.workflow_named import Project, find_script, is_in_project, open_project, read_script_text, script_at
from fanfold.cli.workflow_output import Output
from fanfold.cli.workflow_plan_text import plan_page
from fanfold.cli.workflow_refusals import refusals
from fanfold.contracts.workflow_runs import RepeatDecision, RunSummary, WorkflowPlan, WorkflowSnapshot
from fanfold.errors import WorkflowInputError
from fanfold.protocols import WorkflowFiles
from fanfold.workflow.runs import run_summary
from fanfold.workflow.scripts import Script, read_script


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    is_plan: bool = False
    only_failed: bool = False
    strict: bool = False
    fork: bool = False
    repeat: RepeatDecision | None = None
    must_be_paused: bool = False


def resume(
    how: Resume,
    *,
    console: Console,
    setup: Setup,
    output: Output,
    output_file: OutFile | None,
    allow_failures: bool,
    is_sure: bool,
    arguments: Sequence[str],
    run: str,
    file: Path | None,
) -> None:
    """Go on with the run that is called `run`, or only say what that would do."""
    if how.is_plan and output == "jsonl":
        raise click.UsageError("a plan has no events for --jsonl; use --json")
    with refusals():
        standing = asyncio.run(_standing(run_files(), run))
        snapshot = standing.snapshot
        assert snapshot is not None
    with refusals(standing.run_id, _holder(standing)):
        if how.must_be_paused and standing.status != "paused":
            raise _not_paused(standing)
        if standing.is_alive and not (how.is_plan or how.fork):
            raise WorkflowInputError("already_active", f"run {standing.run_id} is running")
        project = open_project()
        script = _script_of(snapshot, file, project)
        if script is not None and script.kind != "inline":
            require_approved(console, project, script, is_sure=is_sure)
        launch = Launch(
            run_id=standing.run_id,
            script=None if script is None or is_in_project(script, project) else script,
            is_inline=snapshot.kind == "inline",
            args=parse_arguments(arguments, None if script is None else script.meta.args_schema),
            fork=how.fork,
            only_failed=how.only_failed,
            strict=how.strict,
            repeat=how.repeat,
        )
        if how.is_plan:
            if standing.is_alive:
                where = _holder(standing) or "another process"
                console.warn(f"note: it goes on just now, in {where}; what is under way there counts as in doubt")
            _show_plan(run_until_stopped(plan_job(launch, setup)), console, output, is_strict=how.strict)
        else:
            attend(launch, setup, console, output, output_file, allow_failures=allow_failures)


def _not_paused(run: RunSummary) -> WorkflowInputError:
    error = WorkflowInputError(
        "wrong_moment", f"run {run.run_id} is {status_text(run)}, so there is nothing to continue"
    )
    again = next_command(run)
    if run.is_alive:
        return error.with_hint(f"it goes on just now: fanfold logs -f {run.run_id}")
    shown = f"what it gave: fanfold runs show {run.run_id}"
    return error.with_hint(shown if again is None else f"resume with: {again}")


async def _standing(files: WorkflowFiles, typed: str) -> RunSummary:
    run = await run_summary(files, await find_run(files, typed))
    if run.snapshot is None:
        raise WorkflowInputError("journal_refused", f"run {run.run_id}: {run.problem}")
    return run


def _holder(run: RunSummary) -> str | None:
    return None if run.snapshot is None or run.snapshot.process is None else f"process {run.snapshot.process}"


def _script_of(run: WorkflowSnapshot, file: Path | None, project: Project) -> Script | None:
    """None for an inline script that is kept with its run.

    Raises:
        WorkflowInputError: `unknown_workflow`, `wrong_workflow`, or what is wrong with it.
    """
    if file is None:
        if run.kind == "inline":
            return None
        if run.kind == "registered":
            reason = f"run {run.run_id} is of a script that a program has registered"
            raise WorkflowInputError("unknown_workflow", reason).with_hint("name its script with --file PATH.py")
        if run.path is None or run.workflow in project.names() or not Path(run.path).exists():
            return find_script(run.workflow, project)
        file = Path(run.path)  # the project has it under no name, or another one: it tells why
    script = read_script(read_script_text(file), "inline") if run.kind == "inline" else script_at(file, project)
    if script.meta.name != run.workflow:
        reason = f"run {run.run_id} is one of workflow '{run.workflow}', and {file} is '{script.meta.name}'"
        raise WorkflowInputError("wrong_workflow", reason)
    return script


def _show_plan(plan: WorkflowPlan, console: Console, output: Output, *, is_strict: bool) -> None:
    if output == "json":
        counts = {
            "cached": plan.count("cached"),
            "rerun": plan.count("re-run"),
            "new": plan.count("new"),
            "not_run": plan.count("not run"),
            "skip": plan.count("skip"),
            "ask": plan.count("ask"),
            "estimated_tokens": plan.estimated_tokens,
        }
        console.write_json({"schema": "fanfold/workflow-plan/v1", **plan.to_dict(), "counts": counts})
    else:
        console.write(plan_page(plan, console.out_width))
    if is_strict and plan.script_changed:
        raise WorkflowInputError("script_changed", f"the script of run {plan.run_id} has changed since it ran")
