"""Laws of parallel, pipeline and map over any executor."""

import asyncio
import time
from typing import Any

import pytest

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.steps import AgentStepSpec, StepOutcome, failed
from fanfold.env import HostEnv
from fanfold.errors import InvalidSpecError, UsageError
from fanfold.orchestration.journal import WorkflowJournal
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.mapping import MapItem, MapResult, MapRow, MapStep, execute_map, identity
from fanfold.orchestration.parallel import execute_steps_parallel
from fanfold.orchestration.pipeline import execute_pipeline
from fanfold.orchestration.specs import parse_specs
from fanfold.orchestration.template import check, render
from fanfold.protocols import EventSink, SessionStore
from fanfold.stores.memory_store import MemorySessionStore
from tests.support.host_executor import HostExecutor, done, spec, specs

# ---- parallel -------------------------------------------------------------------------------------------------------


def test_outcomes_keep_input_order_whatever_finishes_first() -> None:
    async def answer(step: AgentStepSpec) -> str:
        await asyncio.sleep(0.002 * (5 - int(step.task_id[1:])))
        return step.prompt

    outcomes = asyncio.run(execute_steps_parallel(HostExecutor(answer), specs(5)))
    assert [outcome["output"] for outcome in outcomes] == [f"p{number}" for number in range(5)]


@pytest.mark.parametrize(("hint", "peak"), [(2, 2), (100, 6), (0, 1), (-5, 1)])
def test_the_hint_bounds_what_runs_at_once(hint: int, peak: int) -> None:
    executor = HostExecutor(hint=hint)
    outcomes = asyncio.run(execute_steps_parallel(executor, specs(6)))
    assert all(outcome.success for outcome in outcomes)
    assert executor.most_running == peak


def test_admission_is_lazy() -> None:
    most_tasks = 0

    def answer(step: AgentStepSpec) -> str:
        nonlocal most_tasks
        most_tasks = max(most_tasks, len(asyncio.all_tasks()))
        return "x"

    asyncio.run(execute_steps_parallel(HostExecutor(answer, hint=4), specs(2_000)))
    assert most_tasks <= 6


def test_a_failed_and_a_raising_step_leave_their_siblings_alone() -> None:
    def answer(step: AgentStepSpec) -> Any:
        if step.task_id == "t1":
            return failed(step, "Task failed: no luck")
        if step.task_id == "t2":
            raise ValueError("broken transport")
        return "fine"

    outcomes = asyncio.run(execute_steps_parallel(HostExecutor(answer), specs(4)))
    assert [outcome.success for outcome in outcomes] == [True, False, False, True]
    assert outcomes[2].output == "parallel branch panicked: ValueError: broken transport"
    assert (outcomes[2].task_id, outcomes[2].session_id) == ("t2", "task-run-t2")


@pytest.mark.parametrize(("answer", "says"), [(5, "a int"), (None, "a NoneType")])
def test_an_executor_that_breaks_the_contract_is_a_failed_step(answer: Any, says: str) -> None:
    class Wrong(HostExecutor):
        async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
            return answer  # type: ignore[no-any-return]

    [outcome] = asyncio.run(execute_steps_parallel(Wrong(), specs(1)))
    assert not outcome.success
    assert says in outcome.output


def test_the_outcome_of_another_step_is_not_taken() -> None:
    other = AgentStepSpec(task_id="other", agent="general", prompt="p")
    [outcome] = asyncio.run(execute_steps_parallel(HostExecutor(lambda _: done(other, "x")), specs(1)))
    assert (outcome.task_id, outcome.success) == ("t0", False)


def test_nothing_in_is_nothing_out() -> None:
    assert asyncio.run(execute_steps_parallel(HostExecutor(), [])) == []
    assert asyncio.run(execute_pipeline(HostExecutor(), [], [lambda ctx: None])) == []
    assert asyncio.run(execute_pipeline(HostExecutor(), [1, 2], [])) == [None, None]


