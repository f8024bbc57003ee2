"""What is queued goes together; who is cancelled waits for the outcome."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from fanfold.errors import LifecycleError, LogWriteError
from fanfold.stores.group_commit import GroupCommit
from fanfold.stores.landing import in_worker

from .logs import run


class Disk:
    """Takes each batch when it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.may_go_on = threading.Semaphore(0)
        self.is_full = False

    def work_of(self, items: Sequence[str]) -> Callable[[], None]:
        return partial(self._flush, items)

    def _flush(self, items: Sequence[str]) -> None:
        self.batches.append(list(items))
        assert self.may_go_on.acquire(timeout=10)
        if self.is_full:
            raise LogWriteError(path="disk", reason="full")


async def _until(disk: Disk, batches: int) -> None:
    while len(disk.batches) < batches:
        await asyncio.sleep(0.001)


def test_what_is_queued_while_a_batch_is_on_its_way_goes_together_in_the_next() -> None:
    async def scenario() -> None:
        disk = Disk()
        commits = GroupCommit(disk.work_of, inline_seconds=0)
        first = [commits.submit(name) for name in "ab"]
        await _until(disk, 1)
        later = [commits.submit(name) for name in "cde"]
        assert not first[0].is_over
        disk.may_go_on.release()
        await _until(disk, 2)
        assert all(each.is_over for each in first)
        assert not later[0].is_over
        disk.may_go_on.release()
        for each in later:
            await each.wait()
        assert disk.batches == [["a", "b"], ["c", "d", "e"]]
        await commits.close()

    run(scenario())


def test_a_failed_batch_fails_each_of_its_items_with_an_error_of_its_own_and_no_other() -> None:
    async def scenario() -> None:
        disk = Disk()
        disk.is_full = True
        commits = GroupCommit(disk.work_of, inline_seconds=0)
        landings = [commits.submit(name) for name in "ab"]
        disk.may_go_on.release(2)
        results = await asyncio.gather(*[each.wait() for each in landings], return_exceptions=True)
        assert [str(each) for each in results] == ["cannot write disk: full"] * 2
        assert results[0] is not results[1]
        disk.is_full = False
        await commits.submit("c").wait()
        await commits.close()

    run(scenario())


def test_a_task_that_is_cancelled_twice_still_learns_the_outcome_before_it_ends() -> None:
    async def scenario() -> None:
        disk = Disk()
        commits = GroupCommit(disk.work_of, inline_seconds=0)
        landing = commits.submit("a")
        waiting = asyncio.create_task(landing.wait())
        await _until(disk, 1)
        for _ in range(2):
            waiting.cancel()
            await asyncio.sleep(0)
            assert not waiting.done()
        disk.may_go_on.release()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert landing.is_over
        assert landing.error is None
        await commits.close()

    run(scenario())


def test_closing_waits_for_everything_that_was_submitted_and_takes_nothing_more() -> None:
    async def scenario() -> None:
        disk = Disk()
        commits = GroupCommit(disk.work_of, inline_seconds=0)
        landings = [commits.submit("a")]
        await _until(disk, 1)
        landings.append(commits.submit("b"))
        disk.may_go_on.release(2)
        await asyncio.gather(commits.close(), commits.close())
        assert all(each.is_over for each in landings)
        with pytest.raises(LifecycleError, match="closed"):
            commits.require_open()

    run(scenario())


def test_work_in_a_thread_is_over_before_its_cancelled_caller_goes_on() -> None:
    async def scenario() -> None:
        started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            started.set()
            assert may_end.wait(10)
            ended.set()

        caller = asyncio.create_task(in_worker(work))
        while not started.is_set():
            await asyncio.sleep(0.001)
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
        may_end.set()
        await asyncio.wait([caller])
        assert caller.cancelled()
        assert ended.is_set()

    run(scenario())


def test_a_lone_item_stays_on_the_loop_while_the_disk_is_fast_and_leaves_it_when_it_is_slow() -> None:
    async def main() -> None:
        threads: list[int] = []
        is_slow = threading.Event()

        def work() -> None:
            threads.append(threading.get_ident())
            if is_slow.is_set():
                threading.Event().wait(0.02)

        commits = GroupCommit[str](lambda items: work, inline_seconds=0.01)
        for slow in (False, False, True, True, False, False):
            is_slow.set() if slow else is_slow.clear()
            await commits.submit("x").wait()
        here = threading.get_ident()
        # The first slow one is still here, and the first fast one after it is not.
        assert [thread == here for thread in threads] == [True, True, True, False, False, True]
        await commits.close()

    run(main())
