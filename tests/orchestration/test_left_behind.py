"""A step whose time is up ends, whatever its executor does with its cancellation."""

import asyncio
import contextvars
import gc
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold import AgentDefinition, ToolOutput, ToolSpec
from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.messages import ModelRequest, UserMessage
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, StepOutcome
from fanfold.errors import LifecycleError
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.leaving import GRACE_SECONDS
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.limiter import Limiter, give_up_place
from fanfold.orchestration.parallel import execute_steps_parallel
from fanfold.orchestration.pipeline import execute_pipeline
from fanfold.orchestration.resumable import execute_steps_parallel_resumable
from fanfold.orchestration.runner import LEFT_BEHIND, TIMEOUT
from fanfold.protocols import EventSink, ToolScope
from fanfold.stores.memory_store import MemorySessionStore
from fanfold.testing import Reply, ScriptedModel, calls
from fanfold.testing.virtual_loop import run_virtually, virtual_env
from tests.support.host_executor import HostExecutor, done, spec
from tests.support.open_session import opened

GONE = f"Task failed: it did not end within 20 ms; {LEFT_BEHIND}"


async def stubbornly(let_go: asyncio.Event) -> None:
    while not let_go.is_set():
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            continue


class Stubborn(HostExecutor):
    """Its step `slow` ends when it is let go, and not before."""

    def __init__(self, hint: int = 1, *, tries: int = 1_000) -> None:
        super().__init__(self._answered, hint)
        self.let_go = asyncio.Event()
        self.tries = tries
        """After so many of them `slow` is quick."""

    async def _answered(self, step: AgentStepSpec) -> StepOutcome:
        if step.task_id == "slow" and self.started.count("slow") <= self.tries:
            await stubbornly(self.let_go)
            return done(step, "late", tokens=700)
        return done(step, "in time")


SLOW = spec("slow", timeout_ms=20)
Call = Callable[[Stubborn], Awaitable[list[StepOutcome]]]


async def all_at_once(executor: Stubborn) -> list[StepOutcome]:
    return await execute_steps_parallel(executor, [SLOW, spec("b"), spec("c")])


async def in_chains(executor: Stubborn) -> list[StepOutcome]:
    async def stage(context: Any) -> Any:
        return SLOW if context["item"] == "slow" else spec(context["item"])

    return [each for each in await execute_pipeline(executor, ["slow", "b", "c"], [stage]) if each is not None]


async def recorded(executor: Stubborn) -> list[StepOutcome]:
    return await execute_steps_parallel_resumable(
        executor, [SLOW, spec("b"), spec("c")], "w", MemorySessionStore(), env=virtual_env()
    )


