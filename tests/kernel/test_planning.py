"""When a plan is made, and that plans, goals and judgements are read strictly from whatever a model wrote."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.kernel.goals import (
    GOAL_SCHEMA,
    JUDGEMENT_SCHEMA,
    MAX_WORK_CHARACTERS,
    Goal,
    judging_text,
    read_goal,
    read_judgement,
)
from fanfold.kernel.planning import (
    MAX_STEPS,
    PLAN_SCHEMA,
    Plan,
    lists_several_steps,
    planning_mode,
    read_plan,
    shown_plan,
    wants_plan,
)
from fanfold.kernel.schema import compile_schema

NAN = float("nan")

SEVERAL_STEPS = [
    "1. read the code\n2. fix the bug",
    "Please do this:\n\n1) read the code\n\n2) fix the bug\n",
    "Step 1: read the code\nStep 2: fix the bug",
    "step 1. read the code\nand then\nSTEP 2) fix the bug",
    "- read the code\n- fix the bug\n- run the tests",
    "Todo:\n* read the code\n  slowly\n\n* fix the bug\n* run the tests",
    "• read the code\n• fix the bug\n• run the tests",
    "```\n1. in the block\n```\n1. read the code\n2. fix the bug",
]
ORDINARY = [
    "",
    "What is a monad?",
    "Fix the bug in a.py and then run the tests. First read the code, finally commit.",
    "Explain 1.5 and 2.5 to me",
    "1. read the code",
    "2. read the code\n3. fix the bug",
    "1. Paris\n2. Rome\n3. Oslo\nWhich is the capital of Norway?",
    "Sort these:\n- pear\n- apple\n- fig",
    "- read the code\n- fix the bug",
    "- read the code\nand more\n- fix the bug\nand more\n- run the tests",
    "- read the code\n* fix the bug\n- run the tests",
    "Why does this fail?\n```\n1. read the code\n2. fix the bug\n- a b\n- c d\n- e f\n```",
    "Why does this fail?\n~~~\n1. read the code\n```\n2. fix the bug\n~~~",
    "> 1. read the code\n> 2. fix the bug",
    "Review it:\n@@ -1,3 +1,3 @@\n- old line one\n- old line two\n- old line three",
    "    1. read the code\n    2. fix the bug",
    "2024. was a year\n2025. was another",
    "Step 1 of the guide is wrong\nStep 2 of the guide too",
]


@pytest.mark.parametrize("prompt", SEVERAL_STEPS)
def test_a_prompt_that_lists_steps_is_planned_in_auto(prompt: str) -> None:
    assert lists_several_steps(prompt)
    assert wants_plan("auto", prompt)


@pytest.mark.parametrize("prompt", ORDINARY)
def test_an_ordinary_prompt_costs_no_call_in_auto(prompt: str) -> None:
    assert not lists_several_steps(prompt)
    assert not wants_plan("auto", prompt)


@pytest.mark.parametrize("prompt", [SEVERAL_STEPS[0], ORDINARY[1]])
def test_the_other_modes_do_not_look_at_the_prompt(prompt: str) -> None:
    assert wants_plan("enabled", prompt)
    assert not wants_plan("disabled", prompt)


@pytest.mark.parametrize(
    ("mode", "legacy", "meant"),
    [
        (None, None, "auto"),
        (None, True, "enabled"),
        (None, False, "disabled"),
        ("disabled", True, "disabled"),
        ("enabled", False, "enabled"),
        ("auto", True, "auto"),
    ],
)
def test_the_mode_wins_over_the_legacy_switch(mode: Any, legacy: Any, meant: str) -> None:
    assert planning_mode(mode, legacy) == meant


@given(st.text("12.)-*• \n`>ab", max_size=60))
def test_what_is_fenced_never_counts(text: str) -> None:
    assert not lists_several_steps("```\n" + text.replace("`", "") + "\n```")


def test_the_heuristic_takes_linear_time() -> None:
    began = time.monotonic()
    for piece in ("1. " + " " * 50_000, "- " * 50_000, "step " * 50_000, " " * 200_000, "\n" * 100_000):
        lists_several_steps(piece * 4)
    assert time.monotonic() - began < 5


# ---- plans ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [PLAN_SCHEMA, GOAL_SCHEMA, JUDGEMENT_SCHEMA])
def test_the_schemas_are_sound_and_have_an_object_as_root(schema: Any) -> None:
    assert compile_schema(schema).envelope is None


@pytest.mark.parametrize("count", [1, MAX_STEPS])
def test_an_answer_of_the_schema_is_a_plan(count: int) -> None:
    steps = [f"do {n}" for n in range(count)]
    assert compile_schema(PLAN_SCHEMA).validate({"steps": steps}) == ()
    assert read_plan({"steps": steps}) == Plan(tuple(steps))


@pytest.mark.parametrize("steps", [[], ["x"] * (MAX_STEPS + 1), [""], ["x" * 481], [5]], ids=range(5))
def test_the_schema_refuses_what_is_no_plan(steps: Any) -> None:
    assert compile_schema(PLAN_SCHEMA).validate({"steps": steps}) != ()


@pytest.mark.parametrize("answer", [None, "steps", [], {}, {"steps": None}, {"steps": "x"}, {"steps": [" ", 5, {}]}])
def test_an_answer_without_steps_is_no_plan(answer: Any) -> None:
    assert read_plan(answer) is None


def test_steps_are_one_line_each_and_cut() -> None:
    plan = read_plan({"steps": [" a\n  b\ud800 ", "", "x" * 1000, *["more"] * 20]})
    assert plan is not None
    assert plan.steps[0] == "a b\ufffd"
    assert len(plan.steps[1]) == 480
    assert len(plan.steps) == MAX_STEPS


def test_a_plan_is_shown_numbered_and_told_as_pending_tasks() -> None:
    plan = Plan(("read the code", "fix the bug"))
    assert "1. read the code\n2. fix the bug" in shown_plan(plan)
    assert plan.tasks == [
        {"id": "plan-1", "step": "read the code", "status": "pending"},
        {"id": "plan-2", "step": "fix the bug", "status": "pending"},
    ]


# ---- goals ----------------------------------------------------------------------------------------------------------

GOAL = Goal(text="the tests pass", criteria=("they run", "none fails"))


def test_a_goal_is_read_from_an_answer_of_its_schema() -> None:
    answer = {"goal": " the tests\npass", "criteria": ["they run", " ", "none fails"]}
    assert read_goal(answer) == GOAL
    assert GOAL.total_steps == 2


@pytest.mark.parametrize(
    "answer",
    [None, "goal", {}, {"goal": "x"}, {"goal": "x", "criteria": []}, {"goal": " ", "criteria": ["x"]}, {"goal": 5}],
)
def test_an_answer_without_goal_or_criteria_is_none(answer: Any) -> None:
    assert read_goal(answer) is None


def judged(**fields: Any) -> Any:
    answer = {"completed_steps": 2, "progress": 1.0, "reason": "seen", "achieved": True, **fields}
    return read_judgement(answer, GOAL)


def test_only_a_verdict_that_agrees_with_itself_is_an_achievement() -> None:
    assert judged().is_achieved
    assert not judged(achieved=False).is_achieved
    assert not judged(completed_steps=1).is_achieved
    assert judged(progress=0.7).progress == 1.0
    assert judged(achieved=False, progress=0.7).progress == 0.7


@pytest.mark.parametrize("text", ["yes", "achieved", "true", 1, None])
def test_words_alone_achieve_nothing(text: Any) -> None:
    assert judged(achieved=text) is None
    assert read_judgement(text, GOAL) is None


@pytest.mark.parametrize(
    "fields", [{"progress": None}, {"progress": True}, {"progress": NAN}, {"completed_steps": 1.5}], ids=str
)
def test_a_verdict_without_numbers_is_none(fields: Any) -> None:
    assert judged(**fields) is None


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.booleans())
def test_progress_and_steps_stay_in_their_bounds(progress: float, completed: int, achieved: bool) -> None:
    judgement = judged(progress=progress, completed_steps=completed, achieved=achieved)
    assert 0 <= judgement.progress <= 1
    assert 0 <= judgement.completed_steps <= GOAL.total_steps


def test_the_judge_is_shown_goal_criteria_and_both_ends_of_the_work() -> None:
    text = judging_text(GOAL, "begin " + "x" * 10 * MAX_WORK_CHARACTERS + " end")
    assert "the tests pass" in text
    assert "1. they run\n2. none fails" in text
    assert "begin" in text
    assert text.endswith(" end")
    assert len(text) < MAX_WORK_CHARACTERS + 500
