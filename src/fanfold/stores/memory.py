"""A fact log in memory: the same rules, no disk. Each child of a fan-out has one, so it costs next to nothing."""

import asyncio
from collections.abc import Sequence

from fanfold.contracts.facts import Fact, NewFact
from fanfold.errors import SessionBusyError
from fanfold.stores.append_rules import require_same, stored_seqs, used_after_release
from fanfold.stores.thread_name import file_name

_POLL_SECONDS = 0.005


class MemoryFactLog:
    """Lives and dies with its process; used from one event loop.

    It takes what it is given: values that no JSON can hold are refused only by the logs on disk, for to look for them
    costs more than the whole append here.
    """

    __slots__ = ("_threads",)

    def __init__(self) -> None:
        self._threads: dict[str, MemoryThread] = {}

    async def hold(self, thread: str, *, wait_seconds: float = 0.0) -> "HeldMemoryThread":
        found = self._threads.get(thread)
        if found is None:
            file_name(thread)  # an id that the log on disk refuses is refused here too
            found = self._threads[thread] = MemoryThread(thread)
        elif found.holder is not None:
            await _until_free(found, wait_seconds)
        held = found.holder = HeldMemoryThread(found)
        return held

    async def threads(self) -> Sequence[str]:
        return sorted(name for name, thread in self._threads.items() if thread.facts)

    async def close(self) -> None:
        """Nothing to let go."""


class MemoryThread:
    __slots__ = ("aside", "facts", "holder", "keys", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: list[Fact] = []
        self.aside: tuple[list[Fact], ...] = ()
        """What was set aside, oldest first."""
        self.keys: dict[str, int] = {}
        self.holder: HeldMemoryThread | None = None


class HeldMemoryThread:
    __slots__ = ("_thread",)

    def __init__(self, thread: MemoryThread) -> None:
        self._thread = thread

    @property
    def last_seq(self) -> int:
        return len(self._thread.facts)

    @property
    def lineage(self) -> object:
        return self._thread.facts

    @property
    def torn_tail(self) -> None:
        return None  # what is in memory is whole, or gone

    async def read(self, after_seq: int = 0) -> Sequence[Fact]:
        return self._thread.facts[after_seq:]

    async def append(self, facts: Sequence[NewFact]) -> Sequence[Fact]:
        thread = self._thread
        if thread.holder is not self:
            raise used_after_release(thread.name)
        seqs = stored_seqs(thread.name, thread.keys, facts)
        if seqs:
            stored = [thread.facts[seq - 1] for seq in seqs]
            require_same(thread.name, stored, facts)
            return stored
        added = [fact.at(seq) for seq, fact in enumerate(facts, len(thread.facts) + 1)]
        for fact in added:
            thread.keys[fact.key] = fact.seq
        thread.facts += added
        return added

    async def set_aside(self) -> None:
        thread = self._thread
        if thread.holder is not self:
            raise used_after_release(thread.name)
        if thread.facts:
            thread.aside = (*thread.aside, thread.facts)
            thread.facts, thread.keys = [], {}

    async def release(self) -> None:
        if self._thread.holder is self:
            self._thread.holder = None


async def _until_free(thread: MemoryThread, wait_seconds: float) -> None:
    deadline = asyncio.get_running_loop().time() + wait_seconds
    while thread.holder is not None:
        if asyncio.get_running_loop().time() >= deadline:
            raise SessionBusyError(session_id=thread.name, holder="this process")
        await asyncio.sleep(_POLL_SECONDS)
