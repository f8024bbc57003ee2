"""`fanfold workflow list`."""

import click

from fanfold.cli.console import Console
from fanfold.cli.options import console_options, json_option, workspace_option
from fanfold.cli.render import table
from fanfold.cli.runs_here import elsewhere
from fanfold.cli.workflow_named import open_project
from fanfold.contracts.workflow_runs import WorkflowInfo


@click.command("list")
@json_option
@workspace_option
@console_options
def command(*, console: Console, as_json: bool) -> None:
    """The workflows of this project (.a3s/workflows/*.py), and those that come with fanfold."""
    found = open_project().registry.all()
    if as_json:
        listed = [info.to_dict() for info in found]
        console.write_json({"schema": "fanfold/workflows/v1", "workflows": listed})
    elif not found:
        console.say("there are no workflows here")
    else:
        rows = [[info.name, info.kind, state_of(info), info.description] for info in found]
        console.write(table(["name", "kind", "state", "description"], rows, width=console.out_width))
        if where := elsewhere("fanfold workflow list"):
            console.say(f"those of the project above are not listed here{where}")


def state_of(info: WorkflowInfo) -> str:
    if info.problem is not None:
        return f"broken: {info.problem}"
    return "needs approval" if info.needs_approval else "ready"
