"""Runs: the record of what a session did and does, one entry for each run, within the limits of seed 003."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from fanfold.contracts.events import AgentEvent, AgentResult, event
from fanfold.contracts.runs import RunSnapshot, RunStatus, SessionRetentionLimits
from fanfold.env import HostEnv
from fanfold.errors import FanfoldError, InternalError, RunCancelledError, RunIdentityError
from fanfold.protocols import EventSink
from fanfold.session.run_control import RunInbox
from fanfold.session.run_events import RunEvents

INTERRUPTED = "(Response interrupted by the user.)"
"""What stands in the transcript for the answer that somebody stopped."""
_STATUS_BY_EVENT: dict[str, RunStatus] = {
    "agent_start": "executing",
    "planning_start": "planning",
    "planning_end": "executing",
    "turn_start": "executing",
    "tool_start": "executing",
    "goal_judging": "verifying",
}


class Run:
    """One run: its record, its events, its controls, and the task that does it."""

    def __init__(
        self,
        run_id: str,
        session_id: str,
        prompt: str,
        env: HostEnv,
        limits: SessionRetentionLimits,
        listener: EventSink | None = None,
    ) -> None:
        now = env.clock.now_ms()
        self._env = env
        self.events = RunEvents(run_id, session_id, env.clock, limits, listener)
        self.inbox = RunInbox(run_id, session_id, env)
        self._task: asyncio.Task[AgentResult] | None = None
        self.is_listened_to = listener is not None
        self.has_stop_request = False
        """Somebody asked for its end, other than by closing the session: the answer is settled as interrupted."""
        self._terminal: AgentEvent | None = None
        self._active_tools: dict[str, str] = {}
        self._record = RunSnapshot(
            id=run_id, session_id=session_id, status="created", prompt=prompt, created_at_ms=now, updated_at_ms=now
        )

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def prompt(self) -> str:
        return self._record.prompt

    @property
    def is_terminal(self) -> bool:
        return self._record.is_terminal

    @property
    def terminal_event(self) -> AgentEvent:
        if self._terminal is None:
            raise InternalError(f"run '{self.id}' has not ended")
        return self._terminal

    def emit(self, item: AgentEvent) -> None:
        """An EventSink: what the run tells. Late events are recorded, and change no status that is final."""
        status = _STATUS_BY_EVENT.get(item.type)
        if status is not None and status != self._record.status and not self.is_terminal:
            self._record = replace(self._record, status=status)
        if item.type == "tool_start":
            self._active_tools[item.payload["id"]] = item.payload["name"]
        elif item.type == "tool_end":
            self._active_tools.pop(item.payload["id"], None)
        self.events(item)

    def snapshot(self) -> RunSnapshot:
        updated = max(self._record.updated_at_ms, self.events.updated_ms)
        return replace(self._record, event_count=self.events.count, updated_at_ms=updated)

    def active_tools(self) -> list[dict[str, str]]:
        if self.is_terminal:
            return []
        return [{"id": each, "name": name} for each, name in self._active_tools.items()]

    def stop(self) -> None:
        """Ask for its end. The run settles its answer as interrupted, then it is `cancelled`."""
        self.has_stop_request = True
        if self._task is not None:
            self._task.cancel()

    @property
    def task(self) -> "asyncio.Task[AgentResult]":
        if self._task is None:
            raise InternalError(f"run '{self.id}' was not begun")
        return self._task

    def begin(self, task: "asyncio.Task[AgentResult]") -> None:
        self._task = task
        task.add_done_callback(self.settle)

    def settle(self, task: "asyncio.Task[AgentResult]") -> None:
        """Record how `task` ended; a done callback, for a task may be cancelled before its first step. Once."""
        if self.is_terminal:
            return
        self.inbox.close()
        status, told, changes = _ending(task, self._record.session_id)
        self._terminal = self.events.record(told)
        now = max(self.events.updated_ms, self._env.clock.now_ms())
        self._record = replace(self._record, status=status, updated_at_ms=now, **changes)

    def restore(self, record: RunSnapshot) -> None:
        """Take up a saved record. A run that was under way when it was saved, in another process, was cut off."""
        if not record.is_terminal:
            record = replace(record, status="cancelled", error="the process that ran it has ended")
        self._record = record
        self.inbox.close()


def _ending(task: "asyncio.Task[AgentResult]", session_id: str) -> tuple[RunStatus, AgentEvent, dict[str, Any]]:
    """The final status, the terminal event, and what the record says of it."""
    error = RunCancelledError(session_id=session_id) if task.cancelled() else task.exception()
    if error is None:
        result = task.result()
        return "completed", event("agent_end", **result.to_dict()), {"result_text": result.text, "usage": result.usage}
    message = "cancelled" if isinstance(error, RunCancelledError) else str(error) or type(error).__name__
    told: dict[str, Any] = {"message": message}
    if isinstance(error, FanfoldError):
        told["code"] = error.code
    status: RunStatus = "cancelled" if isinstance(error, RunCancelledError) else "failed"
    return status, AgentEvent(type="error", payload=told), {"error": message, "error_code": told.get("code")}


class Runs:
    def __init__(self, session_id: str, env: HostEnv, limits: SessionRetentionLimits) -> None:
        self._session_id = session_id
        self._env = env
        self._limits = limits
        self._runs: dict[str, Run] = {}
        self.current: Run | None = None
        """The run under way, or the last one."""

    def reserve(self, run_id: str | None, prompt: str, listener: EventSink | None = None) -> Run:
        """A new entry. The caller has made sure that the id is free."""
        chosen = f"run-{self._env.ids.new_id()}" if run_id is None else run_id
        run = Run(chosen, self._session_id, prompt, self._env, self._limits, listener)
        self._add(run)
        self.current = run
        return run

    def known(self, run_id: str, prompt: str) -> Run | None:
        """The run of that id, if there is one.

        Raises:
            RunIdentityError: it was started with another prompt.
        """
        run = self._runs.get(run_id)
        if run is not None and run.prompt != prompt:
            raise RunIdentityError(run_id=run_id)
        return run

    def get(self, run_id: str) -> Run | None:
        return self._runs.get(run_id)

    def all(self) -> list[Run]:
        """Oldest first."""
        return list(self._runs.values())

    @property
    def active(self) -> Run | None:
        return None if self.current is None or self.current.is_terminal else self.current

    def restore(self, saved: Iterable[tuple[RunSnapshot, Callable[[Run], None]]]) -> None:
        """Take up saved runs, oldest first; each callable fills in what else was saved of its run."""
        for record, fill in saved:
            run = Run(record.id, record.session_id, record.prompt, self._env, self._limits)
            run.restore(record)
            fill(run)
            self._add(run)

    def _add(self, run: Run) -> None:
        self._runs[run.id] = run
        if self._limits.unbounded:
            return
        for each in list(self._runs.values()):
            if len(self._runs) <= self._limits.max_runs_retained:
                return
            if each.is_terminal:
                del self._runs[each.id]
