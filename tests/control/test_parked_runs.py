"""Calls of agents of workflow runs that were left parked: found in the journals, answered there, obeyed by a resume."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import AgentDefinition, FileSessionStore, HostEnv, Session
from fanfold.contracts.messages import ASK_USER, ModelRequest, ToolMessage
from fanfold.contracts.workflow_runs import WorkflowResult
from fanfold.control.parked import parked_in, record_answer
from fanfold.control.parked_calls import Answer, Parked
from fanfold.control.parked_runs import parked_agents
from fanfold.control.waiting import Waiting
from fanfold.errors import AlreadyActiveError, ControlError
from fanfold.session.inbox import Approval
from fanfold.stores.run_files import open_run_files
from fanfold.testing import Reply, ScriptedModel, calls
from fanfold.testing.scripted import newest_text
from tests.control.served import changer, opened, until_waiting
from tests.support.tools import RecordingTool

YES, NO = Approval(True, ""), Approval(False, "not today")
META = {"name": "team", "description": "two agents"}
HELPER = AgentDefinition(name="helper", description="has the tools of its host", tools=("*",))


async def team(ctx: Any, args: Any) -> Any:
    return await ctx.parallel(
        [lambda each=each: ctx.agent(each, label=f"do {each}", agent_type="helper") for each in args["names"]]
    )


class Changing:
    """Agents that each use the tool once, or ask a question, and then say what came of it."""

    def __init__(self, first: Any = None) -> None:
        self.first = first or calls(("change", {"to": 1}))
        self.asked: list[str] = []

    def __call__(self, request: ModelRequest) -> Reply:
        assert request.transcript is not None
        newest = request.transcript.message
        self.asked.append(type(newest).__name__)
        if isinstance(newest, ToolMessage):
            return Reply(text=f"it said {newest.output}")
        assert newest_text(request)
        return self.first


@asynccontextmanager
async def session_of(workspace: Path, model: Changing, tool: RecordingTool, **more: Any) -> AsyncIterator[Session]:
    async with opened(
        workspace,
        ScriptedModel(model),
        tool,
        session_id="x",
        agents={"helper": HELPER},
        **{"approvals": "refuse", **more},
    ) as session:
        session.workflows.register(META, team)
        yield session


async def run(workspace: Path, model: Changing, tool: RecordingTool, run_id: str | None = None) -> WorkflowResult:
    async with session_of(workspace, model, tool) as session:
        if run_id is not None:
            return await session.workflows.run_async(resume_from_run_id=run_id)
        return await session.workflows.run_async("team", {"names": ["a", "b"]})


async def looked(workspace: Path) -> Parked:
    async with FileSessionStore(workspace / ".a3s" / "sessions") as store:
        return await parked_in(workspace, store)


async def recorded(workspace: Path, waiting: Waiting, answer: Answer) -> None:
    async with FileSessionStore(workspace / ".a3s" / "sessions") as store:
        await record_answer(waiting, answer, workspace, store, HostEnv())


def test_what_a_run_has_left_parked_is_listed_with_whose_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        result = await run(tmp_path, Changing(), changer())
        assert (result.status, result.reason) == ("paused", "parked")
        parked = await looked(tmp_path)
        assert (parked.answered, parked.unreadable) == ({}, {})
        a, b = sorted(parked.waiting, key=lambda each: each.about or "")
        assert (a.source, a.owner, a.kind, a.tool, a.args) == ("run", result.run_id, "approval", "change", {"to": 1})
        assert (a.about, b.about, a.call_id) == ("do a", "do b", "call-1")
        assert a.step is not None
        assert a.step.startswith(f"{result.run_id}-")
        assert a.id == f"{result.run_id}/{a.step.removeprefix(f'{result.run_id}-')}/call-1"
        assert a.process is None
        assert await parked_agents(open_run_files(tmp_path), result.run_id) == parked.waiting

    asyncio.run(main())


def test_approved_calls_run_once_at_the_next_resume_and_nobody_is_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        model, tool = Changing(), changer()
        first = await run(tmp_path, model, tool)
        for waiting in (await looked(tmp_path)).waiting:
            await recorded(tmp_path, waiting, YES)
        parked = await looked(tmp_path)
        assert parked.waiting == []
        assert set(parked.answered.values()) == {"approved"}
        again = await run(tmp_path, model, tool, first.run_id)
        assert (again.status, again.counts.done) == ("completed", 2)
        assert len(tool.calls) == 2
        assert model.asked == ["UserMessage"] * 2 + ["ToolMessage"] * 2  # each went on from its recorded turn
        assert again.total_usage.total_tokens == first.usage.total_tokens + again.usage.total_tokens
        assert again.usage.total_tokens == first.usage.total_tokens  # a turn each, and none is counted twice
        assert (await looked(tmp_path)).waiting == []

    asyncio.run(main())


def test_a_question_is_answered_likewise(tmp_path: Path) -> None:
    async def main() -> None:
        model = Changing(calls((ASK_USER, {"question": "which?", "options": ["red", "blue"]})))
        first = await run(tmp_path, model, changer())
        waiting = (await looked(tmp_path)).waiting
        assert [(each.kind, each.question, each.options) for each in waiting] == [
            ("question", "which?", ["red", "blue"])
        ] * 2
        for each in waiting:
            await recorded(tmp_path, each, "blue")
        again = await run(tmp_path, model, changer(), first.run_id)
        assert again.value == ["it said blue", "it said blue"]

    asyncio.run(main())


def test_a_denied_call_is_never_run_and_its_agent_ends_as_denied(tmp_path: Path) -> None:
    async def main() -> None:
        model, tool = Changing(), changer()
        first = await run(tmp_path, model, tool)
        a, b = sorted((await looked(tmp_path)).waiting, key=lambda each: each.about or "")
        await recorded(tmp_path, a, NO)
        await recorded(tmp_path, b, YES)
        again = await run(tmp_path, model, tool, first.run_id)
        assert again.status == "completed_with_failures"
        assert [(each.label, each.code) for each in again.failures] == [("do a", "NO_ANSWER")]
        assert "denied" in again.failures[0].message
        assert len(tool.calls) == 1
        assert model.asked == ["UserMessage", "UserMessage", "ToolMessage"]
        # Whoever has what failed run again begins it anew, and so is asked again.
        once_more = await run(tmp_path, model, tool, first.run_id)
        assert (once_more.reason, len(tool.calls)) == ("parked", 1)
        assert [each.about for each in (await looked(tmp_path)).waiting] == ["do a"]

    asyncio.run(main())


def test_only_what_is_answered_goes_on_and_the_rest_stays_parked(tmp_path: Path) -> None:
    async def main() -> None:
        model, tool = Changing(), changer()
        first = await run(tmp_path, model, tool)
        a, b = sorted((await looked(tmp_path)).waiting, key=lambda each: each.about or "")
        await recorded(tmp_path, a, YES)
        again = await run(tmp_path, model, tool, first.run_id)
        assert (again.reason, again.counts.done, again.counts.failed) == ("parked", 1, 1)
        [left] = (await looked(tmp_path)).waiting
        assert left.id == b.id

    asyncio.run(main())


def test_of_two_answers_the_first_one_counts(tmp_path: Path) -> None:
    async def main() -> None:
        await run(tmp_path, Changing(), changer())
        waiting, _ = (await looked(tmp_path)).waiting
        await recorded(tmp_path, waiting, YES)
        with pytest.raises(ControlError) as raised:
            await recorded(tmp_path, waiting, NO)
        assert (raised.value.code, str(raised.value)) == (
            "ALREADY_ANSWERED",
            f"'{waiting.id}' does not wait any more: it was approved",
        )

    asyncio.run(main())


def test_of_a_run_that_was_deleted_since_somebody_looked_nothing_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with session_of(tmp_path, Changing(), changer()) as session:
            run_id = (await session.workflows.run_async("team", {"names": ["a"]})).run_id
            [waiting] = (await looked(tmp_path)).waiting
            await session.workflows.delete_async(run_id)
        with pytest.raises(ControlError) as raised:
            await recorded(tmp_path, waiting, YES)
        assert (raised.value.code, run_id in str(raised.value)) == ("NOT_WAITING", True)
        assert list((tmp_path / ".a3s/workflow-runs").iterdir()) == []

    asyncio.run(main())


def test_a_run_that_somebody_runs_is_not_answered_behind_his_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with session_of(tmp_path, Changing(), changer(), approvals="park") as session:
            launch = await session.workflows.launch_async("team", {"names": ["a"]})
            await until_waiting(session)
            [waiting] = (await looked(tmp_path)).waiting
            assert waiting.process is not None
            with pytest.raises(AlreadyActiveError):
                await recorded(tmp_path, waiting, YES)
            [pending] = session.pending_confirmations()
            assert await session.confirm_tool_use_async(pending.tool_id, True)
            assert (await session.workflows.wait_async(launch.run_id)).status == "completed"
        assert (await looked(tmp_path)).waiting == []

    asyncio.run(main())


def test_a_run_that_somebody_has_stopped_waits_for_nobody_until_it_is_gone_on_with(tmp_path: Path) -> None:
    async def main() -> None:
        model, tool = Changing(), changer()
        first = await run(tmp_path, model, tool)
        async with session_of(tmp_path, model, tool) as session:
            await session.workflows.stop_async(first.run_id)
            assert (await looked(tmp_path)).waiting == []
            await session.workflows.run_async(resume_from_run_id=first.run_id)
        assert len((await looked(tmp_path)).waiting) == 2

    asyncio.run(main())


def test_a_run_that_its_session_has_left_waiting_is_parked(tmp_path: Path) -> None:
    async def main() -> None:
        model, tool = Changing(), changer()
        async with session_of(tmp_path, model, tool, approvals="park") as session:
            launch = await session.workflows.launch_async("team", {"names": ["a"]})
            await until_waiting(session)
        [waiting] = (await looked(tmp_path)).waiting
        assert (waiting.owner, waiting.process) == (launch.run_id, None)
        await recorded(tmp_path, waiting, YES)
        assert (await run(tmp_path, model, tool, launch.run_id)).status == "completed"
        assert (len(tool.calls), model.asked) == (1, ["UserMessage", "ToolMessage"])

    asyncio.run(main())


def test_a_journal_that_cannot_be_used_is_named_and_hides_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with session_of(tmp_path, Changing(), changer()) as session:
            first = await session.workflows.run_async("team", {"names": ["a"]})
            second = await session.workflows.run_async("team", {"names": ["b"]})
        journal = tmp_path / ".a3s/workflow-runs" / f"{first.run_id}.journal.jsonl"
        other = journal.with_name(f"{second.run_id}.journal.jsonl")
        journal.write_bytes(other.read_bytes())
        parked = await looked(tmp_path)
        assert set(parked.unreadable) == {first.run_id}
        assert {each.owner for each in parked.waiting} == {second.run_id}

    asyncio.run(main())
