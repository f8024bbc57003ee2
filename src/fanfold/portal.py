"""One event loop per agent, and the two ways in: awaiting from any loop, and blocking from any thread.

Each operation is written once, as a coroutine that runs on the agent's loop. `on_loop` turns it into the public
`x_async` (awaitable from any loop), `blocking` turns that into the public `x` (decisions 1.2).
"""

import asyncio
import concurrent.futures
import functools
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from fanfold.errors import LifecycleError, UsageError

P = ParamSpec("P")
R = TypeVar("R")

_ENDED = "the event loop that this agent was created on has ended; create a new agent"
_FORKED = "this agent was made before a fork, and its event loop stayed in the parent; create a new agent"
_GRACE_SECONDS = 2.0
"""For the calls under way when the loop is stopped, and once more for what had to be cancelled."""
_LOOK_SECONDS = 1.0
"""How often a waiting caller looks whether the loop is still there: one that is closed tells nobody."""

_kept: set[asyncio.Task[Any]] = set()


def start_kept(work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
    """A task of the running loop that lives until it is done. A loop keeps none alive by itself: a run that is parked
    would vanish as soon as nobody held its stream."""
    task = asyncio.get_running_loop().create_task(work)
    _kept.add(task)
    task.add_done_callback(_kept.discard)
    return task


async def complete(work: Coroutine[Any, Any, R]) -> R:
    """Await `work` to its end, though this task is cancelled meanwhile, once or more often; then that counts."""
    task = start_kept(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


class Call(Generic[R]):
    """A coroutine on its way to the portal's loop, and its result on the way back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, R]) -> None:
        self._loop = loop
        self._work = work
        self.task: asyncio.Task[R] | None = None
        self.future: concurrent.futures.Future[R] = concurrent.futures.Future()

    def start(self) -> None:
        """On the loop."""
        self.task = start_kept(self._work)
        self.task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[R]) -> None:
        if task.cancelled():
            self._fail()
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())

    def _fail(self) -> None:
        # Whoever cancelled the call does not see this, but his own cancellation.
        self.future.set_exception(LifecycleError(_ENDED))

    def result(self) -> R:
        """Wait in this thread. Ctrl-C stops the work too and waits for its end; once more leaves at once."""
        try:
            self._wait()
        except BaseException:
            self._cancel()
            self._wait()
            raise
        return self.future.result()

    def _wait(self) -> None:
        while not concurrent.futures.wait((self.future,), _LOOK_SECONDS).done:
            self._look()

    async def arrive(self) -> R:
        """Wait on another loop. Cancelling stops the work too and waits for its end; once more leaves at once."""
        waiter = asyncio.wrap_future(self.future)
        waiter.add_done_callback(_retrieve)
        try:
            await self._wait_for(waiter)
        except asyncio.CancelledError:
            self._cancel()
            await self._wait_for(waiter)
            raise
        return waiter.result()

    async def _wait_for(self, waiter: "asyncio.Future[R]") -> None:
        while not (await asyncio.wait((waiter,), timeout=_LOOK_SECONDS))[0]:
            self._look()

    def _look(self) -> None:
        if self._loop.is_closed() and not self.future.done():
            if self.task is None:
                self._work.close()  # it came too late to be started
            self._fail()

    def _cancel(self) -> None:
        try:
            self._loop.call_soon_threadsafe(lambda: self.task is not None and self.task.cancel())
        except RuntimeError:
            pass  # the loop is closed, and the work has ended with it


def _retrieve(future: "asyncio.Future[Any]") -> None:
    # An error that came after its caller had left must not be reported once more at exit.
    if not future.cancelled():
        future.exception()


class Portal:
    """The loop that an agent lives on: the caller's own, or one in a thread that the portal started."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        # Reentrant, for a garbage collection in the middle of a submit may submit the end of a dropped agent.
        self._lock = threading.RLock()
        self._is_stopping = False
        self._has_ended = False
        self._calls: weakref.WeakSet[Call[Any]] = weakref.WeakSet()

    @classmethod
    def of_running_loop(cls) -> "Portal":
        return cls(asyncio.get_running_loop())

    @classmethod
    def in_new_thread(cls, name: str) -> "Portal":
        portal = cls(asyncio.new_event_loop())
        # A daemon, for a forgotten close must not hang the exit; the agent's exit hook closes it in order.
        portal._thread = threading.Thread(target=portal._serve, name=name, daemon=True)
        portal._thread.start()
        return portal

    @property
    def owns_thread(self) -> bool:
        return self._thread is not None

    def is_current(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def is_of_this_process(self) -> bool:
        """False in a fork of the process that made it."""
        return os.getpid() == self._process

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Await `work` on the portal's loop, from whatever loop is running."""
        if self.is_current():
            return await work
        return await self.submit(work).arrive()

    def call(self, work: Coroutine[Any, Any, R], name: str) -> R:
        """Run `work` on the portal's loop and wait for it in this thread.

        Raises:
            UsageError: this thread is the one that would have to run it.
        """
        if self.is_current():
            work.close()
            raise would_block(name)
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, R]) -> Call[R]:
        """Start `work` on the portal's loop without waiting for it.

        Raises:
            LifecycleError: that loop has ended, or it runs in another process; `work` has not begun.
        """
        call = Call(self.loop, work)
        refusal = self._post(call)
        if refusal is not None:
            work.close()
            raise LifecycleError(refusal)
        return call

    def _post(self, call: Call[Any]) -> str | None:
        if not self.is_of_this_process():
            return _FORKED  # before the lock, which some thread may have held when the process was forked
        with self._lock:
            if self._is_stopping or (self._thread is None and not self.loop.is_running()):
                return _ENDED
            try:
                self.loop.call_soon_threadsafe(call.start)
            except RuntimeError:
                return _ENDED  # a caller's loop, closed just now
            self._calls.add(call)
            return None

    # ---- the end of the portal's own loop ----

    def stop(self) -> None:
        """Begin to end the portal's own thread, from any thread: new calls are refused, those under way get their
        answers, what still runs is cancelled. A caller's loop is left alone."""
        if self._thread is None or not self.is_of_this_process():
            return
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                self.loop.call_soon_threadsafe(lambda: start_kept(self._end()))

    def join(self) -> None:
        """Wait for the end that `stop` began, a bounded time; not in the portal's own thread."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * _GRACE_SECONDS + 1)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._has_ended:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    pass  # a task's: whoever awaits that task gets it, the loop goes on for all others
        finally:
            with self._lock:
                self._is_stopping = True
                self.loop.close()

    async def _end(self) -> None:
        with self._lock:
            calls = {call.task for call in self._calls if call.task is not None}
        await _settled(calls)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await _settled(rest)
        await self.loop.shutdown_asyncgens()
        self._has_ended = True
        self.loop.stop()


async def _settled(tasks: "set[asyncio.Task[Any]]") -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=_GRACE_SECONDS)


def would_block(name: str) -> UsageError:
    return UsageError(f"{name} would block the loop that has to run it; await {name}_async instead")


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
    call.__doc__ = f"Blocking form of `{name}_async`.\n\n{method.__doc__ or ''}".rstrip()
    return call
