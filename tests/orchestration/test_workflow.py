"""Laws of a workflow: one ledger, one journal, finished phases kept until it closes."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fanfold import Agent, AgentEvent, FanOutControl, MemorySessionStore, Session, StepOutcome, Usage, Workflow
from fanfold.contracts.settings import Prices
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, failed
from fanfold.errors import AlreadyActiveError, LifecycleError, MissingStoreError, StepChangedError, UsageError
from fanfold.testing import ScriptedModel, echo
from tests.support.chat_server import ChatServer, Say
from tests.support.host_executor import HostExecutor, spec, specs


def in_session(tmp_path: Path, use: Callable[[Session], Awaitable[Any]], **options: Any) -> ScriptedModel:
    """Run `use` with a session over a model that echoes; the model knows what it was asked."""
    model = ScriptedModel(echo)

    async def main() -> None:
        async with (
            await Agent.create_async(models={"a/b": model}) as agent,
            await agent.session_async(tmp_path, session_id="s", **options) as session,
        ):
            await use(session)

    asyncio.run(main())
    return model


def step(task_id: str, prompt: str = "p") -> dict[str, Any]:
    return {"task_id": task_id, "agent": "answer", "prompt": prompt}


def failing(*task_ids: str) -> HostExecutor:
    return HostExecutor(lambda asked: failed(asked, "no") if asked.task_id in task_ids else "x")


def test_a_death_in_the_second_phase_costs_nothing_of_the_first(tmp_path: Path) -> None:
    store, first, again = MemorySessionStore(), HostExecutor(), HostExecutor()

    async def dies(session: Session) -> None:
        async with await session.workflow_async(executor=first) as workflow:
            await workflow.phase_async("find", specs(3))
            await workflow.parallel_async([spec("extra")])
            await workflow.pipeline_async(["i"], [lambda ctx: spec("stage", ctx["item"])])
            raise RuntimeError("the script broke")

    async def goes_on(session: Session) -> None:
        async with await session.workflow_async(executor=again) as workflow:
            assert len(await workflow.phase_async("find", specs(3))) == 3
            await workflow.parallel_async([spec("extra")])
            await workflow.pipeline_async(["i"], [lambda ctx: spec("stage", ctx["item"])])
            assert again.started == []
            await workflow.phase_async("fix", [spec("new")])
            assert [report.cached for report in workflow.reports()] == [3, 1, 1, 0]

    with pytest.raises(RuntimeError, match="the script broke"):
        in_session(tmp_path, dies, session_store=store)
    in_session(tmp_path, goes_on, session_store=store)
    assert again.started == ["new"]
    assert asyncio.run(store.logs("workflow")) == []


def test_a_workflow_with_a_failure_keeps_its_journal_and_one_without_removes_it(tmp_path: Path) -> None:
    store = MemorySessionStore()

    async def use(session: Session) -> None:
        async with await session.workflow_async(executor=failing("t1")) as workflow:
            await workflow.phase_async("a", specs(2))
        assert [each.workflow_id for each in await session.checkpoints_async()] == ["wf-s"]
        async with await session.workflow_async(executor=HostExecutor()) as workflow:
            await workflow.phase_async("a", specs(2))
        assert await session.checkpoints_async() == []

    in_session(tmp_path, use, session_store=store)


def test_a_workflow_that_was_asked_nothing_keeps_what_it_found(tmp_path: Path) -> None:
    store = MemorySessionStore()

    async def use(session: Session) -> None:
        async with await session.workflow_async(executor=failing("t1")) as workflow:
            await workflow.phase_async("a", specs(2))
        async with await session.workflow_async() as workflow:
            assert workflow.budget_snapshot().consumed_tokens > 0
        assert [each.succeeded for each in await session.checkpoints_async()] == [1]

    in_session(tmp_path, use, session_store=store)


def test_a_workflow_that_was_dropped_open_is_let_go_with_its_session(tmp_path: Path) -> None:
    store = MemorySessionStore()

    async def use(session: Session) -> None:
        await session.workflow_async()
        gc.collect()
        with pytest.raises(AlreadyActiveError):
            await session.workflow_async()

    with pytest.warns(ResourceWarning, match="was not closed"):
        in_session(tmp_path, use, session_store=store)
    in_session(tmp_path, lambda session: session.workflow_async(workflow_id="other"))
    asyncio.run(store.release(asyncio.run(store.acquire("workflow/wf-s"))))


def test_one_ledger_counts_for_every_call_and_survives_the_process(tmp_path: Path) -> None:
    store = MemorySessionStore()

    async def first(session: Session) -> None:
        async with await session.workflow_async(40) as workflow:
            await workflow.phase_async("a", [step("a"), step("b")])
            await workflow.parallel_async([step("c"), step("d")])
            assert dict(workflow.budget_snapshot()) == {"consumed_tokens": 45, "limit_tokens": 40}

    async def second(session: Session) -> None:
        async with await session.workflow_async(40) as workflow:
            assert workflow.budget_snapshot().consumed_tokens == 45
            [outcome] = await workflow.phase_async("other", [step("z")])
            assert "workflow_tokens" in outcome.output

    model = in_session(tmp_path, first, session_store=store, max_parallel_tasks=1)
    assert len(model.requests) == 3
    assert in_session(tmp_path, second, session_store=store).requests == []


def test_a_workflow_without_a_store_is_a_ledger_and_a_story(tmp_path: Path) -> None:
    async def use(session: Session) -> None:
        for _ in range(2):  # no lease, no journal: nothing is in the way of a second one
            async with await session.workflow_async() as workflow:
                await workflow.phase_async("a", [step("a")])
                snapshot = workflow.budget_snapshot()
                assert (snapshot.consumed_tokens, snapshot.limit_tokens) == (15, None)

    assert len(in_session(tmp_path, use).requests) == 2


def test_phases_and_notes_are_told_in_order(tmp_path: Path) -> None:
    heard: list[AgentEvent] = []

    async def use(session: Session) -> None:
        async with await session.workflow_async(15, events=heard.append) as workflow:
            await workflow.phase_async("a", [step("a")])
            workflow.log("info", "one down", left=1)
            await asyncio.to_thread(workflow.log, "warning", "from a thread")
            await asyncio.sleep(0)
            await workflow.parallel_async([step("b")])

    in_session(tmp_path, use)
    told = [item for item in heard if not item.type.startswith(("subagent", "turn"))]
    assert [item.type for item in told] == [
        "phase_start",
        "phase_end",
        "budget_exhausted",
        "log",
        "log",
        "budget_threshold_hit",
        "budget_exhausted",
    ]
    assert told[0].payload == {"name": "a", "index": 0, "step_count": 1}
    assert (told[1].payload["succeeded"], told[1].payload["usage"]["total_tokens"]) == (1, 15)
    assert told[3].payload == {"level": "info", "message": "one down", "fields": {"left": 1}}


def test_without_a_listener_a_note_goes_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use(session: Session) -> None:
        async with await session.workflow_async() as workflow:
            workflow.log("warning", "mind this", where="here")
            with pytest.raises(UsageError, match="level must be one of"):
                workflow.log("loud", "x")  # type: ignore[arg-type]

    with caplog.at_level(logging.WARNING, logger="fanfold"):
        in_session(tmp_path, use)
    assert "mind this {'where': 'here'}" in caplog.text


def test_usage_and_cost_are_summed_by_phase_and_in_all(tmp_path: Path) -> None:
    def priced(asked: AgentStepSpec) -> StepOutcome:
        outcome = StepOutcome(task_id=asked.task_id, agent=asked.agent, output="x", success=True)
        return outcome if asked.task_id == "t2" else replace(outcome, cost_usd=0.25)

    async def use(session: Session) -> None:
        async with await session.workflow_async(executor=HostExecutor(priced)) as workflow:
            await workflow.phase_async("a", specs(3))
            await workflow.phase_async("b", specs(1))
            first, second = workflow.reports()
            assert (first.cost_usd, first.unpriced, second.cost_usd) == (0.5, 1, 0.25)
            assert workflow.cost_usd == 0.75
            assert workflow.usage == first.usage + second.usage
            assert first.usage.is_estimated

    in_session(tmp_path, use)


def test_one_workflow_of_an_id_runs_at_a_time(tmp_path: Path) -> None:
    async def use(session: Session) -> None:
        async with await session.workflow_async() as workflow:
            assert workflow.workflow_id == "wf-s"
            with pytest.raises(AlreadyActiveError) as caught:
                await session.workflow_async()
            assert "workflow_id of its own" in (caught.value.hint or "")
            async with await session.workflow_async(workflow_id="other"):
                pass

    in_session(tmp_path, use, session_store=MemorySessionStore())


def test_a_strict_phase_refuses_changed_steps(tmp_path: Path) -> None:
    async def use(session: Session) -> None:
        async with await session.workflow_async(executor=failing("t1")) as workflow:
            await workflow.phase_async("a", specs(2))
        async with await session.workflow_async(executor=HostExecutor()) as workflow:
            with pytest.raises(StepChangedError):
                await workflow.phase_async("a", [spec("t0", "other")], strict=True)

    in_session(tmp_path, use, session_store=MemorySessionStore())


def test_a_closed_workflow_takes_no_more_calls_and_a_busy_one_is_not_closed(tmp_path: Path) -> None:
    async def forever(_: AgentStepSpec) -> str:
        await asyncio.Event().wait()
        return "never"

    async def use(session: Session) -> None:
        control = FanOutControl()
        workflow = await session.workflow_async(executor=HostExecutor(forever), control=control)
        call = asyncio.create_task(workflow.phase_async("a", specs(1)))
        while not control.is_running("t0"):
            await asyncio.sleep(0)
        with pytest.raises(LifecycleError, match="still running"):
            await workflow.close_async()
        assert session.cancel_step("t0")
        assert not session.cancel_step("t1")
        [outcome] = await call
        assert outcome.output == CANCELLED
        await workflow.close_async()
        await workflow.close_async()
        assert workflow.is_closed()
        with pytest.raises(LifecycleError, match="is closed"):
            await workflow.phase_async("b", specs(1))

    in_session(tmp_path, use)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_phase_needs_a_name(tmp_path: Path, name: str) -> None:
    async def use(session: Session) -> None:
        async with await session.workflow_async() as workflow:
            with pytest.raises(UsageError, match="name of a phase"):
                await workflow.phase_async(name, specs(1))

    in_session(tmp_path, use)


def test_a_session_that_closes_lets_go_of_its_workflows_and_says_so(tmp_path: Path) -> None:
    store, kept = MemorySessionStore(), list[Workflow]()

    async def use(session: Session) -> None:
        kept.append(await session.workflow_async(executor=HostExecutor()))
        await kept[0].phase_async("a", specs(2))

    with pytest.warns(ResourceWarning, match="workflow 'wf-s' was not closed"):
        in_session(tmp_path, use, session_store=store)
    assert kept[0].is_closed()
    assert asyncio.run(store.logs("workflow")) == ["wf-s"]


@pytest.mark.parametrize("operation", ["parallel_resumable", "plan_resume", "checkpoints", "checkpoint"])
def test_what_needs_a_store_says_so(tmp_path: Path, operation: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"checkpoints": (), "checkpoint": ("w",)}

    async def use(session: Session) -> None:
        with pytest.raises(MissingStoreError) as caught:
            await getattr(session, f"{operation}_async")(*arguments.get(operation, ([step("a")], "w")))
        assert str(caught.value) == f"{operation} requires a session_store on the session"

    in_session(tmp_path, use)


def test_a_steps_cost_follows_from_the_models_prices(tmp_path: Path) -> None:
    config = """
    default_model = "here/m"
    providers "here" {
      base_url = "%s"
      models "m" { cost = { input = 2, output = 10, cache_read = 0.5 } }
    }
    """

    async def main() -> StepOutcome:
        async with ChatServer([Say("x")]) as server, await Agent.create_async(config % server.base_url) as agent:
            session = await agent.session_async(tmp_path)
            outcomes: list[StepOutcome] = await session.parallel_async([step("a")])
            return outcomes[0]

    outcome = asyncio.run(main())
    assert outcome.usage is not None
    assert outcome.cost_usd == Prices(input=2.0, output=10.0, cache_read=0.5).of(outcome.usage) > 0


def test_cached_tokens_have_a_price_of_their_own() -> None:
    usage = Usage(
        prompt_tokens=100, completion_tokens=50, total_tokens=150, cache_read_tokens=20, cache_write_tokens=10
    )
    prices = Prices(input=2.0, output=10.0, cache_read=0.5)
    assert prices.of(usage) == (70 * 2.0 + 20 * 0.5 + 10 * 2.0 + 50 * 10.0) / 1_000_000


def test_a_pipeline_with_a_stage_that_fails_keeps_the_journal(tmp_path: Path) -> None:
    store, first, again = MemorySessionStore(), HostExecutor(), HostExecutor()

    def broken(ctx: dict[str, Any]) -> dict[str, Any]:
        if ctx["item"] == "b":
            raise ValueError("flaky")
        return spec("second", ctx["previous"]["output"])

    def mended(ctx: dict[str, Any]) -> dict[str, Any]:
        return spec("second", ctx["previous"]["output"])

    async def run(session: Session, executor: HostExecutor, stage: Any) -> list[Any]:
        async with await session.workflow_async(executor=executor) as workflow:
            results = await workflow.pipeline_async(["a", "b", "c"], [lambda ctx: spec("first", ctx["item"]), stage])
            assert workflow.reports()[0].stopped == (stage is broken)
            return results

    async def use(session: Session) -> None:
        await run(session, first, broken)
        await run(session, again, mended)
        assert await session.checkpoints_async() == []

    in_session(tmp_path, use, session_store=store)
    assert again.started == ["second"]


def test_the_items_of_a_pipeline_are_known_by_what_they_are(tmp_path: Path) -> None:
    store, again = MemorySessionStore(), HostExecutor()

    async def run(session: Session, executor: HostExecutor, items: list[str]) -> None:
        with pytest.raises(RuntimeError, match="stop"):  # noqa: PT012
            async with await session.workflow_async(executor=executor) as workflow:
                await workflow.pipeline_async(items, [lambda ctx: spec("s", ctx["item"])])
                raise RuntimeError("stop")

    async def use(session: Session) -> None:
        await run(session, HostExecutor(), ["a", "b", "b", "c"])
        await run(session, again, ["new", "b", "c", "a", "b"])

    in_session(tmp_path, use, session_store=store)
    assert len(again.started) == 1


def test_a_phase_put_in_front_of_others_leaves_them_recorded(tmp_path: Path) -> None:
    store, again = MemorySessionStore(), HostExecutor()

    async def use(session: Session) -> None:
        with pytest.raises(RuntimeError, match="stop"):  # noqa: PT012
            async with await session.workflow_async(executor=HostExecutor()) as workflow:
                await workflow.phase_async("find", specs(2))
                raise RuntimeError("stop")
        async with await session.workflow_async(executor=again) as workflow:
            await workflow.phase_async("before", [spec("new")])
            await workflow.phase_async("find", specs(2))

    in_session(tmp_path, use, session_store=store)
    assert again.started == ["new"]


def test_a_phase_that_was_cut_off_may_be_asked_again_in_the_same_run(tmp_path: Path) -> None:
    store, calls = MemorySessionStore(), list[str]()

    async def answer(asked: AgentStepSpec) -> str:
        calls.append(asked.task_id)
        if asked.task_id == "t1" and calls.count("t1") == 1:
            await asyncio.Event().wait()
        return "x"

    async def use(session: Session) -> None:
        async with await session.workflow_async(executor=HostExecutor(answer)) as workflow:
            with pytest.raises(TypeError):
                await workflow.pipeline_async([object()], [])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(workflow.phase_async("a", specs(2)), 0.6)
            await workflow.phase_async("a", specs(2))
        assert await session.checkpoints_async() == []

    in_session(tmp_path, use, session_store=store)
    assert calls == ["t0", "t1", "t1"]


def test_leaving_by_an_exception_ends_what_runs_and_hides_nothing(tmp_path: Path) -> None:
    async def forever(_: AgentStepSpec) -> str:
        await asyncio.Event().wait()
        return "never"

    async def use(session: Session) -> None:
        phase: Any = None
        executor = HostExecutor(forever)
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012
            async with await session.workflow_async(executor=executor) as workflow:
                phase = asyncio.create_task(workflow.phase_async("a", specs(2)))
                while executor.running < 2:
                    await asyncio.sleep(0)
                raise ValueError("mine")
        assert [outcome.error_code for outcome in await phase] == ["RUN_CANCELLED"] * 2
        async with await session.workflow_async():
            pass  # nobody has the lease

    in_session(tmp_path, use, session_store=MemorySessionStore())


def test_cancelling_a_running_step_by_its_id_is_no_ban_on_the_next_of_that_id(tmp_path: Path) -> None:
    async def answer(asked: AgentStepSpec) -> str:
        if asked.prompt == "first":
            await asyncio.Event().wait()
        return "x"

    async def use(session: Session) -> None:
        async with await session.workflow_async(executor=HostExecutor(answer)) as workflow:
            call = asyncio.create_task(workflow.phase_async("a", [spec("names", "first")]))
            while not session.cancel_step("names"):
                await asyncio.sleep(0)
            [cancelled] = await call
            [second] = await workflow.phase_async("b", [spec("names", "second")])
            assert (cancelled.success, second.success) == (False, True)

    in_session(tmp_path, use)
