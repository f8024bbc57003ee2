"""Who of the workflow runs that go on just now waits for a person: told by their processes, else by their journals."""

from collections.abc import Sequence
from pathlib import Path

from fanfold.contracts.workflow_runs import RunSummary
from fanfold.control.client import look
from fanfold.control.parked_runs import parked_agents
from fanfold.control.waiting import Waiting
from fanfold.errors import FanfoldError
from fanfold.protocols import WorkflowFiles


async def waiting_in(files: WorkflowFiles, runs: Sequence[RunSummary]) -> dict[str, list[Waiting]]:
    """By the id of the run; only runs in which somebody waits. A run of which nothing can be told is left out."""
    if not runs:
        return {}
    told = [each for _, seen in (await look(Path.cwd())).answered for each in seen.waiting]
    found = {run.run_id: await _in_run(files, run, told) for run in runs}
    return {run_id: waiting for run_id, waiting in found.items() if waiting}


async def _in_run(files: WorkflowFiles, run: RunSummary, told: Sequence[Waiting]) -> list[Waiting]:
    live = [each for each in told if each.step is not None and each.step.startswith(f"{run.run_id}-")]
    if live or run.snapshot is None:
        return live
    try:
        return [each for each in await parked_agents(files, run.run_id) if each.process is not None]
    except (FanfoldError, OSError):
        return []
