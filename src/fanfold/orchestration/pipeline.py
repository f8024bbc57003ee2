"""pipeline: each item goes through the stages by itself, no barrier between them (seeds 000 and 001)."""

import asyncio
import contextvars
import inspect
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from fanfold.contracts.events import event
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.errors import InvalidSpecError, UsageError
from fanfold.foreign import call_foreign, described, logger, tolerant
from fanfold.kernel.step_identity import digest
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.fanout import fan_out
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.parsing import parsers_of
from fanfold.orchestration.runner import StepRunner
from fanfold.orchestration.specs import SpecLike, parse_spec
from fanfold.protocols import AgentExecutor, EventSink

STAGE_TIMEOUT_MS = 30_000

StageContext = dict[str, Any]
"""`{"item": the item, "previous": the outcome of the step before or None}`; both are copies."""

Stage = Callable[[StageContext], "SpecLike | Awaitable[SpecLike | None] | None"]


StepSink = Callable[[int, int, StepOutcome], None]
"""Hears each outcome of a chain: index of the item, number of the stage, outcome."""


async def execute_pipeline(
    executor: AgentExecutor,
    items: Sequence[Any],
    stages: Sequence[Stage],
    *,
    timeout_ms: int = STAGE_TIMEOUT_MS,
    events: EventSink | None = None,
    on_step: StepSink | None = None,
    ledger: TokenLedger | None = None,
    control: FanOutControl | None = None,
) -> list[StepOutcome | None]:
    """The last outcome of each item's chain, in input order; None where the first stage gave no spec.

    A stage gets a `StageContext` and returns the next spec, or None to stop the chain. Plain functions run in threads
    of their own, `async def` stages on the loop; both within `timeout_ms`. A stage that raises, takes too long or
    returns no valid spec stops its own chain, and a `pipeline_warning` event says why (a log line, if nobody listens).
    A failed step stops its chain with that outcome. Concurrency counts chains. `on_step` hears every outcome, also
    those that another follows.

    Raises:
        TypeError: an item that is no JSON data; nothing has started.
    """
    runner = StepRunner(executor, events=events, ledger=ledger, control=control)
    return await run_chains(runner, items, stages, timeout_ms=timeout_ms, on_step=on_step)


async def run_chains(
    runner: StepRunner, items: Sequence[Any], stages: Sequence[Stage], *, timeout_ms: int, on_step: StepSink | None
) -> list[StepOutcome | None]:
    """`execute_pipeline` with a runner; the place of a step is `<digest of the item>/<number of the stage>`."""
    if type(timeout_ms) is not int or timeout_ms < 1:
        raise UsageError(f"timeout_ms must be a whole number, 1 or more, got {timeout_ms!r}")
    for number, stage in enumerate(stages):
        if not callable(stage):
            raise UsageError(f"stages[{number}] is a {type(stage).__name__}, not a function of the context")
    frozen = [_frozen(index, item) for index, item in enumerate(items)]
    places = _places(frozen)
    chain = tuple(stages)
    tell = tolerant(on_step or _nobody)
    results: dict[int, StepOutcome | None] = {}

    async def advance(index: int) -> None:
        previous: StepOutcome | None = None
        for number, stage in enumerate(chain):
            answer = await _answer(stage, _context(frozen[index], previous), timeout_ms)
            spec = _next_spec(answer, runner.tell, index, number)
            if spec is None:
                runner.tally.stopped += answer is not None
                break
            [parser] = parsers_of([answer])
            counts = partial(tell, index, number)
            previous = await runner.run(spec, counts, f"{places[index]}/{number}", parser=parser)
            if not previous.success:
                break
        results[index] = previous

    await fan_out(len(frozen), runner.limit, advance)
    await runner.settle()
    return [results[index] for index in range(len(frozen))]


def _nobody(item: int, stage: int, outcome: StepOutcome) -> None:
    return None


def _places(frozen: Sequence[bytes]) -> list[str]:
    """Of the items by what they are, so that they may be moved; of equal ones the second, third, ... have a number."""
    seen: Counter[str] = Counter()
    places: list[str] = []
    for item in frozen:
        key = digest(item)
        seen[key] += 1
        places.append(key if seen[key] == 1 else f"{key}~{seen[key]}")
    return places


def _frozen(index: int, item: Any) -> bytes:
    try:
        return json.dumps(item, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"items[{index}] is no JSON data: {error}") from error


def _context(item: bytes, previous: StepOutcome | None) -> StageContext:
    copy = None if previous is None else msgspec.json.decode(msgspec.json.encode(previous), type=StepOutcome)
    return {"item": msgspec.json.decode(item), "previous": copy}


async def _answer(stage: Stage, context: StageContext, timeout_ms: int) -> Any:
    """What the stage returned, or what became of it as `_Raised`."""
    timer = asyncio.timeout(timeout_ms / 1000)
    answer = await call_foreign(_called(stage, context, timer), _Raised)
    if isinstance(answer, _Raised) and timer.expired():
        return _Raised(answer.error, f"it did not return within {timeout_ms} ms")
    return answer


def _next_spec(answer: Any, tell: EventSink | None, item: int, number: int) -> AgentStepSpec | None:
    """The spec in a stage's answer; None, and a warning that says why, where there is none."""
    if answer is None:
        return None
    raised = None
    if isinstance(answer, _Raised):
        raised = None if answer.why else answer.error
        why = answer.why or f"it raised {described(answer.error)}"
    else:
        try:
            return parse_spec(answer)
        except InvalidSpecError as error:
            why = str(error)
    message = f"stage {number} of item {item}: {why}"
    if tell is None:
        logger.warning(message, exc_info=raised)
    else:
        tell(event("pipeline_warning", item=item, stage=number, message=message))
    return None


class _Raised(msgspec.Struct, frozen=True):
    error: BaseException
    why: str = ""


async def _called(stage: Stage, context: StageContext, timer: asyncio.Timeout) -> Any:
    async with timer:
        work: Any = stage(context) if _is_async(stage) else _in_thread(stage, context)
        return await work


def _is_async(stage: Stage) -> bool:
    return inspect.iscoroutinefunction(stage) or inspect.iscoroutinefunction(getattr(stage, "__call__", None))  # noqa: B004


async def _in_thread(stage: Stage, context: StageContext) -> Any:
    # One daemon thread a call instead of a pool: a stage that never returns is left behind at its timeout, and neither
    # holds a worker that others need nor hangs the interpreter's exit, which joins pool threads.
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    run = contextvars.copy_context().run

    def settle(answer: Any) -> None:
        if not future.done():
            future.set_result(answer)

    def work() -> None:
        try:
            answer: Any = run(stage, context)
        except BaseException as error:  # noqa: BLE001  also SystemExit: it must not leave the chain waiting
            answer = _Raised(error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, answer)

    threading.Thread(target=work, name="fanfold-stage", daemon=True).start()
    return await future
