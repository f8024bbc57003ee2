"""What a script has been given is on the disk, whatever that loses when the power fails (spec-workflow 5.4)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.testing.memory_runs import MemoryRuns
from fanfold.workflow.agents import BLOB_BYTES
from tests.workflow.rig import Rig, Team


@pytest.mark.parametrize("size", [1, BLOB_BYTES + 1])
def test_no_answer_that_a_script_was_given_is_asked_for_again(size: int) -> None:
    async def main() -> None:
        files = MemoryRuns()
        given: list[str] = []
        is_lost = asyncio.Event()

        async def script(ctx: Any, args: Any) -> Any:
            async def one(name: str) -> None:
                given.append((await ctx.agent(name))[0])

            await ctx.parallel([lambda name=name: one(name) for name in ("a", "b", "c")])
            if not is_lost.is_set():
                files.crash()
                is_lost.set()
            await one("d")
            return "".join(given)

        async def answer(spec: AgentStepSpec) -> str:
            return spec.prompt + "x" * size

        rig = Rig(Path(), Team(answer), files=files)
        rig.register(script)
        launch = await rig.workflows.launch_async("demo")
        await is_lost.wait()
        for task in rig.tasks:
            task.cancel()
        await asyncio.wait(rig.tasks)
        assert sorted(given) == ["a", "b", "c"]
        given.clear()
        again = Rig(Path(), Team(answer), files=files)
        again.register(script)
        result = await again.run(resume_from_run_id=launch.run_id)
        assert (result.value, again.team.prompts) == ("abcd", ["d"])

    asyncio.run(main())
