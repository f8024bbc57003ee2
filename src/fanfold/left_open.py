"""Agents that nobody closes: what is done for those that are dropped, and for those that are open at the exit."""

import concurrent.futures
import functools
import importlib
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from fanfold.errors import LifecycleError
from fanfold.portal import Portal
from fanfold.session.closing import Closing, close_all

EXIT_SECONDS = 5.0
"""How long the interpreter's exit waits for agents that nobody closed."""
_NOT_CLOSED = "an Agent was not closed; use `with Agent.create(...)` or `async with await Agent.create_async(...)`"


class Opened(Protocol):
    """What an agent has open, and how it ends."""

    portal: Portal
    closing: Closing
    unclosed: "weakref.finalize[..., Opened]"
    """As `watch` gave it; to be detached once it is closed."""

    async def shut_down(self) -> None: ...


_in_threads: "weakref.WeakSet[Opened]" = weakref.WeakSet()
"""Those with a loop thread of their own, which the exit ends."""


def watch(opened: Opened, *parts: Callable[[], Coroutine[Any, Any, None]]) -> "weakref.finalize[..., Opened]":
    """Have the `parts` closed, with a warning, when it is dropped open; and all of it when it is open at the exit."""
    if opened.portal.owns_thread:
        _close_at_exit()
        _in_threads.add(opened)
    return weakref.finalize(opened, _abandon, opened.portal, *parts)


def _abandon(portal: Portal, *parts: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """What is left to do for an agent that was dropped open. It has no runs: a run holds its session and agent."""

    async def close() -> None:
        try:
            await close_all(parts)
        finally:
            portal.stop()

    if not portal.is_of_this_process():
        return
    try:
        portal.submit(close())
    except LifecycleError:
        pass  # its loop has ended, and with it whatever could be closed in order
    warnings.warn(_NOT_CLOSED, ResourceWarning, stacklevel=1)


@functools.cache
def _close_at_exit() -> None:
    # `atexit` would come too late: by then the thread pools are gone that the logs sync with. This is the hook by which
    # `concurrent.futures` ends its pools; hooks run newest first, so its module has to be loaded before ours is set.
    importlib.import_module("concurrent.futures.thread")
    threading._register_atexit(_close_forgotten)  # type: ignore[attr-defined]  # pyright: ignore


def _close_forgotten() -> None:
    """Close what is open at exit in order, with a warning, and without hanging the exit."""
    left = [each for each in _in_threads if each.portal.is_of_this_process()]
    is_forgotten = not all(each.closing.is_begun for each in left)
    ends = [end.future for each in left if (end := each.closing.submit(each.shut_down)) is not None]
    _, running = concurrent.futures.wait(ends, EXIT_SECONDS)
    for each in left:
        each.unclosed.detach()
    if is_forgotten:
        warnings.warn(_NOT_CLOSED, ResourceWarning, stacklevel=1)
    if running:
        what = f"a run did not stop within {EXIT_SECONDS:g} s of the exit and was left behind; its log can be resumed"
        warnings.warn(what, RuntimeWarning, stacklevel=1)
