"""What a run has come to, by what succeeded in it (spec-workflow 5.2, 7.23): nothing that succeeded is no success."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from tests.workflow.rig import Rig, Team, failure

WHOLE = """
META = {"name": "verdict", "description": "d"}


def broken(*given):
    raise ValueError("broken")


async def main(ctx, args):
"""
SCRIPTS = {
    "branches of no agent": ("return await ctx.parallel([broken, broken])", "failed"),
    "one branch": ("return await ctx.parallel([broken])", "failed"),
    "stages behind agents that succeed": (
        "return await ctx.pipeline(['a', 'b'], lambda item: ctx.agent(item), broken)",
        "failed",
    ),
    "a fleet behind an agent that succeeds": (
        "await ctx.agent('plan')\n    return await ctx.parallel([lambda: ctx.agent('fail a'), broken])",
        "failed",
    ),
    "one of two": ("return await ctx.parallel([broken, lambda: 1])", "completed_with_failures"),
    "one of two splits": (
        "return [await ctx.parallel([broken]), await ctx.parallel([lambda: 1])]",
        "completed_with_failures",
    ),
    "inner branches": (
        "return await ctx.parallel([lambda: ctx.parallel([broken]), lambda: ctx.parallel([broken])])",
        "completed_with_failures",
    ),
    "no branch": ("return await ctx.parallel([])", "completed"),
    "all": ("return await ctx.parallel([lambda: None, lambda: ctx.agent('a')])", "completed"),
}


@pytest.mark.parametrize("mode", ["host", "inline"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_branches_of_which_none_succeeds_are_a_failed_run_with_its_value_and_counts(
    tmp_path: Path, name: str, mode: str
) -> None:
    body, status = SCRIPTS[name]

    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec) if spec.prompt.startswith("fail") else spec.prompt

    async def main() -> None:
        rig = Rig(tmp_path, Team(answer), takes_inline=True)
        text = f"{WHOLE}    {body}\n"
        rig.folder.scripts["verdict.py"] = text
        rig.workflows.approve("verdict")
        more: Any = {"script": text} if mode == "inline" else {"name": "verdict"}
        result = await rig.workflows.run_async(**more, events=rig.events.append)
        assert result.status == status
        assert result.value is not None
        assert (result.error is None) == (status != "failed")
        assert (result.counts.null_results > 0) == (status != "completed")
        assert rig.notification()["status"] == status

    asyncio.run(main())
