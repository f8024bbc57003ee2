"""`fanfold doctor`: what is there on this machine, what is missing, and what that means."""

import os
from pathlib import Path

import click

from fanfold.cli.checks import all_checks
from fanfold.cli.console import Console
from fanfold.cli.exit_codes import ExitCode
from fanfold.cli.options import agent_options, console_options, json_option

_MARKS = {"ok": "ok     ", "missing": "missing", "bad": "BAD    "}


@click.command("doctor")
@json_option
@agent_options
@console_options
@click.pass_context
def command(ctx: click.Context, *, console: Console, as_json: bool, config: Path | None) -> None:
    """Look for what is missing. Exit code 3 when the configuration cannot be used.

    Nothing is sent anywhere and no key is shown.
    """
    checks = list(all_checks(config, os.environ))
    if as_json:
        found = [{"name": check.name, "status": check.status, "detail": check.detail} for check in checks]
        console.write_json({"schema": "fanfold/doctor/v1", "checks": found})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            console.write(f"{_MARKS[check.status]}  {check.name:<{width}}  {check.detail}\n")
    if any(check.status == "bad" for check in checks):
        ctx.exit(ExitCode.CONFIG)
