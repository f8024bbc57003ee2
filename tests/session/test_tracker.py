"""Laws of the tracker: what a session knows of its children, told by their events."""

from typing import Any

from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.contracts.steps import CANCELLED
from fanfold.contracts.tasks import SubagentTask
from fanfold.delegation.tracker import MAX_PROGRESS, ORPHANED, Tracker
from fanfold.testing import ManualClock

START_MS = 1_000


def tracker(**limits: Any) -> Tracker:
    return Tracker(SessionRetentionLimits(**limits), ManualClock(START_MS))


def start(task_id: str, at_ms: int = START_MS) -> AgentEvent:
    return event(
        "subagent_start",
        task_id=task_id,
        session_id=f"task-run-{task_id}",
        parent_session_id="s",
        agent="explore",
        description="look",
        started_ms=at_ms,
    )


def progress(task_id: str, number: int = 0) -> AgentEvent:
    return event(
        "subagent_progress",
        task_id=task_id,
        session_id=f"task-run-{task_id}",
        status="turn_completed",
        metadata={"turn": number},
    )


def end(task_id: str, *, success: bool = True, output: str = "done", at_ms: int = 2_000) -> AgentEvent:
    return event(
        "subagent_end",
        task_id=task_id,
        session_id=f"task-run-{task_id}",
        agent="explore",
        output=output,
        success=success,
        finished_ms=at_ms,
    )


def tell(into: Tracker, *events: AgentEvent) -> Tracker:
    for each in events:
        into(each)
    return into


def status(of: Tracker, task_id: str) -> str | None:
    task = of.task(task_id)
    return None if task is None else task.status


def ids(tasks: list[SubagentTask]) -> list[str]:
    return [each.task_id for each in tasks]


def test_a_task_is_told_from_its_start_to_its_end() -> None:
    tasks = tell(tracker(), start("a"), progress("a", 1), event("text_delta", text="x"), end("a"))
    task = tasks.task("a")
    assert task is not None
    assert task.to_dict() == {
        "task_id": "a",
        "parent_session_id": "s",
        "child_session_id": "task-run-a",
        "agent": "explore",
        "description": "look",
        "status": "completed",
        "started_ms": START_MS,
        "updated_ms": 2_000,
        "finished_ms": 2_000,
        "output": "done",
        "success": True,
        "progress": [{"timestamp_ms": START_MS, "status": "turn_completed", "metadata": {"turn": 1}}],
    }


def test_what_runs_is_pending_and_all_are_listed_by_their_starts() -> None:
    tasks = tell(tracker(), start("b"), start("a"), start("c"), end("a"), end("b", success=False))
    assert ids(tasks.tasks()) == ["b", "a", "c"]
    assert ids(tasks.pending()) == ["c"]
    assert [each.status for each in tasks.tasks()] == ["failed", "completed", "running"]
    assert tasks.task("d") is None


def test_only_the_newest_progress_is_kept() -> None:
    tasks = tell(tracker(), start("a"), *(progress("a", number) for number in range(100)))
    task = tasks.task("a")
    assert task is not None
    assert [each.metadata["turn"] for each in task.progress] == list(range(100 - MAX_PROGRESS, 100))


def test_an_end_without_a_start_still_is_a_finished_task() -> None:
    tasks = tell(tracker(), end("a", success=False, output="why"))
    task = tasks.task("a")
    assert task is not None
    assert (task.status, task.output, task.finished_ms) == ("failed", "why", 2_000)
    assert tasks.pending() == []


def test_a_late_end_does_not_change_what_was_cancelled() -> None:
    tasks = tell(tracker(), start("a"))
    assert tasks.mark_cancelled("a")
    tell(tasks, progress("a"), end("a", output="done after all"))
    task = tasks.task("a")
    assert task is not None
    assert (task.status, task.success, task.output, task.progress) == ("cancelled", False, CANCELLED, ())


def test_cancelling_twice_or_what_does_not_run_is_false() -> None:
    tasks = tell(tracker(), start("a"), start("b"), end("b"))
    assert tasks.mark_cancelled("a")
    assert [tasks.mark_cancelled(each) for each in ("a", "b", "nobody")] == [False, False, False]
    assert status(tasks, "b") == "completed"


