"""The seams through which a process that may die at a crash point reaches the world."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from fanfold.contracts.facts import Fact, NewFact
from fanfold.contracts.messages import ModelReply, ModelRequest, ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.protocols import (
    DeltaSink,
    Document,
    FactLog,
    HeldThread,
    Lease,
    ModelCapabilities,
    ModelClient,
    SessionStore,
    Tool,
    ToolScope,
)
from fanfold.testing.faulty_store import FaultyStore

R = TypeVar("R")


class Life(Protocol):
    """The life of the process, as its seams see it; each method raises once it is over."""

    def require_alive(self) -> None: ...

    def at_end(self, end: Callable[[], Awaitable[None]]) -> None: ...

    async def reach(self, place: str) -> None: ...

    async def reach_append(self, facts: Sequence[NewFact]) -> None: ...

    async def leave_append(self, facts: Sequence[NewFact], written: Sequence[Fact]) -> None: ...


class CrashingLog:
    """A fact log. A dead process may still let its threads go and close it: the system does that for it."""

    def __init__(self, life: Life, inner: FactLog) -> None:
        self._life = life
        self._inner = inner

    async def hold(self, thread: str, *, wait_seconds: float = 0.0) -> HeldThread:
        self._life.require_alive()
        return _CrashingThread(self._life, await self._inner.hold(thread, wait_seconds=wait_seconds))

    async def threads(self) -> Sequence[str]:
        self._life.require_alive()
        return await self._inner.threads()

    async def close(self) -> None:
        await self._inner.close()


class _CrashingThread:
    def __init__(self, life: Life, inner: HeldThread) -> None:
        self._life = life
        self._inner = inner

    @property
    def last_seq(self) -> int:
        return self._inner.last_seq

    @property
    def lineage(self) -> object:
        return self._inner.lineage

    @property
    def torn_tail(self) -> str | None:
        return self._inner.torn_tail

    async def read(self, after_seq: int = 0) -> Sequence[Fact]:
        self._life.require_alive()
        return await self._inner.read(after_seq)

    async def append(self, facts: Sequence[NewFact]) -> Sequence[Fact]:
        await self._life.reach_append(facts)
        written = await self._inner.append(facts)
        await self._life.leave_append(facts, written)
        return written

    async def set_aside(self) -> None:
        await self._life.reach("before the log is set aside")
        await self._inner.set_aside()
        await self._life.reach("after the log is set aside")

    async def release(self) -> None:
        await self._inner.release()


class CrashingStore:
    """A session store. When the process dies its leases are free."""

    def __init__(self, life: Life, inner: SessionStore) -> None:
        self._life = life
        self._way = FaultyStore(inner)
        life.at_end(self._way.end_process)

    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        return await self._change(
            f"the append to {log} behind {expected_seq}", lambda: self._way.append(log, expected_seq, records, lease)
        )

    async def read(self, log: str, after_seq: int = 0) -> Sequence[bytes]:
        return await self._way.read(log, after_seq)

    async def delete(self, log: str, lease: Lease | None = None) -> bool:
        return await self._change(f"the removal of {log}", lambda: self._way.delete(log, lease))

    async def logs(self, kind: str) -> Sequence[str]:
        return await self._way.logs(kind)

    async def load(self, document: str) -> Document | None:
        return await self._way.load(document)

    async def compare_and_set(
        self, document: str, expected_revision: int, data: bytes | None, lease: Lease | None = None
    ) -> int:
        return await self._change(
            f"the change of {document}",
            lambda: self._way.compare_and_set(document, expected_revision, data, lease),
        )

    async def documents(self, kind: str) -> Sequence[str]:
        return await self._way.documents(kind)

    async def acquire(self, name: str) -> Lease:
        return await self._way.acquire(name)

    async def release(self, lease: Lease) -> None:
        await self._way.release(lease)

    async def close(self) -> None:
        """Its own leases only: `inner` belongs to whoever made it."""
        await self._way.close()

    async def _change(self, what: str, do: Callable[[], Awaitable[R]]) -> R:
        await self._life.reach(f"before {what}")
        done = await do()
        await self._life.reach(f"after {what}")
        return done


class CrashingTool:
    def __init__(self, life: Life, inner: Tool) -> None:
        self._life = life
        self._inner = inner

    @property
    def spec(self) -> ToolSpec:
        return self._inner.spec

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        await self._life.reach(f"before the tool {self.spec.name}")
        output = await self._inner.run(args, scope)
        await self._life.reach(f"inside the tool {self.spec.name}")
        return output


class CrashingModel:
    def __init__(self, life: Life, inner: ModelClient) -> None:
        self._life = life
        self._inner = inner

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._inner.capabilities

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        await self._life.reach(f"before a call of the model {request.model}")
        reply = await self._inner.generate(request, deltas)
        await self._life.reach(f"after a call of the model {request.model}")
        return reply

    async def close(self) -> None:
        await self._inner.close()
