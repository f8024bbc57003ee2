"""Limits in real runs: rounds, deadlines and questions; and options that cannot be meant so."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentDefinition
from fanfold.contracts.facts import BudgetDenied
from fanfold.contracts.messages import ASK_USER, ToolOutput, UserMessage
from fanfold.contracts.policy import ConfirmationPolicy
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.errors import ConfigError, ParkedError, ProviderError, StepLimitError, UsageError
from fanfold.options import AutoDelegation
from fanfold.testing import Reply, ScriptedModel, calls, echo
from fanfold.testing.scripted import newest_text
from tests.support.open_session import facts_of, opened, until
from tests.support.tools import RecordingTool


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_after_its_rounds_the_model_sees_no_tools_and_answers_in_text(tmp_path: Path, rounds: int) -> None:
    model: ScriptedModel = ScriptedModel(
        lambda request: calls(("look", {"n": len(model.requests)})) if request.tools else "done"
    )

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look"), max_tool_rounds=rounds) as session:
            result = await session.send_async("go")
            assert (result.text, result.stop_reason, result.tool_calls_count) == ("done", "stop", rounds)

    asyncio.run(main())
    assert [bool(request.tools) for request in model.requests] == [True] * rounds + [False]
    assert [each.text for each in model.requests[-1].transcript if isinstance(each, UserMessage)] == ["go"]
    assert not any(isinstance(fact.payload, BudgetDenied) for fact in facts_of(tmp_path))


def test_a_model_that_insists_after_its_rounds_ends_the_turn(tmp_path: Path) -> None:
    tool = RecordingTool("look")
    insisting = Reply(text="once more", calls=calls(("look", {})).calls)
    model = ScriptedModel([insisting, insisting])

    async def main() -> None:
        async with opened(tmp_path, model, tool, max_tool_rounds=1) as session:
            result = await session.send_async("go")
            assert (result.text, result.stop_reason) == ("once more", "tool_budget")

    asyncio.run(main())
    assert len(tool.calls) == 1


def test_a_new_prompt_has_all_its_rounds_again(tmp_path: Path) -> None:
    model: ScriptedModel = ScriptedModel(
        lambda request: calls(("look", {"n": len(model.requests)})) if request.tools else "done"
    )

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look"), max_tool_rounds=1) as session:
            for _ in range(2):
                assert (await session.send_async("go")).tool_calls_count == 1

    asyncio.run(main())


def test_a_provider_that_hangs_is_given_up_at_its_deadline(tmp_path: Path) -> None:
    model = ScriptedModel([Reply(text="late", delay=60), "fine"])

    async def main() -> None:
        async with opened(tmp_path, model, llm_api_timeout_ms=30) as session:
            with pytest.raises(ProviderError, match=r"no answer within 0.03 s") as raised:
                await session.send_async("go")
            assert (raised.value.kind, raised.value.retryable, model.running) == ("timeout", True, 0)
            assert (await session.resume_run_async()).text == "fine"

    asyncio.run(main())


def test_a_tool_that_takes_too_long_fails_and_the_turn_goes_on(tmp_path: Path) -> None:
    model = ScriptedModel([calls(("look", {})), "done"])

    async def main() -> None:
        tool = RecordingTool("look", wait=asyncio.Event())
        async with opened(tmp_path, model, tool, tool_timeout_ms=30) as session:
            assert (await session.send_async("go")).text == "done"
            assert tool.running == 0

    asyncio.run(main())
    assert newest_text(model.requests[-1]) == "Tool 'look' did not end within 0.03 s; cancelled."


def test_the_fourth_question_of_a_run_is_refused_and_that_of_the_next_run_is_not(tmp_path: Path) -> None:
    ask = calls((ASK_USER, {"question": "which?"}))
    model = ScriptedModel([*[ask] * 4, "done", ask, "again"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:

            async def answered(prompt: str, times: int) -> str:
                running = asyncio.create_task(session.send_async(prompt))
                for _ in range(times):
                    [question] = await until(session.pending_questions)
                    assert await session.answer_question_async(question.question_id, "this")
                return (await running).text

            assert await answered("go", 3) == "done"
            assert newest_text(model.requests[4]) == "ask_user question cap exceeded"
            assert await answered("go on", 1) == "again"

    asyncio.run(main())


def failing(name: str, *, is_read_only: bool = True) -> RecordingTool:
    """Its results are none of those that use up the budget, so that only the steps end a run."""
    return RecordingTool(name, lambda args: ToolOutput(output="no", exit_code=1), is_read_only=is_read_only)


def test_a_run_that_used_up_its_steps_stops_at_once_when_it_is_resumed_here_or_after_a_restart(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: calls(("look", {"at": request.transcript.length})))
    tool = failing("look")

    async def stopped(work: Awaitable[object]) -> None:
        with pytest.raises(StepLimitError, match=r"^StepLimit: ") as caught:
            await work
        assert caught.value.limit == 32
        assert (len(model.requests), len(tool.calls), len(facts_of(tmp_path))) == (16, 16, 33)

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            await stopped(session.send_async("go"))
            await stopped(session.resume_run_async())
        async with opened(tmp_path, model, tool) as session:
            await stopped(session.resume_run_async())

    asyncio.run(main())


def test_the_steps_of_a_run_are_counted_over_its_parks_and_resumes(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: calls(("send", {"at": request.transcript.length})))
    tool = failing("send", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, model, tool, approvals="refuse") as session:
            with pytest.raises(ParkedError):
                await session.send_async("go")
            for _ in range(15):
                assert await session.confirm_tool_use_async("call-1", True)
                with pytest.raises(ParkedError):
                    await session.resume_run_async()
            assert await session.confirm_tool_use_async("call-1", True)
            with pytest.raises(StepLimitError):
                await session.resume_run_async()

    asyncio.run(main())
    assert (len(model.requests), len(tool.calls)) == (16, 16)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"planning_mode": "always"}, "planning_mode: .*; there are: auto, enabled, disabled"),
        ({"planning": "yes"}, "planning: "),
        ({"goal_tracking": 1.5}, "goal_tracking: "),
        ({"auto_delegation": AutoDelegation(max_tasks=0)}, "auto_delegation.max_tasks: "),
        ({"auto_delegation": {"enabled": "yes"}}, "auto_delegation.enabled: "),
        ({"retention_limits": SessionRetentionLimits(max_runs_retained=0)}, "retention_limits.max_runs_retained: "),
        ({"confirmation_policy": {"timeout_ms": -1}}, "confirmation_policy: .*timeout_ms"),
        ({"confirmation_policy": {"yolo_lanes": "execute"}}, "confirmation_policy.yolo_lanes: "),
        ({"duplicate_tool_call_threshold": 1}, "duplicate_tool_call_threshold: "),
        ({"budget_guard_timeout_ms": 0}, "budget_guard_timeout_ms: "),
        ({"auto_compact_threshold": 2}, "auto_compact_threshold: "),
        ({"max_context_tokens": 0}, "max_context_tokens: "),
        ({"tool_timeout_ms": 0}, "tool_timeout_ms: "),
        ({"agent_dirs": "agents"}, "agent_dirs: "),
    ],
)
def test_an_option_that_cannot_be_meant_so_is_refused_by_its_name(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match=f"^session option {told}"):
            async with opened(tmp_path, ScriptedModel([]), **options):
                pass

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "fields", [{"timeout_ms": 0}, {"timeout_ms": "5"}, {"timeout_action": "ask"}, {"enabled": "no"}]
)
def test_a_confirmation_policy_that_cannot_be_meant_so_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(fields))):
        ConfirmationPolicy(**fields)


def test_an_answer_that_is_none_of_a_questions_options_is_refused_and_the_question_waits_on(tmp_path: Path) -> None:
    asked = calls(("ask_user", {"question": "Which?", "options": ["red", "blue"], "allow_free_text": False}))

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([asked, "done"])) as session:
            run = asyncio.create_task(session.send_async("go"))
            await until(lambda: session.pending_questions())
            [question] = session.pending_questions()
            with pytest.raises(UsageError, match="takes one of red, blue, got 'green'"):
                await session.answer_question_async(question.question_id, "green")
            assert await session.answer_question_async(question.question_id, "blue")
            assert (await run).text == "done"

    asyncio.run(main())


def test_an_agent_that_names_a_tool_that_there_is_not_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = AgentDefinition(name="odd", description="d", tools=("raed", "mcp__later__tool", "se*"))

    async def main() -> None:
        async with (
            await Agent.create_async(models={"a/b": ScriptedModel(echo)}, agents={"odd": odd}) as agent,
            await agent.session_async(tmp_path) as session,
        ):
            await session.parallel_async([{"task_id": each, "agent": "odd", "prompt": "p"} for each in "ab"])

    asyncio.run(main())
    assert [each for each in caplog.messages if "names tools" in each] == [
        "agent 'odd' names tools that there are not: raed"
    ]
