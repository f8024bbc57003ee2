"""What a host gives is checked when it is given: a clear error that names it, not a run that fails in the middle."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, FanfoldError, HostEnv, PermissionPolicy
from fanfold.contracts.agents import AgentDefinition, WorkerAgentSpec
from fanfold.contracts.policy import ConfirmationPolicy
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.errors import ConfigError, UsageError
from fanfold.options import AutoDelegation
from fanfold.testing import ScriptedModel, echo
from tests.support.open_session import opened
from tests.support.tools import RecordingTool

AS_ANY: Any = AgentDefinition


async def made(**arguments: Any) -> None:
    async with await Agent.create_async(models={"scripted/model": ScriptedModel(echo)}, **arguments):
        pass


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([5], "tools must be a mapping by name, got list"),
        ({5: RecordingTool("look")}, "tools: a name must be text, got 5"),
        ({"look": 5}, "tools['look']: it is no Tool"),
        ({"look": RecordingTool}, "tools['look']: it is no Tool"),
        ({"harmless": RecordingTool("write")}, "tools['harmless']: its spec has the name 'write'"),
    ],
)
def test_tools_that_are_none_are_named(tools: Any, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        asyncio.run(made(tools=tools))
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        ({"name": "helper"}, "it is no AgentDefinition, but dict"),
        (AS_ANY(name="helper", description=None), "Expected `str`"),
        (AS_ANY(name="helper", description="", permissions=None), "`$.permissions`"),
        (AS_ANY(name="helper", description="", tools="read"), "`$.tools`"),
        (AS_ANY(name="helper", description="", max_steps="many"), "`$.max_steps`"),
    ],
)
def test_agents_that_are_none_are_named(agent: Any, says: str) -> None:
    with pytest.raises(UsageError, match=r"agents\['helper'\]: ") as raised:
        asyncio.run(made(agents={"helper": agent}))
    assert says in str(raised.value)


def test_a_worker_will_do_for_an_agent_and_its_name_is_the_one_that_it_is_given(tmp_path: Path) -> None:
    agents = {"helper": WorkerAgentSpec(name="other", kind="read_only", prompt="Help.")}

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo), agents=agents) as session:
            spec = {"task_id": "t", "agent": "helper", "description": "", "prompt": "hi"}
            assert [outcome.output for outcome in await session.parallel_async([spec])] == ["hi"]

    asyncio.run(main())


BAD_ENV: Any = HostEnv


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("host_env", 5),
        ("host_env", {5: 1, "x": 2}),
        ("host_env", {"fixed_time_ms": "now"}),
        ("host_env", {"fixed_time_ms": -1}),
        ("host_env", {"fixed_time_ms": 1.5}),
        ("host_env", {"fixed_time_ms": 10**30}),
        ("host_env", {"fixed_time_ms": True}),
        ("host_env", {"sequential_id_prefix": 5}),
        ("host_env", {"sequential_id_prefix": "\ud800"}),
        ("host_env", BAD_ENV(clock=5)),
        ("host_env", BAD_ENV(ids=None)),
        ("auto_delegation", AutoDelegation(max_tasks=99)),
        ("auto_delegation", AutoDelegation(min_confidence=2.0)),
        ("retention_limits", SessionRetentionLimits(max_runs_retained=0)),
        ("tool_timeout_ms", 10**400),
        ("llm_api_timeout_ms", 10**400),
        ("max_context_tokens", 10**400),
        ("budget_guard_timeout_ms", 10**400),
        ("max_tool_rounds", 10**400),
    ],
)
def test_an_option_that_cannot_be_meant_so_is_named(tmp_path: Path, option: str, value: Any) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo), **{option: value}):
            pass

    with pytest.raises(FanfoldError, match=option):
        asyncio.run(main()) if option != "host_env" else asyncio.run(in_session(tmp_path, value))


async def in_session(workspace: Path, host_env: Any) -> None:
    async with await Agent.create_async(models={"scripted/model": ScriptedModel(echo)}) as agent:
        await agent.session_async(workspace, host_env=host_env)


def test_the_agent_s_own_clock_is_checked_too() -> None:
    with pytest.raises(UsageError, match="its clock has no method now_ms"):
        asyncio.run(made(host_env=BAD_ENV(clock=5)))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"timeout_ms": "5"}, "timeout_ms"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": True}, "timeout_ms"),
        ({"timeout_ms": 10**400}, "timeout_ms"),
        ({"enabled": "no"}, "enabled"),
        ({"yolo_lanes": None}, "yolo_lanes"),
        ({"yolo_lanes": "query"}, "yolo_lanes must be a list"),
        ({"yolo_lanes": ["all"]}, "yolo_lanes"),
    ],
)
def test_a_confirmation_policy_takes_nothing_that_could_be_taken_for_a_yes(changed: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ConfirmationPolicy(**changed)


def test_instructions_and_descriptions_that_are_no_text_fail_no_model_call(tmp_path: Path) -> None:
    agents = {"helper": AgentDefinition(name="helper", description="\ud800", prompt="\ud800")}
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(
            tmp_path, model, agents=agents, instructions="\ud800", permission_policy=PermissionPolicy()
        ) as session:
            await session.send_async("hi")

    asyncio.run(main())
    [request] = model.requests
    request.system.encode()
    for tool in request.tools:
        tool.description.encode()


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.run_snapshot_async([]),
        lambda session: session.run_events_async([]),
        lambda session: session.run_event_page_async([]),
        lambda session: session.run_control_receipts_async({}),
        lambda session: session.cancel_subagent_task_async([]),
        lambda session: session.remove_mcp_async([]),
    ],
)
def test_an_id_that_is_no_text_is_refused_by_name(tmp_path: Path, call: Any) -> None:
    async def main() -> None:
        async with (
            await Agent.create_async(models={"a/b": ScriptedModel(echo)}) as agent,
            await agent.session_async(tmp_path) as session,
        ):
            with pytest.raises(UsageError, match=r"(run_id|task_id|name) must be"):
                await call(session)
            with pytest.raises(UsageError, match="path must be that of a folder"):
                session.register_agent_dir(None)  # type: ignore[arg-type]

    asyncio.run(main())
