"""The views of a workflow run: a live tree on a terminal, plain lines elsewhere, JSON lines on request."""

import importlib.util
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from fanfold.cli.cells import cut
from fanfold.cli.console import Console
from fanfold.cli.event_fields import amount_of, count_of, object_of, text_of
from fanfold.cli.progress import JsonLines, Silent
from fanfold.cli.run_tree_ask import ask_of
from fanfold.cli.run_tree_rows import money_text
from fanfold.cli.run_tree_state import AgentRow, RunTree
from fanfold.cli.tally import Tally, seconds_text, tokens_text
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject
from fanfold.errors import BudgetExhaustedError
from fanfold.kernel.reason_text import reason_text

_LONGEST_NAME = 60
_LONGEST_REASON = 160
_LONGEST_ASK = 400
_WORDS = {"done": "ok   ", "failed": "FAIL ", "cancelled": "stop ", "skipped": "skip "}
_PARKED, _WAITS, _GOES_ON = "park ", "wait ", "on   "
_WORDED = {"unclaimed": "not asked for any more"}
_COUNTS = ("done", "cached", "failed", "skipped", "null_results", "unclaimed", "rejected")


class RunView(Protocol):
    """Watches a run while its context is open. `event` is called on the loop, with events of any kind."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def event(self, item: AgentEvent, /) -> None: ...


def run_view_for(
    console: Console, *, run_id: str | None = None, output: Literal["json", "jsonl"] | None = None
) -> RunView:
    """The view that fits, by the rules of `progress.view_for`; without a `run_id` of the first run that it hears of."""
    if output == "jsonl":
        return JsonLines(console, Tally(0))
    if console.is_quiet or (output == "json" and not console.is_animated):
        return Silent(Tally(0))
    if console.is_animated and importlib.util.find_spec("rich") is not None:
        from fanfold.cli.run_tree_live import LiveRun  # rich is an extra, and slow to import

        return LiveRun(console, RunTree(run_id))
    return PlainRun(console, RunTree(run_id), is_told_after=True)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class PlainRun:
    """One line for each start of the run or a phase, end of an agent, log, failure, and for the notification.

    Answers from the journal have one line together: what ran in an earlier attempt is no news.
    """

    def __init__(
        self,
        console: Console,
        tree: RunTree,
        now_ms: Callable[[], int] = wall_ms,
        *,
        has_phases: bool = True,
        is_told_after: bool = False,
    ) -> None:
        """`is_told_after` as of `line_of`."""
        self._console = console
        self._tree = tree
        self._now_ms = now_ms
        self._cached = 0
        """Not told yet."""
        self._is_told_after = is_told_after
        self._has_phases = has_phases
        """Those are told of that no call of `ctx.phase` announces: each begins with its first agent."""
        self._phases: set[str] = set()
        """Told of this attempt."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell_cached()

    def event(self, item: AgentEvent, /) -> None:
        tree, changes = self._tree, self._tree.changes
        row = tree.observe(item, self._now_ms())
        if tree.changes == changes:
            return
        if row is not None and row.status == "cached":
            self._cached += 1
            return
        self._tell_phase(item)
        text = line_of(item, row, is_told_after=self._is_told_after)
        if text is None:
            return
        self._tell_cached()
        if row is not None:
            text = f"[{tree.sums.ended}/{tree.agents}] {text}"
        self._console.say(text)

    def _tell_phase(self, item: AgentEvent) -> None:
        payload = item.payload
        title = text_of(payload.get("title" if payload.get("type") == "workflow_phase" else "phase"))
        if item.type == "task_started":
            self._phases.clear()
        elif title and title not in self._phases:
            self._phases.add(title)
            if self._has_phases and payload.get("type") == "workflow_agent":
                self._tell_cached()
                self._console.say(_phase_line(title))

    def _tell_cached(self) -> None:
        if self._cached:
            self._console.say(f"{self._cached} answered from the journal")
            self._cached = 0


