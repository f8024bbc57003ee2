"""parallel: many steps at once with a barrier at the end, outcomes in input order (seeds 000 and 001)."""

from collections.abc import Sequence
from functools import partial

from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.fanout import fan_out
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.parsing import Parser, parsers_of
from fanfold.orchestration.runner import StepRunner
from fanfold.orchestration.specs import SpecLike, listed, parse_specs
from fanfold.protocols import AgentExecutor, EventSink


async def execute_steps_parallel(
    executor: AgentExecutor,
    specs: Sequence[SpecLike],
    *,
    events: EventSink | None = None,
    ledger: TokenLedger | None = None,
    control: FanOutControl | None = None,
) -> list[StepOutcome]:
    """Run every spec; the outcome at index i is that of spec i. A failed step never stops its siblings.

    Concurrency is the executor's `concurrency_hint()`, at least 1. `ledger` is for executors that do not charge one
    themselves.

    Raises:
        InvalidSpecError: before anything has started.
    """
    asked = listed(specs)
    steps, parsers = parse_specs(asked), parsers_of(asked)
    return await run_all(StepRunner(executor, events=events, ledger=ledger, control=control), steps, parsers)


async def run_all(
    runner: StepRunner,
    steps: Sequence[AgentStepSpec],
    parsers: Sequence[Parser | None],
    identities: Sequence[str] | None = None,
) -> list[StepOutcome]:
    """The outcome of each step, in order, all of them run (or answered from the journal) by `runner`."""
    outcomes: dict[int, StepOutcome] = {}

    async def step(index: int) -> None:
        counts = partial(outcomes.__setitem__, index)
        known = None if identities is None else identities[index]
        await runner.run(steps[index], counts, identity=known, parser=parsers[index])

    await fan_out(len(steps), runner.limit, step)
    await runner.settle()
    return [outcomes[index] for index in range(len(steps))]
