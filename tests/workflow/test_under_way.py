"""Agents that are under way when a run pauses end, are recorded, and are not asked again (spec-workflow 5.6, 5.7)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.testing.memory_runs import MemoryRuns
from fanfold.testing.virtual_loop import run_virtually, virtual_env
from tests.workflow.rig import TOKENS, Rig, Team, failure

FAULTS: dict[str, dict[str, Any]] = {
    "auth": {"error_code": "LLM_ERROR", "blocked_by": "auth"},
    "quota": {"error_code": "LLM_ERROR", "blocked_by": "quota"},
    "unreachable": {"error_code": "LLM_ERROR"},
}


async def three(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([lambda each=each: ctx.agent(each) for each in ("bad", "slow", "never")])


@pytest.mark.parametrize("reason", FAULTS)
def test_who_is_under_way_when_the_breaker_opens_ends_and_replays(reason: str) -> None:
    async def main() -> None:
        async def answer(spec: AgentStepSpec) -> Any:
            await asyncio.sleep(1)
            if spec.prompt == "bad":
                return failure(spec, "no more", **FAULTS[reason])
            await asyncio.sleep(5)
            return spec.prompt

        files = MemoryRuns()
        limits = WorkflowLimits(concurrency=2, break_after=1)
        rig = Rig(Path(), Team(answer), files=files, env=virtual_env(), limits=limits)
        result = await rig.run(three)
        assert (result.status, result.reason, sorted(rig.team.prompts)) == ("paused", reason, ["bad", "slow"])
        assert (result.counts.done, result.usage.total_tokens) == (1, 2 * TOKENS)
        again = Rig(Path(), files=files)
        again.register(three)
        whole = await again.run(resume_from_run_id=result.run_id)
        assert (whole.status, whole.value) == ("completed", ["re: bad", "slow", "re: never"])
        assert sorted(again.team.prompts) == ["bad", "never"]

    run_virtually(main())
