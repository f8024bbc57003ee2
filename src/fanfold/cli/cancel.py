"""`fanfold cancel`: stop a run under way, or one step of a fan-out."""

import asyncio

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.reaching import live_target
from fanfold.control import client, wire


@click.command("cancel")
@click.argument("target", metavar="SESSION[/STEP]")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@json_option
@workspace_option
@console_options
def command(*, console: Console, target: str, reason: str, as_json: bool) -> None:
    """Stop the run of SESSION, or all steps of a fan-out, or one STEP of it, which counts as failed then.

    SESSION is a session's id, or the id of the workflow that `parallel --workflow` or `map` runs.
    """
    done, step = asyncio.run(_cancel(target, reason))
    receipt = None if done.receipt is None else done.receipt.to_dict()
    if as_json:
        told = {} if receipt is None else {"receipt": receipt}
        console.write_json({"schema": "fanfold/cancel/v1", **told, "cancelled": done.cancelled})
    elif step is not None:
        console.say(f"the step '{step}' is being cancelled")
    else:
        console.say(f"'{target}' is being cancelled")


async def _cancel(target: str, reason: str) -> tuple[wire.Done, str | None]:
    one, step = await live_target(target)
    request = wire.Cancel(session=one.session.name, step=step, reason=reason)
    return await client.ask(one.server, request), step
