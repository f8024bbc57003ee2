"""`fanfold log`: check the fact logs of a workspace, and set aside what is damaged."""

from pathlib import Path

import click

from fanfold.cli.console import Console
from fanfold.cli.endings import NotThereError
from fanfold.cli.exit_codes import ExitCode
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.kernel.counted import counted
from fanfold.live_sessions import LOG_DIRECTORY
from fanfold.stores import repair as logs
from fanfold.stores.thread_name import file_name


@click.group("log")
def command() -> None:
    """Check and repair the fact logs."""


@command.command("check")
@click.argument("thread")
@json_option
@workspace_option
@console_options
@click.pass_context
def check_log(ctx: click.Context, *, console: Console, thread: str, as_json: bool) -> None:
    """Read the whole log of THREAD (a session id) and name each fault. Exit code 1 when there are any."""
    report = logs.check(_path(thread))
    if as_json:
        console.write_json({"schema": "fanfold/log-check/v1", **report.to_dict()})
    else:
        for problem in report.problems:
            console.write(f"{report.path}:{problem.line}: {problem.reason}\n")
        console.say(f"{counted(report.good_facts, 'good fact')}, {counted(len(report.problems), 'problem')}")
        if report.is_self_healing:
            console.say("hint: only the end is torn; the next run of this session sets it aside by itself")
        elif report.problems:
            console.say(f"hint: keep the good facts and move the rest aside with: fanfold log repair {thread}")
    if report.problems:
        ctx.exit(ExitCode.FAILED)


@command.command("repair")
@click.argument("thread")
@json_option
@workspace_option
@console_options
def repair_log(*, console: Console, thread: str, as_json: bool) -> None:
    """Keep the facts of THREAD up to its first fault, and move the rest to a file beside it."""
    report = logs.repair(_path(thread))
    if as_json:
        console.write_json({"schema": "fanfold/log-repair/v1", **report.to_dict()})
    elif report.moved_to is None:
        console.write(f"nothing to repair: all {report.kept_facts} facts are good\n")
    else:
        console.write(f"kept {report.kept_facts} facts, moved {report.moved_lines} lines to {report.moved_to}\n")


def _path(thread: str) -> Path:
    path = LOG_DIRECTORY / file_name(thread)
    if not path.is_file():
        raise NotThereError(f"there is no log of '{thread}' here; see: fanfold sessions list")
    return path
