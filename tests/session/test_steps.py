"""Laws of a step as a child session: roles, limits, budgets, schemas, approvals."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentEvent, PermissionPolicy, Session, StepOutcome, Usage
from fanfold.contracts.messages import ModelRequest, ToolCall, ToolMessage
from fanfold.errors import ProviderError, SessionClosedError
from fanfold.protocols import ModelCapabilities
from fanfold.testing import Reply, ScriptedModel, as_json, calls, echo
from fanfold.testing.scripted import newest_text
from tests.support.tools import RecordingTool

SCHEMA = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}


@asynccontextmanager
async def opened(
    workspace: Path, model: ScriptedModel, *tools: RecordingTool, **options: Any
) -> AsyncIterator[Session]:
    named = {tool.spec.name: tool for tool in tools}
    async with await Agent.create_async(models={"scripted/model": model}, tools=named) as agent:
        yield await agent.session_async(workspace, **options)


def step(task_id: str, prompt: str = "p", agent: str = "answer", **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt, **more}


def run_steps(
    workspace: Path, model: ScriptedModel, *specs: dict[str, Any], events: Any = None, **options: Any
) -> list[StepOutcome]:
    async def main() -> list[StepOutcome]:
        async with opened(workspace, model, **options) as session:
            outcomes: list[StepOutcome] = await session.parallel_async(specs, events=events)
            return outcomes

    return asyncio.run(main())


def test_a_step_is_a_child_with_its_own_transcript_and_no_files(tmp_path: Path) -> None:
    model = ScriptedModel(echo)
    outcomes = run_steps(tmp_path, model, step("a", "one"), step("b", "two"))
    assert [dict(outcome) for outcome in outcomes] == [
        {
            "task_id": name,
            "session_id": f"task-run-{name}",
            "agent": "answer",
            "output": text,
            "success": True,
            "usage": Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15),
            "duration_ms": outcome.duration_ms,
        }
        for name, text, outcome in (("a", "one", outcomes[0]), ("b", "two", outcomes[1]))
    ]
    assert [request.transcript.length for request in model.requests] == [1, 1]
    assert not (tmp_path / ".a3s").exists()


@pytest.mark.parametrize("name", ["verify", "code-review", "general-purpose", "explore", "plan"])
def test_agents_are_known_by_name_and_alias(tmp_path: Path, name: str) -> None:
    [outcome] = run_steps(tmp_path, ScriptedModel(echo), step("a", agent=name))
    assert (outcome.success, outcome.agent) == (True, name)


def test_an_unknown_agent_is_a_failed_step_without_events(tmp_path: Path) -> None:
    heard: list[AgentEvent] = []
    [outcome] = run_steps(tmp_path, ScriptedModel(echo), step("a", agent="nobody"), events=heard.append)
    assert outcome.output == "Task failed: Unknown agent type: 'nobody'"
    assert heard == []


def test_an_agent_sees_the_tools_of_its_role(tmp_path: Path) -> None:
    model = ScriptedModel(echo)
    run_steps(tmp_path, model, *(step(name, agent=name) for name in ("answer", "plan", "general", "explore")))
    seen = {request.session_id: {tool.name for tool in request.tools} for request in model.requests}
    assert seen["task-run-answer"] == set()
    assert seen["task-run-plan"] == {"read", "search", "ls", "update_plan"}
    assert seen["task-run-general"] == {
        *("read", "search", "ls", "write", "edit", "bash", "git", "web_fetch", "update_plan")
    }
    assert "write" not in seen["task-run-explore"]


def test_a_child_never_may_more_than_its_session(tmp_path: Path) -> None:
    model = ScriptedModel([calls(("write", {"file_path": "x", "content": "y"})), "done"])
    policy = PermissionPolicy(deny=("write",), default_decision="allow")
    [outcome] = run_steps(tmp_path, model, step("a", agent="general"), permission_policy=policy)
    assert outcome.success
    answer = model.requests[1].transcript.message
    assert isinstance(answer, ToolMessage)
    assert "Permission denied" in answer.output
    assert not (tmp_path / "x").exists()


def test_a_read_only_role_may_not_write_though_its_session_may(tmp_path: Path) -> None:
    model = ScriptedModel([calls(("write", {"file_path": "x", "content": "y"})), "done"])
    policy = PermissionPolicy(default_decision="allow")
    run_steps(tmp_path, model, step("a", agent="explore"), permission_policy=policy)
    assert not (tmp_path / "x").exists()


def test_max_steps_is_the_number_of_tool_rounds(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("hello\n")

    def answer(request: ModelRequest) -> Reply:
        call = ToolCall("c", "read", {"file_path": "f.txt"})
        return Reply(calls=[call]) if request.tools else Reply(text="done")

    model = ScriptedModel(answer)
    [outcome] = run_steps(tmp_path, model, step("a", agent="explore", max_steps=2))
    assert outcome.output == "done"
    assert [bool(request.tools) for request in model.requests] == [True, True, False]
    assert outcome.source_anchors is not None
    assert [dict(anchor) for anchor in outcome.source_anchors] == [{"tool": "read", "url_or_path": "f.txt"}]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(text=""), "Task failed: child agent returned no final output"),
        (
            Reply(text="half", stop_reason="incomplete"),
            "Task failed: the model's answer broke off before its end\n\nhalf",
        ),
        (Reply(text="", stop_reason="content_filter"), "Task failed: the provider's content filter stopped the answer"),
        (Reply(error=ProviderError("down", kind="server", retryable=True)), "Task failed: LLM error: down"),
    ],
)
def test_what_did_not_come_to_its_end_is_no_success(tmp_path: Path, reply: Reply, says: str) -> None:
    [outcome] = run_steps(tmp_path, ScriptedModel([reply]), step("a"))
    assert (outcome.success, outcome.output) == (False, says)


def test_a_cut_answer_says_that_it_is_cut(tmp_path: Path) -> None:
    [outcome] = run_steps(tmp_path, ScriptedModel([Reply(text="much te", stop_reason="length")]), step("a"))
    assert (outcome.success, outcome.stop_reason) == (True, "length")


def test_the_limit_holds_over_all_fan_outs_of_a_session(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: Reply(text="x", delay=0.002))

    async def main() -> None:
        async with opened(tmp_path, model, max_parallel_tasks=3) as session:
            await asyncio.gather(
                session.parallel_async([step(f"a{n}") for n in range(10)]),
                session.parallel_async([step(f"b{n}") for n in range(10)]),
                session.pipeline_async(list(range(10)), [lambda ctx: step(f"c{ctx['item']}")]),
            )

    asyncio.run(main())
    assert model.most_running == 3


def test_events_tell_each_step_from_start_to_one_end(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("hello\n")
    heard: list[AgentEvent] = []
    model = ScriptedModel([calls(("read", {"file_path": "f.txt"})), "done"])
    run_steps(tmp_path, model, step("a", agent="explore"), events=heard.append)
    told = [(event.type, event.payload.get("status")) for event in heard if event.type.startswith("subagent_")]
    assert told == [
        ("subagent_start", None),
        ("subagent_progress", "turn_completed"),
        ("subagent_progress", "tool_started"),
        ("subagent_progress", "tool_completed"),
        ("subagent_progress", "turn_completed"),
        ("subagent_end", None),
    ]
    assert heard[-1].payload["usage"]["total_tokens"] == 30


def test_a_step_of_an_unknown_model_fails_alone(tmp_path: Path) -> None:
    outcomes = run_steps(tmp_path, ScriptedModel(echo), step("a", model="nobody/none"), step("b"))
    assert [outcome.success for outcome in outcomes] == [False, True]
    assert "unknown provider 'nobody'" in outcomes[0].output


def test_a_model_without_tools_answers_from_the_prompt_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel(echo, capabilities=ModelCapabilities(tools=False))
    run_steps(tmp_path, model, *(step(name, agent="general") for name in "abc"))
    assert [request.tools for request in model.requests] == [(), (), ()]
    assert not any("tool" in request.system for request in model.requests)
    assert [record.message for record in caplog.records] == [
        "scripted/model cannot use tools: agent 'general' answers from its prompt alone"
    ]


# ---- budgets --------------------------------------------------------------------------------------------------------


def test_a_shared_budget_refuses_what_starts_after_it_is_spent(tmp_path: Path) -> None:
    async def main() -> Any:
        async with opened(tmp_path, ScriptedModel(echo), max_parallel_tasks=1) as session:
            return await session.parallel_async([step(f"a{n}") for n in range(4)], budget_tokens=20)

    result = asyncio.run(main())
    assert [outcome["success"] for outcome in result["outcomes"]] == [True, True, False, False]
    assert result["outcomes"][3]["output"] == (
        "Task failed: Budget exhausted on 'workflow_tokens': workflow token budget exhausted (30 / 20 tokens)"
    )
    assert (result["budget"]["consumed_tokens"], result["budget"]["limit_tokens"]) == (30, 20)


def test_a_budget_of_zero_refuses_every_step(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> Any:
        async with opened(tmp_path, model) as session:
            return await session.parallel_async([step("a")], budget_tokens=0)

    assert asyncio.run(main()).outcomes[0].success is False
    assert model.requests == []


def test_a_spent_budget_refuses_the_tools_of_a_running_step(tmp_path: Path) -> None:
    model = ScriptedModel([Reply(calls=[ToolCall("c", "ls", {})], usage=Usage(total_tokens=100))])

    async def main() -> Any:
        async with opened(tmp_path, model) as session:
            return await session.parallel_async([step("a", agent="explore")], budget_tokens=50)

    [outcome] = asyncio.run(main()).outcomes
    assert "Budget exhausted on 'workflow_tokens'" in outcome.output
    assert outcome.usage.total_tokens == 100


# ---- structured output ----------------------------------------------------------------------------------------------


def structured(mode: Any) -> ModelCapabilities:
    return ModelCapabilities(structured=mode)


def test_a_valid_answer_is_structured_without_a_further_call(tmp_path: Path) -> None:
    model = ScriptedModel(['Sure:\n```json\n{"yes": true}\n```'])
    [outcome] = run_steps(tmp_path, model, step("a", output_schema=SCHEMA))
    assert outcome["structured"] == {"yes": True}
    assert "JSON" in newest_text(model.requests[0])


def test_an_invalid_answer_is_repaired_with_its_errors(tmp_path: Path) -> None:
    model = ScriptedModel(["yes", '{"yes": "indeed"}', '{"yes": true}'])
    [outcome] = run_steps(tmp_path, model, step("a", output_schema=SCHEMA))
    assert outcome.structured == {"yes": True}
    assert "$.yes" in newest_text(model.requests[2])
    assert outcome.usage is not None
    assert outcome.usage.total_tokens == 45


def test_what_cannot_be_repaired_is_a_failed_step_with_its_text(tmp_path: Path) -> None:
    [outcome] = run_steps(tmp_path, ScriptedModel(["no", "no", "no"]), step("a", output_schema=SCHEMA))
    assert not outcome.success
    assert "structured" not in outcome
    assert outcome.output.startswith("no\n\n[structured output failed: ")


def test_a_native_schema_is_sent_and_the_prompt_left_alone(tmp_path: Path) -> None:
    model = ScriptedModel([as_json({"yes": False})], capabilities=structured("json_schema"))
    [outcome] = run_steps(tmp_path, model, step("a", "is it?", output_schema=SCHEMA))
    assert outcome.structured == {"yes": False}
    assert (newest_text(model.requests[0]), model.requests[0].output_schema) == ("is it?", SCHEMA)


def test_a_tool_is_forced_only_where_the_step_has_no_tools_of_its_own(tmp_path: Path) -> None:
    model = ScriptedModel(lambda _: '{"yes": true}', capabilities=structured("forced_tool"))
    run_steps(tmp_path, model, step("a", output_schema=SCHEMA), step("b", agent="explore", output_schema=SCHEMA))
    schemas = {request.session_id: request.output_schema for request in model.requests}
    assert schemas == {"task-run-a": SCHEMA, "task-run-b": None}


@pytest.mark.parametrize(
    ("schema", "wire", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, {"elements": [1, 2]}, [1, 2]),
        ({"enum": ["a", "b"]}, {"value": "b"}, "b"),
    ],
)
def test_roots_that_are_no_objects_come_out_of_their_envelope(
    tmp_path: Path, schema: Any, wire: Any, value: Any
) -> None:
    model = ScriptedModel([json.dumps(wire)], capabilities=structured("json_schema"))
    [outcome] = run_steps(tmp_path, model, step("a", output_schema=schema))
    assert outcome.structured == value


# ---- approvals ------------------------------------------------------------------------------------------------------


def test_a_childs_approval_waits_at_its_session_and_holds_no_slot(tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> Reply:
        wants_to_write = request.tools and request.transcript.length == 1
        return calls(("write", {"file_path": "x", "content": "y"})) if wants_to_write else Reply(text="done")

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(answer), max_parallel_tasks=1) as session:
            run = asyncio.create_task(session.parallel_async([step("w", agent="general"), step("other")]))
            while not session.pending_confirmations():
                await asyncio.sleep(0)
            [waiting] = session.pending_confirmations()
            assert (waiting.tool_id, waiting.session_id) == ("task-run-w/call-1", "task-run-w")
            other = asyncio.create_task(session.parallel_async([step("third")]))
            assert (await other)[0].success
            assert await session.confirm_tool_use_async("task-run-w/call-1", True)
            assert [outcome.success for outcome in await run] == [True, True]

    asyncio.run(main())
    assert (tmp_path / "x").read_text() == "y"


def test_where_nobody_answers_the_step_fails_and_says_what_it_needed(tmp_path: Path) -> None:
    model = ScriptedModel([calls(("write", {"file_path": "x", "content": "y"}))])
    [outcome] = run_steps(tmp_path, model, step("w", agent="general"), approvals="refuse")
    assert not outcome.success
    assert "waits for approval of write" in outcome.output


def test_closing_a_session_stops_its_steps(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(lambda _: Reply(text="x", delay=60))
        heard: list[AgentEvent] = []
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.parallel_async([step("a"), step("b")], events=heard.append))
            while model.running < 2:
                await asyncio.sleep(0)
            await session.close_async()
            with pytest.raises(Exception, match="cancelled"):
                await run
            assert model.running == 0
            assert [event.type for event in heard].count("subagent_end") == 2
            with pytest.raises(SessionClosedError):
                await session.parallel_async([step("c")])

    asyncio.run(main())


def test_what_read_may_not_show_search_leaves_out(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PASSWORD=hunter2\n")
    (tmp_path / "a.txt").write_text("PASSWORD is elsewhere\n")
    model = ScriptedModel([calls(("search", {"mode": "grep", "query": "PASSWORD"})), "done"])
    policy = PermissionPolicy(deny=("read(.env)",))
    run_steps(tmp_path, model, step("a", agent="explore"), permission_policy=policy)
    answer = model.requests[1].transcript.message
    assert isinstance(answer, ToolMessage)
    assert "elsewhere" in answer.output
    assert "hunter2" not in answer.output


def test_a_rule_that_names_no_tool_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_steps(tmp_path, ScriptedModel(echo), step("a"), permission_policy=PermissionPolicy(deny=("reed(.env)",)))
    [record] = caplog.records
    assert "reed" in record.getMessage()
    assert "read" in record.getMessage()


def test_a_childs_failure_has_its_code(tmp_path: Path) -> None:
    broken = ProviderError("down", kind="server", retryable=False)
    model = ScriptedModel({"^empty": "", "^down": broken, "^shape": "no json", "json": "no json"})
    asked = [step("e", "empty"), step("d", "down"), step("s", "shape", output_schema=SCHEMA), step("n", agent="nobody")]
    codes = [outcome.error_code for outcome in run_steps(tmp_path, model, *asked)]
    assert codes == ["NO_ANSWER", "LLM_ERROR", "SCHEMA_MISMATCH", "UNKNOWN_AGENT"]


def test_steps_that_wait_for_a_person_hold_up_no_sibling(tmp_path: Path) -> None:
    asking = {"asks-1", "asks-2"}
    model = ScriptedModel(
        lambda request: (
            calls(("write", {"file_path": "x", "content": "y"}))
            if request.transcript.length == 1 and request.session_id.removeprefix("task-run-") in asking
            else "done"
        )
    )

    async def main() -> None:
        async with (
            await Agent.create_async(models={"a/b": model}) as agent,
            await agent.session_async(tmp_path, max_parallel_tasks=1) as session,
        ):
            ended: list[str] = []

            def hear(item: AgentEvent) -> None:
                if item.type == "subagent_end":
                    ended.append(item.payload["task_id"])

            names = [*sorted(asking), "a", "b"]
            run = asyncio.create_task(
                session.parallel_async([step(name, agent="general") for name in names], events=hear)
            )
            while len(ended) < 2 or len(session.pending_confirmations()) < 2:
                await asyncio.sleep(0)
            assert ended == ["a", "b"]
            for waiting in session.pending_confirmations():
                assert await session.confirm_tool_use_async(waiting.tool_id, True)
            assert [outcome.success for outcome in await run] == [True] * 4
            assert model.most_running == 1

    asyncio.run(main())
