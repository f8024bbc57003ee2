"""`fanfold workflow run`."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from fanfold.cli.console import Console
from fanfold.cli.out_file import OutFile
from fanfold.cli.workflow_args import parse_arguments
from fanfold.cli.workflow_attend import attend, require_approved
from fanfold.cli.workflow_job import Launch, Setup
from fanfold.cli.workflow_named import find_script, is_in_project, open_project, read_script_text
from fanfold.cli.workflow_options import run_options
from fanfold.cli.workflow_output import Output
from fanfold.cli.workflow_refusals import refusals
from fanfold.errors import WorkflowInputError
from fanfold.workflow.scripts import read_script


@click.command("run")
@click.argument("name", metavar="NAME|PATH.py", required=False)
@click.option("--inline", type=click.Path(path_type=Path), metavar="PATH", help="A script for the sandbox instead.")
@run_options
def command(
    *,
    console: Console,
    setup: Setup,
    output: Output,
    output_file: OutFile | None,
    allow_failures: bool,
    is_sure: bool,
    arguments: Sequence[str],
    name: str | None,
    inline: Path | None,
) -> None:
    """Run a workflow; progress on stderr, what it returns on stdout.

    \b
    fanfold workflow run review-changes --args @change.json --budget 500k
    fanfold workflow run .a3s/workflows/audit.py --args area=src --args depth=2

    What its agents finish is recorded as it goes. Stopped, killed, paused or failed, `fanfold workflow resume RUN`
    goes on, and pays for nothing twice.
    """
    with refusals():
        project = open_project()
        if inline is not None and name is None:
            script = read_script(read_script_text(inline), "inline")
        elif name is not None and inline is None:
            script = find_script(name, project)
            require_approved(console, project, script, is_sure=is_sure)
        else:
            raise click.UsageError("give either a NAME, a PATH.py or --inline PATH")
        launch = Launch(
            name=None if script.kind == "inline" else script.meta.name,
            script=None if is_in_project(script, project) else script,
            is_inline=script.kind == "inline",
            args=parse_arguments(arguments, script.meta.args_schema),
        )
        try:
            attend(launch, setup, console, output, output_file, allow_failures=allow_failures)
        except WorkflowInputError as error:
            if error.code == "bad_args" and launch.name is not None:
                raise error.with_hint(
                    f"what it takes: fanfold workflow show {shlex.quote(name or launch.name)}"
                ) from None
            raise
