"""parallel_resumable: parallel with a journal, so that whoever calls it again runs only what is not finished."""

import asyncio
from collections.abc import Sequence

from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.env import HostEnv
from fanfold.errors import StepChangedError
from fanfold.kernel.step_identity import step_identity
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.journal import WorkflowJournal
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.parallel import run_all
from fanfold.orchestration.parsing import Parser, parsers_of
from fanfold.orchestration.runner import StepRunner
from fanfold.orchestration.specs import SpecLike, listed, parse_specs
from fanfold.protocols import AgentExecutor, EventSink, SessionStore


async def execute_steps_parallel_resumable(
    executor: AgentExecutor,
    specs: Sequence[SpecLike],
    workflow_id: str,
    store: SessionStore,
    *,
    strict: bool = False,
    events: EventSink | None = None,
    ledger: TokenLedger | None = None,
    charges_ledger: bool = False,
    control: FanOutControl | None = None,
    env: HostEnv | None = None,
) -> list[StepOutcome]:
    """`execute_steps_parallel`, each finished step recorded in `store` before it counts (seed 001).

    Called again with the same `workflow_id`, here or on another node, it answers the recorded successes from the
    journal, lets interrupted steps go on from their last recorded turn, and runs the rest. Full success removes the
    journal, unless it holds steps that this call does not have. A step whose meaning changed under its `task_id` runs
    again, and a `step_changed` event says so. What earlier calls spent counts in `ledger`, which is charged here unless
    the executor itself `charges_ledger`.

    Raises:
        InvalidSpecError: before anything has started; so do all of these:
        AlreadyActiveError: somebody runs this workflow just now.
        CheckpointRefusedError: its journal cannot be trusted.
        StepChangedError: `strict`, and a recorded step has another meaning now.
        StorageError: a finished step could not be recorded; those before it are.
    """
    asked = listed(specs)
    steps, parsers = parse_specs(asked), parsers_of(asked)
    journal = await WorkflowJournal.open(store, workflow_id, env or HostEnv())
    is_over = False
    try:
        if ledger is not None:
            ledger.carry_over(journal.view.spent)
        charged = None if charges_ledger else ledger
        runner = StepRunner(executor, events=events, ledger=charged, control=control, journal=journal)
        outcomes = await run_recorded(runner, journal, steps, parsers, strict=strict)
        is_over = bool(outcomes) and all(outcome.success for outcome in outcomes) and not journal.holds_more
    finally:
        await asyncio.shield(journal.close(is_over=is_over))
    return outcomes


async def run_recorded(
    runner: StepRunner,
    journal: WorkflowJournal,
    steps: Sequence[AgentStepSpec],
    parsers: Sequence[Parser | None],
    *,
    strict: bool,
) -> list[StepOutcome]:
    """`run_all` over the steps, what `journal` has finished being answered from it."""
    identities = [step_identity(spec) for spec in steps]
    places = [runner.scope + spec.task_id for spec in steps]
    waiting = [index for index, place in enumerate(places) if journal.finished(place, identities[index]) is None]
    if strict:
        changed = [steps[index].task_id for index in waiting if places[index] in journal.view.succeeded]
        if changed:
            raise StepChangedError(workflow_id=journal.view.workflow_id, task_ids=changed)
    journal.ask(runner.scope, [steps[index] for index in waiting])
    return await run_all(runner, steps, parsers, identities)
