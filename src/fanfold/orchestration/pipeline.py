"""pipeline: each item goes through the stages by itself, no barrier between them (seeds 000 and 001)."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from fanfold.contracts.events import event
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.errors import InvalidSpecError, UsageError
from fanfold.orchestration.fanout import fan_out, run_step
from fanfold.orchestration.specs import SpecLike, parse_spec
from fanfold.protocols import AgentExecutor, BudgetGuard, EventSink

STAGE_TIMEOUT_MS = 30_000

StageContext = dict[str, Any]
"""`{"item": the item, "previous": the outcome of the step before or None}`; both are copies."""

Stage = Callable[[StageContext], "SpecLike | Awaitable[SpecLike | None] | None"]


async def execute_pipeline(
    executor: AgentExecutor,
    items: Sequence[Any],
    stages: Sequence[Stage],
    *,
    timeout_ms: int = STAGE_TIMEOUT_MS,
    events: EventSink | None = None,
    ledger: BudgetGuard | None = None,
) -> list[StepOutcome | None]:
    """The last outcome of each item's chain, in input order; None where the first stage gave no spec.

    A stage gets a `StageContext` and returns the next spec, or None to stop the chain. Plain functions run in threads
    of their own, `async def` stages on the loop; both within `timeout_ms`. A stage that raises, takes too long or
    returns no valid spec stops its own chain, and a `pipeline_warning` event says why. A failed step stops its chain
    with that outcome. Concurrency counts chains.

    Raises:
        TypeError: an item that is no JSON data; nothing has started.
    """
    if timeout_ms < 1:
        raise UsageError(f"timeout_ms must be 1 or more, got {timeout_ms}")
    frozen = [msgspec.json.encode(item) for item in items]
    chain = tuple(stages)
    results: dict[int, StepOutcome | None] = {}

    async def advance(index: int) -> None:
        previous: StepOutcome | None = None
        for number, stage in enumerate(chain):
            spec = await _next_spec(stage, _context(frozen[index], previous), timeout_ms, events, index, number)
            if spec is None:
                break
            previous = await run_step(executor, spec, events, ledger)
            if not previous.success:
                break
        results[index] = previous

    await fan_out(len(frozen), executor.concurrency_hint(), advance)
    return [results[index] for index in range(len(frozen))]


def _context(item: bytes, previous: StepOutcome | None) -> StageContext:
    copy = None if previous is None else msgspec.json.decode(msgspec.json.encode(previous), type=StepOutcome)
    return {"item": msgspec.json.decode(item), "previous": copy}


async def _next_spec(
    stage: Stage, context: StageContext, timeout_ms: int, events: EventSink | None, item: int, number: int
) -> AgentStepSpec | None:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            answer = await (stage(context) if inspect.iscoroutinefunction(stage) else _in_thread(stage, context))
        return None if answer is None else parse_spec(answer)
    except TimeoutError:
        why = f"it did not return within {timeout_ms} ms"
    except InvalidSpecError as error:
        why = str(error)
    except Exception as error:  # noqa: BLE001  a stage is the caller's code: its fault ends its own chain only
        why = f"it raised {type(error).__name__}: {error}"
    if events is not None:
        events(event("pipeline_warning", item=item, stage=number, message=f"stage {number} of item {item}: {why}"))
    return None


async def _in_thread(stage: Stage, context: StageContext) -> Any:
    # One daemon thread a call instead of a pool: a stage that never returns is left behind at its timeout, and neither
    # holds a worker that others need nor hangs the interpreter's exit, which joins pool threads.
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    run = contextvars.copy_context().run

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = run(stage, context)
        except Exception as raised:  # noqa: BLE001  handed over to the waiting chain
            error = raised
        except BaseException as raised:  # noqa: BLE001  SystemExit in a callback must not leave the chain waiting
            error = RuntimeError(f"{type(raised).__name__} in a stage")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="fanfold-stage", daemon=True).start()
    return await future
