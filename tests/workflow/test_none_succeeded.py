"""What a run says in which no agent has come to an answer."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.testing.memory_runs import MemoryRuns
from tests.workflow.rig import Rig, Team, failure


async def fails(spec: AgentStepSpec) -> Any:
    return f"re: {spec.prompt}" if spec.prompt == "fine" else failure(spec, f"{spec.prompt} broke")


async def branches_of(ctx: Any, prompts: list[str]) -> Any:
    return await ctx.parallel([lambda each=each: ctx.agent(each) for each in prompts])


async def behind_one_that_is_fine(ctx: Any, prompts: list[str]) -> Any:
    await ctx.agent("fine")
    return await branches_of(ctx, prompts)


@pytest.mark.parametrize(
    ("script", "prompts", "message"),
    [
        (branches_of, ["a"], "its only agent failed: a broke"),
        (branches_of, ["a", "b"], "all 2 agents failed; the first: a broke"),
        (behind_one_that_is_fine, ["a"], "its only branch failed: a broke"),
        (behind_one_that_is_fine, ["a", "b"], "of 2 branches none succeeded; the first: a broke"),
    ],
)
def test_a_run_in_which_none_succeeded_says_of_how_many_and_why(script: Any, prompts: list[str], message: str) -> None:
    async def main(ctx: Any, args: Any) -> Any:
        return await script(ctx, prompts)

    async def run() -> None:
        result = await Rig(Path(), Team(fails), files=MemoryRuns()).run(main)
        assert result.status == "failed"
        assert result.error is not None
        assert (result.error.code, result.error.message) == ("NO_ANSWER", message)

    asyncio.run(run())
