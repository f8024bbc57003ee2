"""`fanfold steer`: a further instruction for a run under way."""

import asyncio
import sys

import click

from fanfold.cli.console import Console
from fanfold.cli.going_on import command_for
from fanfold.cli.named_input import STDIN, read_stdin
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.reaching import live_session
from fanfold.control import client, wire


@click.command("steer")
@click.argument("session")
@click.argument("text")
@click.option("--request-id", metavar="ID", help="Sent again with the same one, it is not told twice.")
@json_option
@workspace_option
@console_options
def command(*, console: Console, session: str, text: str, request_id: str | None, as_json: bool) -> None:
    """Tell TEXT to the run of SESSION: its next model call reads it as a message of the user; `-` reads stdin."""
    given = read_stdin(sys.stdin.buffer) if text == STDIN else text
    done = asyncio.run(_steer(session, given, request_id))
    receipt = None if done.receipt is None else done.receipt.to_dict()
    if as_json:
        console.write_json({"schema": "fanfold/steer/v1", "receipt": receipt})
    else:
        state = "accepted" if done.receipt is None else done.receipt.state
        console.say(f"{state}: the next model call of '{session}' reads it")


async def _steer(session: str, text: str, request_id: str | None) -> wire.Done:
    one = await live_session(session, f"give it a prompt: {command_for(session)} PROMPT")
    request = wire.Steer(session=one.session.name, text=text, request_id=request_id)
    return await client.ask(one.server, request)
