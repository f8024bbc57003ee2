"""Laws of automatic delegation: whom a prompt names gets it; else words decide, and only where that is on."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from fanfold.contracts.agents import AgentDefinition
from fanfold.kernel.delegation import confidence, plan_delegation

AGENTS: Mapping[str, AgentDefinition] = {
    each.name: each
    for each in (
        AgentDefinition(name="explore", description="Finds its way through files, fast and read-only."),
        AgentDefinition(name="plan", description="Writes an implementation plan, read-only."),
        AgentDefinition(name="general", description="Does a whole task with every tool of the workspace."),
        AgentDefinition(name="review", description="Reviews code, findings first, read-only."),
        AgentDefinition(name="verification", description="Tries to refute a claim by reproducing it."),
        AgentDefinition(name="answer", description="Answers from its prompt alone, for many small questions."),
        AgentDefinition(name="sql-tuner", description="Use proactively to optimise slow SQL queries and indexes."),
        AgentDefinition(name="secret", description="Rotates secret keys.", is_hidden=True),
    )
}
ALIASES = {"reviewer": "review", "code-review": "review", "verifier": "verification", "gone": "nobody"}


def chosen(prompt: str, agents: Mapping[str, AgentDefinition] = AGENTS, **options: Any) -> list[str]:
    call = plan_delegation(prompt, agents, aliases=ALIASES, **options)
    return [] if call is None else [task["agent"] for task in call["tasks"]]


# ---- by name --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ("@review src/a.py", ["review"]),
        ("Have a look, @Review: is it right?", ["review"]),
        ("@agent-plan the migration", ["plan"]),
        ("@reviewer please", ["review"]),
        ("use the verification subagent to check this", ["verification"]),
        ("Please ask the `plan` agent... no, ask the plan agent", ["plan"]),
        ('run the "sql-tuner" sub-agent', ["sql-tuner"]),
        ("Delegate this to the code-review agent", ["review"]),
        ("hand it over to our plan agent", ["plan"]),
        ("check it with the verifier agent", ["verification"]),
        ("use general agent", ["general"]),
        ("ask the secret agent", ["secret"]),
        ("@plan and @review", ["plan", "review"]),
        ("@review first, then @plan, then @review", ["review", "plan"]),
        ("请使用 review 子代理检查", ["review"]),
        ("让 plan 智能体来做", ["plan"]),
    ],
)
def test_the_agents_that_a_prompt_names_get_it_though_delegation_is_off(prompt: str, named: list[str]) -> None:
    assert chosen(prompt) == named
    assert chosen(prompt, enabled=True, max_tasks=1, allow_parallel=False) == named


@pytest.mark.parametrize(
    "prompt",
    [
        "what is this project",
        "",
        "   ",
        "review this",
        "mail a@review.com or me@plan",
        "install @plan/core and @review-tools",
        "path/@review and ../@plan",
        "`@review` is a decorator",
        "```\n@review\ndef f(): ...\n```\nexplain",
        "```\n@review and no end",
        "how does the review agent work",
        "don't use the review agent",
        "do not ever use the plan agent",
        "never run the plan agent",
        "I shouldn’t use the review agent",
        "不要使用 review 代理",
        "use the search agent",
        "ask the gone agent",
        "@nobody do it",
    ],
)
def test_no_agent_is_named_where_none_is_asked_for(prompt: str) -> None:
    assert chosen(prompt) == []


def test_who_is_named_is_chosen_alone() -> None:
    assert chosen("explore and plan with @review", enabled=True, min_confidence=0.0) == ["review"]


def test_whom_a_prompt_refuses_is_not_guessed_either() -> None:
    assert chosen("Review it, but don't use the review agent", enabled=True) == []
    assert chosen("Review it", enabled=True) == ["review"]


# ---- by words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "guessed"),
    [
        ("Review the error handling in src/a.py", ["review"]),
        ("please could you review my changes", ["review"]),
        ("Planning the move to another database", ["plan"]),
        ("verify that the bug is fixed", ["verification"]),
        ("Explore the code base and find where it is set", ["explore"]),
        ("our slow queries need better SQL indexes", ["sql-tuner"]),
        ("optimising queries: which indexes are missing?", []),
        ("fix the code review comments", []),
        ("add a plan field to the user model", []),
        ("rotate the secret keys", []),
        ("general questions: answer them", []),
        ("what is this project", []),
    ],
)
def test_words_decide_where_delegation_is_on(prompt: str, guessed: list[str]) -> None:
    assert chosen(prompt, enabled=True) == guessed
    assert chosen(prompt) == []


def test_the_least_confidence_is_the_callers() -> None:
    prompt = "fix the code review comments"
    assert confidence(prompt, AGENTS["review"]) == 0.6
    assert chosen(prompt, enabled=True, min_confidence=0.6) == ["review"]
    assert chosen(prompt, enabled=True, min_confidence=0.61) == []


def similar(count: int) -> dict[str, AgentDefinition]:
    words = "apples pears plums grapes figs"
    return {f"n{n}": AgentDefinition(name=f"n{n}", description=words) for n in reversed(range(count))}


def test_several_that_fit_are_taken_best_first_up_to_the_limit() -> None:
    agents = {**similar(6), "apples": AgentDefinition(name="apples", description="pears plums grapes")}
    prompt = "apples pears plums grapes"
    assert chosen(prompt, agents, enabled=True) == ["apples", "n0", "n1", "n2"]
    assert chosen(prompt, agents, enabled=True, max_tasks=2) == ["apples", "n0"]
    assert chosen(prompt, agents, enabled=True, allow_parallel=False) == ["apples"]


def test_one_task_call_stands_for_the_decision() -> None:
    prompt = "Review the  error\nhandling " + "x" * 100
    [task] = (plan_delegation(prompt, AGENTS, enabled=True) or {})["tasks"]
    assert task == {"agent": "review", "description": "Review the error handling " + "x" * 33 + "…", "prompt": prompt}


def test_of_several_guesses_one_success_is_enough_but_what_was_asked_for_has_to_succeed() -> None:
    guess = plan_delegation("apples pears plums grapes", similar(2), enabled=True)
    assert guess is not None
    assert guess["allow_partial_failure"] is True
    assert plan_delegation("@plan and @review", AGENTS) == {
        "tasks": [
            {"agent": name, "description": "@plan and @review", "prompt": "@plan and @review"}
            for name in ("plan", "review")
        ]
    }


def test_the_order_of_agents_changes_nothing() -> None:
    backwards = dict(reversed(list(AGENTS.items())))
    for prompt in ("explore the plan, review it", "@plan @review", "verify"):
        options = {"enabled": True, "min_confidence": 0.2}
        assert plan_delegation(prompt, AGENTS, **options) == plan_delegation(prompt, backwards, **options)  # type: ignore[arg-type]


def test_chinese_words_are_compared_by_their_pairs() -> None:
    agents = {"t": AgentDefinition(name="t", description="数据库迁移与索引优化")}
    assert confidence("请帮我做数据库迁移", agents["t"]) >= 0.72
    assert confidence("写一首诗", agents["t"]) == 0.0


@pytest.mark.parametrize("piece", ["use the ", "@a", "use a b c d ", "`", "```", "don't ", "a.", "用", "让a", "@"])
def test_a_hostile_prompt_costs_no_time(piece: str) -> None:
    start = time.monotonic()
    chosen(piece * (200_000 // len(piece)), enabled=True)
    assert time.monotonic() - start < 2
