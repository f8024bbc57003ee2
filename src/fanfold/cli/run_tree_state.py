"""RunTree: from the events of a workflow run, its phases, its agents and what they cost. Pure; the views draw it.

An event costs the same however many came before, and agents that have ended leave little behind: a run may have a
million of them. Texts are made safe and short here, once, and not in each frame.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import cast

from fanfold.cli.event_fields import amount_of, count_of, object_of, text_of
from fanfold.cli.run_tree_ask import Ask, ask_of
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import REPEAT_UNDECIDED
from fanfold.errors import ParkedError

STALLED_MS = 120_000
"""Silence after which an agent is marked; nothing is done to it."""
KEPT_ROWS = 64
"""Newest of the agents of a phase that have ended, and as many of those that have failed."""

_KINDS = frozenset({"async_launched", "task_started", "task_progress", "task_notification"})
_ENDS = frozenset({"done", "cached", "failed", "cancelled", "skipped"})


@dataclass(slots=True, eq=False)
class AgentRow:
    where: str
    number: int
    """By which agents stand in the order of their first event."""
    label: str
    model: str
    phase: "PhaseNode"
    first_ms: int
    status: str = "queued"
    tool: str = ""
    """Called last."""
    tools: int = 0
    total_tokens: int = 0
    cost_usd: float | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    last_ms: int = 0
    """Of its newest event."""
    error: str = ""
    is_parked: bool = False
    """It has failed for want of a person who could be asked."""
    waits: dict[str, Ask] = field(default_factory=dict[str, Ask])
    """For a person, by id; oldest first."""

    def silent_ms(self, now_ms: int) -> int:
        """For how long it has told nothing; 0 while that is nothing unusual."""
        silence = now_ms - self.last_ms
        return silence if self.status == "started" and silence >= STALLED_MS else 0

    def elapsed_ms(self, now_ms: int) -> int | None:
        if self.started_ms is None:
            return None
        return max(0, (now_ms if self.ended_ms is None else self.ended_ms) - self.started_ms)


@dataclass(slots=True, eq=False)
class Sums:
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("done", "cached", "failed"), 0))
    """Agents that have ended, by how."""
    total_tokens: int = 0
    cost_usd: float | None = None

    @property
    def ended(self) -> int:
        return sum(self.ends.values())

    def add(self, row: AgentRow) -> None:
        self.ends[row.status] = self.ends.get(row.status, 0) + 1
        self.total_tokens += row.total_tokens
        if row.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + row.cost_usd


@dataclass(slots=True, eq=False)
class PhaseNode:
    title: str
    """Empty: of the agents that belong to none."""
    begun_ms: int | None = None
    last_ms: int = 0
    queued: dict[str, AgentRow] = field(default_factory=dict[str, AgentRow])
    running: dict[str, AgentRow] = field(default_factory=dict[str, AgentRow])
    """The one that has been silent longest is the first."""
    waiting: dict[str, AgentRow] = field(default_factory=dict[str, AgentRow])
    """For a person."""
    failed: deque[AgentRow] = field(default_factory=lambda: deque[AgentRow](maxlen=KEPT_ROWS))
    ended: deque[AgentRow] = field(default_factory=lambda: deque[AgentRow](maxlen=KEPT_ROWS))
    """The others that have ended; the newest is the first, in both."""
    sums: Sums = field(default_factory=Sums)

    @property
    def is_active(self) -> bool:
        return bool(self.queued or self.running or self.waiting)

    @property
    def total(self) -> int:
        return self.sums.ended + len(self.running) + len(self.queued) + len(self.waiting)


class RunTree:
    """One run; without a `run_id` the first one that an event names. Events of others, and of other kinds, change
    nothing."""

    def __init__(self, run_id: str | None = None) -> None:
        self.run_id = run_id
        self.changes = 0
        """Grows with each event that may have changed something."""
        self._begin()

    def _begin(self) -> None:
        """What an earlier attempt came to is not of the one that begins."""
        self.workflow = ""
        self.attempt = 1
        self.begun_ms: int | None = None
        """When this attempt was."""
        self.phases: dict[str, PhaseNode] = {}
        self.current: PhaseNode | None = None
        """Announced last."""
        self.queued: dict[str, AgentRow] = {}
        self.running: dict[str, AgentRow] = {}
        """The one that has been silent longest is the first."""
        self.waiting: dict[str, AgentRow] = {}
        """For a person."""
        self.sums = Sums()
        """Of this attempt."""
        self.limit_tokens: int | None = None
        self.has_models = False
        """Some agent was asked of a model of its own."""
        self.notice: JsonObject | None = None
        """The notification, once the run is over."""
        self._told_tokens: int | None = None
        self._told_cost: float | None = None
        self._spent_before = 0
        self._agents = 0

    @property
    def agents(self) -> int:
        """All that this attempt has told of so far."""
        return self.sums.ended + len(self.running) + len(self.queued) + len(self.waiting)

    @property
    def total_tokens(self) -> int:
        """Of this attempt: as its end tells, and until then of the agents that have ended."""
        return self.sums.total_tokens if self._told_tokens is None else self._told_tokens

    @property
    def cost_usd(self) -> float | None:
        return self.sums.cost_usd if self._told_cost is None else self._told_cost

    @property
    def spent_tokens(self) -> int:
        """Of the budget."""
        return self._spent_before + self.sums.total_tokens

    def silent(self, now_ms: int) -> int:
        """How many agents have told nothing for too long."""
        count = 0
        for row in self.running.values():
            if not row.silent_ms(now_ms):
                break
            count += 1
        return count

    def is_finished(self, phase: PhaseNode) -> bool:
        """It had agents or was announced, none of them runs, and the script has gone on behind it."""
        if phase.is_active or phase.begun_ms is None:
            return False
        return self.notice is not None or phase is not self.current

    def observe(self, item: AgentEvent, now_ms: int) -> AgentRow | None:
        """Take in one event; the agent that it ended, if it did.

        Args:
            now_ms: Unix ms, when the event came.
        """
        payload = item.payload
        if item.type not in _KINDS or not self._is_mine(payload):
            return None
        self.changes += 1
        match item.type:
            case "task_started":
                self._start(payload, now_ms)
            case "task_progress":
                return self._progress(payload, now_ms)
            case "task_notification":
                self._end(payload)
            case _:
                self.workflow = text_of(payload.get("workflow"))
        return None

    def _is_mine(self, payload: JsonObject) -> bool:
        run_id = payload.get("run_id")
        if self.run_id is None and isinstance(run_id, str):
            self.run_id = run_id
        return run_id == self.run_id

    def _start(self, payload: JsonObject, now_ms: int) -> None:
        self._begin()
        self.workflow = text_of(payload.get("workflow"))
        self.attempt = count_of(payload.get("attempt")) or 1
        # A resumed run was started in an earlier attempt.
        self.begun_ms = now_ms if payload.get("is_resume") else count_of(payload.get("started_ms")) or now_ms
        budget = object_of(payload.get("budget"))
        self._spent_before = count_of(budget.get("spent_tokens"))
        self.limit_tokens = count_of(budget.get("limit_tokens")) or None
        titles: object = payload.get("phases")
        for title in cast("list[object]", titles) if isinstance(titles, list) else ():
            self._phase(title)

    def _progress(self, payload: JsonObject, now_ms: int) -> AgentRow | None:
        match payload.get("type"):
            case "workflow_agent":
                return self._agent(payload, now_ms)
            case "workflow_activity":
                row = self.running.get(str(payload.get("where")))
                if row is not None:
                    row.tool = text_of(payload.get("tool"))
                    self._heard(row, now_ms)
            case "workflow_waiting":
                self._wait(payload)
            case "workflow_waited":
                self._go_on(payload, now_ms)
            case "workflow_phase":
                self.current = phase = self._phase(payload.get("title"))
                phase.begun_ms = now_ms if phase.begun_ms is None else phase.begun_ms
            case _:
                pass
        return None

    def _phase(self, title: object) -> PhaseNode:
        name = title if isinstance(title, str) else ""
        phase = self.phases.get(name)
        if phase is None:
            phase = self.phases[name] = PhaseNode(text_of(name))
        return phase

    # ---- agents ----

    def _agent(self, payload: JsonObject, now_ms: int) -> AgentRow | None:
        where, status = payload.get("where"), payload.get("status")
        if not isinstance(where, str) or not isinstance(status, str) or self.notice is not None:
            return None
        at_ms = count_of(payload.get("at_ms")) or now_ms
        known = self.running.get(where) or self.waiting.get(where) or self.queued.get(where)
        row = known or self._new_row(where, payload, at_ms)
        row.model = text_of(payload.get("model")) or row.model
        self.has_models = self.has_models or bool(row.model)
        if status in _ENDS:
            self._ended(row, status, payload, at_ms)
            return row
        if status == "started" and row.status == "queued":
            self._leave(row)
            row.status, row.started_ms = "started", at_ms
        if row.status == "started":
            self._heard(row, at_ms)
        elif row.status == "queued":
            self.queued[where] = row.phase.queued[where] = row
        return None

    def _wait(self, payload: JsonObject) -> None:
        row = self.running.get(str(payload.get("where"))) or self.waiting.get(str(payload.get("where")))
        if row is not None:
            self._leave(row)
            ask = ask_of(payload)
            row.waits[ask.id] = ask
            row.status = "waiting"
            self.waiting[row.where] = row.phase.waiting[row.where] = row

    def _go_on(self, payload: JsonObject, now_ms: int) -> None:
        row = self.waiting.get(str(payload.get("where")))
        if row is not None:
            row.waits.pop(text_of(payload.get("id")), None)
            if not row.waits:
                self._leave(row)
                row.status = "started"
                self._heard(row, now_ms)

    def _new_row(self, where: str, payload: JsonObject, at_ms: int) -> AgentRow:
        phase = self._phase(payload.get("phase"))
        phase.begun_ms = at_ms if phase.begun_ms is None else min(phase.begun_ms, at_ms)
        self.begun_ms = at_ms if self.begun_ms is None else min(self.begun_ms, at_ms)
        self._agents += 1
        label = text_of(payload.get("label")) or text_of(payload.get("agent")) or text_of(where)
        return AgentRow(where, self._agents, label, text_of(payload.get("model")), phase, at_ms)

    def _heard(self, row: AgentRow, at_ms: int) -> None:
        row.last_ms = max(row.last_ms, at_ms)
        for rows in (self.running, row.phase.running):  # to the end of both: they are in the order of silence
            rows.pop(row.where, None)
            rows[row.where] = row

    def _leave(self, row: AgentRow) -> None:
        phase = row.phase
        for rows in (self.running, self.queued, self.waiting, phase.running, phase.queued, phase.waiting):
            rows.pop(row.where, None)

    def _ended(self, row: AgentRow, status: str, payload: JsonObject, at_ms: int) -> None:
        self._leave(row)
        row.status, row.ended_ms = status, at_ms
        if status != "cached":  # what that cost was paid by an earlier attempt
            row.total_tokens = count_of(object_of(payload.get("usage")).get("total_tokens"))
            row.cost_usd = amount_of(payload.get("cost_usd"))
        row.tools = count_of(payload.get("tools"))
        row.error = text_of(payload.get("error"))
        row.is_parked = payload.get("code") in (ParkedError.code, REPEAT_UNDECIDED)
        if row.started_ms is None and (lasted_ms := count_of(payload.get("duration_ms"))) and status != "cached":
            row.started_ms = at_ms - lasted_ms
        row.phase.last_ms = max(row.phase.last_ms, at_ms)
        (row.phase.failed if status == "failed" else row.phase.ended).appendleft(row)
        row.phase.sums.add(row)
        self.sums.add(row)

    def _end(self, payload: JsonObject) -> None:
        self.notice = payload
        self.workflow = text_of(payload.get("workflow")) or self.workflow
        self._told_tokens = count_of(object_of(payload.get("usage")).get("total_tokens")) or self._told_tokens
        told = amount_of(payload.get("cost_usd"))
        self._told_cost = self._told_cost if told is None else told
        for row in (
            *self.running.values(),
            *self.waiting.values(),
            *self.queued.values(),
        ):  # nothing runs behind the end
            self._ended(row, "cancelled", {}, max(row.last_ms, row.first_ms))
