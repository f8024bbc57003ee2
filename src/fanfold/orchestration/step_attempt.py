"""StepAttempt: one attempt at a step that may be left behind, of which nothing is heard any more from then on."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.facts import Fact
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, StepOutcome
from fanfold.errors import LifecycleError
from fanfold.foreign import logger
from fanfold.kernel.journal import usage_of
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.spent import spent_by
from fanfold.protocols import EventSink, StepFacts

Call = Callable[[AgentStepSpec, EventSink | None, StepFacts | None], Coroutine[Any, Any, StepOutcome]]


class StepAttempt:
    """While it lasts, its events and turns go to those who hear and keep them."""

    __slots__ = ("_call", "_ledger", "_spec", "counted", "events", "is_left", "usage")

    def __init__(self, spec: AgentStepSpec, call: Call, events: EventSink | None, ledger: TokenLedger | None) -> None:
        """`events` are told the end of what is left, if they are an `AttemptEvents`; any others have to know."""
        self.events = events
        self.is_left = False
        self.usage = NO_USAGE
        """Of the turns that it told, and of those that it went on from."""
        self.counted = NO_USAGE
        """As its usage, when it was left."""
        self._spec = spec
        self._call = call
        self._ledger = ledger

    def work(self) -> Coroutine[Any, Any, StepOutcome]:
        return self._call(self._spec, self.events, None)

    def leave(self, task: "asyncio.Task[StepOutcome]") -> None:
        logger.warning("step '%s' does not end though it was cancelled, and is left behind", self._spec.task_id)
        self.is_left = True
        if isinstance(self.events, AttemptEvents):
            self.events.leave()
        task.add_done_callback(self._ended_late)

    def _ended_late(self, task: "asyncio.Task[StepOutcome]") -> None:
        """Its outcome is recorded already. What it has spent since is told, and refuses others what it has taken."""
        usage = _usage_of(task)
        if usage.total_tokens <= self.counted.total_tokens:
            logger.warning("step '%s', which was left behind, has ended", self._spec.task_id)
            return
        more = usage - self.counted
        told = "step '%s', which was left behind, has ended; it used %d tokens more than its outcome tells"
        logger.warning(told, self._spec.task_id, more.total_tokens)
        if self._ledger is not None:
            self._ledger.carry_over(more)


class KeptAttempt(StepAttempt):
    """Whose turns are kept, until it is left."""

    __slots__ = ("_kept",)

    def __init__(
        self, spec: AgentStepSpec, call: Call, kept: StepFacts, events: EventSink | None, ledger: TokenLedger | None
    ) -> None:
        super().__init__(spec, call, events, ledger)
        self._kept = kept

    def work(self) -> Coroutine[Any, Any, StepOutcome]:
        return self._call(self._spec, self.events, self)

    @property
    def key(self) -> str:
        return self._kept.key

    @property
    def recorded(self) -> Sequence[Fact]:
        return self._kept.recorded

    @property
    def has_failed(self) -> bool:
        return self._kept.has_failed

    def go_on(self) -> Usage:
        self.usage = self._kept.go_on()
        return self.usage

    async def record(self, facts: Sequence[Fact]) -> None:
        if self.is_left:
            raise LifecycleError("this step was left behind; nothing more of it is recorded")
        self.usage += usage_of(facts)
        await self._kept.record(facts)


def step_attempt(
    spec: AgentStepSpec, call: Call, kept: StepFacts | None, events: EventSink | None, ledger: TokenLedger | None
) -> StepAttempt:
    if kept is None:
        return StepAttempt(spec, call, events, ledger)
    return KeptAttempt(spec, call, kept, events, ledger)


def _usage_of(task: "asyncio.Task[StepOutcome]") -> Usage:
    try:
        usage = task.result().usage
    except asyncio.CancelledError as stop:
        spent = spent_by(stop)
        usage = None if spent is None else spent.usage
    except BaseException:  # noqa: BLE001  whatever ended it, nobody waits for it
        usage = None
    return usage or NO_USAGE


class AttemptEvents:
    """Passes on what an attempt tells until it is left."""

    __slots__ = ("_begun", "_hear", "_is_left", "_start")

    def __init__(self, hear: EventSink) -> None:
        self._hear = hear
        self._start: AgentEvent | None = None
        """Of a child that has told no end yet."""
        self._begun = 0.0
        self._is_left = False

    def __call__(self, item: AgentEvent) -> None:
        if self._is_left:
            return
        if item.type == "subagent_start":
            self._start, self._begun = item, asyncio.get_running_loop().time()
        elif item.type == "subagent_end":
            self._start = None
        self._hear(item)

    def leave(self) -> None:
        """Tell the end of what has told its start, as of any that is cut off."""
        self._is_left = True
        start = {} if self._start is None else self._start.payload
        if isinstance(start.get("started_ms"), int):
            took_ms = int((asyncio.get_running_loop().time() - self._begun) * 1000)
            told = {name: start.get(name) for name in ("task_id", "session_id", "agent")}
            ended = {"output": CANCELLED, "success": False, "finished_ms": start["started_ms"] + took_ms}
            self._hear(event("subagent_end", **told, **ended))
