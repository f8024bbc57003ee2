"""`fanfold workflow approve`."""

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, workspace_option
from fanfold.cli.workflow_attend import require_approved
from fanfold.cli.workflow_hazards import find_hazards, finding_line
from fanfold.cli.workflow_named import find_script, open_project
from fanfold.cli.workflow_refusals import refusals
from fanfold.workflow.scripts import Script


@click.command("approve")
@click.argument("name", metavar="NAME|PATH.py")
@click.option("--source", is_flag=True, help="Show its text too.")
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
@workspace_option
@console_options
def command(*, console: Console, name: str, source: bool, is_sure: bool) -> None:
    """Let a script of this project, or of any path, run as it stands now.

    A script runs in fanfold's own process with all that you may do, so look at it first. Each change of it needs
    another approval. They are kept with your own state and not in the project. What `validate` finds is told first.
    """
    with refusals():
        project = open_project()
        script = find_script(name, project)
        if not project.registry.needs_approval(script):
            console.say(f"'{script.meta.name}' needs no approval: it {_why_not(script)}")
            return
        if source:
            console.write(script.text or "")
        for each in find_hazards(script.text or "", script.meta.phases):
            console.warn(finding_line(str(script.path), each))
        require_approved(console, project, script, is_sure=is_sure)
        console.say(f"approved '{script.meta.name}': {script.path}, sha256 {script.sha256}")


def _why_not(script: Script) -> str:
    return "comes with fanfold" if script.kind == "shipped" else "has been approved as it stands"
