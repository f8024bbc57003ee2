"""What a script gets is what the journal can give back: in the first run as in every later one (spec-workflow 7.35)."""

import asyncio
import datetime
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.workflow.agents import BLOB_BYTES
from tests.workflow.rig import Rig, Team

SCHEMA = {"type": ["object", "array"]}


async def script(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([lambda: ctx.agent("one", schema=SCHEMA)])


def giving(value: Any) -> Team:
    async def answer(spec: AgentStepSpec) -> StepOutcome:
        return StepOutcome(task_id=spec.task_id, agent=spec.agent, output="", success=True, structured=value)

    return Team(answer)


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, 2)},
        {1: "int key"},
        {"a": {1}},
        {"a": b"bytes"},
        {"a": float("nan")},
        {"a": datetime.datetime(2026, 1, 1)},
        {"a": object()},
        {"a": 2**80},
        {"a": "\ud800"},
    ],
    ids=repr,
)
def test_an_odd_value_is_the_same_in_each_attempt_or_an_error_in_the_first(tmp_path: Path, value: Any) -> None:
    async def main() -> None:
        first = await Rig(tmp_path, giving(value)).run(script)
        again = Rig(tmp_path, giving(value))
        again.register(script)
        second = await again.workflows.run_async(resume_from_run_id=first.run_id)
        assert second.value == first.value
        if first.value == [None]:
            assert first.failures[0].code == "EXECUTOR_ERROR"
            assert "valid" in first.failures[0].message

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, BLOB_BYTES])
def test_an_object_that_lies_in_a_file_of_its_own_is_given_like_any_other(tmp_path: Path, size: int) -> None:
    value = {"text": "x" * size}

    async def both(ctx: Any, args: Any) -> Any:
        awaited = await ctx.agent("one", schema=SCHEMA)
        return [awaited, *await ctx.parallel([lambda: ctx.agent("two", schema=SCHEMA)])]

    async def main() -> None:
        first = await Rig(tmp_path, giving(value)).run(both)
        assert (first.status, first.value) == ("completed", [value, value])
        again = Rig(tmp_path, giving(value))
        again.register(both)
        second = await again.workflows.run_async(resume_from_run_id=first.run_id)
        assert (second.value, again.team.asked) == ([value, value], [])

    asyncio.run(main())


def test_what_a_script_does_to_its_value_does_not_reach_the_journal(tmp_path: Path) -> None:
    async def changing(ctx: Any, args: Any) -> Any:
        value = await ctx.agent("one", schema=SCHEMA)
        value["list"].append("mine")
        return [value, await ctx.agent("one", schema=SCHEMA)]

    async def main() -> None:
        first = await Rig(tmp_path, giving({"list": [1]})).run(changing)
        assert first.value == [{"list": [1, "mine"]}, {"list": [1]}]
        again = Rig(tmp_path)
        again.register(changing)
        assert (await again.workflows.run_async(resume_from_run_id=first.run_id)).value == first.value
        assert again.team.asked == []

    asyncio.run(main())
