"""Fan-out: the same work over many indices, bounded, started in order, never orphaned."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from fanfold.errors import ExecutorError
from fanfold.foreign import stop_if_cancelled


def _nobody() -> None:
    return None


stand_in: ContextVar[Callable[[], None]] = ContextVar("fanfold_stand_in", default=_nobody)
"""Has one more index begun by the innermost fan-out around the running task. Called by work that is going to wait for a
person, and has given back whatever bounds how many run: its siblings need not wait with it."""


async def fan_out(count: int, limit: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Await `work(0)` ... `work(count - 1)`, at most `limit` at once, and one more for each that calls `stand_in`.

    Admission is lazy: there are as many tasks as slots, not as items, and a freed slot takes the next index at once.
    The first error ends the rest and is raised as it is: its siblings were cancelled because of it.
    """
    indices = iter(range(count))
    done = 0

    async def worker() -> None:
        nonlocal done
        for index in indices:
            stop_if_cancelled()
            await work(index)
            done += 1

    surroundings = contextvars.copy_context()
    try:
        async with asyncio.TaskGroup() as group:

            def begin() -> None:
                group.create_task(worker(), context=surroundings.copy())

            surroundings.run(stand_in.set, begin)
            for _ in range(min(max(1, limit), count)):
                begin()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    if done < count:  # nobody else can end a worker in silence
        raise ExecutorError("an executor, a stage or a tool cancelled the task that ran it, which is not its own")
