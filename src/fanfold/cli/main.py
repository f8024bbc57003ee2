"""The `fanfold` command: finds the sub-command, and turns however it ends into a message and an exit code."""

import io
import json
import os
import shlex
import sys
from collections.abc import Sequence

import click

from fanfold import __version__
from fanfold.cli import process
from fanfold.cli.endings import StoppedBySignal, WaitingError
from fanfold.cli.exit_codes import ExitCode, exit_code_of
from fanfold.cli.hints import hint_of
from fanfold.cli.lazy_group import LazyGroup
from fanfold.cli.safe_text import printable
from fanfold.errors import FanfoldError

DEBUG = "FANFOLD_DEBUG"
"""Set to 1, every error shows its traceback."""

_COMMANDS = {
    "init": ("fanfold.cli.init", "Write a configuration to start from."),
    "run": ("fanfold.cli.run", "One prompt to one agent; its answer on stdout."),
    "map": ("fanfold.cli.map", "One agent step, or a chain of them, over many items in parallel."),
    "parallel": ("fanfold.cli.parallel", "Run the steps of a JSON file in parallel."),
    "workflow": ("fanfold.cli.workflow", "Run scripts that direct many agents, and go on with their runs."),
    "review": ("fanfold.cli.review", "Review the changes of a git repository."),
    "runs": ("fanfold.cli.runs", "List, show, compare and delete the runs of workflows."),
    "ps": ("fanfold.cli.ps", "The workflow runs that go on just now."),
    "logs": ("fanfold.cli.logs", "What a workflow run tells, while it goes on or afterwards."),
    "inbox": ("fanfold.cli.inbox", "List what waits for an approval or an answer, of all that runs here or is parked."),
    "approve": ("fanfold.cli.approve", "Let a tool call of the inbox run."),
    "deny": ("fanfold.cli.deny", "Keep a tool call of the inbox from running."),
    "answer": ("fanfold.cli.answer", "Answer a question of the inbox."),
    "steer": ("fanfold.cli.steer", "Tell a run under way a further instruction."),
    "cancel": ("fanfold.cli.cancel", "Stop a run under way, or one step of a fan-out."),
    "checkpoints": ("fanfold.cli.checkpoints", "List, show and delete what resumable work has finished."),
    "sessions": ("fanfold.cli.sessions", "List and show the sessions of a workspace."),
    "log": ("fanfold.cli.log", "Check and repair the fact logs."),
    "models": ("fanfold.cli.models", "List the models that can be named."),
    "doctor": ("fanfold.cli.doctor", "Look for what is missing on this machine."),
    "version": ("fanfold.cli.version", "Print the version."),
}

_TOLD_IN_WORDS = (
    FanfoldError,
    OSError,
    click.ClickException,
    click.Abort,
    KeyboardInterrupt,
    StoppedBySignal,
)
"""Ends that get a message. Anything else is a bug of ours, and its traceback is wanted."""


def _print_version(ctx: click.Context, _param: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        click.echo(f"fanfold {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    commands_by_name=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has --help. Exit codes: 0 done, 1 failed, 2 usage, 3 configuration, 4 not found, "
    "5 waits for an approval or answer, 6 budget, 7 some steps failed, 8 busy, 130 and 143 stopped.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
def cli() -> None:
    """Fan out agents, fold the log."""


def main() -> None:
    """Run this process's command line and exit."""
    process.use_utf8()
    process.open_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code."""
    try:
        process.require_text(arguments)
        # Without its standalone mode click gives back the code of `ctx.exit`; our commands return nothing.
        typed = shlex.join(["fanfold", *arguments])
        code: int | None = cli.main(list(arguments), prog_name="fanfold", standalone_mode=False, obj=typed)
        sys.stdout.flush()
        return code or ExitCode.DONE
    except _TOLD_IN_WORDS as error:
        if isinstance(error, OSError) and error.filename == process.STDOUT:
            process.forget_stdout()
        if isinstance(error, BrokenPipeError):
            return ExitCode.FAILED
        if os.environ.get(DEBUG) == "1":
            raise
        _report(error, as_json=_wants_json(arguments))
        return exit_code_of(error)


def _report(error: BaseException, *, as_json: bool) -> None:
    """Say on stderr what went wrong and what can be done, for people or as one JSON object."""
    message = _message(error)
    hint = hint_of(error)
    if as_json:
        details = error.details if isinstance(error, WaitingError) else {}
        text = json.dumps({"code": _code(error), "message": message, "hint": hint, **details})
    elif isinstance(error, click.ClickException):
        shown = io.StringIO()
        error.show(shown)  # with the usage of the command
        text = printable(shown.getvalue()).rstrip("\n")
    else:
        text = printable(f"fanfold: {message}" + (f"\nhint: {hint}" if hint else ""))
    print(text, file=sys.stderr)


def _message(error: BaseException) -> str:
    match error:
        case click.ClickException():
            return error.format_message()
        case StoppedBySignal():
            return error.message
        case KeyboardInterrupt() | click.Abort():
            return "stopped"
        case OSError() if error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        case _:
            return str(error)


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, FanfoldError) else exit_code_of(error).name


def _wants_json(arguments: Sequence[str]) -> bool:
    # The words themselves, for when they could not be parsed the options are not known.
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return not {"--json", "--jsonl"}.isdisjoint(options)
