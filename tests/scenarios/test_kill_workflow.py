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
from fanfold.contracts.facts import QuestionTurn, TextTurn, ToolTurn, UserMessaged
from fanfold.contracts.run_journal import Header
from fanfold.errors import LogWriteError
from fanfold.kernel.run_journal import decode_line
from fanfold.kernel.run_view import RunJournalView
from fanfold.protocols import WorkflowFiles
from fanfold.stores.run_files import open_run_files
from fanfold.workflow.runs import output_of, read_view, run_summary
from tests.support.chat_server import Call, ChatServer, Json, Say, Script, by_rule
from tests.support.killed_workflow import NAME, PLACES, SESSION, VOTERS, begun

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills its children with a signal"),
    pytest.mark.timeout(180),
]
ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("FANFOLD_KILL_SEEDS", "3"))
CONTESTS = max(10, SEEDS)
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
        turns = sum(
            isinstance(decode_fact(bytes(fact)).payload, ToolTurn | TextTurn | QuestionTurn) for fact in entry.turns
        )
        if entry.is_answer:
            turns = 3 if "[[tool=" in prompt else 1
        calls.update((prompt, turn) for turn in range(turns))
    return calls


async def standing(files: WorkflowFiles) -> Counter[Asked]:
    """The model calls whose answers are recorded. What a killed process has left can be read, and nobody runs it."""
    found: Counter[Asked] = Counter()
    for run_id in await files.run_ids():
        summary = await run_summary(files, run_id)
        view = await read_view(files, run_id, strict=True)  # no kill leaves what looks like damage
        assert not summary.is_alive
        found += recorded(view)
        if summary.snapshot is None:
            assert (summary.problem or "").startswith("it has no snapshot: it never began")
            assert view.entries == {}
            continue
        assert summary.status in ("interrupted", "completed"), summary
        output = await files.output(run_id)
        assert output is None or json.loads(output)["result"] is not None
    return found


class Lives:
    """Those of one workspace, up to one that is done."""

    def __init__(self, program: Program, server: ChatServer, workspace: Path, wanted: Counter[Asked]) -> None:
        self.kills = 0
        self._program = program
        self._server = server
        self._workspace = workspace
        self._wanted = wanted
        self._files = open_run_files(workspace)

    async def live(self, what: str, dice: random.Random) -> str:
        """What the last one came to. Each asks for nothing that was recorded before it began."""
        while True:
            before, known = asked_of(self._server), await standing(self._files)
            end = some_moment(dice, self._server) if self.kills < MOST_KILLS else never()
            said = await self._program.live(what, self._workspace, self._server, end)
            again, left = asked_of(self._server) - before, self._wanted - known
            assert again <= left, again - left
            if said is not None:
                break
            self.kills += 1
        calls = asked_of(self._server)
        assert set(calls) == set(self._wanted)
        # Only what was under way, or on its way to the disk, may have been asked twice by each kill.
        assert calls.total() - self._wanted.total() <= self.kills * 2 * AT_ONCE
        print(f"{self.kills} kills, {calls.total()} of {self._wanted.total()} calls")
        return said


