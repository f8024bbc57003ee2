"""The work behind `fanfold parallel`: opens what is needed, runs the steps, tells the view when each has ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from fanfold.cli.console import Console
from fanfold.cli.opening import open_agent, open_session, open_store, require_models, require_roles
from fanfold.cli.progress import View
from fanfold.cli.results import Row, row_of
from fanfold.cli.serving import served
from fanfold.cli.tally import Tally
from fanfold.cli.waiting_note import WaitingNote
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, BudgetSnapshot, ParallelResult, StepOutcome
from fanfold.contracts.workflow import ResumePlan
from fanfold.errors import StepChangedError
from fanfold.kernel.step_identity import step_identity
from fanfold.options import SessionOptions
from fanfold.orchestration.journal import read_journal
from fanfold.orchestration.plan import plan_resume
from fanfold.protocols import EventSink
from fanfold.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    steps: Sequence[AgentStepSpec]
    workflow: str | None
    """Where finished steps are kept; None: nowhere."""
    strict: bool
    config: Path | None
    model: str | None
    concurrency: int | None
    budget: int | None
    allow: Sequence[str]
    wait: bool
    """For approvals and answers from other processes."""

    @property
    def meant(self) -> list[AgentStepSpec]:
        """The steps with --model in them: it is part of what was asked, so other answers than its own do not count."""
        return [replace(step, model=self.model) if step.model is None else step for step in self.steps]


async def run_job(
    job: Job, view: View, tally: Tally, console: Console, *, is_told: bool
) -> tuple[list[StepOutcome], BudgetSnapshot | None]:
    """The outcomes in the order of the steps. `view` is open, and hears everything, while the work goes on.

    Raises:
        UsageError, ConfigError, AlreadyActiveError, CheckpointRefusedError: before any step has run.
        LogWriteError: a finished step could not be recorded; those before it are.
    """
    approvals: Literal["park", "refuse"] = "park" if job.wait else "refuse"
    options = SessionOptions(model=job.model, max_parallel_tasks=job.concurrency, approvals=approvals)
    async with open_store() as store, await open_agent(job.config) as agent:
        await require_models(agent, ((f"specs[{index}].model", step.model) for index, step in enumerate(job.steps)))
        recorded: dict[str, StepOutcome] = {}
        if job.workflow is not None:
            succeeded = (await read_journal(store, job.workflow)).succeeded
            recorded = {place: end.outcome for place, end in succeeded.items()}
        options = options.merged(session_store=store)
        async with (
            await open_session(agent, job.allow, options) as session,
            served(session, console, known_as=job.workflow, is_needed=job.wait, is_told=is_told),
            view,
        ):
            require_roles(session, ((f"specs[{index}].agent", step.agent) for index, step in enumerate(job.steps)))
            note = WaitingNote(job.workflow or session.session_id, session.session_id)
            progress = _Progress(job.steps, recorded, view, tally, note if job.wait and is_told else None)
            outcomes, spent = await _outcomes(session, job, progress)
            progress.finish_rest(outcomes)
    return outcomes, spent


async def _outcomes(
    session: Session, job: Job, progress: "_Progress"
) -> tuple[list[StepOutcome], BudgetSnapshot | None]:
    if job.workflow is None:
        result = await session.parallel_async(job.meant, job.budget, events=progress.event)
    else:
        result = await session.parallel_resumable_async(
            job.meant, job.workflow, strict=job.strict, budget_tokens=job.budget, events=progress.event
        )
    return (result.outcomes, result.budget) if isinstance(result, ParallelResult) else (result, None)


async def plan_job(job: Job, workflow: str) -> ResumePlan:
    """What `run_job` would do. No agent is opened and no model is configured for it."""
    async with open_store() as store:
        return await plan_resume(store, job.meant, workflow)


async def refuse_changed(job: Job, workflow: str) -> None:
    """Raises StepChangedError where `run_job` would for --strict."""
    async with open_store() as store:
        recorded = (await read_journal(store, workflow)).succeeded
    known = [(step, recorded[step.task_id].identity) for step in job.meant if step.task_id in recorded]
    changed = [step.task_id for step, identity in known if identity != step_identity(step)]
    if changed:
        raise StepChangedError(workflow_id=workflow, task_ids=changed).with_hint("without --strict they run again")


class _Progress:
    """Makes one row of each step that ends, and tells it to the view."""

    def __init__(
        self,
        steps: Sequence[AgentStepSpec],
        recorded: Mapping[str, StepOutcome],
        view: View,
        tally: Tally,
        note: EventSink | None,
    ) -> None:
        self._note = note
        self._recorded = recorded
        self._view = view
        self._tally = tally
        self._retries_left = {step.task_id: step.retries or 0 for step in steps}
        self._started: set[str] = set()
        self._cached: set[str] = set()
        self._ended: set[str] = set()

    def event(self, item: AgentEvent) -> None:
        self._view.event(item)
        if self._note is not None:
            self._note(item)
        payload = item.payload
        match item.type:
            case "subagent_start":
                self._started.add(payload["task_id"])
            case "step_retry":
                self._retries_left[payload["task_id"]] -= 1
            case "step_cached":
                self._cached.add(payload["task_id"])
                if payload["place"] in self._recorded:
                    self._finish(row_of(payload["task_id"], self._recorded[payload["place"]], is_cached=True))
            case "subagent_end" if self._is_final(payload):
                self._finish(_row_of_end(payload))
            case _:
                pass

    def finish_rest(self, outcomes: Sequence[StepOutcome]) -> None:
        """What no event told the end of, as when a step could not even start."""
        for outcome in outcomes:
            task_id = outcome.task_id
            if task_id not in self._ended:
                self._tally.never_started += task_id not in self._started | self._cached
                self._finish(row_of(task_id, outcome, is_cached=task_id in self._cached))

    def _is_final(self, end: JsonObject) -> bool:
        if end["output"] == CANCELLED:
            return False  # by its time limit, perhaps; its outcome will say
        return end["success"] or self._retries_left[end["task_id"]] == 0

    def _finish(self, row: Row) -> None:
        self._ended.add(row.item)
        self._view.finish(row)


def _row_of_end(end: JsonObject) -> Row:
    return Row(
        item=end["task_id"],
        success=end["success"],
        output=end["output"],
        total_tokens=end["usage"]["total_tokens"],
        seconds=(end["duration_ms"] or 0) / 1000,
    )
