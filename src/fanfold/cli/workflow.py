"""`fanfold workflow`: scripts that direct many agents, run, resumed and looked at."""

import click

from fanfold.cli.lazy_group import LazyGroup

_COMMANDS = {
    "list": ("fanfold.cli.workflow_list", "The workflows that can be run by name."),
    "show": ("fanfold.cli.workflow_show", "What a workflow does, what it takes, and its source."),
    "validate": ("fanfold.cli.workflow_validate", "Read a script without running it, and name its faults."),
    "approve": ("fanfold.cli.workflow_approve", "Vouch for a script of this project as it stands now."),
    "run": ("fanfold.cli.workflow_run", "Run a workflow; what it returns on stdout."),
    "resume": ("fanfold.cli.workflow_resume", "Go on with a run: what it has finished is not run again."),
    "continue": ("fanfold.cli.workflow_continue", "Go on with a run that is paused."),
    "pause": ("fanfold.cli.workflow_pause", "End a run for now, in whichever process it goes on."),
    "stop": ("fanfold.cli.workflow_stop", "End a run, in whichever process it goes on."),
}


@click.group("workflow", cls=LazyGroup, commands_by_name=_COMMANDS)
def command() -> None:
    """Run workflows: scripts that direct many agents, are recorded as they go, and can be resumed.

    NAME is a workflow of this project (.a3s/workflows/*.py) or one that comes with fanfold. RUN is the id of a run,
    its beginning, or the first or last of its digits.
    """
