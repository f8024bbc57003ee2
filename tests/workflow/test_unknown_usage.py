"""What nobody knows of what a run has spent is told as such, in each total, and is not zero (spec-workflow 5.6)."""

import asyncio
from pathlib import Path
from typing import Any

from fanfold.contracts.steps import AgentStepSpec
from fanfold.testing.memory_runs import MemoryRuns
from fanfold.testing.virtual_loop import run_virtually, virtual_env
from tests.workflow.rig import TOKENS, Rig, Team, reached


async def two(ctx: Any, args: Any) -> Any:
    return [await ctx.agent("a"), await ctx.agent("b")]


def test_an_agent_that_was_cut_off_leaves_the_totals_of_its_run_flagged_for_good() -> None:
    async def main() -> None:
        files = MemoryRuns()
        rig = Rig(Path(), files=files)
        first = await rig.run(two)
        assert not first.total_usage.is_estimated
        lines = (files.journal_bytes(first.run_id) or b"").splitlines(keepends=True)
        begun = next(number for number, line in enumerate(lines) if b'"t":"started"' in line and b"#1" in line)
        files.put_journal(first.run_id, b"".join(lines[: begun + 1]))
        for spent in (2 * TOKENS, 2 * TOKENS):
            again = await rig.run(resume_from_run_id=first.run_id)
            assert (again.total_usage.total_tokens, again.total_usage.is_estimated) == (spent, True)
            assert not again.usage.is_estimated
        snapshot = (await rig.workflows.status_async(first.run_id)).snapshot
        assert snapshot is not None
        assert snapshot.usage.is_estimated

    asyncio.run(main())


def test_an_agent_that_is_left_behind_flags_what_its_attempt_has_spent() -> None:
    async def main() -> None:
        async def answer(spec: AgentStepSpec) -> str:
            if spec.prompt == "b":
                while True:
                    try:
                        await asyncio.sleep(1000)
                        break
                    except asyncio.CancelledError:
                        continue
            return spec.prompt

        rig = Rig(Path(), Team(answer), files=MemoryRuns(), env=virtual_env())
        rig.register(two)
        launch = await rig.workflows.launch_async("demo", events=rig.events.append)
        await reached(lambda: rig.team.prompts == ["a", "b"])
        await rig.workflows.stop_async(launch.run_id)
        told = rig.notification()
        assert told["status"] == "stopped"
        assert told["total_tokens"] >= TOKENS
        assert told["usage"]["is_estimated"]
        snapshot = (await rig.workflows.status_async(launch.run_id)).snapshot
        assert snapshot is not None
        assert snapshot.usage.is_estimated

    run_virtually(main())
