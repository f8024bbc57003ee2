"""Sessions whose model and tools wait until a test lets them go on, and what is asked of their runs."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, HostEnv, PermissionPolicy, SequentialIds, Session
from fanfold.contracts.codec import decode_fact
from fanfold.contracts.facts import Fact
from fanfold.contracts.messages import AssistantMessage, ModelRequest, ToolMessage, ToolOutput, UserMessage
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunControlReceipt
from fanfold.errors import RunControlError
from fanfold.protocols import ModelClient, Tool, ToolScope
from fanfold.testing import ManualClock, ScriptedModel
from fanfold.testing.scripted import Answer
from tests.support.tools import RecordingTool

ALLOW = PermissionPolicy(allow=("*",))
INTERRUPTED = "(Response interrupted by the user.)"


class PacedModel(ScriptedModel):
    """Answers in order, each call only when the test has said `answer`."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(self._paced)
        self._answers = deque(answers)
        self._asked: asyncio.Queue[ModelRequest] = asyncio.Queue()
        self._let: asyncio.Queue[None] = asyncio.Queue()

    async def _paced(self, request: ModelRequest) -> Answer:
        self._asked.put_nowait(request)
        await self._let.get()
        return self._answers.popleft()

    async def asked(self) -> ModelRequest:
        """Return when the next call has arrived."""
        return await self._asked.get()

    def answer(self, calls: int = 1) -> None:
        for _ in range(calls):
            self._let.put_nowait(None)


class HeldTool(RecordingTool):
    """Says that it runs, and waits for `let_go`; once cancelled it cleans up until `may_stop`."""

    def __init__(self, name: str = "hold", *, is_parallel_safe: bool = False, is_slow_to_stop: bool = False) -> None:
        super().__init__(name, is_parallel_safe=is_parallel_safe)
        self.started: asyncio.Queue[JsonObject] = asyncio.Queue()
        self.let_go = asyncio.Event()
        self.stopped = 0
        self.cleaned_up = 0
        self.may_stop = asyncio.Event()
        if not is_slow_to_stop:
            self.may_stop.set()

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        self.running += 1
        self.started.put_nowait(args)
        try:
            await self.let_go.wait()
            return ToolOutput(output="held")
        except asyncio.CancelledError:
            self.stopped += 1
            await asyncio.sleep(0)
            await self.may_stop.wait()
            self.cleaned_up += 1
            raise
        finally:
            self.running -= 1


@asynccontextmanager
async def opened(workspace: Path, model: ModelClient, *tools: Tool, **options: Any) -> AsyncIterator[Session]:
    """A session `s` with ids `id-0`, `id-1`, ... and a clock of the test's own, `session.clock` in its environment."""
    options.setdefault("permission_policy", ALLOW)
    options.setdefault("session_id", "s")
    env = options.pop("env", None) or HostEnv(clock=ManualClock(), ids=SequentialIds("id"))
    by_name = {tool.spec.name: tool for tool in tools}
    async with (
        asyncio.timeout(20),
        await Agent.create_async(models={"scripted/model": model}, tools=by_name, host_env=env) as agent,
    ):
        yield await agent.session_async(workspace, **options)


async def until(holds: Callable[[], object]) -> None:
    """Let everything else go on until it holds; the test's own timeout ends what never comes."""
    while not holds():
        await asyncio.sleep(0.001)


async def turns(count: int = 30) -> None:
    """Let everything else go on for some turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def facts(workspace: Path, thread: str = "s") -> list[Fact]:
    path = workspace / f".a3s/effect-log/{thread}.jsonl"
    return [decode_fact(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def keys(workspace: Path) -> list[str]:
    return [fact.key for fact in facts(workspace)]


def spoken(request: ModelRequest) -> list[str]:
    """The transcript of a model call, one line a message."""
    lines: list[str] = []
    for message in request.transcript:
        match message:
            case UserMessage():
                lines.append(f"user: {message.text}")
            case AssistantMessage():
                lines.append(f"assistant: {message.text}")
            case ToolMessage():
                lines.append(f"tool: {message.output}")
    return lines


def said(session: Session) -> list[str]:
    """The history, one line a message."""
    return [
        f"{message['role']}: {''.join(part.get('text', '') for part in message['content'])}"
        for message in session.history()
    ]


async def receipt_of(session: Session, receipt: RunControlReceipt) -> RunControlReceipt:
    """As it stands now."""
    receipts = await session.run_control_receipts_async(receipt.run_id)
    return next(each for each in receipts if each.request_id == receipt.request_id)


async def refused(work: Awaitable[object]) -> tuple[str, str]:
    """(code, message) of the refusal of a steer or an interrupt."""
    with pytest.raises(RunControlError) as caught:
        await work
    return caught.value.code, str(caught.value).removeprefix("Run control error: ")
