"""Planning and goals in real runs: how many model calls they cost, what they tell, and that they fail no run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold import Usage
from fanfold.contracts.messages import ModelRequest
from fanfold.errors import ProviderError
from fanfold.kernel.goals import GOAL_PROMPT, JUDGING_PROMPT
from fanfold.kernel.planning import PLANNING_PROMPT
from fanfold.testing import Reply, ScriptedModel, as_json, calls, echo
from fanfold.testing.scripted import newest_text
from tests.support.open_session import heard, opened, types, until
from tests.support.tools import RecordingTool

ORDINARY = "Why does the build fail?"
LIST = "Please do this:\n1. read the log\n2. fix the cause"
PLAN = as_json({"steps": ["Read the log.", "Fix the cause."]})
GOAL = as_json({"goal": "The build passes.", "criteria": ["it compiles", "its tests pass"]})
SHOWN = "## Plan\n1. Read the log.\n2. Fix the cause."


def verdict(achieved: bool = True, completed: int = 2, reason: str = "seen") -> str:
    return as_json({"completed_steps": completed, "progress": completed / 2, "reason": reason, "achieved": achieved})


def by_kind(**answers: Any) -> ScriptedModel:
    """Answers each kind of call; `kinds_of` tells in which order they came."""
    given = {"plan": PLAN, "goal": GOAL, "judge": verdict(), "work": "fixed", **answers}

    def answer(request: ModelRequest) -> Any:
        found = given[kind_of(request)]
        return found(request) if callable(found) else found

    return ScriptedModel(answer)


def kind_of(request: ModelRequest) -> str:
    prompts = {PLANNING_PROMPT: "plan", GOAL_PROMPT: "goal", JUDGING_PROMPT: "judge"}
    return prompts.get(request.system, "work")


def kinds_of(model: ScriptedModel) -> list[str]:
    return [kind_of(request) for request in model.requests]


# ---- how many calls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "prompt", "kinds"),
    [
        ({}, ORDINARY, ["work"]),
        ({}, LIST, ["plan", "work"]),
        ({"planning_mode": "auto"}, ORDINARY, ["work"]),
        ({"planning_mode": "auto"}, LIST, ["plan", "work"]),
        ({"planning_mode": "enabled"}, ORDINARY, ["plan", "work"]),
        ({"planning_mode": "disabled"}, LIST, ["work"]),
        ({"planning": True}, ORDINARY, ["plan", "work"]),
        ({"planning": False}, LIST, ["work"]),
        ({"planning_mode": "disabled", "planning": True}, LIST, ["work"]),
        ({"planning_mode": "enabled", "planning": False}, ORDINARY, ["plan", "work"]),
        ({"planning_mode": "auto", "planning": True}, ORDINARY, ["work"]),
        ({"goal_tracking": False}, ORDINARY, ["work"]),
        ({"goal_tracking": True}, ORDINARY, ["goal", "work", "judge"]),
        ({"goal_tracking": True}, LIST, ["goal", "plan", "work", "judge"]),
        ({"goal_tracking": True, "planning_mode": "disabled"}, LIST, ["goal", "work", "judge"]),
    ],
)
def test_a_prompt_costs_exactly_the_model_calls_that_its_options_say(
    tmp_path: Path, options: dict[str, Any], prompt: str, kinds: list[str]
) -> None:
    model = by_kind()

    async def main() -> None:
        async with opened(tmp_path, model, **options) as session:
            result = await session.send_async(prompt)
            assert result.text == "fixed"
            assert result.usage == Usage(
                prompt_tokens=10 * len(kinds), completion_tokens=5 * len(kinds), total_tokens=15 * len(kinds)
            )

    asyncio.run(main())
    assert kinds_of(model) == kinds


def test_tool_rounds_resuming_and_commands_are_not_planned_again(tmp_path: Path) -> None:
    model: ScriptedModel = by_kind(work=lambda request: "fixed" if len(model.requests) > 2 else calls(("look", {})))

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look"), planning_mode="enabled") as session:
            await session.send_async(ORDINARY)
            assert (await session.resume_run_async()).text == "fixed"
            await session.send_async("/cost")

    asyncio.run(main())
    assert kinds_of(model) == ["plan", "work", "work"]


def test_children_never_plan_and_have_no_goals(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model, planning_mode="enabled", goal_tracking=True) as session:
            spec = {"task_id": "a", "agent": "answer", "description": "d", "prompt": LIST}
            assert (await session.parallel_async([spec]))[0].success

    asyncio.run(main())
    assert [newest_text(request) for request in model.requests] == [LIST]


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_the_plan_reaches_the_model_and_stays_in_the_conversation(tmp_path: Path) -> None:
    model = by_kind()

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look"), planning_mode="enabled") as session:
            await session.send_async(ORDINARY)
            await session.send_async("/history")

    asyncio.run(main())
    planning, work = model.requests
    assert newest_text(planning).startswith(ORDINARY)
    assert planning.tools == ()
    assert planning.output_schema is not None
    assert newest_text(work).startswith(f"{ORDINARY}\n\n{SHOWN}")
    assert work.tools
    assert work.output_schema is None


def test_planning_is_told_before_the_first_turn_and_is_no_text_of_the_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, by_kind(), planning_mode="enabled") as session:
            events = await heard(await session.stream_async(ORDINARY))
            assert types(events) == [
                "agent_start",
                "planning_start",
                "planning_end",
                "task_updated",
                "turn_start",
                "text_delta",
                "turn_end",
                "agent_end",
            ]
            told = {each.type: each.payload for each in events}
            assert told["planning_start"] == {"prompt": ORDINARY}
            assert told["planning_end"] == {"plan": ["Read the log.", "Fix the cause."], "estimated_steps": 2}
            assert told["task_updated"] == {
                "session_id": "s",
                "tasks": [
                    {"id": "plan-1", "step": "Read the log.", "status": "pending"},
                    {"id": "plan-2", "step": "Fix the cause.", "status": "pending"},
                ],
            }
            assert told["text_delta"]["text"] == "fixed"
            assert told["agent_end"]["usage"]["total_tokens"] == 30

    asyncio.run(main())


def test_a_run_that_is_planned_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def answer(request: ModelRequest) -> str:
            await go_on.wait()
            return PLAN if kind_of(request) == "plan" else "fixed"

        model = ScriptedModel(answer)
        async with opened(tmp_path, model, planning_mode="enabled") as session:
            running = asyncio.create_task(session.send_async(ORDINARY))
            await until(lambda: model.running)
            current = session.current_run()
            assert current is not None
            assert current.status == "planning"
            go_on.set()
            await running
            [run] = await session.runs_async()
            assert (run.status, run.prompt, run.usage.total_tokens) == ("completed", ORDINARY, 30)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("I would rather not", "the model gave no usable answer"),
        (as_json({"steps": []}), "the model gave no usable answer"),
        (ProviderError("no such model", kind="not_found", retryable=False), "no such model"),
        (ProviderError("slow", kind="timeout", retryable=True), "slow"),
    ],
)
def test_without_a_plan_the_run_goes_on_and_says_why(tmp_path: Path, answer: Any, why: str) -> None:
    model = by_kind(plan=answer)

    async def main() -> None:
        async with opened(tmp_path, model, planning_mode="enabled") as session:
            stream = await session.stream_async(ORDINARY)
            events = await heard(stream)
            assert "task_updated" not in types(events)
            [end] = [each.payload for each in events if each.type == "planning_end"]
            assert end["plan"] == []
            assert why in end["warning"]
            assert (await stream.result_async()).text == "fixed"

    asyncio.run(main())
    assert newest_text(model.requests[-1]) == ORDINARY


# ---- goals ----------------------------------------------------------------------------------------------------------


def test_a_goal_that_was_reached_is_told_before_the_end_and_in_the_result(tmp_path: Path) -> None:
    tool = RecordingTool("look", lambda args: "all tests pass")
    model: ScriptedModel = by_kind(work=lambda request: calls(("look", {})) if len(model.requests) == 2 else "fixed")

    async def main() -> None:
        async with opened(tmp_path, model, tool, goal_tracking=True) as session:
            stream = await session.stream_async(ORDINARY)
            events = await heard(stream)
            wanted = ("goal_extracted", "turn_start", "goal_judging", "goal_progress", "goal_achieved", "agent_end")
            assert types(events, *wanted) == [
                "goal_extracted",
                "turn_start",
                "turn_start",
                "goal_judging",
                "goal_progress",
                "goal_achieved",
                "agent_end",
            ]
            told = {each.type: each.payload for each in events}
            assert told["goal_extracted"]["goal"] == "The build passes."
            assert told["goal_progress"] == {
                "goal": "The build passes.",
                "progress": 1.0,
                "completed_steps": 2,
                "total_steps": 2,
            }
            assert told["goal_achieved"]["duration_ms"] >= 0
            result = await stream.result_async()
            assert result.verification_summary().to_dict() == {
                "status": "passed",
                "report_count": 1,
                "failed_count": 0,
                "pending_count": 0,
            }
            assert result.total_tokens == 60

    asyncio.run(main())
    judged = newest_text(model.requests[-1])
    assert "its tests pass" in judged
    assert "all tests pass" in judged
    assert "assistant: fixed" in judged


def test_words_alone_achieve_nothing(tmp_path: Path) -> None:
    model = by_kind(judge=verdict(achieved=False, completed=1, reason="no test was run"))

    async def main() -> None:
        async with opened(tmp_path, model, goal_tracking=True) as session:
            stream = await session.stream_async(ORDINARY)
            events = await heard(stream)
            assert "goal_achieved" not in types(events)
            result = await stream.result_async()
            assert result.text == "fixed"
            assert result.verification_summary().status == "failed"
            [report] = result.verification or ()
            assert (report.what, report.reason) == ("The build passes.", "no test was run")

    asyncio.run(main())


@pytest.mark.parametrize("answer", ["who knows", ProviderError("slow", kind="timeout", retryable=True)])
def test_a_goal_that_was_not_judged_needs_a_review(tmp_path: Path, answer: Any) -> None:
    async def main() -> None:
        async with opened(tmp_path, by_kind(judge=answer), goal_tracking=True) as session:
            stream = await session.stream_async(ORDINARY)
            events = await heard(stream)
            assert types(events, "goal_warning", "goal_progress", "goal_achieved") == ["goal_warning"]
            result = await stream.result_async()
            assert (result.text, result.verification_summary().status) == ("fixed", "needs_review")

    asyncio.run(main())


@pytest.mark.parametrize("answer", ["no idea", ProviderError("slow", kind="timeout", retryable=True)])
def test_without_a_goal_nothing_is_judged(tmp_path: Path, answer: Any) -> None:
    model = by_kind(goal=answer)

    async def main() -> None:
        async with opened(tmp_path, model, goal_tracking=True) as session:
            result = await session.send_async(ORDINARY)
            assert (result.verification, result.verification_summary().status) == (None, "skipped")

    asyncio.run(main())
    assert kinds_of(model) == ["goal", "work"]


def test_a_run_that_fails_is_not_judged_and_its_goal_is_not_the_next_one_s(tmp_path: Path) -> None:
    model = by_kind(work=lambda request: Reply(error=ProviderError("down", kind="server", retryable=False)))

    async def main() -> None:
        async with opened(tmp_path, model, goal_tracking=True) as session:
            with pytest.raises(ProviderError):
                await session.send_async(ORDINARY)
            assert kinds_of(model) == ["goal", "work"]
            model.requests.clear()
            with pytest.raises(ProviderError):
                await session.resume_run_async()
            assert kinds_of(model) == ["work"]

    asyncio.run(main())


def test_a_run_is_verifying_while_its_goal_is_judged(tmp_path: Path) -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def answer(request: ModelRequest) -> str:
            kind = kind_of(request)
            if kind == "judge":
                await go_on.wait()
            return {"goal": GOAL, "judge": verdict(), "work": "fixed"}[kind]

        model = ScriptedModel(answer)
        async with opened(tmp_path, model, goal_tracking=True) as session:
            running = asyncio.create_task(session.send_async(ORDINARY))
            await until(lambda: len(model.requests) == 3)
            current = session.current_run()
            assert current is not None
            assert current.status == "verifying"
            go_on.set()
            await running

    asyncio.run(main())


def test_the_seed_s_session_plans_and_tracks_its_goal(tmp_path: Path) -> None:
    """Seed 002: planning enabled, goals tracked, delegation on, no automatic fan-out."""
    model = by_kind()

    async def main() -> None:
        options: dict[str, Any] = {"planning_mode": "enabled", "goal_tracking": True, "auto_parallel": False}
        async with opened(tmp_path, model, auto_delegation={"enabled": True, "max_tasks": 4}, **options) as session:
            result = await session.send_async("Hello there.")
            assert result.verification_summary().status == "passed"

    asyncio.run(main())
    assert kinds_of(model) == ["goal", "plan", "work", "judge"]
