"""Ctrl-C and SIGTERM: the first one stops the work in order, the second one ends the process at once."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from types import FrameType
from typing import Any, TypeVar

from fanfold.cli.endings import StoppedBySignal

R = TypeVar("R")

_SHOW_CURSOR = "\x1b[?25h"


def run_until_stopped(work: Coroutine[Any, Any, R]) -> R:
    """The result of `work`, run on a new event loop.

    Raises:
        StoppedBySignal: a signal came; `work` was cancelled and has cleaned up behind itself.
    """
    runner = asyncio.Runner()
    loop = runner.get_loop()
    task = loop.create_task(work)
    received: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if received:
            _end_now(number)
        received.append(number)
        loop.call_soon_threadsafe(task.cancel)

    # Handled until the loop is closed too, for closing may wait for a thread that hangs.
    with _handled_by(on_signal), runner:
        try:
            return runner.run(_wait_for(task))
        except asyncio.CancelledError:
            if not received:
                raise
            raise StoppedBySignal(received[0]) from None


async def _wait_for(task: asyncio.Task[R]) -> R:
    return await task


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    # Not loop.add_signal_handler: the second signal must work although the loop is stuck, and on Windows.
    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)


def _end_now(number: int) -> None:
    if sys.stderr.isatty():
        print(_SHOW_CURSOR, end="", file=sys.stderr, flush=True)
    os._exit(128 + number)
