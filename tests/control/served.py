"""Sessions on a scripted model, and what the tests of this room say to a server of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fanfold import Agent, AgentDefinition, FixedClock, HostEnv, PermissionPolicy, SequentialIds, Session
from fanfold.contracts.codec import decode_fact
from fanfold.contracts.facts import Fact
from fanfold.contracts.messages import ModelRequest
from fanfold.control.client import LiveServer, ask, look
from fanfold.control.waiting import Waiting
from fanfold.control.wire import Done, Request
from fanfold.testing import Reply, ScriptedModel, calls
from fanfold.testing.scripted import newest_text
from tests.support.tools import RecordingTool

ASKING = PermissionPolicy(ask=("change",))
CHANGE: Reply = calls(("change", {"to": 1}))


def changer(**more: Any) -> RecordingTool:
    return RecordingTool("change", is_read_only=False, **more)


def write_then(text: str) -> Callable[[ModelRequest], Reply]:
    """A model of any number of steps that first writes a file called like its prompt, and then says `text`."""

    def script(request: ModelRequest) -> Reply:
        if request.transcript.length == 1:
            return calls(("write", {"file_path": newest_text(request), "content": "x"}))
        return Reply(text=text)

    return script


@asynccontextmanager
async def opened(
    workspace: Path,
    model: ScriptedModel,
    *tools: RecordingTool,
    session_id: str = "s",
    agents: Mapping[str, AgentDefinition] | None = None,
    **options: Any,
) -> AsyncIterator[Session]:
    async with await Agent.create_async(
        models={"scripted/model": model},
        tools={tool.spec.name: tool for tool in tools},
        agents=agents,
        host_env=HostEnv(clock=FixedClock(1_000), ids=SequentialIds("id")),
    ) as agent:
        options = {"permission_policy": ASKING, **options}
        yield await agent.session_async(workspace, session_id=session_id, **options)


async def until_waiting(session: Session, count: int = 1) -> None:
    while len(session.pending_confirmations()) + len(session.pending_questions()) < count:
        await asyncio.sleep(0)


async def waiting_in(workspace: Path) -> list[Waiting]:
    return [each for _, seen in (await look(workspace)).answered for each in seen.waiting]


async def server_of(workspace: Path) -> LiveServer:
    [(server, _)] = (await look(workspace)).answered
    return server


async def asked(workspace: Path, request: Request) -> Done:
    """What the one server of the workspace has done."""
    return await ask(await server_of(workspace), request)


def facts_of(workspace: Path, session_id: str = "s") -> list[Fact]:
    lines = (workspace / f".a3s/effect-log/{session_id}.jsonl").read_bytes().splitlines()
    return [decode_fact(line) for line in lines]
