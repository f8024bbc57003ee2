"""Options that several commands share, and the kinds of value they take."""

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fanfold.cli.console import open_console, show_warnings
from fanfold.config.settings import MAX_PARALLEL_TASKS
from fanfold.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([km]?)", re.IGNORECASE)
MODEL_VARIABLE = "FANFOLD_MODEL"
"""Stands for --model."""
_SCALE = {"": 1, "k": 1_000, "m": 1_000_000}
_MOST_TOKENS = 1e15


def token_count(text: str) -> int:
    """The number that `50000`, `50k` or `1.5m` stands for; the `type` of an option."""
    found = _COUNT.fullmatch(text)
    tokens = float(found[1]) * _SCALE[found[2].lower()] if found else 0
    if not 1 <= tokens <= _MOST_TOKENS:
        raise click.BadParameter(f"'{text}' is no number of tokens; write 50000, 50k or 1.5m")
    return round(tokens)


def wait_option(command: Command) -> Command:
    """Gives the command `wait`."""
    return click.option(
        "--wait",
        is_flag=True,
        help="Wait for approvals and answers from other processes (fanfold inbox) instead of parking.",
    )(command)


_FAN_OUT: tuple[Callable[[Any], Any], ...] = (
    click.option("--model", envvar=MODEL_VARIABLE, help="provider/model-id.  [default: the configuration's]"),
    click.option(
        "--concurrency",
        type=click.IntRange(1, MAX_PARALLEL_TASKS),
        metavar="STEPS",
        help="Steps at once.  [default: the configuration's]",
    ),
    click.option("--budget", type=token_count, metavar="TOKENS", help="Start no model call beyond it: 50k, 1.5m."),
    click.option("--allow", multiple=True, metavar="RULE", help="Let agents use a tool: bash, 'bash(git log:*)'."),
    wait_option,
    click.option("--allow-failures", is_flag=True, help="Exit with 0 although some failed."),
)


def console_options(command: Command) -> Command:
    """Gives the command a `console` made from --quiet, --no-color and --no-input."""

    @click.option("--quiet", "-q", is_flag=True, help="No progress and no summary on stderr.")
    @click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same.")
    @click.option("--no-input", is_flag=True, help="Never ask; what would be asked is an error.")
    @functools.wraps(command)
    def with_console(*, quiet: bool, no_color: bool, no_input: bool, **options: Any) -> Any:
        show_warnings()
        return command(console=open_console(no_color=no_color, quiet=quiet, no_input=no_input), **options)

    return with_console  # type: ignore[return-value]


def workspace_option(command: Command) -> Command:
    """--workspace: everything else is read as if the command had been started there."""
    return click.option(
        "--workspace",
        "-C",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_enter,
        help="Work in this directory, as if started there.",
    )(command)


def agent_options(command: Command) -> Command:
    """--workspace, and a `config`."""
    config = click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="agent.acl or agent.toml.  [default: the nearest one]",
    )
    return workspace_option(config(command))


def json_option(command: Command) -> Command:
    """Gives the command `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(command)


def fan_out_options(command: Command) -> Command:
    """`model`, `concurrency`, `budget`, `allow`, `wait` and `allow_failures`."""
    for option in reversed(_FAN_OUT):
        command = option(command)
    return command


def output_options(command: Command) -> Command:
    """Gives the command `output`: `json`, `jsonl` or None."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
    @click.option("--jsonl", "as_jsonl", is_flag=True, help="Each event as a line of JSON on stdout.")
    @functools.wraps(command)
    def with_output(*, as_json: bool, as_jsonl: bool, **options: Any) -> Any:
        if as_json and as_jsonl:
            raise click.UsageError("--json and --jsonl exclude each other")
        return command(output="json" if as_json else "jsonl" if as_jsonl else None, **options)

    return with_output  # type: ignore[return-value]


def _enter(_ctx: click.Context, _param: click.Parameter, directory: Path | None) -> None:
    if directory is not None:
        os.chdir(directory)
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError("the current directory was removed; go to another one, or name one with -C") from error
