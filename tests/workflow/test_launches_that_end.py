"""A launch that is refused or cancelled in its first writes leaves its run as it was; who is told of which run."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.workflow_runs import RunSummary
from fanfold.errors import WorkflowInputError
from fanfold.testing.memory_runs import Change, MemoryRuns
from fanfold.testing.virtual_loop import run_virtually, virtual_env
from fanfold.workflow.runs import all_runs
from tests.workflow.rig import META, Rig, Team


async def script(ctx: Any, args: Any) -> Any:
    return await ctx.agent("hello")


def rig_on(files: MemoryRuns, **more: Any) -> Rig:
    rig = Rig(Path(), files=files, env=virtual_env(), **more)
    rig.register(script)
    return rig


class Door:
    """Calls `when` before the `number`th change of the disk."""

    def __init__(self, number: int, when: Callable[[], None]) -> None:
        self._number = number
        self._when = when
        self.came = 0

    async def __call__(self, change: Change, run_id: str) -> None:
        self.came += 1
        if self.came == self._number:
            self._when()


def cancel(tasks: list[asyncio.Task[Any]]) -> None:
    tasks[0].cancel()


async def cancelled_at(number: int, launch: Callable[[Rig], Awaitable[Any]], disk: MemoryRuns) -> bool:
    """False when the launch was over before it came to that change."""
    tasks: list[asyncio.Task[Any]] = []
    door = Door(number, lambda: cancel(tasks))
    rig = rig_on(disk.another_process(before=door))
    work = launch(rig)
    tasks.append(asyncio.ensure_future(work))
    await asyncio.wait(tasks)
    was_cancelled = tasks[0].cancelled()
    if rig.tasks:
        await asyncio.wait(rig.tasks)
    return was_cancelled


async def only_run(disk: MemoryRuns) -> RunSummary:
    [run] = await all_runs(disk)
    return run


async def completed(disk: MemoryRuns) -> str:
    """A run that its conversation has been told of."""
    rig = rig_on(disk)
    launch = await rig.workflows.launch_async(META["name"], notify=True)
    await rig.workflows.wait_async(launch.run_id)
    [notice] = await rig.notices.pending()
    await rig.notices.delivered(notice.id)
    return launch.run_id


def test_a_resume_that_is_cancelled_in_its_first_writes_leaves_the_run_as_it_was() -> None:
    async def main() -> None:
        disk = MemoryRuns()
        run_id = await completed(disk)
        before = (await only_run(disk)).snapshot

        async def resume(rig: Rig) -> None:
            await rig.workflows.launch_async(resume_from_run_id=run_id, notify=True)

        number = 0
        for number in itertools.count(1):
            if not await cancelled_at(number, resume, disk):
                break
            run = await only_run(disk)
            assert (run.snapshot, run.is_alive) == (before, False)
            assert await disk.notices("s-1") == []
        assert number > 3  # the lock, the journal, the notice and the snapshot
        run = await only_run(disk)
        assert run.status == "completed"
        assert run.snapshot is not None
        assert run.snapshot.attempt > 1

    run_virtually(main())


def test_a_new_run_whose_launch_is_cancelled_never_looks_like_a_death_and_is_not_told() -> None:
    async def launch(rig: Rig) -> None:
        await rig.workflows.launch_async(META["name"], notify=True)

    async def main() -> None:
        number = 0
        for number in itertools.count(1):
            disk = MemoryRuns()
            if not await cancelled_at(number, launch, disk):
                break
            for run in await all_runs(disk):
                assert (run.status, run.is_alive) in (("stopped", False), ("unreadable", False))
            assert await disk.notices("s-1") == []
        assert number > 3

    run_virtually(main())


@pytest.mark.parametrize("change", ["append", "put_notice", "write_snapshot"])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_resume_that_the_disk_refuses_leaves_the_run_as_it_was(change: Change, is_told: bool) -> None:
    async def main() -> None:
        disk = MemoryRuns()
        rig = rig_on(disk)
        run_id = (await rig.workflows.launch_async(META["name"], notify=True)).run_id
        await rig.workflows.wait_async(run_id)
        [notice] = await rig.notices.pending()
        if is_told:
            await rig.notices.delivered(notice.id)
        before = (await only_run(disk)).snapshot
        disk.fail_next(change)
        with pytest.raises(WorkflowInputError) as raised:
            await rig.workflows.launch_async(resume_from_run_id=run_id, notify=True)
        assert raised.value.code == "store_unwritable"
        run = await only_run(disk)
        assert (run.snapshot, run.is_alive) == (before, False)
        assert await rig.notices.pending() == ([] if is_told else [notice])

    run_virtually(main())


def test_a_new_run_that_the_disk_refuses_leaves_no_notice_and_no_death() -> None:
    async def main() -> None:
        changes: tuple[Change, ...] = ("append", "put_notice", "write_snapshot")
        for change in changes:
            disk = MemoryRuns()
            rig = rig_on(disk)
            disk.fail_next(change)
            with pytest.raises(WorkflowInputError):
                await rig.workflows.launch_async(META["name"], notify=True)
            assert [run.status for run in await all_runs(disk)] in (["unreadable"], ["stopped"])
            assert await disk.notices("s-1") == []

    run_virtually(main())


# ---- who is told ----------------------------------------------------------------------------------------------------


def test_a_fork_is_told_to_who_makes_it_and_to_no_other_conversation() -> None:
    async def main() -> None:
        disk = MemoryRuns()
        run_id = await completed(disk)
        other = rig_on(disk, session_id="s-2")
        quiet = await other.workflows.run_async(resume_from_run_id=run_id, fork=True)
        assert quiet.run_id != run_id
        own = await other.workflows.run_async(resume_from_run_id=run_id, fork=True, notify=True)
        assert await disk.notices("s-1") == []
        [notice] = await other.notices.pending()
        assert notice.id == f"{own.run_id}-1"

    run_virtually(main())


def test_a_run_that_somebody_else_goes_on_with_is_told_to_the_conversation_that_launched_it() -> None:
    async def main() -> None:
        disk = MemoryRuns()
        run_id = await completed(disk)
        await rig_on(disk, session_id="s-2").workflows.run_async(resume_from_run_id=run_id)
        [notice] = await rig_on(disk).notices.pending()
        assert notice.id == f"{run_id}-2"

    run_virtually(main())


def test_a_run_that_is_gone_or_never_began_has_no_notice_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = MemoryRuns()
        rig = rig_on(disk)
        held = await disk.create(f"wf_{META['name']}_{0:016x}")
        kept = b'{"id": "x-1"}'
        await disk.put_notice("s-1", held.run_id, kept)
        assert await rig.notices.pending() == []
        assert [data for _, data in await disk.notices("s-1")] == [kept]  # somebody is about to begin it
        await held.release()
        assert await rig.notices.pending() == []
        await disk.put_notice("s-1", f"wf_{META['name']}_{1:016x}", kept)
        assert await rig.notices.pending() == []
        assert await disk.notices("s-1") == []

    run_virtually(main())
    assert caplog.records == []


# ---- launches that are made again -----------------------------------------------------------------------------------


def test_a_launch_that_is_made_again_while_its_run_goes_on_begins_nothing() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def answer(spec: Any) -> str:
            await release.wait()
            return "done"

        rig = rig_on(MemoryRuns(), team=Team(answer))
        first, again = [await rig.workflows.launch_once_async("k", META["name"], notify=True) for _ in range(2)]
        assert first == again
        release.set()
        await rig.workflows.wait_async(first.run_id)
        assert rig.team.prompts == ["hello"]
        assert await rig.workflows.launch_once_async("k", META["name"], notify=True) == first  # it will be told

    run_virtually(main())


def test_other_keys_and_other_arguments_begin_runs_of_their_own() -> None:
    async def main() -> None:
        rig = rig_on(MemoryRuns())
        launches = [
            await rig.workflows.launch_once_async(key, META["name"], args, notify=True)
            for key, args in (("k", {}), ("j", {}), ("k", {"a": 1}), (None, {}), (None, {}))
        ]
        assert len({launch.run_id for launch in launches}) == 5
        await asyncio.wait(rig.tasks)

    run_virtually(main())


def test_a_key_that_comes_again_behind_the_end_of_what_it_began_is_that_of_another_launch() -> None:
    """As with a log that was deleted, whose calls are numbered anew."""

    async def main() -> None:
        rig = rig_on(MemoryRuns())
        found: set[str] = set()
        for _ in range(3):
            launch = await rig.workflows.launch_once_async("k", META["name"], notify=True)
            assert await rig.workflows.launch_once_async("k", META["name"], notify=True) == launch
            found.add(launch.run_id)
            await rig.workflows.wait_async(launch.run_id)
            [notice] = await rig.notices.pending()
            await rig.notices.delivered(notice.id)
        assert len(found) == 3

    run_virtually(main())


def test_a_resume_that_is_made_again_is_the_same_attempt() -> None:
    async def main() -> None:
        disk = MemoryRuns()
        run_id = await completed(disk)
        rig = rig_on(disk)
        for key, attempt in (("k", 2), ("k", 2), ("j", 3)):
            launch = await rig.workflows.launch_once_async(key, resume_from_run_id=run_id, notify=True)
            assert (launch.run_id, launch.attempt) == (run_id, attempt)
            await rig.workflows.wait_async(run_id)

    run_virtually(main())


def test_a_run_that_its_session_has_closed_is_gone_on_with_by_the_call_that_is_made_again() -> None:
    async def main() -> None:
        disk = MemoryRuns()

        async def never(spec: Any) -> str:
            await asyncio.Event().wait()
            raise AssertionError

        rig = rig_on(disk, team=Team(never))
        first = await rig.workflows.launch_once_async("k", META["name"], notify=True)
        await asyncio.sleep(1)
        for task in rig.tasks:
            task.cancel()
        await asyncio.wait(rig.tasks)
        assert (await only_run(disk)).status == "stopped"
        later = rig_on(disk)
        again = await later.workflows.launch_once_async("k", META["name"], notify=True)
        assert (again.run_id, again.attempt) == (first.run_id, 2)
        assert (await later.workflows.wait_async(first.run_id)).value == "re: hello"

    run_virtually(main())
