"""Real processes that run a workflow, killed at random moments and started again until it is done
(`FANFOLD_KILL_SEEDS` seeds); and two that want the same run."""

import asyncio
import json
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.codec import decode_fact
from fanfold.contracts.facts import Fact, QuestionTurn, TextTurn, ToolTurn, UserMessaged
from fanfold.contracts.run_journal import AttemptEnd, Header, Result
from fanfold.contracts.workflow_runs import RunSummary
from fanfold.kernel.run_journal import decode_line
from fanfold.kernel.run_view import RunJournalView
from fanfold.protocols import WorkflowFiles
from fanfold.stores.run_files import open_run_files
from fanfold.workflow.runs import output_of, read_view, run_summary
from tests.support.chat_server import Call, ChatServer, Json, Say, by_rule
from tests.support.killed_workflow import NAME, PLACES, SESSION, begun

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills its children with a signal"),
    pytest.mark.timeout(180),
]
ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("FANFOLD_KILL_SEEDS", "3"))
MOST_KILLS = 20
AT_ONCE = 8

Asked = tuple[str, int]
"""One model call of an agent: its prompt, and how many tool results came behind it."""


class Program:
    """Lives one after the other, each of which may be cut off."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def begin(self, what: str, workspace: Path, server: ChatServer) -> int:
        """The id of its process."""
        self.go_on(f"{what} {workspace} {server.base_url}")
        return int(await self.heard())

    def go_on(self, line: str = "") -> None:
        self._in.write(f"{line}\n".encode())

    async def heard(self) -> str:
        return (await self._out.readline()).decode().strip()

    async def ended(self) -> None:
        assert await self.heard() == "ended 0"

    async def live(self, what: str, workspace: Path, server: ChatServer, end: Coroutine[Any, Any, None]) -> str | None:
        """What it came to; None when it was killed before, which it is at the `end`."""
        pid = await self.begin(what, workspace, server)
        killing, hearing = asyncio.create_task(end), asyncio.create_task(self.heard())
        await asyncio.wait({killing, hearing}, return_when=asyncio.FIRST_COMPLETED)
        if not hearing.done():
            with suppress(ProcessLookupError):  # it ends just now
                os.kill(pid, signal.SIGKILL)
        killing.cancel()
        said = await hearing
        if said.startswith("ended"):
            assert said == "ended -9"
            return None
        assert await self.heard() in ("ended 0", "ended -9")
        return said


async def some_moment(dice: random.Random, server: ChatServer) -> None:
    """Within a launch, or in the midst of the agents."""
    if dice.random() < 0.7:
        await server.request_count(len(server.requests) + dice.randint(1, 12))
    await asyncio.sleep(dice.uniform(0, 0.15) ** 1.5)


async def never() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def started() -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.killed_workflow"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Program(process)
    finally:
        await process.communicate(b"")  # which closes its stdin


# ---- what was asked, and what is recorded ---------------------------------------------------------------------------


def asked_of(server: ChatServer) -> Counter[Asked]:
    """By agents of workflows."""
    found: Counter[Asked] = Counter()
    for request in server.requests:
        messages = request.json["messages"]
        prompts = [message["content"] for message in messages if message["role"] == "user"]
        if not is_director(request.json):
            assert len(prompts) == 1
            found[prompts[0], sum(message["role"] == "tool" for message in messages)] += 1
    return found


def is_director(asked: Json) -> bool:
    return any(tool["function"]["name"] == "Workflow" for tool in asked.get("tools") or ())


def recorded(view: RunJournalView) -> Counter[Asked]:
    """The model calls whose answers the journal has."""
    calls: Counter[Asked] = Counter()
    for entry in view.entries.values():
        if entry.is_superseded:
            continue
        prompt = json.loads(bytes(entry.call))["prompt"]
        turns = sum(isinstance(decode_fact(bytes(fact)).payload, ToolTurn | TextTurn | QuestionTurn) for fact in entry.turns)
        if entry.is_answer:
            turns = 3 if "[[tool=" in prompt else 1
        calls.update((prompt, turn) for turn in range(turns))
    return calls


class Standing:
    """What the files of the workspace tell, all of which can be read at any time."""

    def __init__(self) -> None:
        self.recorded: Counter[Asked] = Counter()
        self.summaries: list[RunSummary] = []

    @classmethod
    async def of(cls, files: WorkflowFiles) -> "Standing":
        standing = cls()
        for run_id in await files.run_ids():
            summary = await run_summary(files, run_id)
            assert not summary.is_alive
            view = await read_view(files, run_id, strict=True)
            standing.recorded += recorded(view)
            if summary.snapshot is None:
                assert summary.problem == "it has no snapshot: it never began"
                assert view.entries == {}
                continue
            assert summary.status in ("interrupted", "completed"), summary
            standing.summaries.append(summary)
            output = await files.output(run_id)
            assert output is None or json.loads(output)["result"] is not None
        return standing


async def whole_run(program: Program, workspace: Path) -> tuple[Counter[Asked], Any]:
    """What a run asks that nobody cuts off, and what it gives."""
    async with ChatServer() as server:
        assert await program.live("run", workspace, server, never()) == "completed"
        files = open_run_files(workspace)
        (run_id,) = await begun(workspace)
        return asked_of(server), await output_of(files, run_id)


def without_chance(value: Any) -> Any:
    return {**value, "drawn": None}


# ---- kill -9 --------------------------------------------------------------------------------------------------------


async def until_done(place: Path, seed: int) -> None:
    dice = random.Random(seed)
    workspace, other = place / "killed", place / "whole"
    workspace.mkdir()
    other.mkdir()
    files = open_run_files(workspace)
    kills = 0
    async with ChatServer() as server, started() as program:
        wanted, value = await whole_run(program, other)
        assert wanted.total() == 2 * 2 * PLACES + 2 * 2 * 6 + 4 + 1
        status = None
        while status is None:
            before, known = asked_of(server), (await Standing.of(files)).recorded
            end = some_moment(dice, server) if kills < MOST_KILLS else never()
            status = await program.live("run", workspace, server, end)
            again = asked_of(server) - before
            assert again <= wanted - known, again - (wanted - known)
            kills += status is None
        assert status == "completed"
        calls = asked_of(server)
        assert set(calls) == set(wanted)
        # Only what was under way, or on its way to the disk, may have been asked twice by each kill.
        assert calls.total() - wanted.total() <= kills * 2 * AT_ONCE
        (run_id,) = await begun(workspace)
        found: Any = await output_of(files, run_id)
        assert without_chance(found) == without_chance(value)
        print(f"seed {seed}: {kills} kills, {calls.total()} of {wanted.total()} calls")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_recorded_answer_is_never_asked_for_again(tmp_path: Path, seed: int) -> None:
    asyncio.run(until_done(tmp_path, seed))


# ---- a session that launched it ---------------------------------------------------------------------------------


def direct(asked: Json) -> Say:
    """What a model says that wants one run to be completed; agents are answered by the rule."""
    if not is_director(asked):
        return by_rule(asked)
    run_id, status = "", "never launched"
    for message in asked["messages"]:
        text = str(message.get("content") or "")
        told = re.search(r"<id>(wf_\w+)</id>\s*<status>(\w+)</status>", text)
        if message["role"] == "user" and told:
            run_id, status = told.groups()
        elif message["role"] == "tool" and '"async_launched"' in text:
            status = "running"
    if status in ("running", "completed"):
        return Say(f"it is {status}")
    args = {"resume_from_run_id": run_id} if run_id else {"name": NAME, "args": {"places": PLACES}}
    return Say(calls=(Call("Workflow", json.dumps(args), f"call_{len(asked['messages'])}"),))


def facts_of(workspace: Path) -> list[Fact]:
    log = workspace / ".a3s/effect-log" / f"{SESSION}.jsonl"
    data = log.read_bytes() if log.exists() else b""
    return [decode_fact(line) for line in data.split(b"\n")[:-1]]


async def begun_attempts(files: WorkflowFiles) -> Counter[str]:
    """`<run>-<attempt>` of those whose script ran, as the journals tell."""
    found: Counter[str] = Counter()
    for run_id in await files.run_ids():
        read = await files.journal(run_id)
        assert read is not None
        attempt, has_begun = 0, True
        for line in read.lines:
            record = decode_line(line)
            if isinstance(record, Header):
                assert record.attempt > attempt, "two attempts have one number"
                attempt, has_begun = record.attempt, False
            elif not has_begun:
                has_begun = True
                found[f"{run_id}-{attempt}"] += 1
    return found


async def until_told(workspace: Path, seed: int) -> None:
    dice = random.Random(seed)
    files = open_run_files(workspace)
    kills = 0
    async with ChatServer(direct) as server, started() as program:
        said = None
        while said is None:
            before, known = asked_of(server), (await Standing.of(files)).recorded
            end = some_moment(dice, server) if kills < MOST_KILLS else never()
            said = await program.live("talk", workspace, server, end)
            again = asked_of(server) - before
            assert not (again & known) or all(prompt == "is it good?" for prompt, _ in again & known)
            kills += said is None
        assert "it is completed" in said
        facts = facts_of(workspace)
        told = Counter(fact.key.removeprefix("notice-") for fact in facts if fact.key.startswith("notice-"))
        assert max(told.values()) == 1
        assert set(await begun_attempts(files)) <= set(told)
        assert await files.notices(SESSION) == []
        ends = [fact.payload.text for fact in facts if isinstance(fact.payload, UserMessaged) and "<status>" in fact.payload.text]
        assert [("<status>completed" in text) for text in ends] == [False] * (len(ends) - 1) + [True]
        print(f"seed {seed}: {kills} kills, {len(told)} notices")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_session_that_is_killed_tells_its_model_once_of_each_attempt(tmp_path: Path, seed: int) -> None:
    asyncio.run(until_told(tmp_path, seed))
