"""Plain functions of a host, called in threads of their own: one that hangs holds up nobody but its own caller."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from fanfold.foreign import described
from fanfold.kernel.plain_text import plain

T = TypeVar("T")

MAX_LEFT_BEHIND = 64
"""Calls of one host object that nobody waits for any more and that still run: then no further one is begun."""
MAX_ERROR_CHARACTERS = 500


class NoAnswer(msgspec.Struct, frozen=True):
    """A callback gave none: it raised, took too long, or could not be called."""

    why: Literal["raised", "timeout", "unavailable"]
    reason: str
    """Stands behind the name of what was called: `raised ValueError: ...`, `did not respond within 25ms`."""


def has_raised(error: BaseException) -> NoAnswer:
    return NoAnswer("raised", f"raised {_told(error)}")


def timed_out(timeout_ms: int) -> NoAnswer:
    return NoAnswer("timeout", f"did not respond within {timeout_ms}ms")


class CallbackThreads:
    """Calls the functions of one host object, each call in a thread of its own.

    No pool: each worker that hangs would be one less for all others, and `concurrent.futures` joins its workers at
    exit. A daemon thread starts in some 70 µs, ends with its call, and is left behind at its timeout; what it answers
    after that is ignored. Use it on one event loop.
    """

    def __init__(self) -> None:
        self._left_behind = 0

    async def call(self, work: Callable[[], T], timeout_ms: int | None = None) -> "T | NoAnswer":
        """What `work` returns, called with a copy of the caller's context variables."""
        if self._left_behind >= MAX_LEFT_BEHIND:
            return NoAnswer("unavailable", f"is not called: {self._left_behind} earlier calls have not returned yet")
        loop = asyncio.get_running_loop()
        landing: asyncio.Future[T | NoAnswer] = loop.create_future()
        run = contextvars.copy_context().run

        def in_thread() -> None:
            answer: T | NoAnswer
            try:
                answer = run(work)
            except BaseException as error:  # noqa: BLE001  also SystemExit: it must not leave the caller waiting
                answer = has_raised(error)
            try:
                loop.call_soon_threadsafe(self._land, landing, answer)
            except RuntimeError:  # the loop is closed: nobody waits any more
                drop(answer)

        try:
            threading.Thread(target=in_thread, name="fanfold-callback", daemon=True).start()
        except (RuntimeError, MemoryError) as error:  # no more threads, or the interpreter is about to end
            return NoAnswer("unavailable", f"is not called: {_told(error)}")
        return await self._awaited(landing, timeout_ms)

    async def _awaited(self, landing: "asyncio.Future[T | NoAnswer]", timeout_ms: int | None) -> "T | NoAnswer":
        # The first to settle the future wins, so that an answer which came in time counts even where the loop was late
        # to look; `asyncio.timeout` would cancel this task then.
        timer = None
        if timeout_ms is not None:
            timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._leave, landing, timeout_ms)
        try:
            return await landing
        except asyncio.CancelledError:
            if landing.cancelled():
                self._left_behind += 1
            else:
                drop(landing.result())
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _leave(self, landing: "asyncio.Future[T | NoAnswer]", timeout_ms: int) -> None:
        if not landing.done():
            self._left_behind += 1
            landing.set_result(timed_out(timeout_ms))

    def _land(self, landing: "asyncio.Future[T | NoAnswer]", answer: "T | NoAnswer") -> None:
        if landing.done():
            self._left_behind -= 1
            drop(answer)
        else:
            landing.set_result(answer)


def is_async(function: object) -> bool:
    """`function`, or the `__call__` of such an object, is an `async def`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def drop(answer: object) -> None:
    """Close a coroutine that nobody will await, so that nothing warns of it."""
    if inspect.iscoroutine(answer):
        answer.close()


def _told(error: BaseException) -> str:
    try:
        text = described(error)
    except BaseException:  # noqa: BLE001  the `__str__` of a class that is not ours
        text = type(error).__name__
    return plain(text)[:MAX_ERROR_CHARACTERS]