def line_of(item: AgentEvent, row: AgentRow | None, *, is_told_after: bool = False) -> str | None:
    """What a person is told of an event in one safe line; None for what is no news by itself.

    Args:
        row: the agent that the event ended.
        is_told_after: why a run has failed is told when it has ended, and so not here.
    """
    payload = item.payload
    if row is not None:
        return _end_of(row)
    match item.type, payload.get("type"):
        case "task_started", _:
            return _start_of(payload)
        case "task_progress", "workflow_phase":
            return _phase_line(text_of(payload.get("title")))
        case "task_progress", "workflow_log":
            return f"log: {text_of(payload.get('message'))}"
        case "task_progress", "workflow_failure":
            return _failure_of(payload)
        case "task_progress", "workflow_waiting":
            return _waiting_of(payload)
        case "task_progress", "workflow_waited":
            return f"{_GOES_ON} {_name_of(payload)}  goes on"
        case "task_notification", _:
            return notice_text({**payload, "error": None} if is_told_after else payload)
        case _:
            return None


def _phase_line(title: str) -> str:
    return f"== {title}"


def _start_of(payload: JsonObject) -> str:
    how = f"resumed, attempt {count_of(payload.get('attempt'))}" if payload.get("is_resume") else "started"
    return f"{text_of(payload.get('workflow'))}: {how} as {text_of(payload.get('run_id'))}"


def _end_of(row: AgentRow) -> str:
    costs = [f"{tokens_text(row.total_tokens)} tok"]
    if row.cost_usd is not None:
        costs.append(money_text(row.cost_usd))
    if row.started_ms is not None and row.ended_ms is not None:
        costs.append(seconds_text(max(0, row.ended_ms - row.started_ms) / 1000))
    if row.error:
        costs.append(cut(row.error, _LONGEST_REASON))
    word = _PARKED if row.is_parked else _WORDS.get(row.status, row.status)
    return "  ".join([f"{word} {cut(row.label, _LONGEST_NAME)}", *costs])


def _waiting_of(payload: JsonObject) -> str:
    ask = ask_of(payload)
    return f"{_WAITS} {_name_of(payload)}  {cut(ask.about, _LONGEST_ASK)}\n      {ask.command}"


def _name_of(payload: JsonObject) -> str:
    return cut(text_of(payload.get("label")), _LONGEST_NAME)


def _failure_of(payload: JsonObject) -> str:
    places = [f"{name} {payload[name]:d}" for name in ("index", "stage", "line") if isinstance(payload.get(name), int)]
    label = text_of(payload.get("label"))
    # Why an agent failed is told where it ended.
    why = f"agent '{cut(label, _LONGEST_NAME)}' failed" if label else _reason(payload)
    return f"None  {text_of(payload.get('where'))}" + (f" ({', '.join(places)})" if places else "") + f": {why}"


def _reason(fault: JsonObject) -> str:
    return reason_text(text_of(fault.get("code")), cut(text_of(fault.get("message")), _LONGEST_REASON))


def _budget_reason(message: str) -> str:
    return cut(BudgetExhaustedError.saying(message, resource="").reason, _LONGEST_REASON)


def notice_text(payload: JsonObject) -> str:
    """A `task_notification` in one line."""
    counts = object_of(payload.get("counts"))
    parts = [f"{text_of(payload.get('workflow'))}: {text_of(payload.get('status')).replace('_', ' ')}"]
    if reason := text_of(payload.get("reason")):
        parts[0] += f" ({reason.replace('_', ' ')}{_until(payload.get('reset_ms'))})"
    parts += [_counted(count, name) for name in _COUNTS if (count := count_of(counts.get(name)))]
    tokens, total = count_of(object_of(payload.get("usage")).get("total_tokens")), count_of(payload.get("total_tokens"))
    parts.append(
        f"{tokens_text(tokens)} tok" + (f" ({tokens_text(total)} with earlier attempts)" if total > tokens else "")
    )
    if (cost := amount_of(payload.get("cost_usd"))) is not None:
        parts.append(money_text(cost))
    parts.append(seconds_text(count_of(payload.get("duration_ms")) / 1000))
    if error := object_of(payload.get("error")):
        is_budget = reason == "budget_exhausted"  # of which the status has told by now
        parts.append(_reason(error) if not is_budget else _budget_reason(text_of(error.get("message"))))
    if path := text_of(payload.get("output_file")):
        parts.append(path)
    return " · ".join(parts)


def _counted(count: int, name: str) -> str:
    told = f"{count} {_WORDED.get(name) or name.replace('_', ' ')}"
    return told.removesuffix("s") if count == 1 else told


def _until(reset_ms: Any) -> str:
    try:
        moment = datetime.fromtimestamp(count_of(reset_ms) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""  # further away than any calendar reaches
    return f" until {moment:%Y-%m-%dT%H:%M:%SZ}" if count_of(reset_ms) else ""
