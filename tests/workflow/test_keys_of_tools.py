"""What the tools of a run do twice after a stop can be known as the same (spec-workflow 5.5, section 4)."""

import asyncio
from pathlib import Path
from typing import Any

from fanfold import AgentDefinition, PermissionPolicy
from fanfold.contracts.messages import ModelRequest, ToolMessage
from fanfold.testing import Reply, ScriptedModel, calls
from tests.support.open_session import opened, until
from tests.support.tools import RecordingTool

FREE = PermissionPolicy(default_decision="allow")
COUNTER = AgentDefinition(name="counter", description="counts", tools=("count",), permissions=FREE)
META = {"name": "w", "description": "d"}


def test_a_tool_that_runs_again_after_a_stop_is_given_the_same_key(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("same", agent_type="counter") for _ in range(2)])

    def answer(request: ModelRequest) -> Any:
        done = any(isinstance(message, ToolMessage) for message in request.transcript)
        return Reply(text="counted") if done else calls(("count", {"n": 1}))

    async def main() -> None:
        first = RecordingTool("count", wait=asyncio.Event())
        async with opened(tmp_path, ScriptedModel(answer), first, agents={"counter": COUNTER}) as session:
            session.workflows.register(META, script)
            launch = await session.workflows.launch_async("w")
            await until(lambda: len(first.calls) == 2)
            await session.workflows.stop_async(launch.run_id)
        second, model = RecordingTool("count"), ScriptedModel(answer)
        async with opened(tmp_path, model, second, agents={"counter": COUNTER}) as session:
            session.workflows.register(META, script)
            again = await session.workflows.run_async(resume_from_run_id=launch.run_id)
        assert again.value == ["counted"] * 2
        assert len(model.requests) == 2  # the turn that called the tool is recorded
        keys = [sorted(scope.idempotency_key for _, scope in tool.calls) for tool in (first, second)]
        assert keys[0] == keys[1]
        assert len(set(keys[0])) == 2  # equal calls are two calls
        assert all(key.startswith(launch.run_id) for key in keys[0])

    asyncio.run(main())
