"""What executors, listeners, stores and clocks of others may do to a resumable call, and what still holds."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold import Agent, AgentDefinition, AgentEvent, MemorySessionStore, PermissionPolicy, Session
from fanfold.contracts.messages import ToolOutput, Usage
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.env import HostEnv, SystemClock
from fanfold.errors import CheckpointRefusedError, ExecutorError, UsageError
from fanfold.orchestration.checkpoints import load_checkpoint
from fanfold.orchestration.journal import WorkflowJournal
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.parallel import execute_steps_parallel
from fanfold.orchestration.pipeline import execute_pipeline
from fanfold.protocols import EventSink, Lease
from fanfold.testing import ScriptedModel, calls
from tests.orchestration.test_resumable import failing, records, replace_records, run
from tests.session.test_steps import opened, step
from tests.support.host_executor import HostExecutor, done, spec, specs
from tests.support.tools import RecordingTool

# ---- outcomes that no journal could give back -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        {"duration_ms": 1.5},
        {"success": 1},
        {"output": None},
        {"session_id": 5},
        {"source_anchors": ["x"]},
        {"usage": {"total_tokens": 5}},
        {"usage": Usage(total_tokens=1.5)},  # type: ignore[arg-type]
        {"cost_usd": "0.1"},
        {"stop_reason": "\ud800"},
        {"structured": {"nan": float("nan")}},
        {"structured": b"bytes"},
        {"structured": {1: 2}},
        {"structured": object()},
    ],
    ids=lambda odd: str(odd)[:40].encode("ascii", "replace").decode(),
)
def test_an_outcome_that_could_not_be_read_back_is_a_failure_of_its_step_alone(odd: dict[str, Any]) -> None:
    def answer(asked: AgentStepSpec) -> Any:
        return msgspec.structs.replace(done(asked, "x"), **odd) if asked.task_id == "t1" else done(asked, "x")

    store, again = MemorySessionStore(), HostExecutor()
    outcomes = run(store, specs(3), HostExecutor(answer))
    assert [outcome.success for outcome in outcomes] == [True, False, True]
    assert outcomes[1].error_code == "EXECUTOR_ERROR"
    run(store, specs(3), again)
    assert again.started == ["t1"]


def test_a_count_below_zero_refills_no_budget() -> None:
    def answer(asked: AgentStepSpec) -> StepOutcome:
        return msgspec.structs.replace(done(asked, "x"), usage=Usage(total_tokens=-100))

    ledger = TokenLedger(50)
    asyncio.run(execute_steps_parallel(HostExecutor(answer), specs(1), ledger=ledger))
    assert ledger.snapshot().consumed_tokens > 0


def test_an_executor_that_raises_before_it_can_be_awaited_fails_its_step_alone() -> None:
    class Plain(HostExecutor):
        def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> Any:
            if spec.task_id == "t1":
                raise ValueError("no coroutine")
            return super().execute_step(spec, events)

    outcomes = asyncio.run(execute_steps_parallel(Plain(), specs(3)))
    assert [outcome.success for outcome in outcomes] == [True, False, True]


def test_an_executor_that_cancels_the_task_it_runs_in_is_told() -> None:
    def answer(asked: AgentStepSpec) -> str:
        task = asyncio.current_task()
        if asked.task_id == "t1" and task is not None:
            task.cancel()
        return "x"

    store, again = MemorySessionStore(), HostExecutor()
    with pytest.raises(ExecutorError, match="cancelled the task that ran it"):
        run(store, specs(6), HostExecutor(answer, hint=2))
    run(store, specs(6), again)
    assert len(again.started) == 1  # whichever was under way when the cancellation arrived


@pytest.mark.parametrize("hint", [None, "3", 2.5])
def test_a_hint_that_is_no_number_is_refused_and_the_workflow_let_go(hint: Any) -> None:
    store, executor = MemorySessionStore(), HostExecutor(hint=hint)
    with pytest.raises(UsageError, match="must give a whole number"):
        run(store, specs(1), executor)
    assert executor.started == []
    run(store, specs(1))


# ---- nobody waits for ever ------------------------------------------------------------------------------------------


class OddError(Exception):
    """As some clients have: it cannot be copied."""

    def __init__(self, response: str, operation: str) -> None:
        super().__init__(f"{operation}: {response}")


class OddStore(MemorySessionStore):
    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        raise OddError("503", "append")


class StoppedClock(SystemClock):
    def __init__(self) -> None:
        self._looks = 0

    def now_ms(self) -> int:
        self._looks += 1
        if self._looks > 1:
            raise OSError("no time")
        return super().now_ms()


def counting(request: Any) -> Any:
    rounds = request.transcript.length // 2
    return calls(("count", {"n": rounds})) if rounds < 2 else "counted"


async def use_tools(tmp_path: Path, **options: Any) -> tuple[list[StepOutcome], RecordingTool]:
    tool = RecordingTool("count")
    agents = {"worker": WORKER}
    async with await Agent.create_async(
        models={"a/b": ScriptedModel(counting)}, tools={"count": tool}, agents=agents
    ) as agent:
        events = options.pop("events", None)
        session = await agent.session_async(tmp_path, **options)
        asked = [step(f"t{number}", agent="worker") for number in range(3)]
        outcomes: list[StepOutcome] = await session.parallel_resumable_async(asked, "w", events=events)
        return outcomes, tool


ALLOW = PermissionPolicy(default_decision="allow")
WORKER = AgentDefinition(name="worker", description="d", tools=("count",), permissions=ALLOW)


def test_an_error_that_cannot_be_copied_reaches_the_caller(tmp_path: Path) -> None:
    with pytest.raises(OddError, match="append: 503"):
        run(OddStore(), specs(3))
    with pytest.raises(OddError, match="append: 503"):
        asyncio.run(use_tools(tmp_path, session_store=OddStore()))


def test_a_clock_that_fails_ends_the_call_and_not_in_silence(tmp_path: Path) -> None:
    store = MemorySessionStore()
    with pytest.raises(OSError, match="no time"):
        run(store, specs(3), env=HostEnv(clock=StoppedClock()))
    run(store, specs(3))  # nobody has the lease


def test_a_clock_of_fractions_poisons_no_journal() -> None:
    class Fractions(SystemClock):
        def now_ms(self) -> int:
            return 1_700_000_000_000.5  # type: ignore[return-value]

    store = MemorySessionStore()
    run(store, specs(3), failing("t1"), env=HostEnv(clock=Fractions()))
    again = HostExecutor()
    run(store, specs(3), again)
    assert again.started == ["t1"]


@pytest.mark.parametrize("leave", [lambda: sys.exit(3), lambda: pytest.fail("no")])
def test_a_listener_that_raises_whatever_ends_no_call(tmp_path: Path, leave: Callable[[], Any]) -> None:
    def hear(item: AgentEvent) -> None:
        if item.type == "step_recorded":
            leave()

    outcomes, _ = asyncio.run(use_tools(tmp_path, session_store=MemorySessionStore(), events=hear))
    assert [outcome.output for outcome in outcomes] == ["counted"] * 3


def test_a_file_name_that_is_no_text_fails_no_step(tmp_path: Path) -> None:
    class Listing(RecordingTool):
        async def run(self, args: Any, scope: Any) -> ToolOutput:
            return ToolOutput(output="o", source_anchors=("bad\udcff.py",), artifact="a\udcff")

    async def main() -> StepOutcome:
        role = AgentDefinition(name="lister", description="d", tools=("list",), permissions=ALLOW)
        model = ScriptedModel([calls(("list", {})), "listed"])
        async with await Agent.create_async(
            models={"a/b": model}, tools={"list": Listing("list")}, agents={"lister": role}
        ) as agent:
            session = await agent.session_async(tmp_path, session_store=MemorySessionStore())
            outcomes: list[StepOutcome] = await session.parallel_resumable_async([step("t", agent="lister")], "w")
            return outcomes[0]

    outcome = asyncio.run(main())
    assert outcome.output == "listed"
    assert [anchor.url_or_path for anchor in outcome.source_anchors or ()] == ["bad\ufffd.py"]


# ---- nothing is removed that others need ----------------------------------------------------------------------------


def test_a_call_without_a_recorded_step_keeps_the_journal() -> None:
    store = MemorySessionStore()
    run(store, specs(3), failing("t2"))
    assert run(store, []) == []
    run(store, [spec("other")])
    kept = asyncio.run(load_checkpoint(store, "nightly"))
    assert kept is not None
    assert {record.task_id for record in kept.steps} == {"t0", "t1", "other"}


# ---- classes that are stricter than their schemas -------------------------------------------------------------------


@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("it is odd")


def test_what_a_class_refuses_is_a_failure_in_the_journal_too() -> None:
    numbers = iter([1, 3, 4])

    def answer(asked: AgentStepSpec) -> StepOutcome:
        outcome = done(asked, "x")
        return (
            msgspec.structs.replace(outcome, structured={"number": next(numbers)}) if asked.task_id == "n" else outcome
        )

    store, executor = MemorySessionStore(), HostExecutor(answer)
    asked = [spec("n", output_schema=Even, retries=1), spec("a")]
    first = run(store, asked, executor)
    assert [outcome.success for outcome in first] == [False, True]
    assert "it is odd" in first[0].output
    assert first[0].error_code == "SCHEMA_MISMATCH"
    second = run(store, asked, executor)
    assert second[0].parsed == Even(4)
    assert sorted(executor.started) == ["a", "n", "n", "n"]


# ---- money ----------------------------------------------------------------------------------------------------------


def test_model_calls_that_were_cut_off_are_paid_for(tmp_path: Path) -> None:
    async def hangs(request: Any) -> Any:
        await asyncio.Event().wait()

    async def main() -> Any:
        async with opened(tmp_path, ScriptedModel(hangs)) as session:
            asked = [step("a", "a prompt of some length", timeout_ms=20, retries=3)]
            return await session.parallel_async(asked, 1_000)

    result = asyncio.run(main())
    [outcome] = result.outcomes
    assert result.budget.consumed_tokens == result.budget.estimated_tokens == outcome.usage.total_tokens > 0


def test_a_cut_step_tells_what_its_turns_took_before(tmp_path: Path) -> None:
    async def hangs_later(request: Any) -> Any:
        if request.transcript.length > 1:
            await asyncio.Event().wait()
        return calls(("count", {"n": 1}))

    async def main() -> Any:
        tool = RecordingTool("count")
        async with await Agent.create_async(
            models={"a/b": ScriptedModel(hangs_later)}, tools={"count": tool}, agents={"worker": WORKER}
        ) as agent:
            session = await agent.session_async(tmp_path, session_store=MemorySessionStore())
            result = await session.parallel_resumable_async(
                [step("a", agent="worker", timeout_ms=600)], "w", budget_tokens=1_000
            )
            return result, await session.checkpoint_async("w")

    result, checkpoint = asyncio.run(main())
    used = result.outcomes[0].usage.total_tokens
    assert used >= 15
    assert checkpoint.usage.total_tokens == result.budget.consumed_tokens == used


def test_a_call_inside_of_a_step_on_its_own_ledger_does_not_wait_for_it(tmp_path: Path) -> None:
    async def main(session: Session) -> Any:
        class Nesting(HostExecutor):
            async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
                if spec.task_id == "outer":
                    await workflow.phase_async("inner", specs(2))
                return await super().execute_step(spec, events)

        async with await session.workflow_async(400, executor=Nesting()) as workflow:
            return await workflow.phase_async("outer", [spec("outer")])

    async def run_it() -> Any:
        async with opened(tmp_path, ScriptedModel([])) as session:
            return await main(session)

    [outcome] = asyncio.run(run_it())
    assert outcome.success


def test_a_steps_time_does_not_run_while_it_waits_for_a_slot(tmp_path: Path) -> None:
    async def slow(request: Any) -> str:
        await asyncio.sleep(0.6)
        return "x"

    async def main() -> list[StepOutcome]:
        async with opened(tmp_path, ScriptedModel(slow), max_parallel_tasks=1) as session:
            first = asyncio.create_task(session.parallel_async([step("a"), step("b")]))
            await asyncio.sleep(0)
            second: list[StepOutcome] = await session.parallel_async([step("c", timeout_ms=1_100)])
            await first
            return second

    [outcome] = asyncio.run(main())
    assert outcome.success, outcome.output


# ---- a damaged journal of turns -------------------------------------------------------------------------------------


def _journal_of_turns(tmp_path: Path) -> MemorySessionStore:
    """A journal with recorded turns of a step that was cut off."""
    store = MemorySessionStore()

    async def main() -> None:
        async def dies(request: Any) -> Any:
            if request.transcript.length > 4:
                await asyncio.Event().wait()
            return calls(("count", {"n": request.transcript.length}))

        model = ScriptedModel(dies)
        async with await Agent.create_async(
            models={"a/b": model}, tools={"count": RecordingTool("count")}, agents={"worker": WORKER}
        ) as agent:
            session = await agent.session_async(tmp_path, session_store=store)
            call = asyncio.create_task(session.parallel_resumable_async([step("t", agent="worker")], "nightly"))
            while len(model.requests) < 3:
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])

    asyncio.run(main())
    store.break_leases()
    return store


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: [*kept, kept[-1]],
        lambda kept: [*kept[:-2], kept[-1]],
        lambda kept: [*kept[:-2], kept[-1], kept[-2]],
        lambda kept: [record.replace(b'"total_tokens":15', b'"total_tokens":0') for record in kept],
        lambda kept: [record.replace(b"done", b"dane") for record in kept],
        lambda kept: kept[1:],
        lambda kept: [kept[0], *kept],
    ],
    ids=["doubled", "left out", "swapped", "cheaper", "another result", "headless", "opened twice"],
)
def test_turns_that_are_not_those_that_were_recorded_are_refused(tmp_path: Path, damage: Any) -> None:
    store, executor = _journal_of_turns(tmp_path), HostExecutor()
    kept = records(store)
    assert damage(kept) != kept
    replace_records(store, damage(kept))
    with pytest.raises(CheckpointRefusedError):
        run(store, [spec("t")], executor)
    assert executor.started == []


def test_a_list_of_specs_that_cannot_be_read_is_in_the_way_of_nothing() -> None:
    store, again = MemorySessionStore(), HostExecutor()
    run(store, specs(3), failing("t1"))
    replace_records(
        store, [b'{"k":"specs","packed":"rubbish"}' if b'"specs"' in each else each for each in records(store)]
    )
    run(store, specs(3), again)
    assert again.started == ["t1"]


# ---- small things ---------------------------------------------------------------------------------------------------


def test_a_stage_may_be_an_object_with_an_async_call() -> None:
    class Stage:
        async def __call__(self, ctx: dict[str, Any]) -> dict[str, Any]:
            return spec("a", ctx["item"])

    [outcome] = asyncio.run(execute_pipeline(HostExecutor(), ["x"], [Stage()]))
    assert outcome is not None
    assert outcome.output == "did x"


def test_a_falsy_executor_is_an_executor(tmp_path: Path) -> None:
    class Pool(HostExecutor):
        def __len__(self) -> int:
            return 0

    async def main() -> Any:
        async with opened(tmp_path, ScriptedModel([])) as session:
            return await session.parallel_async([spec("a")], executor=Pool())

    [outcome] = asyncio.run(main())
    assert outcome.output == "did p"


def test_a_journal_that_cannot_be_opened_lets_the_workflow_go() -> None:
    store = MemorySessionStore()

    class NoClock(SystemClock):
        def now_ms(self) -> int:
            raise OSError("no time")

    async def main() -> None:
        with pytest.raises(OSError, match="no time"):
            await WorkflowJournal.open(store, "w", HostEnv(clock=NoClock()))
        await (await WorkflowJournal.open(store, "w", HostEnv())).close()

    asyncio.run(main())
