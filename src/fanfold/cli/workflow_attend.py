"""A run from its launch to the end of its command: the view, Ctrl-C, the result, the exit code."""

import shlex

from fanfold.cli.ask import ask_yes_no
from fanfold.cli.console import Console
from fanfold.cli.endings import StoppedBySignal
from fanfold.cli.out_file import OutFile
from fanfold.cli.run_tree import run_view_for
from fanfold.cli.runs_here import MENDED_INLINE, failure_lines
from fanfold.cli.stopping import run_until_stopped
from fanfold.cli.workflow_endings import Again, end, stopped, told_by
from fanfold.cli.workflow_job import Heard, Launch, Setup, run_job
from fanfold.cli.workflow_named import Project, is_in_project
from fanfold.cli.workflow_output import Output, put_result
from fanfold.contracts.workflow_runs import REPEAT_UNDECIDED
from fanfold.errors import ParkedError, UsageError
from fanfold.workflow.scripts import Script

_MOST_FAILURES = 20


def attend(
    launch: Launch, setup: Setup, console: Console, output: Output, file: OutFile | None, *, allow_failures: bool
) -> None:
    """Run it, and return when all is well.

    Raises:
        WorkflowInputError, UsageError, ConfigError: nothing was started.
        StoppedBySignal: Ctrl-C; the run has ended in order.
        FanfoldError: what the run came to, with its exit code.
    """
    heard, again = Heard(run_view_for(console, output=output)), _again(launch, setup)
    try:
        result = run_until_stopped(run_job(launch, setup, heard, console, is_told=output is None))
    except StoppedBySignal as stop:
        stopped(stop, heard.standing, heard.run_id, again)
        raise
    try:
        put_result(console, output, result, file)
    finally:
        if output is None:
            # What waits for a person is told at the end, with the commands that answer it.
            waits = (ParkedError.code, REPEAT_UNDECIDED) if result.reason == "parked" else ()
            failures = [each for each in result.failures if each.code not in waits]
            for line in failure_lines(failures, _MOST_FAILURES, told_by(result)):
                console.warn(line)
    mended = MENDED_INLINE if launch.is_inline else ()
    end(result, allow_failures=allow_failures, again=again, tools=heard.unanswered, mended=mended)


def _again(launch: Launch, setup: Setup) -> Again:
    def again(verb: str, run_id: str, *more: str) -> str:
        return setup.again(verb, run_id, *(["--only-failed"] if launch.only_failed else []), *more)

    return again


def require_approved(console: Console, project: Project, script: Script, *, is_sure: bool) -> None:
    """Return when the script may run as it stands: it was approved before, or is now.

    Raises:
        UsageError: it is not.
    """
    if not project.registry.needs_approval(script):
        return
    known_as = script.meta.name if is_in_project(script, project) else str(script.path)
    if not is_sure and not run_until_stopped(_asked(console, script, known_as)):
        raise UsageError(f"workflow '{script.meta.name}' was not approved, so nothing was run")
    project.vouch(script)


async def _asked(console: Console, script: Script, known_as: str) -> bool:
    """What a person says, who has been shown which script it is. Raises UsageError: nobody can be asked here."""
    name = script.meta.name
    if not console.may_ask:
        raise UsageError(
            f"workflow '{name}' ({script.path}) is new or has changed since it was approved, and nobody can be asked "
            "here"
        ).with_hint(
            f"look at it with: fanfold workflow show {shlex.quote(known_as)} --source\n"
            f"approve it with: fanfold workflow approve {shlex.quote(known_as)} --yes; or give --yes to run it"
        )
    console.warn(f"{script.path}\nsha256 {script.sha256}")
    return await ask_yes_no(console, f"Let workflow '{name}' run in this process, with all that you may do?")
