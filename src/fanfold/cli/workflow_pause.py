"""`fanfold workflow pause`."""

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.workflow_ending_runs import end_from_here


@click.command("pause")
@click.argument("run")
@json_option
@workspace_option
@console_options
def command(*, console: Console, run: str, as_json: bool) -> None:
    """End RUN for now, in whichever process it goes on, and wait until it has ended.

    As `stop`, for a run that is to go on later with `fanfold workflow continue`.
    """
    end_from_here(console, run, "pause", as_json=as_json)
