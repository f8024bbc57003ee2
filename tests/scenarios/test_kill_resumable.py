"""A real process that is killed at a random moment, and started again until it is done (`FANFOLD_KILL_SEEDS` seeds)."""

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.facts import QuestionTurn, TextTurn, ToolTurn
from fanfold.kernel.journal import JournalView
from fanfold.orchestration.append_queue import ROOM
from fanfold.orchestration.journal import read_journal
from tests.support.chat_server import ChatServer
from tests.support.resumable_run import AT_ONCE, SPECS, WORKFLOW, open_store

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("FANFOLD_KILL_SEEDS", "3"))
MOST_KILLS = 20
LONGEST_SECONDS = 0.5
"""After its start; a whole run takes about that long."""

Asked = tuple[str, int]
"""One model call: the step's prompt, and how many tool results came behind it."""


class Program:
    """Lives one after the other, each of which may be cut off."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def live(self, kill_after: float) -> bool:
        """True when it said that it was done before it was killed."""
        self._in.write(b"live\n")
        pid = int(await self._out.readline())
        try:
            line = await asyncio.wait_for(self._out.readline(), kill_after)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            line = await self._out.readline()
        is_done = line == b"done\n"
        ended = await self._out.readline() if is_done else line
        assert ended in (b"ended 0\n", b"ended -9\n"), ended
        return is_done


@asynccontextmanager
async def started(workspace: Path, base_url: str, store: Path) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.resumable_run", str(workspace), base_url, str(store)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Program(process)
    finally:
        await process.communicate(b"")  # which closes its stdin


def asked_of(server: ChatServer) -> Counter[Asked]:
    return Counter(_asked(json.loads(request.body)["messages"]) for request in server.requests)


def _asked(messages: list[dict[str, Any]]) -> Asked:
    [prompt] = [message["content"] for message in messages if message["role"] == "user"]
    return prompt, sum(message["role"] == "tool" for message in messages)


def recorded(view: JournalView) -> set[Asked]:
    """The model calls whose answers the journal has."""
    prompts = {spec["task_id"]: spec["prompt"] for spec in SPECS}
    calls = {
        (prompts[place], turn) for place in view.succeeded for turn in range(3 if "tool=" in prompts[place] else 1)
    }
    for place, thread in view.threads.items():
        turns = sum(isinstance(fact.payload, TextTurn | ToolTurn | QuestionTurn) for fact in thread.facts)
        calls |= {(prompts[place], turn) for turn in range(turns)}
    return calls


async def until_done(workspace: Path, store_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = open_store(store_path)
    kills = 0
    async with ChatServer() as server, started(workspace, server.base_url, store_path) as program, store:
        is_done = False
        while not is_done:
            before, known = asked_of(server), recorded(await read_journal(store, WORKFLOW))
            is_done = await program.live(dice.uniform(0, LONGEST_SECONDS) if kills < MOST_KILLS else 60)
            after = asked_of(server)
            assert {call: after[call] - before[call] for call in known if after[call] != before[call]} == {}
            kills += not is_done
        assert await store.logs("workflow") == []
        calls = asked_of(server)
        assert {prompt for prompt, _ in calls} == {spec["prompt"] for spec in SPECS}
        # Only what was under way, or on its way to the disk, may have been asked twice by each kill: how much the
        # latter is, up to the room of the queue, is a matter of how long the disk takes.
        assert calls.total() - len(calls) <= kills * (AT_ONCE + ROOM)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_recorded_answer_is_never_asked_for_again(tmp_path: Path, seed: int) -> None:
    asyncio.run(until_done(tmp_path, tmp_path / ("store" if seed % 3 else "store.sqlite"), seed))
