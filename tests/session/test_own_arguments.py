"""What runs is what was judged, approved and recorded: nobody who is shown a call's arguments can change them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold import AgentEvent, PermissionPolicy
from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.messages import ModelRequest, ToolOutput
from fanfold.contracts.record import JsonObject, own_copy
from fanfold.protocols import ToolScope
from fanfold.testing import Reply, ScriptedModel, calls
from tests.support.open_session import opened, until
from tests.support.tools import RecordingTool

ALL_ALLOWED = PermissionPolicy(default_decision="allow")
ARGS: dict[str, Any] = {"to": ["ann"], "text": {"body": "hello"}}


class Greedy(RecordingTool):
    """Changes what it is given, after it has noted it."""

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        output = await super().run(own_copy(args), scope)
        spoil(args)
        return output


def spoil(args: Any) -> None:
    args["to"].append("eve")
    args["text"].clear()


def sent(tool: RecordingTool) -> list[JsonObject]:
    return [args for args, _ in tool.calls]


def one_call() -> ScriptedModel:
    return ScriptedModel([calls(("send", own_copy(ARGS))), "done"])


def test_a_tool_that_changes_its_arguments_changes_no_conversation(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, one_call(), Greedy("send"), permission_policy=ALL_ALLOWED) as session:
            await session.send_async("go")
            assert session.history()[1]["content"][0]["input"] == ARGS

    asyncio.run(main())


def test_a_history_is_a_copy(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, one_call(), RecordingTool("send"), permission_policy=ALL_ALLOWED) as session:
            await session.send_async("go")
            spoil(session.history()[1]["content"][0]["input"])
            assert session.history()[1]["content"][0]["input"] == ARGS

    asyncio.run(main())


def test_who_shows_a_request_for_approval_cannot_change_what_is_approved(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, one_call(), tool) as session:
            run = asyncio.create_task(session.send_async("go"))
            [pending] = await until(session.pending_confirmations)
            spoil(pending.args)
            assert await session.confirm_tool_use_async(pending.tool_id, True)
            await run

    asyncio.run(main())
    assert sent(tool) == [ARGS]


def test_nor_can_who_shows_what_a_log_left_parked(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, one_call(), tool, approvals="refuse") as session:
            with pytest.raises(RuntimeError):
                await session.send_async("go")
            [pending] = session.pending_confirmations()
            spoil(pending.args)
            assert await session.confirm_tool_use_async(pending.tool_id, True)
            await session.resume_run_async()

    asyncio.run(main())
    assert sent(tool) == [ARGS]


@pytest.mark.parametrize("policy", [ALL_ALLOWED, PermissionPolicy(default_decision="ask")])
def test_a_listener_cannot_change_a_call(tmp_path: Path, policy: PermissionPolicy) -> None:
    tool = RecordingTool("send", is_read_only=False)
    spoiled: list[str] = []

    async def main() -> None:
        async with opened(tmp_path, one_call(), tool, permission_policy=policy) as session:
            async for item in await session.stream_async("go"):
                if "args" in item.payload:
                    spoil(item.payload["args"])
                    spoiled.append(item.type)
                if item.type == "confirmation_required":
                    await session.confirm_tool_use_async(item.payload["tool_id"], True)

    asyncio.run(main())
    assert "tool_execution_start" in spoiled
    assert sent(tool) == [ARGS]


def test_a_listener_of_a_fan_out_cannot_change_a_child_s_call(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)
    helper = AgentDefinition(name="helper", description="helps", tools=("*",))

    def hear(item: AgentEvent) -> None:
        if "args" in item.payload:
            spoil(item.payload["args"])

    async def main() -> None:
        async with opened(tmp_path, one_call(), tool, agents={"helper": helper}) as session:
            spec = {"task_id": "t", "agent": "helper", "description": "", "prompt": "go"}
            running = asyncio.create_task(session.parallel_async([spec], events=hear))
            [pending] = await until(session.pending_confirmations)
            await session.confirm_tool_use_async(pending.tool_id, True)
            assert (await running)[0].success

    asyncio.run(main())
    assert sent(tool) == [ARGS]


def test_agents_of_one_name_keep_their_own_permissions(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)

    def asked(request: ModelRequest) -> Reply | str:
        return calls(("send", {})) if request.transcript.length == 1 else "done"

    agents = {
        "loose": AgentDefinition(name="helper", description="", tools=("*",)),
        "strict": AgentDefinition(name="helper", description="", permissions=PermissionPolicy(deny=("*",))),
    }

    async def main() -> None:
        async with opened(
            tmp_path, ScriptedModel(asked), tool, agents=agents, permission_policy=ALL_ALLOWED
        ) as session:
            for name in ("loose", "strict", "loose"):
                await session.parallel_async([{"task_id": name, "agent": name, "description": "", "prompt": "go"}])

    asyncio.run(main())
    assert len(tool.calls) == 2


def test_a_call_of_any_tool_with_files_of_its_own_kind_is_judged(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)
    model = ScriptedModel([calls(("send", {"files": ["a", {"name": "b"}], "path": 1})), "done"])
    policy = PermissionPolicy(allow=("send",), deny=("read(secret)",))

    async def main() -> None:
        async with opened(tmp_path, model, tool, permission_policy=policy) as session:
            assert (await session.send_async("go")).text == "done"

    asyncio.run(main())
    assert len(tool.calls) == 1


def test_copies_are_as_deep_as_the_data() -> None:
    depth = 2_000  # deeper than the interpreter would recurse
    deep: JsonObject = {}
    innermost = deep
    for _ in range(depth):
        innermost["in"] = [{}]
        innermost = innermost["in"][0]
    innermost["end"] = 1
    copied = own_copy(deep)
    innermost["end"] = 2
    for _ in range(depth):
        copied = copied["in"][0]
    assert copied["end"] == 1