def test_cancelling_a_fan_out_leaves_nothing_running() -> None:
    async def answer(_: AgentStepSpec) -> str:
        await asyncio.Event().wait()
        return "never"

    executor = HostExecutor(answer, hint=3)

    async def main() -> None:
        run = asyncio.create_task(execute_steps_parallel(executor, specs(10)))
        while executor.running < 3:
            await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert executor.running == 0
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert len(executor.started) == 3


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ([spec("a"), spec("a")], r"invalid AgentStepSpec: specs\[1\].task_id: 'a' is already the id of specs\[0\]"),
        ([spec("a", promt="x")], r"invalid AgentStepSpec: specs\[0\]: unknown key 'promt'; did you mean 'prompt'"),
        ([{"task_id": "a", "agent": "general"}], r"specs\[0\].prompt: is required"),
        ([spec("a", max_steps=-1)], r"specs\[0\].max_steps: must be 0 or more, got -1"),
        ([spec("a", max_steps=1.5)], r"specs\[0\].max_steps: Expected `int"),
        ([spec(" ")], r"specs\[0\].task_id: must be 1 to 256 characters"),
        ([spec("a"), spec("b", output_schema={"type": "nonsense"})], r"specs\[1\].output_schema: "),
        (["just text"], r"specs\[0\]: expected a mapping, got str"),
        ({"task_id": "a"}, r"expected a list of specs, got one dict"),
    ],
)
def test_a_bad_spec_is_refused_before_anything_runs(bad: Any, says: str) -> None:
    executor = HostExecutor()
    with pytest.raises(InvalidSpecError, match=says) as caught:
        asyncio.run(execute_steps_parallel(executor, bad))
    assert isinstance(caught.value, ValueError)
    assert executor.started == []


def test_a_spec_with_null_options_is_one_without_them() -> None:
    [parsed] = parse_specs([spec("a", max_steps=None, output_schema=None, model=None)])
    assert parsed == AgentStepSpec(task_id="a", agent="general", description="d", prompt="p")


def test_a_ledger_refuses_the_launches_after_its_limit() -> None:
    ledger = TokenLedger(25)
    executor = HostExecutor(hint=1)
    outcomes = asyncio.run(execute_steps_parallel(executor, specs(5), ledger=ledger))
    assert [outcome.success for outcome in outcomes] == [True, True, True, False, False]
    assert len(executor.started) == 3
    assert outcomes[4].output == (
        "Task failed: Budget exhausted on 'workflow_tokens': workflow token budget exhausted (30 / 25 tokens)"
    )
    assert dict(ledger.snapshot()) == {"consumed_tokens": 30, "limit_tokens": 25}


# ---- pipeline -------------------------------------------------------------------------------------------------------


def test_each_item_chains_through_its_stages() -> None:
    results = asyncio.run(
        execute_pipeline(
            HostExecutor(),
            ["x", "y"],
            [
                lambda ctx: spec("one", f"first {ctx['item']}"),
                lambda ctx: spec("two", f"then {ctx['previous']['output']} of {ctx['item']}"),
            ],
        )
    )
    assert [result and result.output for result in results] == [
        "did then did first x of x",
        "did then did first y of y",
    ]


def test_there_is_no_barrier_between_stages() -> None:
    order: list[str] = []
    gate = asyncio.Event()

    async def answer(step: AgentStepSpec) -> str:
        if step.prompt == "slow 1":
            await gate.wait()
        if step.prompt == "fast 2":
            gate.set()
        order.append(step.prompt)
        return step.prompt

    stages = [lambda ctx: spec("1", f"{ctx['item']} 1"), lambda ctx: spec("2", f"{ctx['item']} 2")]
    asyncio.run(execute_pipeline(HostExecutor(answer), ["slow", "fast"], stages))
    assert order == ["fast 1", "fast 2", "slow 1", "slow 2"]


def boom(_: Any) -> Any:
    raise RuntimeError("stage broke")


