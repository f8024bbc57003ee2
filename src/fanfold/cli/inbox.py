"""`fanfold inbox`: what waits for a person here."""

import asyncio

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.runs_here import elsewhere
from fanfold.cli.waiting_here import look_here
from fanfold.cli.waiting_text import waiting_json, waiting_text


@click.command("inbox")
@json_option
@workspace_option
@console_options
def command(*, console: Console, as_json: bool) -> None:
    """List the tool calls that wait for an approval and the questions that wait for an answer: those of all
    commands and programs that run here just now, and those that were left parked. Oldest first.
    """
    here = asyncio.run(look_here())
    if as_json:
        listed = [waiting_json(each) for each in here.waiting]
        console.write_json({"schema": "fanfold/inbox/v1", "waiting": listed, "notes": here.notes})
        return
    here.tell(console)
    if not here.waiting:
        console.say(f"nothing waits here{elsewhere('fanfold inbox')}")
    console.write("\n".join(waiting_text(each) for each in here.waiting))
