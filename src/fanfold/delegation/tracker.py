"""Tracker: the child tasks of one session, folded from the events that tell of them (notes 5.6).

It is an `EventSink`. Give it every event of the session's steps: it stands on the path of each of them, so a row is
changed in place, and a record is made only for who asks.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.contracts.steps import CANCELLED
from fanfold.contracts.tasks import SubagentTask, TaskProgress, TaskStatus
from fanfold.env import Clock

MAX_PROGRESS = 32
"""Kept of one task, the newest ones."""
ORPHANED: Final = "Task cancelled: its process ended before it did"

_Note = tuple[int, str, JsonObject]


class _Row(msgspec.Struct):
    task_id: str
    parent_session_id: str
    child_session_id: str
    agent: str
    description: str
    started_ms: int
    updated_ms: int
    status: TaskStatus = "running"
    running: int = 1
    """Children of this id under way: two fan-outs may use one id at the same time."""
    finished_ms: int | None = None
    output: str | None = None
    success: bool | None = None
    progress: "deque[_Note] | None" = None


class Tracker:
    """All that a session knows of its children. What is beyond the retention limits drops the oldest finished ones;
    those that run are never dropped."""

    def __init__(self, limits: SessionRetentionLimits, clock: Clock) -> None:
        self._most_finished = None if limits.unbounded else limits.max_terminal_subagent_tasks
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()
        """Ids of the rows that are not running, oldest end first."""

    def __call__(self, item: AgentEvent) -> None:
        kind = item.type
        if kind == "subagent_progress":
            self._note(item.payload)
        elif kind == "subagent_end":
            self.end(item.payload)
        elif kind == "subagent_start":
            self.start(item.payload)

    def announce(self, start: AgentEvent) -> None:
        """Count a child as running that still waits for its place; its own start follows, or at once its end."""
        self.start(start.payload).running -= 1

    # ---- what is known; read from any thread, and so each in one step ----

    def tasks(self) -> list[SubagentTask]:
        """All of them, in the order of their starts."""
        return [_shown(row) for row in list(self._rows.values())]

    def task(self, task_id: str) -> SubagentTask | None:
        row = self._rows.get(task_id)
        return None if row is None else _shown(row)

    def pending(self) -> list[SubagentTask]:
        """Those that run."""
        return [_shown(row) for row in list(self._rows.values()) if row.status == "running"]

    def mark_cancelled(self, task_id: str) -> bool:
        """Have it be `cancelled`, whatever it still comes to. True only if it was running."""
        row = self._rows.get(task_id)
        if row is None or row.status != "running":
            return False
        now = self._clock.now_ms()
        row.updated_ms = now
        self._finish(row, "cancelled", now, CANCELLED, success=False)
        return True

    def restore(self, tasks: Iterable[SubagentTask]) -> None:
        """Take up the rows of a saved session, before anything starts in this one.

        Whoever ran what was running then has gone, and with it the task: such a row is `cancelled`, at the time when it
        was last heard of. A row of an id that is known here already is left out.
        """
        for task in sorted(tasks, key=_ended_ms):
            if task.task_id in self._rows:
                continue
            row = self._rows[task.task_id] = _row_of(task)
            if row.status == "running":
                self._finish(row, "cancelled", row.updated_ms, ORPHANED, success=False)
            else:
                self._retire(row)
            row.running = 0
        # In the order of starts, as the rest; a dict keeps the order in which its keys came.
        self._rows = {row.task_id: row for row in sorted(self._rows.values(), key=_started_ms)}

    # ---- the fold ----

    def start(self, payload: JsonObject) -> _Row:
        """What `subagent_start` tells; for whoever makes an event of it only when somebody listens."""
        task_id: str = payload["task_id"]
        before = self._rows.pop(task_id, None)
        self._finished.pop(task_id, None)
        row = self._rows[task_id] = _new_row(payload, payload["started_ms"])
        if before is not None:
            row.running += before.running
        return row

    def _note(self, payload: JsonObject) -> None:
        row = self._rows.get(payload["task_id"])
        if row is None or row.status != "running":
            return
        row.updated_ms = now = self._clock.now_ms()
        if row.progress is None:
            row.progress = deque(maxlen=MAX_PROGRESS)
        row.progress.append((now, payload["status"], payload["metadata"]))

    def end(self, payload: JsonObject) -> None:
        """What `subagent_end` tells, likewise."""
        task_id: str = payload["task_id"]
        finished_ms: int = payload["finished_ms"]
        row = self._rows.get(task_id)
        if row is None:  # its start was not heard here
            row = self._rows[task_id] = _new_row(payload, finished_ms)
        row.running = max(0, row.running - 1)
        if row.running or row.status != "running":
            return  # another of its id still runs, or it was cancelled, which is final
        row.updated_ms = finished_ms
        output, success = payload["output"], payload["success"]
        is_cancelled = not success and output == CANCELLED
        status: TaskStatus = "completed" if success else "cancelled" if is_cancelled else "failed"
        self._finish(row, status, finished_ms, output, success=success)

    def _finish(self, row: _Row, status: TaskStatus, finished_ms: int, output: str, *, success: bool) -> None:
        row.status, row.finished_ms, row.output, row.success = status, finished_ms, output, success
        self._retire(row)

    def _retire(self, row: _Row) -> None:
        self._finished[row.task_id] = None
        if self._most_finished is not None and len(self._finished) > self._most_finished:
            oldest, _ = self._finished.popitem(last=False)
            del self._rows[oldest]


def _new_row(payload: JsonObject, started_ms: int) -> _Row:
    return _Row(
        task_id=payload["task_id"],
        parent_session_id=payload.get("parent_session_id", ""),
        child_session_id=payload["session_id"],
        agent=payload["agent"],
        description=payload.get("description", ""),
        started_ms=started_ms,
        updated_ms=started_ms,
    )


def _shown(row: _Row) -> SubagentTask:
    return SubagentTask(
        task_id=row.task_id,
        parent_session_id=row.parent_session_id,
        child_session_id=row.child_session_id,
        agent=row.agent,
        description=row.description,
        status=row.status,
        started_ms=row.started_ms,
        updated_ms=row.updated_ms,
        finished_ms=row.finished_ms,
        output=row.output,
        success=row.success,
        progress=tuple(
            TaskProgress(timestamp_ms=at, status=status, metadata=dict(metadata))
            for at, status, metadata in list(row.progress or ())
        ),
    )


def _row_of(task: SubagentTask) -> _Row:
    fields: dict[str, Any] = {name: getattr(task, name) for name in _Row.__struct_fields__ if name in _KEPT}
    notes = ((each.timestamp_ms, each.status, each.metadata) for each in task.progress)
    return _Row(**fields, progress=deque(notes, maxlen=MAX_PROGRESS))


_KEPT = frozenset(SubagentTask.__struct_fields__) - {"progress"}


def _started_ms(row: _Row) -> int:
    return row.started_ms


def _ended_ms(task: SubagentTask) -> int:
    return task.updated_ms if task.finished_ms is None else task.finished_ms
