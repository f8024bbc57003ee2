"""One writer of a log: whoever waits for a record is told what became of it."""

import asyncio
from collections.abc import Callable

import pytest

from fanfold.errors import LogWriteError
from fanfold.orchestration.append_queue import AppendQueue


class Log:
    """Writes when it is let, and fails as often as it is told to."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.batches = 0
        self.failures = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def append(self, records: list[bytes]) -> None:
        self.batches += 1
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise LogWriteError(path="log", reason="the disk is full")
        self.records += records


def nothing() -> None:
    return None


class Number:
    """The record of a number; `heard` is called when it is written."""

    def __init__(self, number: int, heard: Callable[[], object] = nothing) -> None:
        self._number = number
        self._heard = heard

    def encode(self) -> bytes:
        return b"%d" % self._number

    def written(self) -> None:
        self._heard()


def test_what_comes_while_a_batch_is_on_its_way_goes_together_in_the_next_one() -> None:
    async def main() -> None:
        log, heard = Log(), list[int]()
        queue = AppendQueue(log.append)
        log.gate.clear()
        tasks = [asyncio.create_task(queue.append(Number(0, lambda: heard.append(0))))]
        while not log.batches:
            await asyncio.sleep(0)
        queue.precede(b"ahead")
        tasks += [
            asyncio.create_task(queue.append(Number(each, lambda each=each: heard.append(each))))  # type: ignore[misc]
            for each in range(1, 5)
        ]
        await asyncio.sleep(0)
        log.gate.set()
        await asyncio.gather(*tasks)
        assert log.records == [b"0", b"ahead", b"1", b"2", b"3", b"4"]
        assert (heard, log.batches) == ([0, 1, 2, 3, 4], 2)

    asyncio.run(main())


def test_what_is_brought_in_the_turn_in_which_a_batch_lands_is_written_too() -> None:
    async def main() -> None:
        log = Log()
        queue = AppendQueue(log.append)
        queue.submit(Number(0, lambda: queue.submit(Number(1))))
        await queue.flush()
        for number in range(2, 5):
            await queue.append(Number(number))  # each as soon as the one before has landed
        assert log.records == [b"0", b"1", b"2", b"3", b"4"]

    asyncio.run(main())


def test_a_failed_append_is_told_to_everybody_who_waits_and_its_records_go_with_the_next() -> None:
    async def main() -> None:
        log = Log()
        queue = AppendQueue(log.append)
        log.failures = 1
        ends = await asyncio.gather(*(queue.append(Number(each)) for each in range(2)), return_exceptions=True)
        assert [type(end) for end in ends] == [LogWriteError, LogWriteError]
        with pytest.raises(LogWriteError):
            queue.submit(Number(2))  # it was not told to whoever comes next
        await queue.append(Number(3))
        assert log.records == [b"0", b"1", b"3"]

    asyncio.run(main())


def test_what_is_written_counts_though_its_bringer_was_cancelled() -> None:
    async def main() -> None:
        log, heard = Log(), list[int]()
        queue = AppendQueue(log.append)
        log.gate.clear()
        task = asyncio.create_task(queue.append(Number(0, lambda: heard.append(0))))
        while not log.batches:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        log.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (log.records, heard) == ([b"0"], [0])

    asyncio.run(main())


@pytest.mark.parametrize("has_begun", [True, False])
def test_nobody_waits_for_a_loop_that_is_being_ended(has_begun: bool) -> None:
    """Whoever ends a loop cancels all of its tasks: the one that writes too, and perhaps before it has begun."""

    async def main() -> None:
        log = Log()
        queue = AppendQueue(log.append)
        log.gate.clear()
        ended, before = list[type | None](), asyncio.all_tasks()

        async def bring() -> None:
            try:
                await queue.append(Number(0))
            except BaseException as error:
                ended.append(type(error))
                raise

        bringer = asyncio.create_task(bring())
        await asyncio.sleep(0)
        if has_begun:
            while not log.batches:
                await asyncio.sleep(0)
        for writer in asyncio.all_tasks() - before - {bringer}:
            writer.cancel()
        await asyncio.wait({bringer}, timeout=5)
        assert ended == [asyncio.CancelledError]
        await queue.idle()
        log.gate.set()
        await queue.append(Number(1))
        assert log.records == [b"0", b"1"], "it is not lost: whoever comes next takes it along"

    asyncio.run(main())
