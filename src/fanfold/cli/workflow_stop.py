"""`fanfold workflow stop`."""

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.workflow_ending_runs import end_from_here


@click.command("stop")
@click.argument("run")
@json_option
@workspace_option
@console_options
def command(*, console: Console, run: str, as_json: bool) -> None:
    """End RUN, in whichever process it goes on, and wait until it has ended.

    Its agents are cancelled; what they had finished stays recorded, so that it can be resumed.
    """
    end_from_here(console, run, "stop", as_json=as_json)
