"""Options that the commands share which run a workflow."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fanfold.cli.options import Command, agent_options, console_options, fan_out_options, output_options
from fanfold.cli.workflow_job import Setup, place_in
from fanfold.cli.workflow_output import open_output

_MOST_AGENTS = 1_000_000
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--args",
        "arguments",
        multiple=True,
        metavar="KEY=VALUE|@FILE|JSON",
        help="Its arguments: key=value, @file.json or '{\"key\": ...}'; may be repeated.",
    ),
    click.option(
        "--max-agents",
        type=click.IntRange(1, _MOST_AGENTS),
        metavar="N",
        help="Launch no more agents than these.  [default: 1000]",
    ),
    fan_out_options,
    click.option(
        "--output", "output_file", type=click.Path(path_type=Path), metavar="FILE", help="Also write the result there."
    ),
    click.option("--yes", "-y", "is_sure", is_flag=True, help="Approve a script that is new or has changed."),
    output_options,
    agent_options,
    console_options,
)


def run_options(command: Command) -> Command:
    """Gives the command `setup`, `arguments`, `output`, `output_file`, `is_sure`, `allow_failures` and `console`."""

    @click.pass_obj
    @functools.wraps(command)
    def with_setup(
        typed: str,
        /,
        *,
        config: Path | None,
        model: str | None,
        concurrency: int | None,
        max_agents: int | None,
        budget: int | None,
        allow: tuple[str, ...],
        wait: bool,
        output_file: Path | None,
        **options: Any,
    ) -> Any:
        setup = Setup(
            config=config,
            model=model,
            concurrency=concurrency,
            max_agents=max_agents,
            budget=budget,
            allow=allow,
            wait=wait,
            place=place_in(typed),
        )
        file = None if output_file is None else open_output(output_file)
        return command(setup=setup, output_file=file, **options)

    wrapped: Any = with_setup
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]
