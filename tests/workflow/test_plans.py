"""Plans of a fork and of a resume of what failed: they tell what such a resume then does, and change nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowPlan
from tests.workflow.rig import Rig, Team, failure


async def fails_b(spec: AgentStepSpec) -> Any:
    return failure(spec) if spec.prompt.endswith(" b") else f"re: {spec.prompt}"


def asking(*prompts: str) -> Any:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(each) for each in prompts])

    return script


def told(plan: WorkflowPlan) -> list[tuple[str, str]]:
    return [(each.action, each.reason) for each in plan.calls]


async def begun(place: Path, script: Any, args: Any = None) -> str:
    """A run in which whatever ends in b has failed."""
    return (await Rig(place, Team(fails_b)).run(script, args)).run_id


async def planned(place: Path, script: Any, run_id: str, args: Any = None, **how: Any) -> WorkflowPlan:
    """The plan, which is held against the resume that it tells of."""
    rig = Rig(place)
    rig.register(script)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    plan = await rig.workflows.plan_async(run_id, args=args, **how)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert rig.team.asked == []
    result = await rig.workflows.run_async(None, args, resume_from_run_id=run_id, **how)
    assert plan.count("cached") <= result.counts.cached
    assert plan.count("re-run") + plan.count("new") <= result.counts.launched
    if plan.is_complete:
        assert (plan.count("cached"), 0) == (result.counts.cached, result.counts.launched)
    return plan


def test_only_failed_runs_what_failed_and_says_why_the_rest_does_not_run(tmp_path: Path) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path, asking("ask a", "ask b", "ask c"))
        edited = asking("ask a", "see b", "ask it c", "ask d")
        plan = await planned(tmp_path, edited, run_id, only_failed=True)
        assert plan.only_failed
        assert {each.where: (each.action, each.reason) for each in plan.calls} == {
            "/0.0#0": ("cached", "recorded"),
            "/0.1#0": ("re-run", "prompt changed"),
            "/0.2#0": ("cached", "recorded; what is asked there now is not run"),
            "/0.3#0": ("not run", "not recorded; nothing has failed there"),
        }
        assert plan.estimated_tokens == 10  # of one agent

    asyncio.run(main())


def test_what_follows_from_a_call_that_may_not_run_is_planned_as_it_comes(tmp_path: Path) -> None:
    async def first(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("ask a"), lambda: ctx.agent("ask c")])

    async def edited(ctx: Any, args: Any) -> Any:
        found = await ctx.parallel([lambda: ctx.agent("ask a"), lambda: ctx.agent("ask c"), lambda: ctx.agent("new")])
        return [found, await ctx.agent("and the sum")]

    async def main() -> None:
        run_id = await begun(tmp_path, first)
        plan = await planned(tmp_path, edited, run_id, only_failed=True)
        assert told(plan)[2:] == [("not run", "not recorded; nothing has failed there")] * 2
        assert plan.is_complete
        assert plan.error is not None
        assert plan.error.code == "AGENT_FAILED"
        assert "'and the sum'" in plan.error.message
        assert plan.estimated_tokens == 0

    asyncio.run(main())


def test_a_fork_keeps_the_answers_that_still_fit_and_says_what_became_of_the_others(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(f"ask {each}") for each in args["areas"]])

    async def main() -> None:
        run_id = await begun(tmp_path, script, {"areas": ["a", "b", "c", "with b"]})
        plan = await planned(tmp_path, script, run_id, {"areas": ["a", "b", "z", "y", "new"]}, fork=True)
        assert (plan.is_fork, plan.spent_tokens, plan.run_id) == (True, 0, run_id)
        assert told(plan) == [
            ("cached", "recorded"),
            ("re-run", "failed before: NO_ANSWER: it broke"),
            ("re-run", "prompt changed"),
            ("re-run", "prompt changed"),
            ("new", "not recorded"),
        ]
        assert plan.unclaimed == ("/0.2#0",)
        assert plan.estimated_tokens == 4 * 10
        with pytest.raises(Exception, match="args differ"):
            await planned(tmp_path, script, run_id, {"areas": ["z"]})

    asyncio.run(main())


def test_a_fork_of_what_failed_is_planned_by_what_failed_in_the_first_run(tmp_path: Path) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path, asking("ask a", "ask b"))
        plan = await planned(tmp_path, asking("ask a", "ask b", "ask c"), run_id, fork=True, only_failed=True)
        assert sorted(told(plan)) == [
            ("cached", "recorded"),
            ("not run", "not recorded; nothing has failed there"),
            ("re-run", "failed before: NO_ANSWER: it broke"),
        ]

    asyncio.run(main())


def test_time_and_chance_of_a_planned_fork_are_those_of_the_fork(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent(f"{ctx.now()} {ctx.uuid()} {ctx.budget.spent()}")

    async def main() -> None:
        run_id = await begun(tmp_path, script)
        plan = await planned(tmp_path, script, run_id, fork=True)
        assert (told(plan), plan.is_complete) == ([("cached", "recorded")], True)

    asyncio.run(main())


def test_a_script_that_ends_badly_behind_its_recorded_answers_is_told(tmp_path: Path) -> None:
    async def edited(ctx: Any, args: Any) -> Any:
        await ctx.parallel([lambda: ctx.agent("ask a")])
        raise ValueError("too late")

    async def main() -> None:
        run_id = await begun(tmp_path, asking("ask a"))
        plan = await planned(tmp_path, edited, run_id)
        assert plan.error is not None
        assert (plan.error.code, plan.error.line is None) == ("ValueError", False)
        assert "too late" in plan.error.message

    asyncio.run(main())
