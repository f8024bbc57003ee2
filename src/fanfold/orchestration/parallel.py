"""parallel: many steps at once with a barrier at the end, outcomes in input order (seeds 000 and 001)."""

from collections.abc import Sequence

from fanfold.contracts.steps import StepOutcome
from fanfold.foreign import tolerant
from fanfold.orchestration.fanout import fan_out, run_step
from fanfold.orchestration.specs import SpecLike, parse_specs
from fanfold.protocols import AgentExecutor, BudgetGuard, EventSink


async def execute_steps_parallel(
    executor: AgentExecutor,
    specs: Sequence[SpecLike],
    *,
    events: EventSink | None = None,
    ledger: BudgetGuard | None = None,
) -> list[StepOutcome]:
    """Run every spec; the outcome at index i is that of spec i. A failed step never stops its siblings.

    Concurrency is the executor's `concurrency_hint()`, at least 1.

    Raises:
        InvalidSpecError: before anything has started.
    """
    steps = parse_specs(specs)
    listener = None if events is None else tolerant(events)
    outcomes: dict[int, StepOutcome] = {}

    async def step(index: int) -> None:
        outcomes[index] = await run_step(executor, steps[index], listener, ledger)

    await fan_out(len(steps), executor.concurrency_hint(), step)
    return [outcomes[index] for index in range(len(steps))]
