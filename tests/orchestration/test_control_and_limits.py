"""Laws of cancelling, of `timeout_ms` and `retries`, and of the ledger under wide fan-out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.governance import BudgetDenial
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, StepOutcome, failed
from fanfold.errors import InvalidSpecError, UsageError
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.ledger import Reservation, TokenLedger
from fanfold.orchestration.parallel import execute_steps_parallel
from fanfold.orchestration.pipeline import execute_pipeline
from fanfold.orchestration.specs import parse_specs
from fanfold.protocols import EventSink
from tests.support.host_executor import HostExecutor, done, spec, specs


async def forever(step: AgentStepSpec) -> str:
    await asyncio.Event().wait()
    return "never"


# ---- cancelling -----------------------------------------------------------------------------------------------------


def test_a_cancelled_step_is_a_failed_outcome_and_its_siblings_go_on() -> None:
    control = FanOutControl()

    async def answer(step: AgentStepSpec) -> str:
        if step.task_id == "t1":
            return await forever(step)
        return "x"

    async def main() -> list[StepOutcome]:
        call = asyncio.create_task(execute_steps_parallel(HostExecutor(answer), specs(4), control=control))
        while not control.is_running("t1"):
            await asyncio.sleep(0)
        control.cancel_step("t1")
        return await call

    outcomes = asyncio.run(main())
    assert [outcome.success for outcome in outcomes] == [True, False, True, True]
    assert outcomes[1].output == CANCELLED
    assert not control.is_running("t1")


def test_a_cancelled_fan_out_answers_for_every_step_and_starts_no_other() -> None:
    control, executor = FanOutControl(), HostExecutor(forever, hint=2)

    async def main() -> list[StepOutcome]:
        call = asyncio.create_task(execute_steps_parallel(executor, specs(5), control=control))
        while executor.running < 2:
            await asyncio.sleep(0)
        await asyncio.to_thread(control.cancel)  # from any thread
        return await call

    outcomes = asyncio.run(main())
    assert [outcome.output for outcome in outcomes] == [CANCELLED] * 5
    assert len(executor.started) == 2
    assert outcomes[4].usage == NO_USAGE
    assert outcomes[0].usage is not None
    assert outcomes[0].usage.is_estimated  # what it had used is not known


def test_a_step_may_be_cancelled_before_it_starts() -> None:
    control, executor = FanOutControl(), HostExecutor()
    control.cancel_step("t2")
    outcomes = asyncio.run(execute_steps_parallel(executor, specs(3), control=control))
    assert [outcome.success for outcome in outcomes] == [True, True, False]
    assert "t2" not in executor.started


def test_a_control_belongs_to_one_loop() -> None:
    control = FanOutControl()
    asyncio.run(execute_steps_parallel(HostExecutor(), specs(1), control=control))
    with pytest.raises(UsageError, match="make another one"):
        asyncio.run(execute_steps_parallel(HostExecutor(), specs(1), control=control))


# ---- time and retries -----------------------------------------------------------------------------------------------


def test_a_step_that_takes_too_long_fails_and_its_siblings_do_not_wait() -> None:
    asked = [spec("slow", timeout_ms=20), spec("quick")]

    async def answer(step: AgentStepSpec) -> str:
        return await forever(step) if step.task_id == "slow" else "x"

    slow, quick = asyncio.run(execute_steps_parallel(HostExecutor(answer), asked))
    assert slow.output == "Task failed: it did not end within 20 ms"
    assert quick.success


def test_a_steps_time_begins_when_it_says_that_it_starts() -> None:
    class Queueing(HostExecutor):
        async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
            await asyncio.sleep(0.5)  # in a queue
            assert events is not None
            events(event("subagent_start", task_id=spec.task_id))
            await asyncio.sleep(0.5)
            return done(spec, "in time")

    [outcome] = asyncio.run(execute_steps_parallel(Queueing(), [spec("a", timeout_ms=900)]))
    assert outcome.success


def test_a_failed_step_is_tried_again_as_often_as_it_asks_and_every_attempt_is_paid_for() -> None:
    heard: list[AgentEvent] = []
    attempts = 0

    def answer(step: AgentStepSpec) -> Any:
        nonlocal attempts
        attempts += 1
        return done(step, "at last") if attempts == 3 else failed(step, f"no {attempts}", usage=Usage(total_tokens=5))

    asked = [spec("a", retries=4)]
    [outcome] = asyncio.run(execute_steps_parallel(HostExecutor(answer), asked, events=heard.append))
    assert (outcome.success, attempts) == (True, 3)
    assert outcome.usage is not None
    assert outcome.usage.total_tokens == 20
    assert [(item.type, item.payload["attempt"], item.payload["reason"]) for item in heard] == [
        ("step_retry", 2, "no 1"),
        ("step_retry", 3, "no 2"),
    ]


def test_after_its_retries_the_last_failure_counts() -> None:
    executor = HostExecutor(lambda step: failed(step, "no"))
    [outcome] = asyncio.run(execute_steps_parallel(executor, [spec("a", retries=2)]))
    assert (outcome.output, len(executor.started)) == ("no", 3)


def test_neither_a_cancelled_step_nor_a_refused_one_is_tried_again() -> None:
    control, executor = FanOutControl(), HostExecutor(lambda step: failed(step, "no"))
    control.cancel()
    asyncio.run(execute_steps_parallel(executor, [spec("a", retries=9)], control=control))
    asyncio.run(execute_steps_parallel(executor, [spec("a", retries=9)], ledger=TokenLedger(0)))
    assert executor.started == []


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("timeout_ms", 0, "must be 1 or more, got 0"),
        ("timeout_ms", "soon", "Expected `int"),
        ("retries", -1, "must be 0 or more, got -1"),
        ("metadata", {"a": object()}, "must be JSON data"),
        ("metadata", float("nan"), "must be JSON data"),
    ],
)
def test_a_limit_that_is_none_is_refused(field: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidSpecError, match=rf"specs\[0\]\.{field}: .*{says}"):
        parse_specs([spec("a", **{field: value})])


# ---- the ledger -----------------------------------------------------------------------------------------------------


def test_a_wide_fan_out_passes_its_budget_by_no_more_than_running_calls_were_underestimated() -> None:
    ledger = TokenLedger(10_000)
    usage = Usage(prompt_tokens=100, completion_tokens=400, total_tokens=500)

    async def answer(step: AgentStepSpec) -> StepOutcome:
        await asyncio.sleep(0)
        return StepOutcome(task_id=step.task_id, agent=step.agent, output="x", success=True, usage=usage)

    executor = HostExecutor(answer, hint=64)
    outcomes = asyncio.run(execute_steps_parallel(executor, specs(200), ledger=ledger))
    assert 10_000 <= ledger.snapshot().consumed_tokens <= 10_500
    assert sum(outcome.success for outcome in outcomes) == len(executor.started)
    assert executor.most_running <= 10_000 // 400


def test_calls_that_wait_for_room_go_on_when_it_turns_out_that_there_is_some() -> None:
    ledger = TokenLedger(2_000)  # room for three first estimates, though each call takes 10 tokens
    executor = HostExecutor(hint=50)
    outcomes = asyncio.run(execute_steps_parallel(executor, specs(50), ledger=ledger))
    assert all(outcome.success for outcome in outcomes)


def test_whoever_waits_for_room_has_given_its_slot_back() -> None:
    ledger, waiting = TokenLedger(600), list[str]()

    @asynccontextmanager
    async def slot_given_back() -> AsyncIterator[None]:
        waiting.append("out")
        yield
        waiting.append("in")

    async def main() -> None:
        first = await ledger.reserve(100)
        assert isinstance(first, Reservation)
        second = asyncio.create_task(ledger.reserve(100, slot_given_back))
        while not waiting:
            await asyncio.sleep(0)
        assert not second.done()
        first.settle(Usage(total_tokens=100, completion_tokens=50))
        assert isinstance(await second, Reservation)
        assert waiting == ["out", "in"]

    asyncio.run(main())


def test_a_spent_budget_refuses_in_the_words_of_the_reference() -> None:
    async def main() -> None:
        ledger = TokenLedger(100)
        for tokens in (60, 50):
            room = await ledger.reserve(0)
            assert isinstance(room, Reservation)
            room.settle(Usage(total_tokens=tokens))
        refusal = await ledger.reserve(0)
        assert isinstance(refusal, BudgetDenial)
        assert str(refusal) == (
            "Budget exhausted on 'workflow_tokens': workflow token budget exhausted (110 / 100 tokens)"
        )
        assert str(ledger.tool_denial()) == ("Budget exhausted on 'workflow_tokens': workflow token budget exhausted")
        snapshot = ledger.snapshot()
        assert (snapshot.remaining_tokens, snapshot.is_exhausted) == (0, True)

    asyncio.run(main())


def test_a_reservation_of_a_call_that_never_came_about_is_given_back() -> None:
    async def main() -> None:
        ledger = TokenLedger(600)
        for _ in range(5):
            room = await ledger.reserve(500)
            assert isinstance(room, Reservation)
            room.settle(None)
        assert ledger.snapshot().consumed_tokens == 0

    asyncio.run(main())


# ---- pipelines ------------------------------------------------------------------------------------------------------


def test_every_outcome_of_a_chain_is_told_on_request() -> None:
    heard: list[tuple[int, int, str]] = []
    results = asyncio.run(
        execute_pipeline(
            HostExecutor(hint=1),
            ["a", "b"],
            [lambda ctx: spec("s1", ctx["item"]), lambda ctx: spec("s2", ctx["previous"]["output"])],
            on_step=lambda item, stage, outcome: heard.append((item, stage, outcome.output)),
        )
    )
    assert [None if each is None else each.output for each in results] == ["did did a", "did did b"]
    assert heard == [(0, 0, "did a"), (0, 1, "did did a"), (1, 0, "did b"), (1, 1, "did did b")]


# ---- what became of a step, for programs ----------------------------------------------------------------------------


def test_every_kind_of_failure_has_its_code() -> None:
    async def answer(step: AgentStepSpec) -> Any:
        if step.task_id == "late":
            return await forever(step)
        if step.task_id == "raises":
            raise KeyError("missing")
        return 5 if step.task_id == "wrong" else "fine"

    class Wrong(HostExecutor):
        async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
            if spec.task_id == "wrong":
                return 5  # type: ignore[return-value]
            return await super().execute_step(spec, events)

    control = FanOutControl()
    control.cancel_step("unwanted")
    asked = [spec("late", timeout_ms=10), spec("raises"), spec("wrong"), spec("unwanted"), spec("fine")]
    outcomes = asyncio.run(execute_steps_parallel(Wrong(answer), asked, control=control))
    [refused] = asyncio.run(execute_steps_parallel(HostExecutor(), [spec("a")], ledger=TokenLedger(0)))
    assert [outcome.error_code for outcome in [*outcomes, refused]] == [
        "TIMEOUT",
        "EXECUTOR_ERROR",
        "EXECUTOR_ERROR",
        "RUN_CANCELLED",
        None,
        "BUDGET_EXHAUSTED",
    ]


def test_what_is_no_executor_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match=r"is no executor: it needs execute_step\(spec, events\) and concurrency_hint"):
        asyncio.run(execute_steps_parallel(object(), specs(1)))  # type: ignore[arg-type]
