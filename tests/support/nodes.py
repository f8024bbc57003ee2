"""Nodes of a cluster: agents that share nothing but a session store, and that may die in the middle of a run."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from fanfold import (
    Agent,
    FileSessionStore,
    HostEnv,
    MemorySessionStore,
    SequentialIds,
    SessionStore,
    SqliteSessionStore,
)
from fanfold.contracts.codec import decode_fact
from fanfold.contracts.facts import Fact
from fanfold.contracts.messages import ModelRequest, ToolMessage
from fanfold.contracts.saved import LoopCheckpoint, SavedFacts, SavedSession
from fanfold.protocols import Lease, Tool
from fanfold.testing import CrashPoint, ManualClock, ScriptedModel, calls
from fanfold.testing.scripted import Answer, Script
from tests.support.tools import RecordingTool

STORES = ("memory", "file", "sqlite")
ROUNDS = ("first", "second", "third")
"""Tools, one for each round of `in_rounds`."""
ANSWER = "all three are done"


def open_store(kind: str, folder: Path) -> MemorySessionStore | FileSessionStore | SqliteSessionStore:
    match kind:
        case "memory":
            return MemorySessionStore()
        case "file":
            return FileSessionStore(folder / "store")
        case _:
            return SqliteSessionStore(folder / "store.sqlite")


def in_rounds(request: ModelRequest) -> Answer:
    """One call of each of ROUNDS, then ANSWER; by what the conversation holds, so it goes on with it anywhere."""
    done = sum(isinstance(message, ToolMessage) for message in request.transcript)
    return calls((ROUNDS[done], {"round": done})) if done < len(ROUNDS) else ANSWER


def round_tools(**more: Any) -> list[RecordingTool]:
    return [RecordingTool(name, lambda args: f"result {args['round']}", **more) for name in ROUNDS]


@asynccontextmanager
async def node(
    folder: Path, script: Script, *tools: Tool, ids: str = "id", point: CrashPoint | None = None, now_ms: int = 1_000
) -> AsyncIterator[tuple[Agent, ScriptedModel]]:
    """An agent of its own and its model; one with a `point` is to be given `point.store(store)`."""
    folder.mkdir(exist_ok=True)
    model = ScriptedModel(script)
    async with await Agent.create_async(
        models={"scripted/model": model},
        tools={tool.spec.name: tool if point is None else point.tool(tool) for tool in tools},
        host_env=HostEnv(ManualClock(now_ms), SequentialIds(ids)),
        open_log=None if point is None else point.open_log,
    ) as agent:
        yield agent, model


async def dies(folder: Path, store: SessionStore, point: CrashPoint, *tools: Tool, **options: Any) -> None:
    """A node on which the session `s` is asked to "go", and which dies at the point."""
    with point:
        async with node(folder, in_rounds, *tools, point=point) as (agent, _):
            session = await agent.session_async(folder, session_id="s", session_store=point.store(store), **options)
            await session.send_async("go")
    assert point.has_crashed


def workspace_facts(workspace: Path, session_id: str = "s") -> list[Fact]:
    path = workspace / f".a3s/effect-log/{session_id}.jsonl"
    return [decode_fact(line) for line in path.read_bytes().splitlines()] if path.exists() else []


async def stored_checkpoint(store: SessionStore, run_id: str) -> LoopCheckpoint | None:
    document = await store.load(f"checkpoint/{run_id}")
    return None if document is None else msgspec.json.decode(document.data, type=LoopCheckpoint)


async def stored_session(store: SessionStore, session_id: str = "s") -> SavedSession:
    document = await store.load(f"session/{session_id}")
    assert document is not None
    return msgspec.json.decode(document.data, type=SavedSession)


async def stored_facts(store: SessionStore, saved: SavedFacts) -> list[Fact]:
    return [decode_fact(line) for line in (await store.read(saved.log))[: saved.last_seq]]


class CountingStore(MemorySessionStore):
    """Counts what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, str, int]] = []
        """(operation, kind of the name, bytes)"""

    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        self.done.append(("append", log.partition("/")[0], sum(map(len, records))))
        return await super().append(log, expected_seq, records, lease)

    async def read(self, log: str, after_seq: int = 0) -> Sequence[bytes]:
        found = await super().read(log, after_seq)
        self.done.append(("read", log.partition("/")[0], sum(map(len, found))))
        return found

    async def compare_and_set(
        self, document: str, expected_revision: int, data: bytes | None, lease: Lease | None = None
    ) -> int:
        self.done.append(("set", document.partition("/")[0], len(data or b"")))
        return await super().compare_and_set(document, expected_revision, data, lease)
