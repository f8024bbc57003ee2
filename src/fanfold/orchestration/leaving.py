"""Leaving: work that does not end though it was cancelled is left behind, and is no part of anything from then on.

Code that ignores its cancellation, or waits for a thread that is stuck, cannot be ended by anybody. What can be done is
not to wait for it: it goes on to its end, and its place is free for others.
"""

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from fanfold.orchestration.limiter import give_up_place

T = TypeVar("T")

GRACE_SECONDS = 3.0
"""For work that was cancelled. Commands have been killed by then, see `tools.process_group`."""

_left: set[asyncio.Task[Any]] = set()
"""A loop keeps none of its tasks alive by itself."""


class Leavable(Protocol[T]):
    def work(self) -> Coroutine[Any, Any, T]: ...

    def leave(self, task: "asyncio.Task[T]") -> None:
        """The task of the work is waited for no longer."""
        ...


async def run_apart(what: Leavable[T], loop: asyncio.AbstractEventLoop) -> T:
    """What its work gives or raises, as if it were awaited here: but once the caller is cancelled, it is waited for no
    longer than the grace. Then it is left, and the cancellation goes on. (`loop` is the running one: to ask for it is a
    system call.)"""
    context = contextvars.copy_context()
    ended: asyncio.Future[None] = loop.create_future()
    task = loop.create_task(_worked(what, ended), context=context)
    try:
        await ended
    except asyncio.CancelledError as stop:
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
        except asyncio.CancelledError as again:
            await _leave_behind(what, task, context, again)
            raise
        if not task.done():
            await _leave_behind(what, task, context, None)
            raise stop from None
    return task.result()  # of one that was cancelled: its own cancellation, which tells what it has used


async def _worked(what: Leavable[T], ended: "asyncio.Future[None]") -> T:
    # Not by a callback of the task: that is one more turn of the loop for each piece of work. One that is cancelled
    # before it begins never comes here, and only whoever waits cancels it, or the end of the loop, which cancels both.
    try:
        return await what.work()
    finally:
        if not ended.done():
            ended.set_result(None)


async def _leave_behind(
    what: Leavable[T], task: "asyncio.Task[T]", context: contextvars.Context, stop: BaseException | None
) -> None:
    if task.done():
        return
    _left.add(task)
    task.add_done_callback(_seen)
    what.leave(task)
    await give_up_place(context, stop)


def _seen(task: "asyncio.Task[Any]") -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()
