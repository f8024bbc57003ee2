"""Crew: the agents under way, each a task of its own: one that does not end when it is cancelled is left behind.

Code that ignores its cancellation, or waits for a thread that is stuck, cannot be ended by anybody. What can be done is
not to wait for it: its run goes on to its end, and its place is free for others.
"""

import asyncio
import contextvars
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, TypeVar

from fanfold.foreign import logger
from fanfold.orchestration.limiter import give_up_place

T = TypeVar("T")

GRACE_SECONDS = 3.0
"""For an agent that was cancelled. Commands have been killed by then, see `tools.process_group`."""

_left: set[asyncio.Task[Any]] = set()
"""A loop keeps none of its tasks alive by itself."""


class Crew:
    def __init__(self) -> None:
        self._waits: dict[str, asyncio.Future[None]] = {}

    async def run(self, task_id: str, work: Coroutine[Any, Any, T]) -> T | None:
        """What `work` gives or raises; None when it was left behind, see `leave`.

        Cancelling the caller cancels it, and waits for its end as long as the grace allows.
        """
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        wait = self._waits[task_id] = loop.create_future()
        task = loop.create_task(_worked(work, wait), context=context)
        try:
            await wait
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
            raise
        finally:
            del self._waits[task_id]
            if not task.done():
                _leave_behind(task_id, task, context)
        return task.result() if task.done() else None

    def leave(self, task_ids: Collection[str] | None = None) -> None:
        """Wait no longer than the grace for these, which were cancelled; None: for all that run."""
        waits = [wait for task_id, wait in self._waits.items() if task_ids is None or task_id in task_ids]
        if waits:
            asyncio.get_running_loop().call_later(GRACE_SECONDS, _end_all, waits)


async def _worked(work: Coroutine[Any, Any, T], wait: "asyncio.Future[None]") -> T:
    # Not by a callback of the task: that is one more turn of the loop for each agent. One that is cancelled before it
    # begins never comes here, and only whoever waits cancels it, or the end of the loop, which cancels them too.
    try:
        return await work
    finally:
        _end(wait)


def _end_all(waits: Iterable["asyncio.Future[None]"]) -> None:
    for wait in waits:
        _end(wait)


def _end(wait: "asyncio.Future[None]") -> None:
    if not wait.done():
        wait.set_result(None)


def _leave_behind(task_id: str, task: "asyncio.Task[Any]", context: contextvars.Context) -> None:
    logger.warning("agent %s does not end though it was cancelled, and is left behind", task_id)
    _left.add(task)
    task.add_done_callback(_seen)
    give_up_place(context)


def _seen(task: "asyncio.Task[Any]") -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()
