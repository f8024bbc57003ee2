"""Branches that are one agent each: their answers are recorded together, and before anybody sees one of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.run_journal import Result
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import LogWriteError
from fanfold.kernel.run_journal import decode_line
from fanfold.testing.memory_runs import Change, MemoryRuns
from tests.workflow.rig import Rig

ONE_AT_A_TIME = WorkflowLimits(concurrency=1)


class Gate:
    """Lets nothing into the journal behind the header of the attempt until it is open."""

    def __init__(self) -> None:
        self.appends = 0
        self.is_open = asyncio.Event()
        self.is_full = False

    async def __call__(self, change: Change, run_id: str) -> None:
        if change != "append":
            return
        self.appends += 1
        if self.appends > 1:
            await self.is_open.wait()
            if self.is_full:
                raise LogWriteError(path=run_id, reason="No space left on device")


async def parallel(ctx: Any, seen: list[Any]) -> Any:
    answers = await ctx.parallel([lambda each=each: ctx.agent(f"p{each}") for each in range(6)])
    seen.append(answers)
    return answers


async def pipeline(ctx: Any, seen: list[Any]) -> Any:
    answers = await ctx.pipeline(range(6), lambda item: f"p{item}", lambda prompt: ctx.agent(prompt))
    seen.append(answers)
    return answers


async def awaited(ctx: Any, seen: list[Any]) -> Any:
    async def one(each: int) -> Any:
        seen.append(await ctx.agent(f"p{each}"))
        return seen[-1]

    return await ctx.parallel([lambda each=each: one(each) for each in range(6)])


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


@pytest.mark.parametrize("script", [parallel, pipeline])
def test_the_next_agents_are_launched_while_answers_are_recorded_and_nobody_sees_one_before(
    tmp_path: Path, script: Any
) -> None:
    async def main() -> None:
        gate, seen = Gate(), list[Any]()
        rig = Rig(tmp_path, files=MemoryRuns(before=gate), limits=ONE_AT_A_TIME)
        running = asyncio.create_task(rig.run(lambda ctx, args: script(ctx, seen)))
        await until(lambda: len(rig.team.asked) == 6)
        for _ in range(20):
            await asyncio.sleep(0)
        assert seen == []
        assert [each["status"] for each in rig.progress("workflow_agent") if each["status"] == "done"] == []
        gate.is_open.set()
        result = await running
        assert (result.status, seen) == ("completed", [[f"re: p{each}" for each in range(6)]])
        assert (result.counts.done, result.usage.total_tokens > 0) == (6, True)

    asyncio.run(main())


def test_an_answer_that_its_branch_looks_at_is_recorded_first(tmp_path: Path) -> None:
    async def main() -> None:
        gate, seen = Gate(), list[Any]()
        rig = Rig(tmp_path, files=MemoryRuns(before=gate), limits=ONE_AT_A_TIME)
        running = asyncio.create_task(rig.run(lambda ctx, args: awaited(ctx, seen)))
        await until(lambda: gate.appends > 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (seen, len(rig.team.asked)) == ([], 1)
        gate.is_open.set()
        assert (await running).status == "completed"

    asyncio.run(main())


@pytest.mark.parametrize("script", [parallel, pipeline])
def test_answers_that_cannot_be_recorded_fail_the_run_and_are_seen_by_nobody(tmp_path: Path, script: Any) -> None:
    async def main() -> None:
        gate, seen = Gate(), list[Any]()
        gate.is_full = True
        files = MemoryRuns(before=gate)
        rig = Rig(tmp_path, files=files, limits=ONE_AT_A_TIME)
        running = asyncio.create_task(rig.run(lambda ctx, args: script(ctx, seen)))
        await until(lambda: len(rig.team.asked) == 6)
        gate.is_open.set()
        result = await running
        assert (result.status, result.counts.done, seen) == ("failed", 0, [])
        assert result.error is not None
        assert result.error.code == "IO_ERROR"
        data = files.journal_bytes(result.run_id) or b""
        assert not [line for line in data.splitlines() if isinstance(decode_line(line), Result)]

    asyncio.run(main())


def test_a_stop_records_what_has_ended_by_then(tmp_path: Path) -> None:
    async def main() -> None:
        gate, seen = Gate(), list[Any]()
        files = MemoryRuns(before=gate)
        rig = Rig(tmp_path, files=files, limits=ONE_AT_A_TIME)
        running = asyncio.create_task(rig.run(lambda ctx, args: parallel(ctx, seen)))
        await until(lambda: len(rig.team.asked) == 6)
        [run] = await rig.workflows.runs_async()
        stopping = asyncio.create_task(rig.workflows.stop_async(run.run_id))
        await asyncio.sleep(0)
        gate.is_open.set()
        await stopping
        first = await running
        assert first.counts.done == 6
        again = Rig(tmp_path, files=files)
        again.register(lambda ctx, args: parallel(ctx, seen))
        result = await again.run(resume_from_run_id=run.run_id)
        assert (result.status, again.team.asked) == ("completed", [])

    asyncio.run(main())
