"""A fork draws and dates as the run that was launched first, or all that is built on that would run anew (5.5)."""

import asyncio
from pathlib import Path
from typing import Any

from fanfold.testing.memory_runs import MemoryRuns
from tests.workflow.rig import Rig


async def drawing(ctx: Any, args: Any) -> Any:
    return [await ctx.agent(f"{ctx.random()} {ctx.uuid()} {ctx.now()}"), await ctx.agent(f"about {args['topic']}")]


def test_what_is_built_on_chance_and_time_is_answered_in_a_fork_and_in_the_fork_of_one() -> None:
    async def main() -> None:
        rig = Rig(Path(), files=MemoryRuns())
        run = first = await rig.run(drawing, {"topic": "a"})
        drawn: Any = first.value
        for topic in ("b", "c"):
            run = await rig.run(args={"topic": topic}, resume_from_run_id=run.run_id, fork=True)
            assert run.value == [drawn[0], f"re: about {topic}"]
            assert (run.counts.cached, run.counts.launched) == (1, 1)
        assert len(rig.team.asked) == 4
        other: Any = (await Rig(Path(), files=MemoryRuns()).run(drawing, {"topic": "a"})).value
        assert other[0] != drawn[0]

    asyncio.run(main())
