"""What a durable append costs: 64 threads at once against one raw file, and a long log against an empty one.

    python benchmarks/fact_log.py [--dir DIR] [--seconds 2]

`raw` is the best that a group commit can do on this disk: one file, whatever is queued is written and synced as one
batch, no timer, no locks, no keys. Give a `--dir` on the disk that you mean; a tmpfs measures only the CPU.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from fanfold.contracts.codec import encode_json
from fanfold.contracts.facts import NewFact, TextTurn
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.stores.memory import MemoryFactLog

WRITERS = 64
LONG_LOG = 100_000
ROUNDS = 5
TEXT = "x" * 200


def new_fact(number: int) -> NewFact:
    return NewFact(f"infer:{number}", f"m-{number}", TextTurn(text=TEXT))


class RawGroupCommit:
    """The baseline: one file and one writer task."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        self._queue: list[tuple[bytes, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._count = 0

    async def append(self, fact: NewFact) -> None:
        self._count += 1
        landed = asyncio.get_running_loop().create_future()
        self._queue.append((encode_json(fact.at(self._count)) + b"\n", landed))
        self._wake.set()
        await landed

    async def write_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch, self._queue = self._queue, []
                data = b"".join([line for line, _ in batch])
                await asyncio.get_running_loop().run_in_executor(None, self._write, data)
                for _, landed in batch:
                    landed.set_result(None)
                await asyncio.sleep(0)

    def _write(self, data: bytes) -> None:
        os.write(self._fd, data)
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


async def rate(append: Callable[[int, NewFact], Awaitable[object]], seconds: float) -> float:
    """Appends a second that `WRITERS` tasks reach together."""
    count = 0
    end = time.perf_counter() + seconds

    async def write(writer: int) -> None:
        nonlocal count
        number = 0
        while time.perf_counter() < end:
            number += 1
            await append(writer, new_fact(number))
            count += 1

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for writer in range(WRITERS):
            group.create_task(write(writer))
    return count / (time.perf_counter() - started)


async def raw_rate(directory: Path, seconds: float) -> float:
    raw = RawGroupCommit(directory / "raw")
    writer = asyncio.create_task(raw.write_forever())
    try:
        return await rate(lambda _, fact: raw.append(fact), seconds)
    finally:
        writer.cancel()
        raw.close()


async def log_rate(directory: Path, seconds: float) -> float:
    log = JsonlFactLog(directory / "log")
    held = [await log.hold(f"session-{number}") for number in range(WRITERS)]
    for each in held:  # as in a running process: the files are there
        await each.append([new_fact(0)])
    try:
        return await rate(lambda writer, fact: held[writer].append([fact]), seconds)
    finally:
        for each in held:
            await each.release()
        await log.close()


async def append_ms(directory: Path, length: int, appends: int = 200) -> float:
    """Median milliseconds of one append to a log of `length` facts that this process did not write."""
    writer = JsonlFactLog(directory)
    thread = await writer.hold(f"long-{length}")
    await thread.append([new_fact(number) for number in range(length)])
    await thread.release()
    await writer.close()
    log = JsonlFactLog(directory)
    thread = await log.hold(f"long-{length}")
    took = []
    for number in range(length, length + appends):
        started = time.perf_counter()
        await thread.append([new_fact(number)])
        took.append(1000 * (time.perf_counter() - started))
    await thread.release()
    await log.close()
    return statistics.median(took)


async def memory_us(runs: int = 20_000) -> float:
    """Microseconds of what one child of a fan-out does: a log of its own, held, appended to, released."""
    fact = [new_fact(1)]
    started = time.perf_counter()
    for _ in range(runs):
        held = await MemoryFactLog().hold("child")
        await held.append(fact)
        await held.release()
    return 1e6 * (time.perf_counter() - started) / runs


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dir", type=Path, default=None, help="where to write (default: the current directory)")
    options.add_argument("--seconds", type=float, default=2.0, help="how long each rate is measured")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix=".fact-log-", dir=chosen.dir or Path.cwd()) as name:
        directory = Path(name)
        pairs = []
        for round_number in range(ROUNDS):  # in turns, for a shared disk has its moods
            place = directory / str(round_number)
            place.mkdir()
            raw = asyncio.run(raw_rate(place, chosen.seconds / 2))
            pairs.append((raw, asyncio.run(log_rate(place, chosen.seconds / 2))))
        empty, long = (asyncio.run(append_ms(directory, length)) for length in (0, LONG_LOG))
    raw, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(log / raw for raw, log in pairs)
    print("| durable appends | raw | fanfold | ratio | goal |\n|---|---|---|---|---|")
    print(f"| {WRITERS} writers at once, per second | {raw:,.0f} | {ours:,.0f} | {ratio:.2f} | >= 0.5 |")
    print(f"| one append, empty log -> {LONG_LOG:,} facts, ms | {empty:.3f} | {long:.3f} | {long / empty:.2f} | ~1 |")
    print(f"| in memory: new log, hold, append, release, us | | {asyncio.run(memory_us()):.2f} | | a few |")


if __name__ == "__main__":
    main()
