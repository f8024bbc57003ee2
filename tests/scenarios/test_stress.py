"""Fifty sessions at once, each steered, interrupted, confirmed and closed at random moments: nothing hangs, nothing is
left behind, no session is busy with what has ended.

`FANFOLD_STRESS_SECONDS` says how long (3), `FANFOLD_STRESS_SEED` which way (1).
"""

import asyncio
import gc
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, PermissionPolicy, Session
from fanfold.contracts.codec import decode_fact
from fanfold.contracts.messages import ASK_USER, ModelRequest, ToolOutput
from fanfold.contracts.record import JsonObject
from fanfold.errors import (
    MissingStoreError,
    RunCancelledError,
    RunControlError,
    SessionBusyError,
    SessionClosedError,
)
from fanfold.kernel.fold import fold
from fanfold.protocols import ToolScope
from fanfold.testing import Reply, ScriptedModel, calls
from tests.session.test_close import Traces, tasks_left
from tests.support.tools import RecordingTool

SECONDS = float(os.environ.get("FANFOLD_STRESS_SECONDS", "3"))
SEED = int(os.environ.get("FANFOLD_STRESS_SEED", "1"))
SESSIONS = 50
HANG_SECONDS = 20.0
"""Nothing here takes so long, on the slowest machine."""
POLICY = PermissionPolicy(allow=("look", "rest", "task"), ask=("change",))


class RestingTool(RecordingTool):
    """Takes a moment, and another one to stop."""

    def __init__(self, name: str, chance: random.Random, *, is_read_only: bool = True, together: bool = False) -> None:
        super().__init__(name, is_read_only=is_read_only, is_parallel_safe=together)
        self._chance = chance

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        self.running += 1
        try:
            await asyncio.sleep(self._chance.choice((0, 0.001, 0.01)))
            return ToolOutput(output="rested")
        except asyncio.CancelledError:
            await asyncio.sleep(self._chance.choice((0, 0.001)))
            raise
        finally:
            self.running -= 1


def answering(chance: random.Random) -> ScriptedModel:
    task = {"agent": "answer", "description": "d", "prompt": "p"}
    asks: list[Callable[[], Reply | str]] = [
        lambda: calls(("look", {}), ("look", {}), ("rest", {})),
        lambda: calls(("rest", {}), text="let me see"),
        lambda: calls(("change", {}), ("change", {})),
        lambda: calls((ASK_USER, {"question": "which?", "options": ["a", "b"]})),
        lambda: calls(("task", {"tasks": [task, task]})),
        lambda: calls(("task", {"tasks": [{**task, "background": True}]})),
    ]

    async def answer(request: ModelRequest) -> Reply | str:
        await asyncio.sleep(chance.choice((0, 0, 0.001, 0.005)))
        return chance.choice(asks)() if request.tools and chance.random() < 0.6 else "an answer of some words"

    return ScriptedModel(answer)


