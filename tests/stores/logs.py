"""Logs on disk for the tests of this room, and children that write to them."""

import asyncio
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fanfold.contracts.codec import encode_fact
from fanfold.contracts.facts import Fact
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.testing.conformance import read_all, said

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def lines_of(count: int, first: int = 1) -> list[bytes]:
    """Lines of a good log."""
    return [encode_fact(said(f"key-{seq}").at(seq)) for seq in range(first, first + count)]


def write_log(directory: Path, lines: Sequence[bytes], thread: str = "t") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{thread}.jsonl"
    path.write_bytes(b"".join(lines))
    return path


async def facts_in(directory: Path, thread: str = "t") -> Sequence[Fact]:
    """What a fresh log object reads."""
    log = JsonlFactLog(directory)
    try:
        return await read_all(log, thread)
    finally:
        await log.close()


def start_child(code: str, *args: object) -> "subprocess.Popen[str]":
    """A process that runs `code` with `args` in `sys.argv[1:]`; it talks through its pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_child(code: str, *args: object) -> None:
    child = start_child(code, *args)
    output, _ = child.communicate(timeout=25)
    assert child.returncode == 0, output
