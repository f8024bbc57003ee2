"""TaskCall: the children of one foreground `task` call, run until all have ended or the rest is not wanted any more."""

import asyncio
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from fanfold.contracts.steps import AgentStepSpec, StepOutcome, failed
from fanfold.delegation.task_events import TaskEvents
from fanfold.errors import RunCancelledError
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.fanout import fan_out
from fanfold.orchestration.runner import StepRunner
from fanfold.portal import start_kept
from fanfold.protocols import AgentExecutor

SETTLE_MS = 500
"""How long children that were told to stop may take, before the call leaves them behind."""


class TaskCall:
    def __init__(
        self,
        executor: AgentExecutor,
        specs: Sequence[AgentStepSpec],
        events: TaskEvents,
        control: FanOutControl,
        timeout_ms: int | None,
    ) -> None:
        self._specs = specs
        self._events = events
        self._control = control
        self._runner = StepRunner(executor, events=events, control=control)
        self._timeout_ms = timeout_ms
        self._outcomes: dict[int, StepOutcome] = {}
        self._successes = 0
        self._wanted: int | None = None
        self._enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopped_with: int | None = None
        """Successes there were when the rest was told to stop."""
        self.timed_out = False
        self.was_cut = False
        """Some child has no end of its own, for the call had enough or had to end."""

    async def run(self, wanted: int | None) -> "asyncio.Task[None] | None":
        """Return when all have ended, `wanted` have succeeded, or the time is up; then with what would not stop."""
        self._wanted = wanted
        work = start_kept(fan_out(len(self._specs), self._runner.limit, self._step))
        try:
            seconds = None if self._timeout_ms is None else self._timeout_ms / 1000
            await asyncio.wait({work, self._enough}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._stop(work)
        except BaseException:
            work.cancel()
            await until_done(work)
            raise
        if not work.done():
            return work
        work.result()
        return None

    async def _step(self, index: int) -> None:
        await self._runner.run(self._specs[index], partial(self._ended, index))

    def _ended(self, index: int, outcome: StepOutcome) -> None:
        if self._stopped_with is not None and outcome.error_code == RunCancelledError.code:
            self.was_cut = True
            outcome = replace(outcome, output=self._why_cut())
        self._outcomes[index] = outcome
        self._successes += outcome.success
        if self._wanted is not None and self._successes >= self._wanted and not self._enough.done():
            self._enough.set_result(None)

    async def _stop(self, work: "asyncio.Task[None]") -> None:
        """Cancel the children that are left, and give them time to settle."""
        self.timed_out = not self._enough.done()
        self._stopped_with = self._successes
        self._control.cancel()
        await asyncio.wait({work}, timeout=SETTLE_MS / 1000)
        if not work.done():
            work.cancel()

    def results(self) -> list[StepOutcome]:
        """In the order of the specs. What a child that is left behind still tells is not heard."""
        for index, spec in enumerate(self._specs):
            if index not in self._outcomes:
                self.was_cut = True
                self._outcomes[index] = failed(spec, self._why_cut(), code=RunCancelledError.code)
                self._events.abandon(spec)
        return [self._outcomes[index] for index in range(len(self._specs))]

    def _why_cut(self) -> str:
        if self.timed_out:
            return f"Task timed out before parallel_task finished collecting child results after {self._timeout_ms} ms."
        return f"Task cancelled after parallel_task collected {self._stopped_with} successful child result(s)."


async def until_done(work: "asyncio.Task[None]") -> None:
    """Wait for children that were cancelled. Whoever cancels this wait gets no further either: they are its to end."""
    is_cancelled = False
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            is_cancelled = True
            work.cancel()
    if not work.cancelled():
        work.exception()  # it came too late for anybody
    if is_cancelled:
        raise asyncio.CancelledError
