"""The set of built-in tools, and the two that touch nothing: update_plan and ask_user."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.messages import ToolOutput
from fanfold.protocols import ToolScope
from fanfold.tools.ask import AskUserTool
from fanfold.tools.plan import PlanTool
from fanfold.tools.toolset import builtin_tools
from fanfold.tools.workspace import Workspace

Call = Callable[..., ToolOutput]


def test_every_tool_is_there_under_its_own_name(workspace: Workspace) -> None:
    tools = builtin_tools(workspace, allow_unsandboxed_bash=False)
    assert list(tools) == [
        "read",
        "write",
        "edit",
        "ls",
        "search",
        "bash",
        "git",
        "web_fetch",
        "update_plan",
        "ask_user",
    ]
    assert all(tool.spec.name == name for name, tool in tools.items())


def test_flags_say_what_may_be_assumed(workspace: Workspace) -> None:
    specs = {name: tool.spec for name, tool in builtin_tools(workspace, allow_unsandboxed_bash=False).items()}
    assert {n for n, s in specs.items() if s.is_read_only} == {
        "read",
        "ls",
        "search",
        "git",
        "update_plan",
        "ask_user",
    }
    assert {n for n, s in specs.items() if s.is_parallel_safe} == {"read", "ls", "search", "git", "web_fetch"}


def test_specs_are_small_closed_and_valid_schemas(workspace: Workspace) -> None:
    for tool in builtin_tools(workspace, allow_unsandboxed_bash=False).values():
        spec = tool.spec
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **spec.parameters})
        assert spec.parameters["type"] == "object"
        assert spec.parameters["additionalProperties"] is False
        told = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        assert len(msgspec.json.encode(told)) <= 800, spec.name


def test_a_thousand_sessions_share_the_specs_and_cost_little(workspace: Workspace) -> None:
    began = time.perf_counter()
    sets = [builtin_tools(workspace, allow_unsandboxed_bash=False) for _ in range(1_000)]
    assert time.perf_counter() - began < 0.5
    assert all(tools["read"].spec is sets[0]["read"].spec for tools in sets)


def test_a_plan_is_told_with_ids_and_plain_statuses(scope: ToolScope, events: list[AgentEvent]) -> None:
    plan = [
        {"step": "look", "status": "done"},
        {"step": "x" * 500, "status": "In Progress", "id": "mine"},
        {"step": "tell", "status": "pending"},
    ]
    answer = asyncio.run(PlanTool().run({"plan": plan}, scope))
    assert answer == ToolOutput(output="Plan updated: 3 step(s), 1 completed")
    (told,) = events
    assert told.type == "task_updated"
    assert told.payload == {
        "session_id": "s-1",
        "tasks": [
            {"id": "plan-1", "step": "look", "status": "completed"},
            {"id": "mine", "step": "x" * 480, "status": "in_progress"},
            {"id": "plan-3", "step": "tell", "status": "pending"},
        ],
    }


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ([{"step": "a", "status": "someday"}], "step 1 has the unknown status 'someday'"),
        (
            [{"step": "a", "status": "done", "id": "x"}, {"step": "b", "status": "done", "id": "x"}],
            "the id 'x'",
        ),
        (
            [{"step": "a", "status": "done", "id": "plan-2"}, {"step": "b", "status": "done"}],
            "the id 'plan-2'",
        ),
    ],
)
def test_a_wrong_plan_is_refused_and_not_told(
    scope: ToolScope, events: list[AgentEvent], plan: list[dict[str, Any]], reason: str
) -> None:
    answer = asyncio.run(PlanTool().run({"plan": plan}, scope))
    assert answer.exit_code == 1
    assert reason in answer.output
    assert events == []


@pytest.mark.parametrize("size", [0, 257])
def test_a_plan_has_1_to_256_steps(size: int) -> None:
    plan = [{"step": "a", "status": "done"}] * size
    assert not jsonschema_rs.is_valid(PlanTool().spec.parameters, {"plan": plan})


def test_ask_user_is_never_answered_by_running_it(call: Call) -> None:
    answer = call(AskUserTool(), question="Which?", options=["a", "b"])
    assert answer.exit_code == 1
    assert not jsonschema_rs.is_valid(AskUserTool().spec.parameters, {"question": "?", "options": ["x"] * 9})
