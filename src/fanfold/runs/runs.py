"""Runs: the record of what a session did and does, one entry for each run, within the limits of seed 003."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from fanfold.contracts.events import AgentEvent, AgentResult, event
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.runs import RunSnapshot, RunStatus, SessionRetentionLimits
from fanfold.env import HostEnv
from fanfold.errors import FanfoldError, InternalError, RunCancelledError, RunIdentityError
from fanfold.foreign import logger
from fanfold.kernel.goals import Goal
from fanfold.kernel.plain_text import plain
from fanfold.protocols import EventSink
from fanfold.runs.operations import cancel_once
from fanfold.runs.run_events import RunEvents, is_sound
from fanfold.runs.run_inbox import RunInbox

INTERRUPTED = "(Response interrupted by the user.)"
"""What stands in the transcript for the answer that somebody stopped."""
Outcome = AgentResult | BaseException
"""How a run ends."""
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
        self.inbox = RunInbox(run_id, session_id, env, stop=self.stop, tell=self.emit)
        self.goal: Goal | None = None
        """What its prompt wants to achieve, where goals are tracked."""
        self.is_listened_to = listener is not None
        self._task: asyncio.Task[AgentResult] | None = None
        self._has_thread = False
        self.is_stopping = False
        """Somebody asked for its end, other than by closing the session: the answer is settled as interrupted."""
        self._outcome: Outcome | None = None
        """How it ends, from when that is settled until it is told."""
        self.usage: Usage = NO_USAGE
        """Of what it has recorded so far."""
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
    def is_settled(self) -> bool:
        """How it ends is decided, whether it has been told or not."""
        return self.is_terminal or self._outcome is not None

    @property
    def task(self) -> "asyncio.Task[AgentResult]":
        """Until it has ended."""
        if self._task is None:
            raise InternalError(f"run '{self.id}' is not under way")
        return self._task

    @property
    def is_active(self) -> bool:
        """How it ends is not settled yet."""
        return self._outcome is None and self._task is not None and not self._task.done()

    def snapshot(self) -> RunSnapshot:
        updated = max(self._record.updated_at_ms, self.events.updated_ms)
        return replace(self._record, event_count=self.events.count, updated_at_ms=updated, usage=self.usage)

    def active_tools(self) -> list[dict[str, str]]:
        if self.is_terminal:
            return []
        return [{"id": each, "name": name} for each, name in list(self._active_tools.items())]

    # ---- while it runs ----

    def begin(self, task: "asyncio.Task[AgentResult]") -> None:
        self._task = task
        task.add_done_callback(self._settle)

    def emit(self, item: AgentEvent) -> None:
        """An EventSink: what the run tells. Late events are recorded, and change no status that is final."""
        if not is_sound(item):
            logger.warning("run '%s': an event that is none was left out, of type %s", self.id, type(item).__name__)
            return
        status = _STATUS_BY_EVENT.get(item.type)
        if status is not None and status != self._record.status and not self.is_terminal:
            self._record = replace(self._record, status=status)
        if item.type == "tool_start":
            self._active_tools[str(item.tool_id)] = str(item.tool_name)
        elif item.type == "tool_end":
            self._active_tools.pop(str(item.tool_id), None)
        self.events(item)

    def has_thread(self) -> None:
        """From here on a stop cuts in, and one that came before does: so that it is recorded whenever it came."""
        self._has_thread = True
        if self.is_stopping:
            self.stop()

    def stop(self) -> bool:
        """Ask for its end: it settles its answer as interrupted, then it is `cancelled`. False when it has ended."""
        if self._task is None or not self.is_active:
            return False
        self.is_stopping = True
        self.inbox.refuse_all()
        if self._has_thread:
            cancel_once(self._task)
        return True

    async def stopped(self) -> bool:
        """Stop it, and wait until it has ended with all that it does at its end. False when there was nothing to stop.

        Whoever is cut off here, a tool of the run say, has asked for the end all the same.
        """
        is_asked, task = self.stop(), self._task
        if task is not None and not task.done():
            await asyncio.wait({task})
        return is_asked

    # ---- its end ----

    def end(self, outcome: Outcome) -> None:
        """Settle how it ends; once, nothing that comes later changes it. Told by `tell_end`."""
        if self._outcome is None and not self.is_terminal:
            self._outcome = outcome
            self.usage = outcome.usage if isinstance(outcome, AgentResult) else self.usage
            self.inbox.close()

    def tell_end(self) -> None:
        """To everybody, now that the session is free: whoever hears of it may go on at once."""
        if self._outcome is None or self.is_terminal:
            return
        status, told, changes = _ending(self._outcome)
        now = max(self.events.updated_ms, self._env.clock.now_ms())
        self._record = replace(self._record, status=status, updated_at_ms=now, **changes)
        self._outcome = None
        self.events.end(told)  # last: a reader in another thread may look at the record as soon as it hears of this

    def _settle(self, task: "asyncio.Task[AgentResult]") -> None:
        # A done callback, for a task may be cancelled before its first step.
        self.end(_outcome_of(task, self._record.session_id))
        self.tell_end()
        self._task = None  # with all that the frames of an error hold

    # ---- saved and restored ----

    def saved(self) -> tuple[RunSnapshot, int, list[bytes]]:
        """The record, the sequence of the first event that is kept, and those events; as they will be, of a run whose
        end is settled but not told yet: it saves the session as the last thing it does."""
        if self._outcome is None:
            return self.snapshot(), *self.events.saved()
        status, told, changes = _ending(self._outcome)
        first, events = self.events.saved(told)
        return replace(self.snapshot(), status=status, event_count=first + len(events), **changes), first, events

    def restore(self, record: RunSnapshot) -> None:
        """Take up a saved record. A run that was under way when it was saved, in another process, was cut off."""
        if not record.is_terminal:
            record = replace(record, status="cancelled", error="the process that ran it has ended")
        self._record = record
        self.usage = record.usage
        self.inbox.close()


def _outcome_of(task: "asyncio.Task[AgentResult]", session_id: str) -> Outcome:
    if task.cancelled():
        return RunCancelledError(session_id=session_id)
    return task.exception() or task.result()


def _ending(outcome: Outcome) -> tuple[RunStatus, AgentEvent, dict[str, Any]]:
    """The final status, the terminal event, and what the record says of it."""
    if isinstance(outcome, AgentResult):
        return "completed", event("agent_end", **outcome.to_dict()), {"result_text": plain(outcome.text)}
    message = "cancelled" if isinstance(outcome, RunCancelledError) else plain(str(outcome)) or type(outcome).__name__
    told: dict[str, Any] = {"message": message}
    if isinstance(outcome, FanfoldError):
        told["code"] = outcome.code
    status: RunStatus = "cancelled" if isinstance(outcome, RunCancelledError) else "failed"
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
        """A new entry. The caller has made sure that an id of its own choice is free."""
        chosen = f"run-{self._env.ids.new_id()}" if run_id is None else run_id
        while run_id is None and chosen in self._runs:  # a replay's ids, counted anew after a restart
            chosen = f"run-{self._env.ids.new_id()}"
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
        return self.current if self.current is not None and self.current.is_active else None

    def restore(self, saved: Iterable[tuple[RunSnapshot, Callable[[Run], None]]]) -> None:
        """Take up saved runs, oldest first, before those of this process; each callable fills in what else was saved
        of its run."""
        own, self._runs = self._runs, {}
        for record, fill in saved:
            run = Run(record.id, record.session_id, record.prompt, self._env, self._limits)
            run.restore(record)
            fill(run)
            self._add(run)
        for run in own.values():
            self._runs.pop(run.id, None)
            self._add(run)
        self.current = self.current or next(reversed(self._runs.values()), None)

    def _add(self, run: Run) -> None:
        """Also make room: for the run among the runs, and for its events among all events (`max_trace_events`)."""
        self._runs[run.id] = run
        if self._limits.unbounded:
            return
        too_many = sum(len(each.events) for each in self._runs.values()) - self._limits.max_trace_events
        for each in self._runs.values():
            if too_many <= 0:
                break
            kept = len(each.events)
            each.events.drop(too_many)
            too_many -= kept
        for each in list(self._runs.values()):
            if len(self._runs) <= self._limits.max_runs_retained:
                return
            if each.is_terminal:
                del self._runs[each.id]
