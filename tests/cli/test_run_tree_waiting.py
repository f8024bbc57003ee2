"""Agents that wait for a person, in the tree of their run: counted, first of all, and with the id that answers them."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.cli.run_tree_live import LiveRun
from fanfold.cli.run_tree_state import STALLED_MS, RunTree
from tests.cli.test_run_tree import Recorded, Terminal, console, plain_lines, shown
from tests.cli.test_run_tree_state import NOW, Run

WRITE: dict[str, Any] = {"waits_for": "approval", "tool": "write", "args": '{"file_path":"a.txt"}'}
ASK: dict[str, Any] = {"waits_for": "answer", "question": "Which\ncolour?", "options": ["red", "blue"]}
ID = "wf_a_1/127d0a2f8f7d-0/call_7"


def wait(run: Run, where: str, id: str = ID, at: int = 0, **asked: Any) -> None:
    run.progress("workflow_waiting", at, where=where, label=where, phase=None, id=id, **(asked or WRITE))


def answer(run: Run, where: str, id: str = ID, at: int = 0) -> None:
    run.progress("workflow_waited", at, where=where, label=where, phase=None, id=id)


def standing(tree: RunTree) -> tuple[list[str], list[str]]:
    return list(tree.running), list(tree.waiting)


def test_an_agent_that_waits_does_not_run_until_all_that_it_waits_for_is_answered() -> None:
    run = Run()
    run.agent("#0", "started")
    wait(run, "#0", "x/1")
    wait(run, "#0", "x/2", **ASK)
    [row] = run.tree.waiting.values()
    assert (standing(run.tree), row.status, run.tree.agents) == (([], ["#0"]), "waiting", 1)
    assert [each.command for each in row.waits.values()] == ["fanfold approve x/1 (or deny)", "fanfold answer x/2 TEXT"]
    answer(run, "#0", "x/1")
    assert standing(run.tree) == ([], ["#0"])
    answer(run, "#0", "x/2")
    assert (standing(run.tree), row.status) == ((["#0"], []), "started")
    ended = run.agent("#0", "done", 500)
    assert (ended, standing(run.tree), run.tree.sums.ended) == (row, ([], []), 1)


def test_silence_while_it_waits_is_not_remarked_on_and_hides_that_of_no_other() -> None:
    run = Run()
    for where in ("#0", "#1"):
        run.agent(where, "started")
    wait(run, "#0")
    assert run.tree.silent(NOW + STALLED_MS) == 1
    answer(run, "#0", at=STALLED_MS)
    assert run.tree.silent(NOW + STALLED_MS) == 1


@pytest.mark.parametrize("status", ["failed", "cancelled", "done"])
def test_an_agent_that_ends_waits_no_longer(status: str) -> None:
    run = Run()
    run.agent("#0", "started")
    wait(run, "#0")
    run.agent("#0", status)
    assert (standing(run.tree), run.tree.phases[""].is_active) == (([], []), False)
    wait(run, "#0")
    assert standing(run.tree) == ([], [])


def test_nobody_waits_behind_the_end_of_a_run() -> None:
    run = Run()
    run.agent("#0", "started")
    wait(run, "#0")
    run.tell("task_notification", 1_000, workflow="audit", status="stopped")
    assert (standing(run.tree), run.tree.sums.ends["cancelled"]) == (([], []), 1)


KINDS = st.sampled_from(["queued", "started", "done", "failed", "waiting", "answered"])


@given(st.lists(st.tuples(st.sampled_from(["#0", "#1"]), KINDS, st.sampled_from(["x/1", "x/2"])), max_size=30))
def test_each_agent_stands_at_one_place_only_whatever_is_told(told: list[tuple[str, str, str]]) -> None:
    run = Run()
    for where, kind, id in told:
        if kind == "waiting":
            wait(run, where, id)
        elif kind == "answered":
            answer(run, where, id)
        else:
            run.agent(where, kind)
        tree = run.tree
        places = [*tree.running, *tree.waiting, *tree.queued]
        assert len(places) == len(set(places))
        assert tree.agents == sum(phase.total for phase in tree.phases.values())
        for row in tree.waiting.values():
            assert row.waits


def test_the_row_says_what_it_waits_for_and_the_id_is_never_cut() -> None:
    run = Run()
    run.start()
    label = "a label that is longer than the room beside the id"
    run.agent("#0", "started", label=label)
    run.agent("#1", "started", label="colour")
    run.agent("#2", "queued", label="next")
    run.progress("workflow_waiting", where="#0", label=label, phase=None, id=ID, **WRITE)
    run.progress("workflow_waiting", where="#1", label="colour", phase=None, id="wf_a_1/9f3b-0/call_9", **ASK)
    lines = shown(run.tree, 80, now_ms=NOW)
    assert lines[1] == "0 done · 0 running · 2 waiting · 1 queued"
    assert lines[3].startswith("▸ agents  0/3 · 2 waiting ")
    assert ": approve 127d0a2f8f7d-0/call_7 " in lines[4]
    assert lines[5].startswith("  ? colour: answer 9f3b-0/call_9 · Which colour? (1. re")
    for width in (52, 58, 66, 100, 200):
        assert " approve 127d0a2f8f7d-0/call_7 " in shown(run.tree, width, now_ms=NOW)[4]
    assert shown(run.tree, 200, now_ms=NOW)[4].startswith(
        f'  ? {label}: approve 127d0a2f8f7d-0/call_7 · write {{"file_path":"a.txt"}} '
    )
    wait(run, "#0", "wf_a_1/127d0a2f8f7d-0/call_8")
    assert "approve 127d0a2f8f7d-0/call_7 and 1 more" in shown(run.tree, 80, now_ms=NOW)[4]


def test_those_that_wait_have_rows_before_all_others() -> None:
    run = Run()
    run.start()
    for number in range(20):
        run.agent(f"#{number}", "started")
    wait(run, "#19")
    assert any(line.startswith("  ? #19: approve") for line in shown(run.tree, 80, 8))


def test_a_terminal_and_plain_lines_tell_the_command_that_answers() -> None:
    run, err = Recorded(), Terminal()
    run.start()
    run.agent("#0", "started", label="#0")
    wait(run, "#0")
    answer(run, "#0")

    async def work() -> None:
        async with LiveRun(console(err, no_color=True), RunTree(), lambda: NOW) as view:
            for item in run.events:
                view.event(item)

    asyncio.run(work())
    told = ['wait  #0  write {"file_path":"a.txt"}', f"      fanfold approve {ID} (or deny)"]
    assert "\n".join(told) in err.getvalue().replace("\r\n", "\n")
    assert plain_lines(run) == ["audit: started as wf_a_1", *told, "on    #0  goes on"]


def test_an_agent_that_nobody_could_be_asked_for_is_parked_and_no_other_failure_is() -> None:
    run = Recorded()
    run.start()
    run.ran("#0", "failed", error="waits for approval of write({})", code="PARKED")
    run.ran("#1", "failed", error="the answer broke off", code="NO_ANSWER")
    assert [line.split()[1] for line in plain_lines(run)[1:]] == ["park", "FAIL"]
    tree = Run()
    tree.start()
    tree.ran("#0", "failed", error="waits", code="PARKED")
    tree.agent("#1", "started")
    assert shown(tree.tree, 80)[-2].startswith("  ? #0: waits")


def test_what_a_model_asks_cannot_steer_the_terminal() -> None:
    run = Recorded()
    run.start()
    run.agent("#0", "started", label="#0")
    wait(run, "#0", **{**ASK, "question": "\x1b[2Jyes\n  fanfold approve x", "options": ["\x07a\nb"]})
    assert plain_lines(run)[1] == "wait  #0  [2Jyes fanfold approve x (1. a b)"