async def a_coroutine_stage(ctx: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return spec("async", f"async {ctx['item']}")


@pytest.mark.parametrize(
    ("stage", "outcome", "warning"),
    [
        (lambda ctx: None, None, None),
        (boom, None, "stage 0 of item 0: it raised RuntimeError: stage broke"),
        (lambda ctx: {"task_id": "a"}, None, "stage 0 of item 0: invalid AgentStepSpec: agent: is required"),
        (lambda ctx: "text", None, "stage 0 of item 0: invalid AgentStepSpec: expected a mapping, got str"),
        (lambda ctx: time.sleep(0.3), None, "stage 0 of item 0: it did not return within 50 ms"),
        (a_coroutine_stage, "did async 1", None),
    ],
)
def test_a_stage_ends_its_own_chain_and_says_why(stage: Any, outcome: str | None, warning: str | None) -> None:
    heard: list[AgentEvent] = []
    [result] = asyncio.run(execute_pipeline(HostExecutor(), [1], [stage], timeout_ms=50, events=heard.append))
    assert (result and result.output) == outcome
    assert [event.payload["message"] for event in heard] == ([warning] if warning else [])


def test_a_failed_step_is_its_items_result_and_stops_the_chain() -> None:
    executor = HostExecutor(lambda step: failed(step, "Task failed: no"))
    [result] = asyncio.run(execute_pipeline(executor, [1], [lambda ctx: spec("a"), lambda ctx: spec("b")]))
    assert result is not None
    assert (result.success, executor.started) == (False, ["a"])


def test_stages_get_copies() -> None:
    def vandal(ctx: dict[str, Any]) -> dict[str, Any]:
        ctx["item"]["n"] = 99
        if ctx["previous"]:
            ctx["previous"].structured["k"] = "changed"
        return spec("v")

    executor = HostExecutor(
        lambda step: StepOutcome(
            task_id=step.task_id, session_id="s", agent="a", output="o", success=True, structured={"k": "v"}
        )
    )
    item = {"n": 1}
    [result] = asyncio.run(execute_pipeline(executor, [item], [vandal, vandal]))
    assert item == {"n": 1}
    assert result is not None
    assert result.structured == {"k": "v"}


def test_an_item_that_is_no_json_is_refused_before_anything_runs() -> None:
    executor = HostExecutor()
    with pytest.raises(TypeError):
        asyncio.run(execute_pipeline(executor, [1, object()], [lambda ctx: spec("a")]))
    assert executor.started == []


def test_chains_are_what_the_hint_counts() -> None:
    executor = HostExecutor(hint=4)
    stage = lambda ctx: spec("a")  # noqa: E731
    asyncio.run(execute_pipeline(executor, list(range(8)), [stage, stage]))
    assert executor.most_running == 4


# ---- map ------------------------------------------------------------------------------------------------------------


def map_kept_in(store: SessionStore, executor: HostExecutor, asked: list[MapItem], **more: Any) -> MapResult:
    async def run() -> MapResult:
        journal = await WorkflowJournal.open(store, "map", HostEnv())
        try:
            return await execute_map(executor, asked, ONE, journal=journal, **more)
        finally:
            await journal.close()

    return asyncio.run(run())


def items(*names: str) -> list[MapItem]:
    return [MapItem(key=name, fields={"item": name}) for name in names]


ONE = [MapStep(prompt="about {item}")]


def test_a_map_answers_in_input_order_and_never_repeats_a_finished_item() -> None:
    store, first, second = MemorySessionStore(), HostExecutor(), HostExecutor()
    heard: list[tuple[int, MapRow]] = []
    before = map_kept_in(store, first, items("a", "b"))
    after = map_kept_in(store, second, items("b", "new", "a"), on_row=lambda i, row: heard.append((i, row)))
    assert [row.outcome.output for row in before.rows] == ["did about a", "did about b"]
    assert [row.outcome.output for row in after.rows] == ["did about b", "did about new", "did about a"]
    assert [row.is_cached for row in after.rows] == [True, False, True]
    assert len(second.started) == 1
    assert sorted(index for index, _ in heard) == [0, 1, 2]


def test_a_failed_item_is_tried_again() -> None:
    store = MemorySessionStore()
    broken = map_kept_in(store, HostExecutor(lambda step: failed(step, "no")), items("a"))
    assert [row.key for row in broken.failed] == ["a"]
    assert map_kept_in(store, HostExecutor(), items("a")).failed == []


def test_a_chain_hands_on_its_answers_and_sums_its_usage() -> None:
    steps = [MapStep(prompt="about {item}"), MapStep(prompt="shorter: {previous}")]
    [row] = asyncio.run(execute_map(HostExecutor(), items("a"), steps)).rows
    assert row.outcome.output == "did shorter: did about a"
    assert row.outcome.usage is not None
    assert row.outcome.usage.total_tokens == 20


def test_identity_is_the_meaning_and_not_the_place() -> None:
    [item] = items("a")
    renamed = MapItem(key="other name", fields=item.fields)
    assert identity(item, ONE) == identity(renamed, ONE)
    assert identity(item, ONE) != identity(item, [MapStep(prompt="on {item}")])
    assert identity(item, ONE) != identity(item, [MapStep(prompt="about {item}", agent="explore")])
    assert identity(item, ONE) != identity(MapItem(key="a", fields={"item": "b"}), ONE)


def test_a_template_with_an_unknown_field_is_refused_before_anything_runs() -> None:
    executor = HostExecutor()
    with pytest.raises(UsageError, match=r"names \{itm\}, .*did you mean 'item'"):
        asyncio.run(execute_map(executor, items("a"), [MapStep(prompt="{itm}")]))
    with pytest.raises(UsageError, match="at least one step"):
        asyncio.run(execute_map(executor, items("a"), []))
    assert executor.started == []


def test_templates_fill_names_and_leave_all_else_alone() -> None:
    fields = {"a": "{b}", "b": "x"}
    assert render('{a} {{a}} {"json": {}} {1} { a }', fields) == '{b} {a} {"json": {}} {1} { a }'
    check('{{anything}} {"q": 1}', [])
