"""What bounds a run, and what shares its bounds (spec-workflow 5.2, 5.5, 5.6, 5.7, 7.27)."""

import asyncio
from pathlib import Path
from typing import Any

from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import FanfoldError
from fanfold.orchestration.fanout import stand_in
from fanfold.testing.memory_runs import MemoryRuns
from fanfold.testing.virtual_loop import run_virtually, virtual_env
from tests.workflow.rig import TOKENS, Rig, Team, failure


def test_unless_somebody_says_otherwise_the_limits_are_the_ones_of_the_page() -> None:
    limits = WorkflowLimits()
    assert (limits.concurrency, limits.max_agents, limits.max_items) == (8, 1_000, 4_096)
    page = (Path(__file__).parents[2] / "docs" / "workflows.md").read_text(encoding="utf-8")
    assert "8 agents at once, 1,000\nlive agents in one attempt, 4,096 items in one fan-out" in page


def test_agent_1001_is_refused_and_answers_from_the_journal_are_free(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return len(await ctx.parallel([lambda each=each: ctx.agent(f"p{each}") for each in range(1005)]))

    async def main() -> None:
        rig = Rig(tmp_path)
        first = await rig.run(script)
        assert first.error is not None
        assert (first.status, first.error.code, first.counts.launched) == ("failed", "agent_cap", 1000)
        again = await rig.run(resume_from_run_id=first.run_id)
        assert (again.value, again.counts.cached, again.counts.launched) == (1005, 1000, 5)

    asyncio.run(main())


async def inner(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([lambda each=each: ctx.agent(f"{args['name']}{each}") for each in range(4)])


async def outer(ctx: Any, args: Any) -> Any:
    own = [lambda each=each: ctx.agent(f"o{each}") for each in range(4)]
    return await ctx.parallel([*own, *(lambda name=name: ctx.workflow("inner", {"name": name}) for name in "xy")])


def nesting(place: Path, team: Team | None = None, **more: Any) -> Rig:
    rig = Rig(place, team, **more)
    rig.register(inner, name="inner")
    rig.register(outer)
    return rig


def test_nested_workflows_run_within_the_places_of_the_run_around_them() -> None:
    async def answer(spec: AgentStepSpec) -> str:
        await asyncio.sleep(1)
        return spec.prompt

    async def main() -> None:
        limits = WorkflowLimits(concurrency=3)
        rig = nesting(Path(), Team(answer), limits=limits, files=MemoryRuns(), env=virtual_env())
        result = await rig.run()
        assert (result.status, len(rig.team.asked), rig.team.most_in_flight) == ("completed", 12, 3)

    run_virtually(main())


def test_agents_of_nested_workflows_count_for_the_cap(tmp_path: Path) -> None:
    async def main() -> None:
        rig = nesting(tmp_path, limits=WorkflowLimits(max_agents=7))
        result = await rig.run()
        assert result.error is not None
        assert (result.status, result.error.code, len(rig.team.asked)) == ("failed", "agent_cap", 7)

    asyncio.run(main())


def test_nested_workflows_spend_the_budget_of_the_run_around_them(tmp_path: Path) -> None:
    async def main() -> None:
        rig = nesting(tmp_path, limits=WorkflowLimits(concurrency=1))
        result = await rig.run(budget_tokens=7 * TOKENS)
        assert (result.status, result.reason) == ("paused", "budget_exhausted")
        assert len(rig.team.asked) == 7

    asyncio.run(main())


def test_what_goes_wrong_in_a_nested_workflow_is_raised_where_it_was_asked_for(tmp_path: Path) -> None:
    async def broken(ctx: Any, args: Any) -> Any:
        await ctx.agent("a")
        raise KeyError("mine")

    async def script(ctx: Any, args: Any) -> Any:
        try:
            await ctx.workflow("broken")
        except KeyError as error:
            return [str(error), await ctx.parallel([lambda: ctx.workflow("broken"), lambda: 1])]

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(broken, name="broken")
        result = await rig.run(script)
        assert (result.status, result.value) == ("completed_with_failures", ["'mine'", [None, 1]])

    asyncio.run(main())


def test_agents_that_all_wait_for_a_person_keep_no_branch_from_being_begun(tmp_path: Path) -> None:
    """As many as a script has branches at once, and their agents have given up their places."""

    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(each) for each in [*"abcdefghijkl", "last"]])

    async def main() -> None:
        said = asyncio.Event()

        async def answer(spec: AgentStepSpec) -> str:
            if spec.prompt == "last":
                said.set()
            else:
                stand_in.get()()
                await said.wait()
            return spec.prompt

        rig = Rig(tmp_path, Team(answer), limits=WorkflowLimits(concurrency=1))
        async with asyncio.timeout(10):
            result = await rig.run(script)
        assert (result.status, result.value) == ("completed", [*"abcdefghijkl", "last"])

    asyncio.run(main())


