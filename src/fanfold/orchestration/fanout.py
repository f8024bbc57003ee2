"""Fan-out: the same work over many indices, bounded, started in order, never orphaned."""

import asyncio
from collections.abc import Awaitable, Callable

from fanfold.contracts.messages import NO_USAGE
from fanfold.contracts.steps import AgentStepSpec, StepOutcome, failed
from fanfold.foreign import call_foreign, described, stop_if_cancelled
from fanfold.protocols import AgentExecutor, BudgetGuard, EventSink


async def fan_out(count: int, limit: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Await `work(0)` ... `work(count - 1)`, at most `limit` at once.

    Admission is lazy: there are as many tasks as slots, not as items, and a freed slot takes the next index at once.
    The first error ends the rest and is raised as it is: its siblings were cancelled because of it.
    """
    indices = iter(range(count))

    async def worker() -> None:
        for index in indices:
            stop_if_cancelled()
            await work(index)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max(1, limit), count)):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def run_step(
    executor: AgentExecutor,
    spec: AgentStepSpec,
    events: EventSink | None,
    ledger: BudgetGuard | None = None,
) -> StepOutcome:
    """One step through the seam; whatever the executor does, the answer is an outcome of this spec.

    `ledger` is for executors that do not charge it themselves: it is asked before the launch and charged with the
    outcome's usage.
    """
    session_id = spec.parent_session_id or ""
    denial = None if ledger is None else ledger.check_before_llm(session_id, 0)
    if denial is not None:
        return failed(spec, f"Task failed: Budget exhausted on '{denial.resource}': {denial.reason}")
    outcome = await call_foreign(
        executor.execute_step(spec, events),
        lambda error: failed(spec, f"parallel branch panicked: {described(error)}"),
    )
    if not isinstance(outcome, StepOutcome) or outcome.task_id != spec.task_id:  # pyright: ignore[reportUnnecessaryIsInstance]
        return failed(spec, f"the executor answered with {_describe(outcome)} instead of the outcome of this step")
    if ledger is not None:
        ledger.record_after_llm(session_id, outcome.usage or NO_USAGE)
    return outcome


def _describe(outcome: object) -> str:
    if isinstance(outcome, StepOutcome):
        return f"the outcome of '{outcome.task_id}'"
    return f"a {type(outcome).__name__}"