@pytest.mark.parametrize("call", [all_at_once, in_chains, recorded])
def test_its_siblings_have_its_place_and_all_of_them_end(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[StepOutcome]:
        executor = Stubborn(hint=1)
        outcomes = await call(executor)
        assert (executor.started, executor.running) == (["slow", "b", "c"], 1)
        executor.let_go.set()
        return outcomes

    slow, *others = run_virtually(main())
    assert (slow.success, slow.error_code, slow.output) == (False, TIMEOUT, GONE)
    assert slow.usage is not None
    assert slow.usage.is_estimated  # nobody knows what it has used
    assert [outcome.output for outcome in others] == ["in time", "in time"]
    assert "step 'slow' does not end though it was cancelled, and is left behind" in caplog.text


def test_a_call_that_is_made_again_runs_only_what_was_left_behind() -> None:
    async def main() -> None:
        store, executor = MemorySessionStore(), Stubborn(tries=1)
        asked = [SLOW, spec("b"), spec("c")]
        first = await execute_steps_parallel_resumable(executor, asked, "w", store, env=virtual_env())
        assert [outcome.error_code for outcome in first] == [TIMEOUT, None, None]
        second = await execute_steps_parallel_resumable(executor, asked, "w", store, env=virtual_env())
        assert all(outcome.success for outcome in second)
        assert executor.started == ["slow", "b", "c", "slow"]
        executor.let_go.set()

    run_virtually(main())


def test_it_is_tried_again_as_often_as_it_asks() -> None:
    async def main() -> None:
        executor = Stubborn(tries=2)
        [outcome] = await execute_steps_parallel(executor, [{**SLOW, "retries": 3}])
        assert (outcome.success, outcome.output) == (True, "in time")
        assert (executor.started, executor.running) == (["slow"] * 3, 2)
        executor.let_go.set()

    run_virtually(main())


def test_an_answer_that_comes_within_the_grace_counts() -> None:
    async def answer(step: AgentStepSpec) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(GRACE_SECONDS / 2)
        return "after all"

    [outcome] = run_virtually(execute_steps_parallel(HostExecutor(answer), [SLOW]))
    assert (outcome.success, outcome.output) == (True, "after all")


def test_cancelled_in_its_grace_it_is_cancelled_and_not_tried_again() -> None:
    async def main() -> None:
        executor, control = Stubborn(hint=2), FanOutControl()
        loop = asyncio.get_running_loop()
        loop.call_later(1, control.cancel_running, "slow")
        slow, other = await execute_steps_parallel(executor, [{**SLOW, "retries": 3}, spec("b")], control=control)
        assert (slow.error_code, slow.output) == ("RUN_CANCELLED", f"{CANCELLED}; {LEFT_BEHIND}")
        assert other.success
        assert loop.time() == pytest.approx(0.02 + GRACE_SECONDS)
        assert not control.has_running
        executor.let_go.set()

    run_virtually(main())


def test_a_call_that_is_cancelled_in_the_grace_of_a_step_waits_no_longer(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        executor = Stubborn()
        call = asyncio.create_task(execute_steps_parallel(executor, [SLOW, spec("b")]))
        await asyncio.sleep(1)
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        assert asyncio.get_running_loop().time() == 1
        assert executor.started == ["slow"]
        assert "'slow' does not end though it was cancelled, and is left behind" in caplog.text
        executor.let_go.set()

    run_virtually(main())


def test_it_is_kept_alive_though_nobody_waits_for_it() -> None:
    async def answer(step: AgentStepSpec) -> Any:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        executor = HostExecutor(answer)
        await execute_steps_parallel(executor, [SLOW])
        del executor
        gc.collect()
        assert len(asyncio.all_tasks()) == 2

    run_virtually(main())


def test_what_it_spends_since_is_charged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        executor, ledger = Stubborn(), TokenLedger(10_000)
        [outcome] = await execute_steps_parallel(executor, [SLOW], ledger=ledger)
        assert outcome.usage is not None
        assert ledger.snapshot().consumed_tokens == outcome.usage.total_tokens
        executor.let_go.set()
        await asyncio.sleep(1)
        assert ledger.snapshot().consumed_tokens == 700
        assert (
            f"has ended; it used {700 - outcome.usage.total_tokens} tokens more than its outcome tells" in caplog.text
        )

    run_virtually(main())


def test_its_events_end_with_it() -> None:
    class Telling(Stubborn):
        async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
            assert events is not None
            who = {"task_id": spec.task_id, "session_id": "s", "agent": spec.agent}
            events(event("subagent_start", **who, started_ms=1_000))
            outcome = await super().execute_step(spec, events)
            events(event("subagent_end", **who, output=outcome.output, success=True, finished_ms=9_000))
            return outcome

    heard: list[AgentEvent] = []

    async def main() -> None:
        executor = Telling()
        await execute_steps_parallel(executor, [SLOW], events=heard.append)
        executor.let_go.set()
        await asyncio.sleep(1)
        assert executor.running == 0

    run_virtually(main())
    assert [item.type for item in heard] == ["subagent_start", "subagent_end"]
    end = heard[1].payload
    assert (end["task_id"], end["session_id"], end["output"], end["success"]) == ("slow", "s", CANCELLED, False)
    assert end["finished_ms"] == 1_000 + 20 + GRACE_SECONDS * 1_000


def test_a_step_without_a_time_limit_is_run_in_the_task_of_its_caller() -> None:
    tasks: list[Any] = []

    def answer(step: AgentStepSpec) -> str:
        tasks.append(asyncio.current_task())
        return "x"

    async def main() -> None:
        control = FanOutControl()
        before = len(asyncio.all_tasks())
        await execute_steps_parallel(HostExecutor(answer, hint=1), [spec("a"), spec("b")], control=control)
        assert len(asyncio.all_tasks()) == before

    run_virtually(main())
    assert len(set(tasks)) == 1


# ---- places ---------------------------------------------------------------------------------------------------------


def test_the_places_of_steps_inside_of_one_that_is_left_are_free_as_well() -> None:
    async def main() -> None:
        limiter, let_go = Limiter(2), asyncio.Event()
        contexts: list[contextvars.Context] = []
        refused: list[str] = []

        async def inner() -> None:
            async with limiter.slot():
                await let_go.wait()

        async def outer() -> None:
            async with limiter.slot():
                contexts.append(contextvars.copy_context())
                await asyncio.gather(inner(), inner())
                try:
                    await inner()
                except LifecycleError as error:
                    refused.append(str(error))

        task = asyncio.create_task(outer())
        await asyncio.sleep(1)
        assert limiter.is_full
        await give_up_place(contexts[0])
        await asyncio.gather(limiter.take(), limiter.take())
        let_go.set()
        await task
        assert refused == ["the step that this one is a part of was left behind"]
        assert limiter.is_full
        limiter.give_back()
        limiter.give_back()
        await asyncio.gather(limiter.take(), limiter.take())
        assert limiter.is_full

    run_virtually(main())


def test_a_step_that_waits_for_its_place_inside_of_one_that_is_left_is_refused() -> None:
    async def main() -> None:
        limiter, contexts = Limiter(1), list[contextvars.Context]()

        async def outer() -> None:
            async with limiter.slot() as slot:
                contexts.append(contextvars.copy_context())
                async with slot.given_back():
                    await asyncio.sleep(1)
                    async with limiter.slot():
                        raise AssertionError("it has begun")

        task = asyncio.create_task(outer())
        await asyncio.sleep(0.5)
        await limiter.take()
        await asyncio.sleep(1)
        await give_up_place(contexts[0])
        limiter.give_back()
        await asyncio.wait({task})
        assert isinstance(task.exception(), LifecycleError)
        assert not limiter.is_full

    run_virtually(main())


def test_a_step_takes_its_place_back_from_one_inside_that_is_left() -> None:
    async def main() -> None:
        limiter, let_go = Limiter(1), asyncio.Event()
        contexts: list[contextvars.Context] = []

        async def inner() -> None:
            async with limiter.slot() as slot:
                contexts.append(contextvars.copy_context())
                await let_go.wait()
                async with slot.given_back():
                    pass

        async with limiter.slot():
            task = asyncio.create_task(inner())
            await asyncio.sleep(1)
            await give_up_place(contexts[0])
            assert limiter.is_full  # by this step again
        assert not limiter.is_full
        let_go.set()
        await task
        assert not limiter.is_full

    run_virtually(main())


def test_a_step_that_is_left_while_it_waits_for_its_place_gets_none() -> None:
    async def main() -> None:
        limiter, contexts = Limiter(1), list[contextvars.Context]()

        async def step() -> None:
            async with limiter.slot() as slot:
                contexts.append(contextvars.copy_context())
                async with slot.given_back():
                    await asyncio.sleep(1)
                await asyncio.Event().wait()

        task = asyncio.create_task(step())
        await asyncio.sleep(0.5)
        await limiter.take()
        await asyncio.sleep(1)
        await give_up_place(contexts[0])
        limiter.give_back()
        await asyncio.sleep(1)
        assert not limiter.is_full
        task.cancel()

    run_virtually(main())


def test_a_step_that_has_ignored_its_cancellation_waits_for_no_other_one() -> None:
    async def main() -> None:
        limiter, control, went_on = Limiter(1), FanOutControl(), list[str]()

        async def answer(step: AgentStepSpec) -> str:
            async with limiter.slot() as slot:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    went_on.append(step.task_id)
                async with slot.given_back():
                    await asyncio.sleep(0)
                raise AssertionError("it went on")

        asyncio.get_running_loop().call_later(1, control.cancel_step, "a")
        outcomes = await execute_steps_parallel(HostExecutor(answer), [spec("a")], control=control)
        assert went_on == ["a"]
        assert [(each.error_code, each.output) for each in outcomes] == [("RUN_CANCELLED", CANCELLED)]
        assert not limiter.is_full

    run_virtually(main())


# ---- in a session ---------------------------------------------------------------------------------------------------


class Stuck:
    """A tool that waits for a thread, whatever happens."""

    spec = ToolSpec(name="stuck", description="", parameters={"type": "object"}, is_read_only=True)

    def __init__(self) -> None:
        self.let_go = threading.Event()

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        thread = asyncio.create_task(asyncio.to_thread(self.let_go.wait))
        while not thread.done():
            try:
                await asyncio.shield(thread)
            except asyncio.CancelledError:
                continue
        return ToolOutput(output="at last")


def test_a_tool_whose_thread_is_stuck_holds_up_neither_its_step_nor_the_session(tmp_path: Path) -> None:
    requests: list[str] = []

    def answer(request: ModelRequest) -> Reply:
        assert request.transcript is not None
        message = request.transcript.message
        requests.append(type(message).__name__)
        return calls(("stuck", {})) if isinstance(message, UserMessage) and message.text == "slow" else Reply(text="x")

    async def main() -> None:
        tool = Stuck()
        worker = AgentDefinition(name="worker", description="works", tools=("stuck",))
        model = ScriptedModel(answer)
        async with opened(
            tmp_path, model, tool, agents={"worker": worker}, max_parallel_tasks=1, session_store=MemorySessionStore()
        ) as session:
            steps = [spec("a", "slow", agent="worker", timeout_ms=300), spec("b"), spec("c")]
            try:
                slow, *others = await session.parallel_resumable_async(steps, "w")
                assert (slow.error_code, slow.output.endswith(LEFT_BEHIND)) == (TIMEOUT, True)
                assert slow.usage is not None
                assert not slow.usage.is_estimated  # its turns are recorded
                assert [outcome.output for outcome in others] == ["x", "x"]
                assert len(requests) == 3
            finally:
                tool.let_go.set()
            assert [outcome.output for outcome in await session.parallel_async([spec("d")])] == ["x"]
        assert len(requests) == 4  # the agent that was left asked its model no more

    asyncio.run(main())
