"""Agents of a workflow as children of a session: schemas, repairs, approvals (spec-workflow 7.28, 7.47, 7.56-62)."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from fanfold import PermissionPolicy, Session
from fanfold.contracts.messages import ModelRequest, ToolMessage, UserMessage
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowResult
from fanfold.testing import Reply, ScriptedModel, calls
from tests.support.open_session import opened, until

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


def text_of(request: ModelRequest) -> str:
    assert request.transcript is not None
    message = request.transcript.message
    return message.text if isinstance(message, UserMessage) else ""


async def run(session: Session, script: Any, **more: Any) -> WorkflowResult:
    session.workflows.register({"name": "w", "description": "d"}, script)
    return await session.workflows.run_async("w", **more)


def records(place: Path, result: WorkflowResult, kind: str) -> list[dict[str, Any]]:
    path = place / ".a3s" / "workflow-runs" / f"{result.run_id}.journal.jsonl"
    return [each for line in path.read_bytes().splitlines() if (each := msgspec.json.decode(line))["t"] == kind]


def test_a_repaired_answer_is_flagged_and_its_repair_was_told_the_fault(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("one", schema=SCHEMA, agent_type="answer")

    async def main() -> None:
        model = ScriptedModel(['{"b": 1}', '{"a": 2}'])
        async with opened(tmp_path, model) as session:
            result = await run(session, script)
        assert result.value == {"a": 2}
        assert result.usage.total_tokens == 30
        (record,) = records(tmp_path, result, "result")
        assert record["degraded"] == 1
        told, _, quoted = text_of(model.requests[1]).partition("Your reply was:")
        assert 'does not match the schema:\n- $: "a" is a required property\n' in told
        assert '{"b": 1}' in quoted

    asyncio.run(main())


def test_answers_that_never_match_fail_with_all_that_they_cost_and_their_last_text(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("one", schema=SCHEMA, agent_type="answer"), lambda: 1])

    async def main() -> None:
        model = ScriptedModel(["prose", "more prose", "the last prose"])
        async with opened(tmp_path, model) as session:
            result = await run(session, script)
        assert result.value == [None, 1]
        assert result.usage.total_tokens == 45
        (record,) = records(tmp_path, result, "result")
        assert record["error"]["code"] == "SCHEMA_MISMATCH"
        assert "the last prose" in record["error"]["raw"]

    asyncio.run(main())


def test_repairs_stay_within_the_cap(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel(
            [lambda each=each: ctx.agent(f"p{each}", schema=SCHEMA, agent_type="answer") for each in range(6)]
        )

    async def main() -> None:
        async def answer(request: ModelRequest) -> Reply:
            await asyncio.sleep(0.001)
            assert request.transcript is not None
            return Reply(text='{"a": 1}' if request.transcript.length > 1 else "prose")

        model = ScriptedModel(answer)
        async with opened(tmp_path, model, workflow_limits={"concurrency": 2}) as session:
            result = await run(session, script)
        assert result.value == [{"a": 1}] * 6
        assert model.most_running == 2

    asyncio.run(main())


def test_a_call_that_is_tried_again_is_one_call(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("one", retries=1, agent_type="answer")

    async def main() -> None:
        async with opened(
            tmp_path, ScriptedModel([Reply(text="half", stop_reason="content_filter"), "whole"])
        ) as session:
            result = await run(session, script)
        assert result.value == "whole"
        assert [len(records(tmp_path, result, kind)) for kind in ("started", "result")] == [1, 1]

    asyncio.run(main())


def test_an_approval_of_an_agent_surfaces_at_its_session_and_frees_its_place(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("write it"), lambda: ctx.agent("say it")])

    async def answer(request: ModelRequest) -> Reply:
        assert request.transcript is not None
        if isinstance(request.transcript.message, ToolMessage):
            return Reply(text="written")
        if text_of(request) == "write it":
            return calls(("write", {"file_path": "made", "content": "x"}))
        return Reply(text="said")

    async def main() -> None:
        events: list[Any] = []
        async with opened(tmp_path, ScriptedModel(answer), workflow_limits={"concurrency": 1}) as session:
            session.workflows.register({"name": "w", "description": "d"}, script)
            launch = await session.workflows.launch_async("w", events=events.append)
            (pending,) = await until(session.pending_confirmations)
            await until(
                lambda: [each for each in events if each.payload.get("status") == "done"]
            )  # its sibling went on
            await session.confirm_tool_use_async(pending.tool_id, True)
            result = await session.workflows.wait_async(launch.run_id)
        assert result.value == ["written", "said"]
        assert (tmp_path / "made").read_text() == "x"
        assert "confirmation_required" in {each.type for each in events}

    asyncio.run(main())


def test_where_nobody_can_be_asked_the_run_is_paused_and_goes_on_from_the_turn(tmp_path: Path) -> None:
    asked: list[str] = []

    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("write it")])

    async def answer(request: ModelRequest) -> Reply:
        assert request.transcript is not None
        if isinstance(request.transcript.message, ToolMessage):
            return Reply(text="written")
        asked.append(text_of(request))
        return calls(("write", {"file_path": "made", "content": "x"}))

    async def main() -> None:
        model = ScriptedModel(answer)
        async with opened(tmp_path, model, approvals="refuse") as session:
            result = await run(session, script)
            assert (result.status, result.reason) == ("paused", "parked")
        allowed = PermissionPolicy(allow=("write",))
        async with opened(tmp_path, model, permission_policy=allowed) as session:
            session.workflows.register({"name": "w", "description": "d"}, script)
            again = await session.workflows.run_async(resume_from_run_id=result.run_id)
        assert again.value == ["written"]
        assert asked == ["write it"]  # the recorded turn was not asked for again

    asyncio.run(main())


def test_the_limits_of_the_session_hold_unless_a_launch_has_its_own(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(f"p{each}", agent_type="answer") for each in range(3)])

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(lambda request: "x"), workflow_limits={"max_agents": 2}) as session:
            result = await run(session, script)
            assert result.error is not None
            assert result.error.code == "agent_cap"
            more = await session.workflows.run_async("w", limits=WorkflowLimits(max_agents=3))
            assert more.status == "completed"

    asyncio.run(main())
