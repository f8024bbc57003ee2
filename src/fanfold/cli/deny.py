"""`fanfold deny`: a tool call that waits for an approval does not run."""

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.settling import settle
from fanfold.session.inbox import Approval


@click.command("deny")
@click.argument("id")
@click.option("--reason", default="", metavar="TEXT", help="Why; the model reads it.")
@json_option
@workspace_option
@console_options
def command(*, console: Console, id: str, reason: str, as_json: bool) -> None:
    """Deny the tool call ID of `fanfold inbox`: it never runs, and its turn is over. IDs as for approve."""
    settle(console, id, lambda waiting: Approval(False, reason), "approval", as_json=as_json)
