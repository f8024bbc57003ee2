"""`fanfold workflow continue`."""

from typing import Any

import click

from fanfold.cli.workflow_options import run_options
from fanfold.cli.workflow_resuming import Resume, resume


@click.command("continue")
@click.argument("run")
@run_options
def command(**rest: Any) -> None:
    """Go on with a run that is paused: by somebody, its budget, the provider, or for want of an approval."""
    resume(Resume(must_be_paused=True), file=None, **rest)
