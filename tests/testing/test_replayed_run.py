"""A replay runs nothing: today's script is held against the journal of a finished run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.testing import ReplayMissError, replay_run
from tests.workflow.rig import Rig


def asking(*prompts: str) -> Any:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(each, label=each) for each in prompts], on_error="raise")

    return script


def test_a_script_that_still_resumes_its_run_gives_the_same_value(tmp_path: Path) -> None:
    async def main() -> None:
        first = await Rig(tmp_path).run(asking("a", "b"))
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert await replay_run(tmp_path, first.run_id, asking("a", "b")) == first.value
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before

    asyncio.run(main())


def test_a_call_that_would_be_run_fails_the_replay_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        first = await Rig(tmp_path).run(asking("a", "b"))
        with pytest.raises(ReplayMissError, match=r"'changed' at /0\.1#0 would be run: prompt changed"):
            await replay_run(tmp_path, first.run_id, asking("a", "changed"))

    asyncio.run(main())
