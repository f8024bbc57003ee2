"""What a durable append costs: 64 threads at once against one raw file, and a long log against an empty one.

    python -m benchmarks.fact_log [DIR]

`raw` is a bare group commit: one file, whatever is queued is written and synced as one batch, no timer, no locks, no
keys, nothing checked; once with the standard library's JSON, by which the goal was set, and once with our encoder,
which leaves little but the disk. Name a DIR on the disk that you mean (default: the current directory); a tmpfs
measures only the CPU.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from benchmarks.costs import Variant, in_turns
from benchmarks.table import HEAD, LEGEND, Row, ratio_row
from fanfold.contracts.codec import encode_json
from fanfold.contracts.facts import NewFact, TextTurn
from fanfold.stores.jsonl import JsonlFactLog, JsonlThread
from fanfold.stores.memory import MemoryFactLog

WRITERS = 64
PER_WRITER = 200
LONG_LOG = 100_000
ONE_BY_ONE = 100
REPETITIONS = 9
TEXT = "x" * 200


async def measure(directory: Path | None = None) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix=".fact-log-", dir=directory or Path.cwd()) as name:
        async with AsyncExitStack() as stack:
            return [
                *await _many_at_once(stack, Path(name)),
                await _long_and_empty(stack, Path(name)),
                await _in_memory(),
            ]


async def _many_at_once(stack: AsyncExitStack, directory: Path) -> list[Row]:
    log = JsonlFactLog(directory / "log")
    threads = [await _held(stack, log, f"session-{number}") for number in range(WRITERS)]
    plain = _raw(stack, directory / "plain", lambda line: json.dumps(_plain(line), separators=(",", ":")).encode())
    lean = _raw(stack, directory / "lean", encode_json)
    costs = await in_turns(
        {
            "ours": _writers(lambda writer, fact: threads[writer].append([fact])),
            "plain": _writers(lambda _, fact: plain.append(fact)),
            "lean": _writers(lambda _, fact: lean.append(fact)),
        },
        REPETITIONS,
    )
    per = (WRITERS * PER_WRITER, WRITERS * PER_WRITER)
    what = f"durable appends, {WRITERS} sessions at once, wall"
    return [
        ratio_row(
            f"{what} (2x: half of the raw rate)",
            costs["ours"],
            costs["plain"],
            "raw, json.dumps",
            per=per,
            limit=2,
            by_wall=True,
        ),
        ratio_row(what, costs["ours"], costs["lean"], "raw, our encoder", per=per, limit=2.5, by_wall=True),
    ]


def _raw(stack: AsyncExitStack, path: Path, encode: Callable[[object], bytes]) -> "RawGroupCommit":
    raw = RawGroupCommit(path, encode)
    stack.callback(raw.close)
    writing = asyncio.create_task(raw.write_forever())
    stack.callback(writing.cancel)
    return raw


def _plain(line: object) -> object:
    return msgspec.to_builtins(line)


async def _long_and_empty(stack: AsyncExitStack, directory: Path) -> Row:
    writer = JsonlFactLog(directory / "log-2")
    thread = await writer.hold("long")
    await thread.append([new_fact(number) for number in range(LONG_LOG)])
    await thread.release()
    await writer.close()
    log = JsonlFactLog(directory / "log-2")  # one that did not write the long log itself
    costs = await in_turns(
        {name: _one_by_one(await _held(stack, log, name)) for name in ("long", "empty")}, REPETITIONS
    )
    what = f"durable append to a log of {LONG_LOG:,} facts, wall"
    per = (ONE_BY_ONE, ONE_BY_ONE)
    return ratio_row(what, costs["long"], costs["empty"], "to an empty one", per=per, limit=1.5, by_wall=True)


async def _in_memory(runs: int = 20_000) -> Row:
    fact = [new_fact(1)]
    started = time.process_time()
    for _ in range(runs):
        held = await MemoryFactLog().hold("child")
        await held.append(fact)
        await held.release()
    us = 1e6 * (time.process_time() - started) / runs
    what = "log of a child of a fan-out: made, held, appended to, released"
    return Row(what=what, fanfold=f"{us / 1000:.3g} ms", figure=us, unit=" us", limit=10)


async def _held(stack: AsyncExitStack, log: JsonlFactLog, name: str) -> JsonlThread:
    thread = await log.hold(name)
    stack.push_async_callback(thread.release)
    await thread.append([new_fact(-1)])  # as in a running process: the file is there
    return thread


def _writers(append: Callable[[int, NewFact], Awaitable[object]]) -> Variant:
    written = 0

    async def write(writer: int, first: int) -> None:
        for number in range(first, first + PER_WRITER):
            await append(writer, new_fact(number))

    async def run() -> None:
        nonlocal written
        async with asyncio.TaskGroup() as group:
            for writer in range(WRITERS):
                group.create_task(write(writer, written))
        written += PER_WRITER

    return run


def _one_by_one(thread: JsonlThread) -> Variant:
    async def run() -> None:
        for _ in range(ONE_BY_ONE):
            await thread.append([new_fact(thread.last_seq)])

    return run


def new_fact(number: int) -> NewFact:
    return NewFact(f"infer:{number}", f"m-{number}", TextTurn(text=TEXT))


class RawGroupCommit:
    """The baseline: the same lines, one file and one writer task."""

    def __init__(self, path: Path, encode: Callable[[object], bytes]) -> None:
        self._encode = encode
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        self._queue: list[tuple[bytes, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._count = 0

    async def append(self, fact: NewFact) -> None:
        self._count += 1
        line = {
            "seq": self._count,
            "type": "model.turn",
            "key": fact.key,
            "cause": fact.cause,
            "payload": fact.payload,
        }
        landed = asyncio.get_running_loop().create_future()
        self._queue.append((self._encode(line) + b"\n", landed))
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


if __name__ == "__main__":
    rows = asyncio.run(measure(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
    print("\n".join([HEAD, *map(str, rows), "", LEGEND]))
