"""A session on a scripted model, as most tests of sessions open it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fanfold import Agent, AgentEvent, HostEnv, SequentialIds, Session
from fanfold.contracts.codec import decode_fact
from fanfold.contracts.facts import Fact
from fanfold.protocols import ModelClient, Tool
from fanfold.runs.stream import EventStream


@asynccontextmanager
async def opened(
    workspace: Path,
    model: ModelClient,
    *tools: Tool,
    models: Mapping[str, ModelClient] | None = None,
    agents: Mapping[str, Any] | None = None,
    host_env: HostEnv | None = None,
    open_log: Any = None,
    session_id: str | None = "s",
    **options: Any,
) -> AsyncIterator[Session]:
    """The session `s`, with ids that count from `id-0`; it is closed at the end of the block."""
    async with (
        await Agent.create_async(
            models={"scripted/model": model, **(models or {})},
            tools={tool.spec.name: tool for tool in tools},
            agents=agents,
            host_env=host_env or HostEnv(ids=SequentialIds("id")),
            open_log=open_log,
        ) as agent,
        await agent.session_async(workspace, session_id=session_id, **options) as session,
    ):
        yield session


async def heard(stream: EventStream) -> list[AgentEvent]:
    """All events of a stream, to its end."""
    return [each async for each in stream]


def types(events: list[AgentEvent], *wanted: str) -> list[str]:
    """Of the events, in their order; only those `wanted`, if any are named."""
    return [each.type for each in events if not wanted or each.type in wanted]


def facts_of(workspace: Path, session_id: str = "s") -> list[Fact]:
    lines = (workspace / f".a3s/effect-log/{session_id}.jsonl").read_bytes().splitlines()
    return [decode_fact(line) for line in lines]


async def until(condition: Callable[[], Any]) -> Any:
    """Let the others go on until `condition` gives something, and return that."""
    async with asyncio.timeout(20):
        while not (found := condition()):
            await asyncio.sleep(0.001)
        return found
