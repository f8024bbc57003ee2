"""Runs that are forgotten: only those that nobody runs and of whose end nobody waits to hear, and then all of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import RunSummary, WorkflowSnapshot
from fanfold.errors import LogWriteError, WorkflowInputError
from fanfold.protocols import WorkflowFiles
from fanfold.stores.run_files import open_run_files
from fanfold.testing.memory_runs import MemoryRuns
from fanfold.workflow.upkeep import prunable
from tests.workflow.rig import Rig, Team, reached


@pytest.fixture(params=["disk", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> WorkflowFiles:
    return open_run_files(tmp_path) if request.param == "disk" else MemoryRuns()


async def script(ctx: Any, args: Any) -> Any:
    return await ctx.agent("a")


async def refusal(rig: Rig, run_id: str, **more: Any) -> str:
    with pytest.raises(WorkflowInputError) as caught:
        await rig.workflows.delete_async(run_id, **more)
    return caught.value.code


def test_a_run_that_has_ended_is_forgotten_with_the_blobs_that_only_it_needs(
    tmp_path: Path, files: WorkflowFiles
) -> None:
    async def answer(spec: AgentStepSpec) -> str:
        return "x" * 300_000 if spec.prompt == "a" else "y" * 400_000

    async def other(ctx: Any, args: Any) -> Any:
        return [await ctx.agent("a"), await ctx.agent("b")]

    async def main() -> None:
        rig = Rig(tmp_path, Team(answer), files=files)
        first, second = await rig.run(script), await Rig(tmp_path, Team(answer), files=files).run(other)
        freed = await rig.workflows.delete_async(second.run_id)
        assert 1_200_000 > freed > 1_100_000  # its output, and one of its two blobs
        assert [run.run_id for run in await rig.workflows.runs_async()] == [first.run_id]
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert (again.value, again.counts.cached) == (first.value, 1)
        for call in ("status_async", "wait_async", "delete_async", "stop_async"):
            with pytest.raises(WorkflowInputError) as caught:
                await getattr(rig.workflows, call)(second.run_id)
            assert caught.value.code == "run_not_found"
        assert await refusal(rig, "../x") == "bad_run_id"

    asyncio.run(main())


def test_a_run_that_is_running_is_not_forgotten_wherever_it_runs(tmp_path: Path, files: WorkflowFiles) -> None:
    async def main() -> None:
        may_end = asyncio.Event()

        async def answer(spec: AgentStepSpec) -> str:
            await may_end.wait()
            return "x"

        rig = Rig(tmp_path, Team(answer), files=files)
        rig.register(script)
        launch = await rig.workflows.launch_async("demo")
        await reached(lambda: rig.team.in_flight == 1)
        other = Rig(tmp_path, files=files.another_process() if isinstance(files, MemoryRuns) else None)
        for each in (rig, other):
            assert await refusal(each, launch.run_id) == "already_active"
            assert await refusal(each, launch.run_id, untold=True) == "already_active"
        may_end.set()
        assert (await rig.workflows.wait_async(launch.run_id)).status == "completed"
        assert await other.workflows.delete_async(launch.run_id) > 0
        assert await rig.workflows.runs_async() == []

    asyncio.run(main())


def test_a_run_of_whose_end_a_conversation_is_still_to_hear_stays_until_it_has_heard(
    tmp_path: Path, files: WorkflowFiles
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, files=files)
        done = await rig.run(script, notify=True)
        for _ in range(2):
            assert await refusal(Rig(tmp_path, files=files, session_id="s-2"), done.run_id) == "untold"
        assert (await rig.workflows.status_async(done.run_id)).status == "completed"
        [notice] = await rig.notices.pending()
        await rig.notices.delivered(notice.id)
        assert await rig.workflows.delete_async(done.run_id) > 0

    asyncio.run(main())


def test_a_run_that_is_forgotten_untold_is_told_to_nobody_later(
    tmp_path: Path, files: WorkflowFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        first, second = Rig(tmp_path, files=files), Rig(tmp_path, files=files, session_id="s-2")
        done = await first.run(script, notify=True)
        second.register(script)
        await second.workflows.run_async(resume_from_run_id=done.run_id, notify=True)  # both are to be told now
        kept = await first.run(notify=True)
        assert await first.workflows.delete_async(done.run_id, untold=True) > 0
        assert await second.notices.pending() == []
        assert [kept.run_id in each.text for each in await first.notices.pending()] == [True]
        assert not await files.has_notice(done.run_id)
        assert caplog.messages == []

    asyncio.run(main())


def test_a_run_that_never_began_was_promised_to_nobody(tmp_path: Path, files: WorkflowFiles) -> None:
    async def main() -> None:
        run_id = "wf_demo_0123456789abcdef"
        await (await files.create(run_id)).release()
        await files.put_notice("s-1", run_id, b'{"id":"x"}')
        await Rig(tmp_path, files=files).workflows.delete_async(run_id)
        assert (list(await files.run_ids()), await files.has_notice(run_id)) == ([], False)

    asyncio.run(main())


def test_a_run_that_is_resumed_as_its_deletion_begins_is_left_to_who_resumes_it(tmp_path: Path) -> None:
    async def main() -> None:
        files = MemoryRuns()
        done = await Rig(tmp_path, files=files).run(script)

        async def hold_first(change: str, run_id: str) -> None:
            if change == "hold":
                await files.hold(run_id)

        late = Rig(tmp_path, files=files.another_process(before=hold_first))
        assert await refusal(late, done.run_id) == "already_active"
        assert files.journal_bytes(done.run_id)

    asyncio.run(main())


@pytest.mark.parametrize("change", ["remove_notices", "delete"])
def test_a_deletion_that_the_disk_refuses_leaves_a_run_that_is_free(tmp_path: Path, change: Any) -> None:
    async def main() -> None:
        files = MemoryRuns()
        rig = Rig(tmp_path, files=files)
        done = await rig.run(script)
        files.fail_next(change)
        with pytest.raises(LogWriteError):
            await rig.workflows.delete_async(done.run_id)
        assert (await rig.workflows.status_async(done.run_id)).is_alive is False
        assert await rig.workflows.delete_async(done.run_id) > 0

    asyncio.run(main())


def summary(number: int, updated_ms: int, *, is_alive: bool = False) -> RunSummary:
    run_id = f"wf_a_{number:016x}"
    status: Any = "running" if is_alive else "failed"
    snapshot = WorkflowSnapshot(
        run_id=run_id,
        task_id="t",
        workflow="a",
        kind="file",
        args={},
        status=status,
        started_ms=1,
        updated_ms=updated_ms,
    )
    return RunSummary(run_id=run_id, snapshot=snapshot, is_alive=is_alive)


@pytest.mark.parametrize(
    ("keep", "before_ms", "expected"),
    [
        (0, None, [1, 2, 4]),
        (1, None, [2, 4]),
        (2, None, [4]),
        (9, None, []),
        (0, 40, [2, 4]),
        (2, 99, [4]),
        (0, 30, [4]),
    ],
)
def test_a_run_may_go_when_nothing_keeps_it(keep: int, before_ms: int | None, expected: list[int]) -> None:
    unreadable = RunSummary(run_id="wf_a_0000000000000003", problem="damaged")
    runs = [summary(0, 5, is_alive=True), summary(1, 50), summary(2, 30), unreadable, summary(4, 10)]
    chosen = prunable(runs, keep=keep, before_ms=before_ms)
    assert [int(run.run_id[-1]) for run in chosen] == expected


def test_a_fork_puts_the_blobs_that_it_takes_over_once_more(tmp_path: Path) -> None:
    """Who sweeps leaves what was put since it looked: the first run may be deleted just now."""

    async def answer(spec: AgentStepSpec) -> str:
        return "x" * 300_000

    async def main() -> None:
        first = await Rig(tmp_path, Team(answer)).run(script)
        [blob] = (tmp_path / ".a3s" / "workflow-runs" / "blobs").iterdir()
        before = blob.stat().st_mtime_ns
        rig = Rig(tmp_path, Team(answer))
        rig.register(script)
        fork = await rig.workflows.run_async(resume_from_run_id=first.run_id, fork=True)
        assert (fork.value, fork.counts.cached) == (first.value, 1)
        assert blob.stat().st_mtime_ns > before

    asyncio.run(main())


def test_what_is_no_run_id_is_told_in_few_words_however_long_it_is(tmp_path: Path, files: WorkflowFiles) -> None:
    async def main() -> None:
        for refused in (Rig(tmp_path, files=files).workflows.delete_async, files.look):
            with pytest.raises(WorkflowInputError) as caught:
                await refused("x" * 1_000_000)
            assert caught.value.code == "bad_run_id"
            assert len(str(caught.value)) < 200

    asyncio.run(main())
