"""`fanfold approve`: let a tool call run that waits for an approval."""

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.settling import settle
from fanfold.session.inbox import Approval


@click.command("approve")
@click.argument("id")
@json_option
@workspace_option
@console_options
def command(*, console: Console, id: str, as_json: bool) -> None:
    """Approve the tool call ID of `fanfold inbox`; the end of an id is enough while no other has it.

    A run that waits goes on at once, in whichever process it is. For what was left parked the approval is
    recorded, and the command says how to go on.
    """
    settle(console, id, lambda waiting: Approval(True), "approval", as_json=as_json)
