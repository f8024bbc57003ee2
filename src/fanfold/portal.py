"""One event loop per agent, and the two ways in: awaiting from any loop, and blocking from any thread.

Each operation is written once, as a coroutine that runs on the agent's loop. `on_loop` turns it into the public
`x_async` (awaitable from any loop), `blocking` turns that into the public `x` (decisions 1.2).
"""

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from fanfold.errors import LifecycleError, UsageError

P = ParamSpec("P")
R = TypeVar("R")


class Portal:
    """The loop that an agent lives on: the caller's own, or one in a thread that the portal started."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread | None = None) -> None:
        self.loop = loop
        self._thread = thread

    @classmethod
    def of_running_loop(cls) -> "Portal":
        return cls(asyncio.get_running_loop())

    @classmethod
    def in_new_thread(cls, name: str) -> "Portal":
        loop = asyncio.new_event_loop()
        # A daemon, for a forgotten close must not hang the exit; the agent's atexit hook closes it in order.
        thread = threading.Thread(target=_run_loop, args=(loop,), name=name, daemon=True)
        thread.start()
        return cls(loop, thread)

    @property
    def owns_thread(self) -> bool:
        return self._thread is not None

    def is_current(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Await `work` on the portal's loop, from whatever loop is running."""
        if self.is_current():
            return await work
        return await asyncio.wrap_future(self._submit(work))

    def call(self, work: Coroutine[Any, Any, R], name: str) -> R:
        """Run `work` on the portal's loop and wait for it in this thread.

        Raises:
            UsageError: this thread is the one that would have to run it.
        """
        if self.is_current():
            work.close()
            raise UsageError(f"{name} would block the loop that has to run it; await {name}_async instead")
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the waiting thread stops the work, not only the waiting
            raise

    def _submit(self, work: Coroutine[Any, Any, R]) -> "asyncio.Future[R] | Any":
        if self.loop.is_closed() or not self.loop.is_running():
            work.close()
            raise LifecycleError("the event loop that this agent was created on has ended; create a new agent")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        """End the portal's own thread; a caller's loop is left alone."""
        if self._thread is None or self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


class HasPortal(Protocol):
    @property
    def portal(self) -> Portal: ...


S = TypeVar("S", bound=HasPortal)


def on_loop(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The coroutine runs on the owner's loop, wherever it is awaited."""

    @functools.wraps(method)
    async def bridged(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.portal.run(method(self, *args, **kwargs))

    return bridged


def blocking(method: Callable[Concatenate[S, P], Awaitable[R]]) -> Callable[Concatenate[S, P], R]:
    """The blocking twin of an `x_async` method."""
    name = method.__name__.removesuffix("_async")

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def work() -> R:
            return await method(self, *args, **kwargs)

        return self.portal.call(work(), name)

    call.__name__ = name
    call.__doc__ = f"Blocking form of `{name}_async`."
    return call
