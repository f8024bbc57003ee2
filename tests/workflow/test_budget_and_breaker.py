"""Budgets that are hard for launches, and the circuit breaker (spec-workflow 5.6, 5.7, 7.53-7.58)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowLimits
from tests.workflow.rig import TOKENS, Rig, Team, failure


async def twenty(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([lambda each=each: ctx.agent(f"p{each}") for each in range(20)])


def test_at_the_limit_launches_end_and_what_is_under_way_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, limits=WorkflowLimits(concurrency=4))
        result = await rig.run(twenty, budget_tokens=45)
        assert (result.status, result.reason) == ("paused", "budget_exhausted")
        assert result.error is not None
        assert result.error.code == "BUDGET_EXHAUSTED"
        spent = result.total_usage.total_tokens
        assert 45 <= spent <= 45 + 4 * TOKENS
        assert result.counts.done == result.counts.launched == spent // TOKENS
        again = Rig(tmp_path)
        again.register(twenty)
        denied = await again.workflows.run_async(resume_from_run_id=result.run_id)
        assert (denied.reason, again.team.asked) == ("budget_exhausted", [])  # spent is spent, whoever resumes
        assert denied.counts.cached == result.counts.done
        whole = await again.workflows.run_async(resume_from_run_id=result.run_id, budget_tokens=10_000)
        assert (whole.status, whole.total_usage.total_tokens) == ("completed", 20 * TOKENS)
        assert len(again.team.asked) == 20 - result.counts.done

    asyncio.run(main())


def test_a_spent_budget_never_becomes_none_and_a_script_may_take_it_as_its_end(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        found: list[Any] = []
        while True:
            try:
                found.append(await ctx.agent(f"more {len(found)}"))
            except RuntimeError as error:
                return [len(found), error.code, ctx.budget.total, ctx.budget.spent(), ctx.budget.remaining()]  # type: ignore[attr-defined]

    async def main() -> None:
        result = await Rig(tmp_path).run(script, budget_tokens=25)
        assert result.value == [3, "BUDGET_EXHAUSTED", 25, 30, 0]
        assert result.status == "completed"

    asyncio.run(main())


def test_without_a_budget_there_is_no_limit_to_tell(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        await ctx.agent("a")
        return [ctx.budget.total, ctx.budget.spent(), ctx.budget.remaining()]

    async def main() -> None:
        assert (await Rig(tmp_path).run(script)).value == [None, TOKENS, None]

    asyncio.run(main())


def test_a_script_that_asks_for_ever_behind_a_spent_budget_is_ended(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        while True:
            try:
                await ctx.agent("again")
            except Exception:  # noqa: BLE001
                continue

    async def main() -> None:
        result = await Rig(tmp_path).run(script, budget_tokens=5)
        assert result.status == "failed"
        assert result.counts.launched == 1

    asyncio.run(main())


@pytest.mark.parametrize("blocked_by", ["auth", "quota"])
def test_where_the_provider_refuses_for_good_nothing_more_is_launched(tmp_path: Path, blocked_by: str) -> None:
    async def main() -> None:
        async def answer(spec: AgentStepSpec) -> Any:
            await asyncio.sleep(0)
            if spec.prompt == "p3":
                return failure(spec, "no more", error_code="LLM_ERROR", blocked_by=blocked_by, reset_ms=12345)
            return spec.prompt

        rig = Rig(tmp_path, Team(answer), limits=WorkflowLimits(concurrency=4))
        result = await rig.run(twenty)
        assert (result.status, result.reason, result.reset_ms) == ("paused", blocked_by, 12345)
        assert len(rig.team.asked) <= 8
        assert rig.notification()["reset_ms"] == 12345
        assert result.counts.done == len(rig.team.asked) - 1  # those under way ended and count
        again = Rig(tmp_path)
        again.register(twenty)
        whole = await again.workflows.run_async(resume_from_run_id=result.run_id)
        assert (whole.status, whole.counts.cached) == ("completed", result.counts.done)

    asyncio.run(main())


def test_a_server_that_is_down_pauses_the_run_instead_of_failing_every_agent(tmp_path: Path) -> None:
    async def main() -> None:
        async def answer(spec: AgentStepSpec) -> Any:
            return failure(spec, "connection refused", error_code="LLM_ERROR")

        rig = Rig(tmp_path, Team(answer), limits=WorkflowLimits(concurrency=2, break_after=5))
        result = await rig.run(twenty)
        assert (result.status, result.reason) == ("paused", "unreachable")
        assert 5 <= len(rig.team.asked) <= 6

    asyncio.run(main())


def test_failures_with_successes_in_between_open_no_breaker(tmp_path: Path) -> None:
    async def main() -> None:
        async def answer(spec: AgentStepSpec) -> Any:
            is_odd = int(spec.prompt[1:]) % 2
            return failure(spec, "503", error_code="LLM_ERROR") if is_odd else spec.prompt

        limits = WorkflowLimits(concurrency=1, break_after=2)
        result = await Rig(tmp_path, Team(answer), limits=limits).run(twenty)
        assert (result.status, result.counts.failed) == ("completed_with_failures", 10)

    asyncio.run(main())


def test_usage_that_nobody_told_is_estimated_and_flagged(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("x" * 400)

    async def answer(spec: AgentStepSpec) -> Any:
        from fanfold.contracts.steps import StepOutcome

        return StepOutcome(task_id=spec.task_id, agent=spec.agent, output="y" * 400, success=True)

    async def main() -> None:
        result = await Rig(tmp_path, Team(answer)).run(script)
        assert result.usage.is_estimated
        assert result.usage.total_tokens >= 200

    asyncio.run(main())


def test_what_failed_was_paid_for_and_counts_over_all_attempts(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("one", retries=2)

    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec)

    async def main() -> None:
        first = await Rig(tmp_path, Team(answer)).run(script)
        assert first.usage.total_tokens == 3 * TOKENS
        rig = Rig(tmp_path)
        rig.register(script)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert (again.usage.total_tokens, again.total_usage.total_tokens) == (TOKENS, 4 * TOKENS)

    asyncio.run(main())