def test_agents_that_wait_for_room_in_the_budget_hold_no_place(tmp_path: Path) -> None:
    """Two places: were one of those who wait in one, the next one would have to queue."""

    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(each) for each in ("runs", "waits", "waits too")])

    async def main() -> None:
        async def answer(spec: AgentStepSpec) -> str:
            await asyncio.sleep(5)
            seen.append(rig.team.in_flight)
            return spec.prompt

        seen: list[int] = []
        limits = WorkflowLimits(concurrency=2)
        rig = Rig(tmp_path, Team(answer), files=MemoryRuns(), env=virtual_env(), limits=limits)
        result = await rig.run(script, budget_tokens=3 * TOKENS)
        assert (result.value, seen[0]) == (["runs", "waits", "waits too"], 1)
        assert [each["label"] for each in rig.progress("workflow_agent") if each["status"] == "queued"] == []

    run_virtually(main())


def test_a_resume_may_have_other_limits_and_another_budget(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(f"p{each}") for each in range(6)])

    async def answer(spec: AgentStepSpec) -> str:
        await asyncio.sleep(0.001)
        return spec.prompt

    async def main() -> None:
        first = await Rig(tmp_path).run(script, limits=WorkflowLimits(max_agents=1), budget_tokens=1000)
        assert first.counts.launched == 1
        rig = Rig(tmp_path, Team(answer))
        rig.register(script)
        again = await rig.run(resume_from_run_id=first.run_id, limits=WorkflowLimits(concurrency=2), budget_tokens=2000)
        assert (again.status, again.counts.cached, rig.team.most_in_flight) == ("completed", 1, 2)
        snapshot = (await rig.workflows.status_async(first.run_id)).snapshot
        assert snapshot is not None
        assert snapshot.limits == WorkflowLimits(concurrency=2)
        assert snapshot.budget is not None
        assert (snapshot.budget.limit_tokens, snapshot.budget.spent_tokens) == (2000, 6 * TOKENS)

    asyncio.run(main())


def test_an_agent_that_takes_longer_than_its_time_fails_and_is_tried_as_often_as_was_asked() -> None:
    async def answer(spec: AgentStepSpec) -> str:
        if spec.prompt == "slow":
            await asyncio.Event().wait()
        return spec.prompt

    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel(
            [lambda: ctx.agent("slow", timeout_ms=2_000, retries=2), lambda: ctx.agent("quick", timeout_ms=2_000)]
        )

    async def main() -> None:
        rig = Rig(Path(), Team(answer), files=MemoryRuns(), env=virtual_env())
        result = await rig.run(script)
        assert (result.status, result.value) == ("completed_with_failures", [None, "quick"])
        assert [failed.code for failed in result.failures] == ["TIMEOUT"]
        assert rig.team.prompts.count("slow") == 3
        assert rig.team.in_flight == 0
        again = await rig.run(resume_from_run_id=result.run_id)
        assert (again.counts.cached, again.counts.launched) == (1, 1)

    run_virtually(main())


def test_a_failure_is_paid_for_out_of_the_budget(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        codes: list[str] = []
        for number in range(9):
            try:
                await ctx.agent(f"p{number}")
            except FanfoldError as error:
                codes.append(error.code)
        return codes

    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec)

    async def main() -> None:
        rig = Rig(tmp_path, Team(answer))
        result = await rig.run(script, budget_tokens=3 * TOKENS)
        assert result.value == ["AGENT_FAILED"] * 3 + ["BUDGET_EXHAUSTED"] * 6
        assert len(rig.team.asked) == 3

    asyncio.run(main())
