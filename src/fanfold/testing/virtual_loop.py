"""VirtualLoop: an asyncio event loop in which time costs nothing and the order of what is ready is drawn from a seed.

No thread, no socket, no waiting: when nothing is ready, time jumps to the next timer. Equal seeds give equal runs, so a
failure that depends on the order of things can be had again.
"""

import asyncio
import heapq
import itertools
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from random import Random
from typing import Any, TypeVar, TypeVarTuple

from fanfold.env import HostEnv, SequentialIds

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_CALLBACKS = 5_000_000
"""More of them in one run are taken for a loop that never ends."""
EPOCH_MS = 1_700_000_000_000


class DeadlockError(AssertionError):
    """The run cannot end: nothing is ready and no timer is set, or it goes round and round."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Make one, run something on it, close it; or have `run_virtually` do that."""

    _is_running = False
    _is_stopping = False

    def __init__(self, seed: int | str = 0) -> None:
        super().__init__()
        self._random = Random(seed)
        self._now = 0.0
        self._due: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self.unhandled: list[dict[str, Any]] = []
        """What reached the exception handler: errors that nobody awaited."""

    def time(self) -> float:
        return self._now

    # ---- running ----

    def run_forever(self) -> None:
        """Until `stop`; `run_until_complete` comes here too. Raises DeadlockError when it cannot come to its end."""
        if self._is_running:
            raise RuntimeError("this event loop is already running")
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            self._run()
        finally:
            self._is_running = self._is_stopping = False
            asyncio._set_running_loop(outer)

    def _run(self) -> None:
        ready, draw = self._due, self._random.random
        for _ in range(MAX_CALLBACKS):
            if not ready:
                self._pass_time()
            chosen = int(draw() * len(ready))
            handle = ready[chosen]
            ready[chosen] = ready[-1]
            del ready[-1]
            if not handle.cancelled():
                handle._run()
            if self._is_stopping:
                return
        raise DeadlockError(f"it did not end within {MAX_CALLBACKS} callbacks; it may never do\n{self._waiting()}")

    def _pass_time(self) -> None:
        """Go to the next timer, and make all ready whose time it is."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise DeadlockError(f"nothing is ready and no timer is set, at {self._now:.3f} s\n{self._waiting()}")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._due.append(heapq.heappop(timers)[2])

    def _waiting(self) -> str:
        tasks = sorted(task.get_name() + " " + _place(task) for task in asyncio.all_tasks(self))
        return "\n".join(f"  {each}" for each in tasks)

    def stop(self) -> None:
        self._is_stopping = True

    def is_running(self) -> bool:
        return self._is_running

    def close(self) -> None:
        super().close()
        self._due.clear()
        self._timers.clear()

    def wind_down(self) -> None:
        """Cancel what still runs, let it end, and close."""
        rest = asyncio.all_tasks(self)
        for task in sorted(rest, key=hash):
            task.cancel()
        try:
            if rest:
                self.run_until_complete(asyncio.wait(rest))
        except DeadlockError:
            pass  # some of it does not end even when it is cancelled; whoever runs the loop was told of the first
        self.close()

    # ---- callbacks ----

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._due.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)  # there are no threads here

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Told by a timer; it is left out when its time has come."""

    # ---- futures and tasks ----

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        number = next(self._numbers)
        return _Task(number, coro, loop=self, name=str(name or f"task {number}"), context=context)

    # ---- what does not happen here ----

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.unhandled.append(context)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        raise RuntimeError("a VirtualLoop has no threads: use parts that need none, such as MemorySessionStore")


class _Task(asyncio.Task[T]):
    """Hashed by its number: asyncio goes through sets of tasks, whose order would otherwise be that of addresses."""

    _number: int

    def __new__(cls, number: int, *_: Any, **__: Any) -> "_Task[T]":
        task: _Task[T] = super().__new__(cls)
        task._number = number
        return task

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


def _place(task: asyncio.Task[Any]) -> str:
    """Where a task waits."""
    frames = task.get_stack(limit=1)
    name = getattr(task.get_coro(), "__qualname__", "?")
    if not frames:
        return f"{name}: not started"
    [line] = traceback.extract_stack(frames[0], limit=1)
    return f"{name}: {line.filename}:{line.lineno}: {line.line}"


class VirtualClock:
    """The time of the running loop."""

    def now_ms(self) -> int:
        return EPOCH_MS + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def virtual_env(seed: int | str = 0) -> HostEnv:
    """Time, ids and randomness for what runs on a VirtualLoop."""
    return HostEnv(clock=VirtualClock(), ids=SequentialIds(), random=Random(seed))


def run_virtually(main: Coroutine[Any, Any, T], seed: int | str = 0) -> T:
    """`asyncio.run` on a VirtualLoop.

    Raises:
        DeadlockError: it cannot end; it tells where each task waits.
    """
    loop = VirtualLoop(seed)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.wind_down()
