"""FanOutControl: a handle by which one fan-out, or one step of it, is cancelled while it runs."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar

from fanfold.errors import UsageError
from fanfold.foreign import stop_if_cancelled


class StepScope:
    """One step under way. It may be stopped at a deadline or by its control, and tells by which."""

    __slots__ = ("_control", "_task_id", "is_cancelled", "is_over", "timer")

    def __init__(self, task_id: str, timer: asyncio.Timeout, control: "FanOutControl") -> None:
        self.timer = timer
        self._task_id = task_id
        self._control = control
        self.is_cancelled = False
        self.is_over = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self._stop_at(asyncio.get_running_loop().time())

    def restart(self, deadline: float) -> None:
        """Let its time end at `deadline`, in the loop's time."""
        if not self.is_cancelled:
            self._stop_at(deadline)

    @property
    def is_unwanted(self) -> bool:
        """It was cancelled, though it may hear of that only in the next turn of the loop."""
        return self._control.is_unwanted(self._task_id)

    @property
    def was_told(self) -> bool:
        """Its cancellation has been delivered, or comes too late for it."""
        return self.is_over or self.timer.expired()

    def _stop_at(self, when: float) -> None:
        if not self.is_over and not self.timer.expired():  # its time may be up in this very turn of the loop
            self.timer.reschedule(when)


running_scope: ContextVar[StepScope | None] = ContextVar("fanfold_step_scope", default=None)
"""Of the step that the running task is a part of."""


async def stop_if_unwanted() -> None:
    """Begin nothing in a step that was cancelled while it waited: the timer that ends it is due, and ends it here.

    Raises:
        asyncio.CancelledError: that timer has run out. Who was told of it and has ignored that is told again; other
            tasks of the step may have to hear of it yet, or never will, and so are cancelled here.
    """
    scope = running_scope.get()
    if scope is None or not scope.is_unwanted:
        return
    if scope.was_told:
        stop_if_cancelled()
        task = asyncio.current_task()
        if task is not None:
            task.cancel()  # not just raised: an error that nobody asked for would be taken for a failure of the step
    await asyncio.get_running_loop().create_future()


class FanOutControl:
    """Give it to a call of `parallel`, `pipeline`, `parallel_resumable`, `map` or `workflow`, and keep it.

    A cancelled step has the outcome of a failure, `Task cancelled by caller`; so has each step that a cancelled fan-out
    did not start any more. The call itself returns as ever. Its methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[StepScope, str] = {}
        self._unwanted: set[str] = set()
        self.is_cancelled = False

    def cancel(self) -> None:
        """Cancel every running step, and start no other."""
        self.is_cancelled = True
        self._on_loop(lambda: list(self._running))

    def cancel_step(self, task_id: str) -> None:
        """Cancel the step now, or as soon as it would start."""
        self._unwanted.add(task_id)
        self.cancel_running(task_id)

    def cancel_running(self, task_id: str) -> None:
        """Cancel the step if it runs; one of that id may start later."""
        self._on_loop(lambda: [scope for scope, running in self._running.items() if running == task_id])

    @property
    def has_running(self) -> bool:
        """Some step runs, or waits for its place."""
        return bool(self._running)

    def is_running(self, task_id: str) -> bool:
        return task_id in list(self._running.values())

    def attach(self) -> asyncio.AbstractEventLoop:
        """Bind it to the running loop, and return that.

        Raises:
            UsageError: it is bound to another one.
        """
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise UsageError("a FanOutControl belongs to one event loop; make another one for this call")
        self._loop = loop
        return loop

    def is_unwanted(self, task_id: str) -> bool:
        return self.is_cancelled or task_id in self._unwanted

    def begin(self, task_id: str, scope: StepScope) -> None:
        self._running[scope] = task_id

    def end(self, scope: StepScope) -> None:
        scope.is_over = True
        del self._running[scope]

    def _on_loop(self, chosen: Callable[[], Sequence[StepScope]]) -> None:
        """Cancel, on the loop, those that are `chosen` there."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return

        def cancel() -> None:
            for scope in chosen():
                scope.cancel()

        loop.call_soon_threadsafe(cancel)
