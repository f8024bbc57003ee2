"""`fanfold runs`: the workflow runs of a workspace, also those of processes that are gone."""

import click

from fanfold.cli.lazy_group import LazyGroup

_COMMANDS = {
    "list": ("fanfold.cli.runs_list", "The runs of this workspace, the latest first."),
    "show": ("fanfold.cli.runs_show", "One run: how it stands, and what its agents came to."),
    "diff": ("fanfold.cli.runs_diff", "What two runs did and gave differently."),
    "delete": ("fanfold.cli.runs_delete", "Forget runs that have ended."),
    "prune": ("fanfold.cli.runs_prune", "Delete the old ones of those that have ended."),
}


@click.group("runs", cls=LazyGroup, commands_by_name=_COMMANDS)
def command() -> None:
    """List, show, compare and delete the workflow runs of a workspace.

    RUN is the id of a run, its beginning, or the first or last of its digits.
    """
