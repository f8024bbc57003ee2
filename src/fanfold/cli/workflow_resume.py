"""`fanfold workflow resume`."""

from pathlib import Path
from typing import Any

import click

from fanfold.cli.workflow_options import run_options
from fanfold.cli.workflow_resuming import Resume, resume
from fanfold.contracts.workflow_runs import RepeatDecision


@click.command("resume")
@click.argument("run")
@click.option("--plan", "is_plan", is_flag=True, help="Show what would run, and why; spend nothing.")
@click.option("--only-failed", is_flag=True, help="Run again what failed, and nothing beside it that is not recorded.")
@click.option("--strict", is_flag=True, help="Refuse it when the script has changed, or the journal is damaged.")
@click.option("--fork", is_flag=True, help="A new run that begins with what RUN has recorded: for other --args.")
@click.option(
    "--repeat",
    type=click.Choice(["rerun", "skip"]),
    help="Run agents again, or leave them out, that were begun before and ask which.",
)
@click.option("--file", type=click.Path(path_type=Path), metavar="PATH.py", help="The script, where it lies elsewhere.")
@run_options
def command(
    *, is_plan: bool, only_failed: bool, strict: bool, fork: bool, repeat: RepeatDecision | None, **rest: Any
) -> None:
    """Go on with RUN, whether it was stopped, paused, killed or has failures: what is recorded is not run again.

    The script runs again from its beginning, with the arguments that it had, and is answered from the journal. It may
    have been edited: only what it asks otherwise is run.
    """
    resume(Resume(is_plan=is_plan, only_failed=only_failed, strict=strict, fork=fork, repeat=repeat), **rest)