@asynccontextmanager
async def killed(place: Path, script: Script = ()) -> AsyncIterator[tuple[Lives, Path, Any]]:
    """Lives that are going to be killed, their workspace, and what a run gives that nobody cuts off."""
    workspace, other = place / "killed", place / "whole"
    workspace.mkdir()
    other.mkdir()
    async with started() as program, ChatServer() as server:
        assert await program.live("run", other, server, never()) == "completed"
        wanted = asked_of(server)
        assert wanted.total() == 2 * 2 * PLACES + 2 * 2 * ((PLACES + 2) // 3) + VOTERS + 1
        value = await value_of(other)
        async with ChatServer(script) as server:
            yield Lives(program, server, workspace, wanted), workspace, value


async def value_of(workspace: Path) -> Any:
    """What its newest run has given, but for chance, which is another one in each run."""
    run_id, *_ = await begun(workspace)  # an older one was cut off before its launch was told of
    value: Any = await output_of(open_run_files(workspace), run_id)
    assert 0 <= value.pop("drawn") < 1
    return value


# ---- kill -9 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_recorded_answer_is_never_asked_for_again(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        async with killed(tmp_path) as (lives, workspace, value):
            assert await lives.live("run", random.Random(seed)) == "completed"
            assert await value_of(workspace) == value

    asyncio.run(main())


def test_a_journal_that_finds_no_more_room_is_whole_and_can_be_gone_on_with(tmp_path: Path) -> None:
    async def main() -> None:
        async with started() as program, ChatServer() as server:
            assert await program.live("full", tmp_path, server, never()) == "failed"
            (run_id,) = await begun(tmp_path)
            files = open_run_files(tmp_path)
            summary = await run_summary(files, run_id)
            assert summary.snapshot is not None
            assert summary.snapshot.error is not None
            assert (summary.status, summary.snapshot.error.code) == ("failed", LogWriteError.code)
            before, known = asked_of(server), recorded(await read_view(files, run_id, strict=True))
            assert known
            assert await program.live("run", tmp_path, server, never()) == "completed"
            assert not (asked_of(server) - before) & known

    asyncio.run(main())


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


def notices_of(workspace: Path) -> list[tuple[str, str]]:
    """(Key, text) of what the log has told the model."""
    lines = (workspace / ".a3s/effect-log" / f"{SESSION}.jsonl").read_bytes().split(b"\n")[:-1]
    facts = [decode_fact(line) for line in lines]
    return [
        (fact.key, fact.payload.text)
        for fact in facts
        if fact.key.startswith("notice-") and isinstance(fact.payload, UserMessaged)
    ]


async def begun_attempts(files: WorkflowFiles) -> set[str]:
    """The keys of notices of those whose script ran, as the journals tell."""
    found: set[str] = set()
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
                found.add(f"notice-{run_id}-{attempt}")
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_session_that_is_killed_tells_its_model_once_of_each_attempt(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        async with killed(tmp_path, direct) as (lives, workspace, value):
            assert "it is completed" in await lives.live("talk", random.Random(seed))
            assert await value_of(workspace) == value
            files, notices = open_run_files(workspace), notices_of(workspace)
            keys = [key for key, _ in notices]
            assert len(set(keys)) == len(keys)
            assert set(keys) >= await begun_attempts(files)
            assert not await files.notices(SESSION)
            statuses = [re.findall(r"<status>(\w+)</status>", text) for _, text in notices]
            assert statuses == [["interrupted"]] * (len(keys) - 1) + [["completed"]]

    asyncio.run(main())


# ---- two processes --------------------------------------------------------------------------------------------------


def test_of_two_processes_that_go_on_with_one_run_one_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with started() as one, started() as other, ChatServer() as server:
            assert await one.live("run", tmp_path, server, never()) == "completed"
            value, asked = await value_of(tmp_path), asked_of(server)
            (run_id,) = await begun(tmp_path)
            files = open_run_files(tmp_path)
            for number in range(2, CONTESTS + 2):
                await asyncio.gather(*(each.begin("rival", tmp_path, server) for each in (one, other)))
                said = await asyncio.gather(one.heard(), other.heard())
                assert sorted(said) == ["already_active", "holds"]
                assert (await run_summary(files, run_id)).is_alive
                holder, loser = (one, other) if said[0] == "holds" else (other, one)
                await loser.ended()
                holder.go_on()
                assert await holder.heard() == "completed"
                await holder.ended()
                summary = await run_summary(files, run_id)
                assert summary.snapshot is not None
                assert (summary.is_alive, summary.status, summary.snapshot.attempt) == (False, "completed", number)
                assert (await read_view(files, run_id, strict=True)).attempts == number
                assert await value_of(tmp_path) == value
            assert asked_of(server) == asked

    asyncio.run(main())
