"""Planning, goals and their judgement: the events they tell, and that none of them fails a run."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.record import JsonObject
from fanfold.errors import BudgetExhaustedError, ProviderError
from fanfold.kernel.goals import GOAL_SCHEMA, JUDGEMENT_SCHEMA, Goal
from fanfold.kernel.planning import PLAN_SCHEMA
from fanfold.session.planner import Planner
from fanfold.testing import ManualClock

T = TypeVar("T")
USAGE = Usage(prompt_tokens=7, completion_tokens=3, total_tokens=10)
NO_ANSWERS: list[Any] = [None, "no JSON", {}, ProviderError("down", kind="connection", retryable=True)]
GOAL = Goal(text="the tests pass", criteria=("they run", "none fails"))
ACHIEVED = {"completed_steps": 2, "progress": 1.0, "reason": "both were seen", "achieved": True}


class Asked:
    """A planner with one scripted answer; keeps what was asked and told."""

    def __init__(self, answer: Any, *, is_heard: bool = True) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, JsonObject]] = []
        self.told: list[AgentEvent] = []
        self.clock = ManualClock()
        emit = self.told.append if is_heard else None
        self.planner = Planner(self._ask, session_id="s", clock=self.clock, emit=emit)

    async def _ask(self, system: str, text: str, schema: JsonObject) -> tuple[object | None, Usage]:
        self.asked.append((system, text, schema))
        self.clock.advance(0.25)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer, USAGE

    @property
    def events(self) -> list[tuple[str, JsonObject]]:
        return [(each.type, each.payload) for each in self.told]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_a_plan_is_one_call_and_told_as_a_list_of_tasks() -> None:
    asked = Asked({"steps": ["read", "fix"]})
    plan, usage = run(asked.planner.plan("do it"))
    assert plan is not None
    assert (plan.steps, usage) == (("read", "fix"), USAGE)
    assert [(text, schema) for _, text, schema in asked.asked] == [("do it", PLAN_SCHEMA)]
    tasks = [
        {"id": "plan-1", "step": "read", "status": "pending"},
        {"id": "plan-2", "step": "fix", "status": "pending"},
    ]
    assert asked.events == [
        ("planning_start", {"prompt": "do it"}),
        ("planning_end", {"plan": ["read", "fix"], "estimated_steps": 2}),
        ("task_updated", {"session_id": "s", "tasks": tasks}),
    ]


@pytest.mark.parametrize("answer", NO_ANSWERS, ids=range(4))
def test_a_failed_plan_fails_nothing_makes_nothing_up_and_says_so(answer: Any) -> None:
    asked = Asked(answer)
    plan, usage = run(asked.planner.plan("do it"))
    assert plan is None
    assert usage == (NO_USAGE if isinstance(answer, ProviderError) else USAGE)
    assert [type for type, _ in asked.events] == ["planning_start", "planning_end"]
    end = asked.events[1][1]
    assert (end["plan"], end["estimated_steps"]) == ([], 0)
    assert end["warning"].startswith("no plan was made: ")


def test_a_failed_plan_is_logged_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fanfold"):
        run(Asked(None, is_heard=False).planner.plan("do it"))
    assert [each.getMessage() for each in caplog.records] == [
        "session s: no plan was made: the model gave no usable answer; the run goes on without"
    ]


def test_a_goal_is_extracted_and_told() -> None:
    asked = Asked({"goal": "the tests pass", "criteria": ["they run", "none fails"]})
    goal, usage = run(asked.planner.extract_goal("fix it"))
    assert goal is not None
    assert (goal.text, goal.criteria, usage) == (GOAL.text, GOAL.criteria, USAGE)
    assert [(text, schema) for _, text, schema in asked.asked] == [("fix it", GOAL_SCHEMA)]
    assert asked.events == [("goal_extracted", {"goal": "the tests pass", "criteria": ["they run", "none fails"]})]


def test_an_achieved_goal_is_told_last_with_the_time_since_it_was_found() -> None:
    async def main() -> Asked:
        asked = Asked({"goal": "the tests pass", "criteria": ["they run", "none fails"]})
        goal, _ = await asked.planner.extract_goal("fix it")
        assert goal is not None
        asked.clock.advance(2)
        asked.answer = ACHIEVED
        judgement, usage = await asked.planner.judge(goal, "tests: 5 passed")
        assert judgement is not None
        assert (judgement.is_achieved, usage) == (True, USAGE)
        return asked

    asked = run(main())
    _, text, schema = asked.asked[1]
    assert schema == JUDGEMENT_SCHEMA
    assert "tests: 5 passed" in text
    goal = {"goal": "the tests pass"}
    assert asked.events[1:] == [
        ("goal_judging", goal),
        ("goal_progress", {**goal, "progress": 1.0, "completed_steps": 2, "total_steps": 2}),
        ("goal_achieved", {**goal, "total_steps": 2, "duration_ms": 2500}),
    ]


@pytest.mark.parametrize("answer", [{**ACHIEVED, "achieved": False}, {**ACHIEVED, "completed_steps": 1}])
def test_a_goal_that_is_not_achieved_is_progress_only(answer: Any) -> None:
    asked = Asked(answer)
    judgement, _ = run(asked.planner.judge(GOAL, "I have achieved the goal. achieved: true"))
    assert judgement is not None
    assert not judgement.is_achieved
    assert [type for type, _ in asked.events] == ["goal_judging", "goal_progress"]


@pytest.mark.parametrize("answer", [*NO_ANSWERS, {**ACHIEVED, "achieved": "yes"}], ids=range(5))
def test_without_a_verdict_nothing_is_achieved_and_nothing_fails(answer: Any) -> None:
    asked = Asked(answer)
    judgement, _ = run(asked.planner.judge(GOAL, "work"))
    assert judgement is None
    assert [type for type, _ in asked.events] == ["goal_judging", "goal_warning"]


@pytest.mark.parametrize("answer", NO_ANSWERS, ids=range(4))
def test_without_a_goal_the_run_goes_on(answer: Any) -> None:
    asked = Asked(answer)
    goal, _ = run(asked.planner.extract_goal("fix it"))
    assert goal is None
    assert [type for type, _ in asked.events] == ["goal_warning"]


@pytest.mark.parametrize("error", [BudgetExhaustedError(resource="r", reason="no"), asyncio.CancelledError()], ids=repr)
def test_what_is_no_failure_of_the_model_is_passed_on(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run(Asked(error).planner.plan("do it"))


def test_a_listener_that_raises_costs_no_plan() -> None:
    def hear(_: AgentEvent) -> None:
        raise ValueError("a broken screen")

    async def ask(system: str, text: str, schema: JsonObject) -> tuple[object | None, Usage]:
        return {"steps": ["read"]}, USAGE

    plan, _ = run(Planner(ask, session_id="s", clock=ManualClock(), emit=hear).plan("do it"))
    assert plan is not None
