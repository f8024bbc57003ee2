"""Tally of a fan-out: from its events, who runs, what is done and what it cost. Pure; the views draw it."""

from dataclasses import dataclass, field

from fanfold.cli.results import Row
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject


@dataclass(slots=True)
class RunningStep:
    name: str
    agent: str
    started_s: float
    """On the clock of the caller of `observe`."""
    total_tokens: int = 0


@dataclass(slots=True)
class Tally:
    total: int
    limit_tokens: int | None = None
    done: int = 0
    failed: int = 0
    from_journal: int = 0
    """Those of `done` and `failed` that did not run now."""
    spent_tokens: int = 0
    """Of steps that ran now and have ended."""
    never_started: int = 0
    """Those of `failed` that could not be run at all."""
    running: dict[str, RunningStep] = field(default_factory=dict[str, RunningStep])
    unanswered: set[str] = field(default_factory=set[str])
    """Tools that wanted an approval."""
    changed: set[str] = field(default_factory=set[str])
    """Steps that are recorded with another meaning, so they run again."""

    @property
    def finished(self) -> int:
        return self.done + self.failed

    @property
    def ran(self) -> int:
        return self.finished - self.from_journal - self.never_started

    @property
    def queued(self) -> int:
        return max(0, self.total - self.finished - len(self.running))

    @property
    def total_tokens(self) -> int:
        """Spent now, running steps included."""
        return self.spent_tokens + sum(step.total_tokens for step in self.running.values())

    def observe(self, event: AgentEvent, now_s: float) -> None:
        """Take in one event; types that say nothing about steps are ignored."""
        payload = event.payload
        match event.type:
            case "subagent_start":
                name = payload.get("description") or payload["task_id"]
                self.running[payload["task_id"]] = RunningStep(name, payload.get("agent", ""), now_s)
            case "subagent_progress" if (step := self.running.get(payload["task_id"])) is not None:
                step.total_tokens = _total_tokens(payload.get("metadata"), step.total_tokens)
            case "subagent_end" if (step := self.running.pop(payload["task_id"], None)) is not None:
                self.spent_tokens += _total_tokens(payload.get("usage"), step.total_tokens)
            case "step_changed":
                self.changed.add(payload["task_id"])
            case "confirmation_required":
                self.unanswered.add(payload["tool_name"])
            case _:
                pass

    def finish(self, row: Row) -> None:
        if row.success:
            self.done += 1
        else:
            self.failed += 1
        if row.is_cached:
            self.from_journal += 1


def _total_tokens(usage: JsonObject | None, otherwise: int) -> int:
    return otherwise if usage is None else usage.get("total_tokens", otherwise)


def tokens_text(tokens: int) -> str:
    """`412`, `12.4k`, `3.1M`."""
    if tokens < 10_000:
        return str(tokens)
    return f"{tokens / 1000:.1f}k" if tokens < 1_000_000 else f"{tokens / 1_000_000:.1f}M"


def rough_tokens(tokens: int) -> str:
    """`412`, `4k`, `12k`, `3.1M`: an estimate, as exact as it is."""
    if tokens < 1_000:
        return str(tokens)
    return f"{round(tokens / 1000)}k" if tokens < 1_000_000 else f"{tokens / 1_000_000:.1f}M"


def seconds_text(seconds: float) -> str:
    """`1.8s` below a minute, else `2:07` or `1:02:07`."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
