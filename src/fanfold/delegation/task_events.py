"""TaskEvents: the events of a `task` call's children, so that each start has exactly one end and nothing follows it."""

from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, StepOutcome, child_session_id
from fanfold.delegation.tracker import Tracker
from fanfold.env import Clock
from fanfold.errors import RunCancelledError
from fanfold.protocols import EventSink


class TaskEvents:
    """Passes the children's events on, so that each start has exactly one end and nothing comes after that."""

    def __init__(self, emit: EventSink, clock: Clock, tracker: Tracker | None = None) -> None:
        """`tracker` is the one that the executor tells of its children: here it only hears what the executor cannot
        tell it."""
        self._emit = emit
        self._clock = clock
        self._tracker = tracker
        self._announced: set[str] = set()
        self._started: set[str] = set()
        self._ended: set[str] = set()

    def __call__(self, item: AgentEvent) -> None:
        task_id: object = item.payload.get("task_id") or (item.metadata or {}).get("task_id")
        if not isinstance(task_id, str) or (task_id not in self._ended and self._is_news(item.type, task_id)):
            self._emit(item)

    def _is_news(self, kind: str, task_id: str) -> bool:
        if kind == "subagent_end":
            self._ended.add(task_id)
        elif kind == "subagent_start":
            self._started.add(task_id)
            return task_id not in self._announced
        return True

    def announce(self, spec: AgentStepSpec) -> None:
        """Tell that a child starts which may still have to wait for its place."""
        self._announced.add(spec.task_id)
        started = event(
            "subagent_start",
            task_id=spec.task_id,
            session_id=child_session_id(spec.task_id),
            parent_session_id=spec.parent_session_id or "",
            agent=spec.agent,
            description=spec.description,
            started_ms=self._clock.now_ms(),
        )
        if self._tracker is not None:
            self._tracker.announce(started)
        self._emit(started)

    def end(self, spec: AgentStepSpec, outcome: StepOutcome) -> None:
        """Tell of the end of an announced child, unless it told of that itself."""
        if spec.task_id in self._ended:
            return
        output = outcome.output
        is_failure = not outcome.success and outcome.error_code != RunCancelledError.code
        if is_failure and spec.task_id not in self._started:
            output = f"Task failed before child execution started: {output.removeprefix('Task failed: ')}"
        ended = self._end_of(spec, output, success=outcome.success)
        if self._tracker is not None:
            self._tracker(ended)
        self(ended)

    def abandon(self, spec: AgentStepSpec) -> None:
        """Tell of the end of a child that would not end itself, if it has begun."""
        if self._tracker is not None:
            self._tracker.mark_cancelled(spec.task_id)
        if spec.task_id in self._started:
            self(self._end_of(spec, CANCELLED, success=False))
        self._ended.add(spec.task_id)

    def _end_of(self, spec: AgentStepSpec, output: str, *, success: bool) -> AgentEvent:
        return event(
            "subagent_end",
            task_id=spec.task_id,
            session_id=child_session_id(spec.task_id),
            agent=spec.agent,
            output=output,
            success=success,
            finished_ms=self._clock.now_ms(),
        )
