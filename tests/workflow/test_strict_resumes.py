"""A strict resume ends where its script goes another way than before, which is never a None (spec-workflow 5.2)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.testing.memory_runs import MemoryRuns
from tests.workflow.rig import Rig, Team, failure


class Moody:
    """A script that asks what its host's mood is."""

    def __init__(self, *, first: str = "first") -> None:
        self.mood = "calm"
        self.first = first

    async def __call__(self, ctx: Any, args: Any) -> Any:
        found = await ctx.agent(self.first) if self.first != "bad" else (await ctx.parallel([lambda: ctx.agent("bad")]))
        return [found, await ctx.parallel([lambda: ctx.agent(self.mood), lambda: ctx.agent("same")])]


def rig_of(script: Moody, files: MemoryRuns, *, model: str = "test/one") -> Rig:
    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec) if spec.prompt == "bad" else f"re: {spec.prompt}"

    rig = Rig(Path(), Team(answer), files=files, model=model)
    rig.register(script)
    return rig


def test_another_way_with_the_same_answers_ends_the_run_and_launches_nothing() -> None:
    async def main() -> None:
        script, files = Moody(), MemoryRuns()
        first = await rig_of(script, files).run()
        script.mood = "cross"
        rig = rig_of(script, files)
        again = await rig.run(resume_from_run_id=first.run_id, strict=True)
        assert again.error is not None
        assert (again.status, again.error.code, rig.team.asked) == ("failed", "nondeterministic", [])
        assert "/0.0#0" in again.error.message
        assert again.counts.null_results == 0
        script.mood = "calm"
        calm = await rig_of(script, files).run(resume_from_run_id=first.run_id, strict=True)
        assert (calm.value, calm.counts.launched) == (first.value, 0)

    asyncio.run(main())


@pytest.mark.parametrize("more", [{}, {"strict": True, "fork": True, "args": {"other": 1}}])
def test_who_is_not_strict_or_forks_may_ask_something_else(more: Any) -> None:
    async def main() -> None:
        script, files = Moody(), MemoryRuns()
        first = await rig_of(script, files).run()
        script.mood = "cross"
        rig = rig_of(script, files)
        again = await rig.run(resume_from_run_id=first.run_id, **more)
        assert (again.status, rig.team.prompts) == ("completed", ["cross"])

    asyncio.run(main())


def test_what_follows_from_an_answer_that_is_new_is_no_other_way() -> None:
    async def main() -> None:
        script, files = Moody(first="bad"), MemoryRuns()
        first = await rig_of(script, files).run()
        script.mood = "cross"
        rig = rig_of(script, files)
        again = await rig.run(resume_from_run_id=first.run_id, strict=True)
        assert (again.status, rig.team.prompts) == ("completed_with_failures", ["bad", "cross"])

    asyncio.run(main())


def test_another_model_that_is_asked_the_same_is_no_other_way() -> None:
    async def main() -> None:
        script, files = Moody(), MemoryRuns()
        first = await rig_of(script, files).run()
        rig = rig_of(script, files, model="test/two")
        again = await rig.run(resume_from_run_id=first.run_id, strict=True)
        assert (again.value, again.counts.launched) == (first.value, 3)

    asyncio.run(main())