def test_a_child_that_was_cancelled_is_told_apart_from_one_that_failed() -> None:
    tasks = tell(tracker(), start("a"), end("a", success=False, output=CANCELLED))
    assert status(tasks, "a") == "cancelled"


def test_a_task_that_starts_again_runs_again() -> None:
    tasks = tell(tracker(), start("a"), end("a", success=False), start("b"), start("a", at_ms=3_000))
    task = tasks.task("a")
    assert task is not None
    assert (task.status, task.started_ms, task.finished_ms, task.output) == ("running", 3_000, None, None)
    assert ids(tasks.tasks()) == ["b", "a"]
    assert status(tell(tasks, end("a")), "a") == "completed"


def test_two_children_of_one_id_run_until_both_have_ended() -> None:
    tasks = tell(tracker(), start("a"), start("a"), end("a", output="first"))
    assert status(tasks, "a") == "running"
    task = tell(tasks, end("a", output="second")).task("a")
    assert task is not None
    assert (task.status, task.output) == ("completed", "second")


def test_the_end_of_a_cancelled_child_does_not_end_its_successor() -> None:
    tasks = tell(tracker(), start("a"))
    tasks.mark_cancelled("a")
    tell(tasks, start("a"), end("a", success=False, output=CANCELLED))
    assert status(tasks, "a") == "running"


def test_beyond_the_limit_the_oldest_ends_are_forgotten_and_nothing_that_runs() -> None:
    tasks = tracker(max_terminal_subagent_tasks=2)
    names = [f"t{number}" for number in range(6)]
    tell(tasks, *map(start, names))
    assert ids(tasks.pending()) == names
    tell(tasks, end("t3"), end("t0"), end("t1", success=False), end("t4"))
    assert ids(tasks.tasks()) == ["t1", "t2", "t4", "t5"]
    assert ids(tasks.pending()) == ["t2", "t5"]
    tell(tasks, start("t1"), end("t2"))
    assert ids(tasks.tasks()) == ["t2", "t4", "t5", "t1"]


def test_a_limit_of_zero_keeps_only_what_runs_and_unbounded_keeps_all() -> None:
    none = tell(tracker(max_terminal_subagent_tasks=0), start("a"), start("b"), end("a"), end("c"))
    assert ids(none.tasks()) == ["b"]
    everything = tracker(max_terminal_subagent_tasks=0, unbounded=True)
    for number in range(1_000):
        tell(everything, start(f"t{number}"), end(f"t{number}"))
    assert len(everything.tasks()) == 1_000


def test_trackers_know_nothing_of_each_other() -> None:
    one, two = tracker(), tracker()
    tell(one, start("a"))
    assert (two.tasks(), two.mark_cancelled("a")) == ([], False)


def test_a_snapshot_is_nobody_elses_to_change() -> None:
    tasks = tell(tracker(), start("a"), progress("a", 1))
    before = tasks.task("a")
    assert before is not None
    before.progress[0].metadata["turn"] = 99
    tell(tasks, end("a"))
    after = tasks.task("a")
    assert after is not None
    assert (before.status, after.progress[0].metadata) == ("running", {"turn": 1})


def test_a_saved_session_gives_its_tasks_back_and_what_ran_then_is_cancelled() -> None:
    saved = tell(tracker(), start("a", 1), start("b", 2), progress("b"), start("c", 3), end("c"), end("a")).tasks()
    restored = tracker()
    restored.restore(saved)
    assert ids(restored.tasks()) == ["a", "b", "c"]
    assert [each for each in restored.tasks() if each.task_id != "b"] == [saved[0], saved[2]]
    task = restored.task("b")
    assert task is not None
    assert (task.status, task.finished_ms, task.output, task.success) == ("cancelled", START_MS, ORPHANED, False)
    assert task.progress == saved[1].progress
    assert restored.pending() == []
    tell(restored, start("b"), end("b"))
    assert status(restored, "b") == "completed"


def test_a_restored_session_keeps_its_limit_and_its_own_tasks() -> None:
    saved = tell(tracker(), *(start(f"t{n}", n) for n in range(4)), *(end(f"t{n}", at_ms=10 - n) for n in range(4)))
    restored = tell(tracker(max_terminal_subagent_tasks=2), start("t1", 100))
    restored.restore(saved.tasks())
    assert ids(restored.tasks()) == ["t0", "t2", "t1"]
    assert status(restored, "t1") == "running"
