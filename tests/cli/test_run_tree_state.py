"""The fold of a workflow run's events: who runs, what has ended, what it cost, who is silent."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fanfold.cli.cells import width_of
from fanfold.cli.event_fields import text_of
from fanfold.cli.run_tree_rows import frame
from fanfold.cli.run_tree_state import KEPT_ROWS, STALLED_MS, AgentRow, RunTree
from fanfold.contracts.events import event

NOW = 1_700_000_000_000


class Run:
    """A tree, and the events that it is told at a moment after `NOW`."""

    def __init__(self, run_id: str | None = None) -> None:
        self.tree = RunTree(run_id)

    def tell(self, kind: str, at: int = 0, run_id: str = "wf_a_1", **payload: Any) -> AgentRow | None:
        return self.tree.observe(event(kind, run_id=run_id, task_id="t", **payload), NOW + at)

    def start(self, at: int = 0, **payload: Any) -> None:
        told = {"workflow": "audit", "phases": None, "attempt": 1, "is_resume": False, "budget": None}
        self.tell("task_started", at, **{**told, "started_ms": NOW + at, **payload})

    def progress(self, kind: str, at: int = 0, **payload: Any) -> AgentRow | None:
        return self.tell("task_progress", at, type=kind, **payload)

    def agent(
        self,
        where: str,
        status: str,
        at: int = 0,
        *,
        phase: str | None = None,
        tokens: int | None = None,
        **payload: Any,
    ) -> AgentRow | None:
        told = {"label": where, "agent": "general", "model": None, "at_ms": NOW + at, **payload}
        usage = None if tokens is None else {"total_tokens": tokens}
        return self.progress("workflow_agent", at, where=where, status=status, phase=phase, usage=usage, **told)

    def ran(self, where: str, status: str = "done", at: int = 0, **payload: Any) -> AgentRow | None:
        who = {name: payload[name] for name in ("phase", "label", "model") if name in payload}
        self.agent(where, "queued", at, **who)
        self.agent(where, "started", at, **who)
        return self.agent(where, status, at + 1_000, **payload)


def test_an_agent_waits_runs_and_ends() -> None:
    run = Run()
    run.agent("#0", "queued", phase="A")
    phase = run.tree.phases["A"]
    assert (list(run.tree.queued), list(phase.queued), phase.total) == (["#0"], ["#0"], 1)
    run.agent("#0", "started", 500, phase="A")
    assert (list(run.tree.queued), list(run.tree.running), list(phase.running)) == ([], ["#0"], ["#0"])
    row = run.agent("#0", "done", 2_500, phase="A", tokens=40, cost_usd=0.5, tools=3)
    assert row is not None
    assert (row.elapsed_ms(NOW + 9_999), row.total_tokens, row.cost_usd, row.tools) == (2_000, 40, 0.5, 3)
    assert (phase.is_active, list(run.tree.running), list(phase.ended)) == (False, [], [row])
    assert (run.tree.sums.ends["done"], phase.sums.total_tokens, run.tree.cost_usd) == (1, 40, 0.5)


def test_answers_from_the_journal_cost_nothing() -> None:
    run = Run()
    run.agent("#0", "cached", tokens=900, cost_usd=1.0, duration_ms=5_000)
    assert (run.tree.sums.ends["cached"], run.tree.total_tokens, run.tree.cost_usd) == (1, 0, None)
    assert run.tree.phases[""].ended[0].elapsed_ms(NOW) is None


def test_failed_agents_are_counted_with_what_they_cost() -> None:
    run = Run()
    row = run.ran("#0", "failed", tokens=70, error="no\nanswer")
    assert row is not None
    assert (row.error, list(run.tree.phases[""].failed)) == ("no answer", [row])
    assert (run.tree.sums.ends["failed"], run.tree.total_tokens) == (1, 70)


def test_sums_of_the_run_are_those_that_it_tells() -> None:
    run = Run()
    run.start(budget={"spent_tokens": 1_000, "limit_tokens": 5_000})
    run.ran("#0", tokens=100)
    assert (run.tree.total_tokens, run.tree.spent_tokens, run.tree.limit_tokens) == (100, 1_100, 5_000)
    run.tell("task_notification", status="completed", total_tokens=1_300, usage={"total_tokens": 300}, cost_usd=0.25)
    assert (run.tree.total_tokens, run.tree.cost_usd) == (300, 0.25)


def test_a_phase_is_finished_when_none_of_it_runs_and_the_script_has_gone_on() -> None:
    run = Run()
    run.start(phases=["A", "B"])
    first, second = run.tree.phases["A"], run.tree.phases["B"]
    assert not run.tree.is_finished(first)  # it has not begun
    run.progress("workflow_phase", title="A")
    run.ran("#0", phase="A")
    assert not run.tree.is_finished(first)  # more may come
    run.agent("#1", "queued", phase="A")
    run.progress("workflow_phase", title="B")
    assert not run.tree.is_finished(first)  # something waits in it
    run.agent("#1", "started", phase="A")
    run.agent("#1", "done", phase="A")
    assert run.tree.is_finished(first)
    assert not run.tree.is_finished(second)
    run.tell("task_notification", status="completed", total_tokens=0, usage={"total_tokens": 0})
    assert run.tree.is_finished(second)


def test_silence_is_marked_after_two_minutes_and_ended_by_any_event() -> None:
    run = Run()
    for where in ("#0", "#1", "#2"):
        run.agent(where, "queued")
    run.agent("#0", "started")
    run.agent("#1", "started")
    run.progress("workflow_activity", 60_000, where="#0", tool="read_file")
    at = NOW + STALLED_MS
    assert run.tree.silent(at - 1) == 0
    assert run.tree.silent(at) == 1
    assert [row.silent_ms(at) for row in (run.tree.running["#0"], run.tree.running["#1"])] == [0, STALLED_MS]
    assert run.tree.queued["#2"].silent_ms(at) == 0  # who waits has nothing to tell
    assert list(run.tree.running) == ["#1", "#0"]
    run.agent("#1", "done", STALLED_MS)
    assert run.tree.silent(NOW + STALLED_MS + 60_000) == 1
    assert run.tree.running["#0"].tool == "read_file"


def test_another_attempt_begins_anew() -> None:
    run = Run()
    run.start()
    run.ran("#0", "failed", phase="A")
    run.tell("task_notification", status="failed", total_tokens=10, usage={"total_tokens": 10})
    run.start(500, attempt=2, is_resume=True, started_ms=NOW - 86_400_000)
    assert (run.tree.attempt, run.tree.notice, run.tree.sums.ended, run.tree.phases) == (2, None, 0, {})
    assert run.tree.begun_ms == NOW + 500  # and not when the first attempt was


def test_who_begins_to_look_late_sees_when_it_began() -> None:
    run = Run()
    run.tell("async_launched", 90_000, workflow="audit")
    run.progress("workflow_phase", 90_000, title="A")
    for at in (30_000, 20_000, 40_000):
        run.agent(f"#{at}", "started", 90_000, phase="A", at_ms=NOW + at)
    assert (run.tree.begun_ms, run.tree.phases["A"].begun_ms) == (NOW + 20_000, NOW + 20_000)


def test_events_of_other_runs_and_kinds_change_nothing() -> None:
    run = Run()
    run.ran("#0")
    before = run.tree.changes
    run.tell("task_progress", run_id="wf_b_2", type="workflow_agent", where="#9", status="queued")
    run.tree.observe(event("subagent_start", task_id="x"), NOW)
    assert (run.tree.changes, run.tree.queued) == (before, {})
    named = Run("wf_b_2")
    named.ran("#0")
    assert named.tree.phases == {}


def test_nothing_runs_behind_the_end() -> None:
    run = Run()
    run.agent("#0", "started")
    run.agent("#1", "queued")
    run.tell("task_notification", status="stopped", total_tokens=5, usage={"total_tokens": 5}, cost_usd=0.5)
    run.agent("#2", "queued", 5)
    assert (run.tree.running, run.tree.queued, run.tree.total_tokens, run.tree.cost_usd) == ({}, {}, 5, 0.5)
    assert run.tree.sums.ends["cancelled"] == 2


def test_what_has_ended_leaves_little_behind() -> None:
    run = Run()
    for number in range(3 * KEPT_ROWS):
        run.ran(f"#{number}", "failed" if number % 2 else "done", phase="A", tokens=1)
    phase = run.tree.phases["A"]
    assert (len(phase.failed), len(phase.ended), phase.sums.ended) == (KEPT_ROWS, KEPT_ROWS, 3 * KEPT_ROWS)
    assert phase.ended[0].where == f"#{3 * KEPT_ROWS - 2}"  # the newest
    assert run.tree.total_tokens == 3 * KEPT_ROWS


def test_texts_are_safe_and_short() -> None:
    run = Run()
    run.start(workflow="au\x1b[2Jdit")
    run.agent("#\x1b0", "started", label="a\x1b]0;x\x07\nb\u202e", model="m\x9b", phase="p\x1b", error="\r")
    run.progress("workflow_activity", where="#\x1b0", tool="t\x1b[31m")
    [row] = run.tree.running.values()
    run.agent("/\x1b1#0", "queued", label="", agent=None)  # what is left to call it by
    shown = "".join(text for line in frame(run.tree, 120, 30, NOW) for text, _ in line)
    assert shown.isprintable()
    assert (row.label, row.tool, row.phase.title, run.tree.workflow) == ("a]0;x b", "t[31m", "p", "au[2Jdit")
    assert text_of("\ud800") == "\ufffd"
    assert text_of("x" * 10**6) == "x" * 1_000 + "…"


_WHERE = st.sampled_from(["#0", "#1", "/0.1#0", "/0.2#0", ""])
_STATUS = st.sampled_from(["queued", "started", "done", "cached", "failed", "cancelled", "skipped", "surprise"])
_TEXT = st.text(max_size=12) | st.sampled_from(["日本語" * 9, "e\u0301", "\x1b[1m", "\ud800"])
_ODD: st.SearchStrategy[Any] = st.none() | st.integers(-9, 1 << 60) | _TEXT | st.just([1]) | st.just({"a": 1})
_AGENT = st.fixed_dictionaries(
    {"type": st.just("workflow_agent"), "where": _WHERE, "status": _STATUS, "phase": _TEXT | st.none()},
    optional=dict.fromkeys(("label", "agent", "model", "at_ms", "usage", "cost_usd", "duration_ms", "tools"), _ODD),
)
_OTHER = st.fixed_dictionaries(
    {"type": st.sampled_from(["workflow_phase", "workflow_activity", "workflow_log", "new"])},
    optional=dict.fromkeys(("title", "where", "tool", "total_tokens", "cost_usd", "budget", "message"), _ODD),
)
_EVENTS = st.lists(
    st.tuples(st.just("task_progress"), _AGENT | _OTHER)
    | st.tuples(
        st.sampled_from(["task_started", "task_notification", "async_launched"]),
        st.fixed_dictionaries({}, optional=dict.fromkeys(("workflow", "phases", "budget", "status", "attempt"), _ODD)),
    ),
    max_size=30,
)


@given(_EVENTS, st.integers(1, 130), st.integers(1, 20))
def test_whatever_comes_is_folded_and_fits_the_screen(
    events: list[tuple[str, dict[str, Any]]], width: int, height: int
) -> None:
    run = Run()
    for kind, payload in events:
        run.tell(kind, **payload)
        lines = frame(run.tree, width, height, NOW + 200_000)
        assert 0 < len(lines) <= height
        assert all(sum(width_of(text) for text, _ in line) <= width for line in lines)
    phases = run.tree.phases.values()
    assert sum(len(phase.running) for phase in phases) == len(run.tree.running)
    assert sum(len(phase.queued) for phase in phases) == len(run.tree.queued)
    assert sum(phase.sums.ended for phase in phases) == run.tree.sums.ended
