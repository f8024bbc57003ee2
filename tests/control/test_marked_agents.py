"""Agents that must not simply be run again and wait for a person: to go on with them is no repeat."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import AgentDefinition, FileSessionStore, HostEnv, Session
from fanfold.contracts.workflow_runs import WorkflowResult
from fanfold.control.parked import parked_in, record_answer
from fanfold.control.waiting import Waiting
from fanfold.session.inbox import Approval
from fanfold.testing import ScriptedModel
from tests.control.served import changer, opened
from tests.control.test_parked_runs import Changing
from tests.support.tools import RecordingTool

META = {"name": "team", "description": "one agent"}
HELPER = AgentDefinition(name="helper", description="has the tools of its host", tools=("*",))


async def team(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([lambda: ctx.agent("a", agent_type="helper", repeat=args["repeat"])])


@asynccontextmanager
async def session_of(workspace: Path, model: Changing, tool: RecordingTool) -> AsyncIterator[Session]:
    async with opened(
        workspace, ScriptedModel(model), tool, session_id="x", agents={"helper": HELPER}, approvals="refuse"
    ) as session:
        session.workflows.register(META, team)
        yield session


async def parked(workspace: Path, model: Changing, tool: RecordingTool, repeat: str) -> WorkflowResult:
    async with session_of(workspace, model, tool) as session:
        return await session.workflows.run_async("team", {"repeat": repeat})


async def resumed(workspace: Path, model: Changing, tool: RecordingTool, run_id: str) -> WorkflowResult:
    async with session_of(workspace, model, tool) as session:
        return await session.workflows.run_async(resume_from_run_id=run_id)


async def waiting(workspace: Path) -> list[Waiting]:
    async with FileSessionStore(workspace / ".a3s" / "sessions") as store:
        return (await parked_in(workspace, store)).waiting


async def approved(workspace: Path) -> str | None:
    [each] = await waiting(workspace)
    async with FileSessionStore(workspace / ".a3s" / "sessions") as store:
        return await record_answer(each, Approval(True, ""), workspace, store, HostEnv())


@pytest.mark.parametrize("repeat", ["skip", "ask"])
def test_it_stays_parked_until_it_is_answered_and_then_goes_on(tmp_path: Path, repeat: str) -> None:
    async def main() -> None:
        model, tool = Changing(), changer()
        first = await parked(tmp_path, model, tool, repeat)
        again = await resumed(tmp_path, model, tool, first.run_id)
        assert [(each.reason, [fault.code for fault in each.failures]) for each in (first, again)] == [
            ("parked", ["PARKED"])
        ] * 2
        assert await approved(tmp_path) is None
        done = await resumed(tmp_path, model, tool, first.run_id)
        assert (done.status, done.counts.done, len(tool.calls)) == ("completed", 1, 1)

    asyncio.run(main())


@pytest.mark.parametrize("repeat", ["skip", "ask"])
def test_it_goes_on_from_its_answer_though_its_process_died_while_it_waited(tmp_path: Path, repeat: str) -> None:
    async def main() -> None:
        model, tool = Changing(), changer()
        first = await parked(tmp_path, model, tool, repeat)
        journal = tmp_path / ".a3s/workflow-runs" / f"{first.run_id}.journal.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(line for line in lines if not line.startswith(b'{"t":"result"')))
        await approved(tmp_path)
        done = await resumed(tmp_path, model, tool, first.run_id)
        assert (done.status, done.counts.done, len(tool.calls)) == ("completed", 1, 1)

    asyncio.run(main())


@pytest.mark.parametrize("repeat", ["skip", "ask"])
def test_one_that_waits_for_a_decision_is_no_call_that_anybody_could_approve(tmp_path: Path, repeat: str) -> None:
    async def main() -> None:
        model, tool = Changing(), changer()
        first = await parked(tmp_path, model, tool, repeat)
        [each] = await waiting(tmp_path)
        async with FileSessionStore(tmp_path / ".a3s" / "sessions") as store:
            await record_answer(each, Approval(False, "no"), tmp_path, store, HostEnv())
        denied = await resumed(tmp_path, model, tool, first.run_id)
        assert [each.code for each in denied.failures] == ["NO_ANSWER"]
        again = await resumed(tmp_path, model, tool, first.run_id)
        assert again.status == ("paused" if repeat == "ask" else "completed")
        assert (len(tool.calls), again.counts.launched) == (0, 0)
        assert await waiting(tmp_path) == []

    asyncio.run(main())


def test_a_torn_end_that_an_answer_puts_aside_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        model, tool = Changing(), changer()
        first = await parked(tmp_path, model, tool, "rerun")
        journal = tmp_path / ".a3s/workflow-runs" / f"{first.run_id}.journal.jsonl"
        with journal.open("ab") as file:
            file.write(b'{"t":"turns","seq"')
        with caplog.at_level(logging.WARNING, "fanfold"):
            torn = await approved(tmp_path)
        assert torn is not None
        assert Path(journal.parent, torn).read_bytes() == b'{"t":"turns","seq"'
        assert f"run {first.run_id}: its journal had a torn end, which is put aside as {torn}" in caplog.text
        assert (await resumed(tmp_path, model, tool, first.run_id)).status == "completed"

    asyncio.run(main())