class Place:
    """One session, which is opened again whenever it was closed; one task has it work, another one meddles."""

    def __init__(self, agent: Agent, workspace: Path, number: int, seen: Counter[str]) -> None:
        self._agent = agent
        self._workspace = workspace
        self._id = f"s-{number}"
        self._chance = random.Random(f"{SEED}/{number}")
        self._seen = seen
        self._session: Session | None = None
        self._steers = 0
        self._is_over = False

    async def _open(self) -> Session:
        if self._session is None or self._session.is_closed():
            if self._session is not None:
                await self._session.close_async()
            self._session = await self._agent.session_async(
                self._workspace,
                session_id=self._id,
                permission_policy=POLICY,
                wake_on_notice=False,  # no other task starts any run here
            )
        return self._session

    async def work(self, until: float) -> None:
        """One operation after the other: none may find the session busy, for no other task starts any here."""
        clock = asyncio.get_running_loop().time
        while clock() < until:
            session = await self._open()
            deeds = [self._send, self._stream, self._leave_stream, self._resume, self._spawn, self._compact]
            deed = self._chance.choice(deeds)
            try:
                await in_time(deed(session))
                self._seen[f"{deed.__name__} done"] += 1
            except (RunCancelledError, SessionClosedError, MissingStoreError) as error:
                self._seen[f"{deed.__name__} {error.code}"] += 1
            await self._look(session)
        session = await self._open()
        await in_time(session.close_async())
        self._is_over = True

    async def _send(self, session: Session) -> None:
        await session.send_async("go")

    async def _stream(self, session: Session) -> None:
        stream = await session.stream_async("go")
        last = [item.type async for item in stream][-1]
        assert last in ("agent_end", "error")
        if not session.is_closed():  # the end was told, so the next operation may start at once
            await session.send_async("and at once")
        await stream.result_async()

    async def _leave_stream(self, session: Session) -> None:
        async with await session.stream_async("go") as stream:
            for _ in range(self._chance.randrange(6)):
                await anext(stream, None)

    async def _resume(self, session: Session) -> None:
        await session.resume_run_async()

    async def _spawn(self, session: Session) -> None:
        spawned = await session.spawn_run_with_id_async(f"mine-{self._chance.random()}", "go")
        while (run := await session.run_snapshot_async(spawned.snapshot.id)) is not None and not run.is_terminal:
            await asyncio.sleep(0.001)

    async def _compact(self, session: Session) -> None:
        await session.compact_async()

    async def _look(self, session: Session) -> None:
        """What holds whenever nothing runs."""
        assert await session.run_control_snapshot_async() is None
        runs = await session.runs_async()
        for run in runs:
            assert run.is_terminal
            for receipt in await session.run_control_receipts_async(run.id):
                assert receipt.state in ("applied", "settled")
                if run.status == "completed":
                    assert receipt.state == "applied", (run, receipt)
            self._seen[f"run {run.status}"] += run is runs[-1]

    async def meddle(self, until: float) -> None:
        """Up to the end of the work, for somebody has to answer what a run asks; the rest only while there is time."""
        clock = asyncio.get_running_loop().time
        while not self._is_over:
            await asyncio.sleep(self._chance.choice((0, 0.001, 0.01, 0.05)))
            session = self._session
            if session is None or session.is_closed():
                continue
            await self._answer(session)
            if self._chance.random() < 0.5 or clock() > until:
                continue
            deeds = [self._steer] * 8 + [self._interrupt, self._cancel, self._tool, self._fan_out] * 2 + [self._close]
            deed = self._chance.choice(deeds)
            try:
                await in_time(deed(session))
                self._seen[f"{deed.__name__} done"] += 1
            except (RunControlError, RunCancelledError, SessionClosedError) as error:
                self._seen[f"{deed.__name__} {error.code}"] += 1

    async def _answer(self, session: Session) -> None:
        if await session.run_control_snapshot_async() is None:
            return  # an answer is an operation of its own then
        for waiting in session.pending_confirmations():
            await session.confirm_tool_use_async(waiting.tool_id, self._chance.random() < 0.7)
        for question in session.pending_questions():
            await session.answer_question_async(question.question_id, "a")

    async def _steer(self, session: Session) -> None:
        self._steers += 1
        now = await session.run_control_snapshot_async()
        guarded = now is not None and self._chance.random() < 0.5
        options: JsonObject = {"request_id": f"{self._id}-{self._steers}"}
        if guarded and now is not None:
            options |= {"run_id": now.run_id, "expected_turn_revision": now.turn_revision}
        first, second = await asyncio.gather(
            session.steer_async("steered", options), session.steer_async("steered", options)
        )
        assert first.sequence == second.sequence

    async def _interrupt(self, session: Session) -> None:
        await session.interrupt_async({"reason": "enough"})

    async def _cancel(self, session: Session) -> None:
        await session.cancel_async()

    async def _tool(self, session: Session) -> None:
        await session.tool_async("rest", {})

    async def _fan_out(self, session: Session) -> None:
        spec = {"agent": "answer", "description": "d", "prompt": "p"}
        await session.parallel_async([{**spec, "task_id": f"t-{n}"} for n in range(3)])

    async def _close(self, session: Session) -> None:
        await session.close_async()
        await session.close_async()


async def in_time(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(HANG_SECONDS):
        return await work


@pytest.mark.timeout(SECONDS + 90)
def test_fifty_sessions_are_meddled_with_for_a_while(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    async def main() -> None:
        chance = random.Random(SEED)
        model = answering(chance)
        tools = [
            RestingTool("look", chance, together=True),
            RestingTool("rest", chance),
            RestingTool("change", chance, is_read_only=False),
        ]
        by_name = {tool.spec.name: tool for tool in tools}
        async with await Agent.create_async(models={"a/b": model}, tools=by_name) as agent:
            until = asyncio.get_running_loop().time() + SECONDS
            places = [Place(agent, tmp_path, number, seen) for number in range(SESSIONS)]
            async with asyncio.TaskGroup() as group:
                for place in places:
                    group.create_task(place.work(until))
                    group.create_task(place.meddle(until))
            assert agent.list_sessions() == []
            assert (model.running, [tool.running for tool in tools]) == (0, [0, 0, 0])
            del places
            gc.collect()
        assert await tasks_left() == []

    before = Traces()
    asyncio.run(main())
    before.require_same()
    folded = [_folded(log) for log in sorted((tmp_path / ".a3s/effect-log").glob("*.jsonl"))]
    assert len(folded) == SESSIONS
    assert sum(folded) > SESSIONS
    for what in ("_steer done", "_interrupt done", "_cancel done", "_close done", "_stream done", "_leave_stream done"):
        assert seen[what] > 0, seen
    assert not any(what.endswith(SessionBusyError.code) for what in seen), seen


def _folded(log: Path) -> int:
    """How many facts the log has; each follows from those before it."""
    return fold(decode_fact(line) for line in log.read_bytes().splitlines()).last_seq
