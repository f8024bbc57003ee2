"""The border to code that is not ours: tools, models, executors, stages, callbacks. What it raises is a value here."""

import asyncio
import copy
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
logger = logging.getLogger("fanfold")


async def call_foreign(work: Awaitable[T], failed: Callable[[BaseException], T]) -> T:
    """What `work` gives; what it raises goes through `failed`, whose answer or error stands for it.

    Passed on as they are: the cancellation of this task, and Ctrl-C. A `CancelledError` that nobody asked for, a
    `SystemExit`, or the panic of a native library is a failure like any other: it must not end the siblings.
    """
    try:
        return await work
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
            raise
        return failed(error)


def is_being_cancelled() -> bool:
    """Somebody has cancelled the running task, even if code on the way has swallowed it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def stop_if_cancelled() -> None:
    """Begin nothing new in a task that was cancelled, though a tool may have swallowed the cancellation."""
    if is_being_cancelled():
        raise asyncio.CancelledError


def tolerant(listener: Callable[..., None]) -> Callable[..., None]:
    """`listener`, heard until it raises: its first error is logged, then it is left alone. Listening costs no work."""
    is_silent = False

    @functools.wraps(listener)
    def hear(*args: Any) -> None:
        nonlocal is_silent
        if is_silent:
            return
        try:
            listener(*args)
        except KeyboardInterrupt:
            raise
        except BaseException:
            is_silent = True
            logger.exception("a listener raised and will hear no more of this operation")

    return hear


def copy_of(error: E) -> E:
    """An error of one's own for each task that raises it, where its class can be copied."""
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001  a class with a constructor of its own kind
        return error


def described(error: BaseException) -> str:
    """`ValueError: what it says`"""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  a class whose errors cannot even be told
        text = "(it has no text)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
