"""FaultyStore: a session store through which one process sees another store, until that process is made to die.

Faults are drawn from a random of its own, so the same seed gives the same ones. It waits by `asyncio.sleep`, which
costs nothing on a VirtualLoop, and does no I/O itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Literal, TypeVar

import msgspec

from fanfold.errors import FencedError, LogWriteError, StorageError, StoreConflictError
from fanfold.protocols import Document, Lease, SessionStore

R = TypeVar("R")
Crash = Literal["before", "torn", "after"]


class SimulatedCrashError(StorageError):
    """The process behind this store has ended. Nothing that it still does reaches the store."""

    code = "SIMULATED_CRASH"

    def __init__(self) -> None:
        super().__init__("the process has ended")


class StoreFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong, and how often. A change is an append, a removal, or a document set."""

    crash_at: int | None = None
    """The change (1 is the first) in which the process ends."""
    crash: Crash = "before"
    """It ends with the change not done, an append done in part (the first records of it), or done but not answered."""
    full: float = 0.0
    """Probability that a change is refused with LogWriteError, as by a full disk."""
    unanswered: float = 0.0
    """Probability that an append is done and yet ends in LogWriteError, as by a connection that broke."""
    doubled: float = 0.0
    """Probability that an append arrives twice."""
    seconds: tuple[float, float] = (0.0, 0.0)
    """Least and most time that an operation takes."""


NO_FAULTS = StoreFaults()


class FaultyStore:
    """One process's way to `inner`, which is given to each process anew.

    `tell` hears of each change and fault; `watch` is awaited after each change, and before a log is removed, with no
    other task in between when `inner` does not wait.
    """

    def __init__(
        self,
        inner: SessionStore,
        faults: StoreFaults = NO_FAULTS,
        random: Random | None = None,
        *,
        tell: Callable[[str], None] | None = None,
        watch: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._inner = inner
        self._faults = faults
        self._random = random or Random(0)
        self._tell = tell or _nobody
        self._watch = watch or _nothing
        self._leases: dict[tuple[str, int], Lease] = {}
        self.is_dead = False
        self.changes = 0
        """How many it was asked for."""
        self.refused = 0
        """How many of them ended in LogWriteError, done or not."""

    @property
    def leases(self) -> list[Lease]:
        """Those that its process has."""
        return list(self._leases.values())

    async def end_process(self) -> None:
        """The process ends here and now: its leases are free, and none of its later operations has any effect."""
        if self.is_dead:
            return
        self.is_dead = True
        self._tell("the process ends")
        for lease in self._leases.values():
            await self._inner.release(lease)

    # ---- logs ----

    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        def written(count: int) -> Awaitable[int]:
            return self._inner.append(log, expected_seq, records[:count], lease)

        async def torn() -> None:
            await written(self._random.randrange(len(records)))

        async def once() -> int:
            last_seq = await written(len(records))
            self._tell(f"{len(records)} records written behind {expected_seq}")
            await self._watch()
            return last_seq

        async def again() -> None:
            self._tell("the same append arrives once more")
            try:
                await written(len(records))
            except (StoreConflictError, FencedError):
                return  # as it must
            await self._watch()

        return await self._change(log, once, torn=torn, again=again if records else None)

    async def read(self, log: str, after_seq: int = 0) -> Sequence[bytes]:
        return await self._asked(lambda: self._inner.read(log, after_seq))

    async def delete(self, log: str, lease: Lease | None = None) -> bool:
        async def removed() -> bool:
            await self._watch()
            found = await self._inner.delete(log, lease)
            self._tell("the log is removed" if found else "there is no log to remove")
            return found

        return await self._change(log, removed)

    async def logs(self, kind: str) -> Sequence[str]:
        return await self._asked(lambda: self._inner.logs(kind))

    # ---- documents ----

    async def load(self, document: str) -> Document | None:
        return await self._asked(lambda: self._inner.load(document))

    async def compare_and_set(
        self, document: str, expected_revision: int, data: bytes | None, lease: Lease | None = None
    ) -> int:
        return await self._change(
            document, lambda: self._inner.compare_and_set(document, expected_revision, data, lease)
        )

    async def documents(self, kind: str) -> Sequence[str]:
        return await self._asked(lambda: self._inner.documents(kind))

    # ---- leases ----

    async def acquire(self, name: str) -> Lease:
        await self._pass_time()
        lease = await self._inner.acquire(name)
        self._leases[lease.name, lease.epoch] = lease
        self._tell(f"takes the lease, epoch {lease.epoch}")
        return lease

    async def release(self, lease: Lease) -> None:
        await self._pass_time()
        self._leases.pop((lease.name, lease.epoch), None)
        await self._inner.release(lease)
        self._tell(f"gives the lease back, epoch {lease.epoch}")

    async def close(self) -> None:
        """Its own leases only: `inner` belongs to whoever made it."""
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            await self._inner.release(lease)

    # ---- faults ----

    async def _asked(self, answer: Callable[[], Awaitable[R]]) -> R:
        await self._pass_time()
        found = await answer()
        await self._pass_time()
        return found

    async def _change(
        self,
        name: str,
        do: Callable[[], Awaitable[R]],
        *,
        torn: Callable[[], Awaitable[None]] | None = None,
        again: Callable[[], Awaitable[None]] | None = None,
    ) -> R:
        faults, chance = self._faults, self._random.random
        self.changes += 1
        is_last = self.changes == faults.crash_at
        await self._pass_time()
        if is_last and faults.crash != "after":
            if faults.crash == "torn" and torn is not None:
                await torn()
            await self._crash(
                f"dies {'in the middle of' if faults.crash == 'torn' else 'before'} change {self.changes}"
            )
        if chance() < faults.full:
            self.refused += 1
            self._tell("the disk is full")
            raise LogWriteError(path=name, reason="No space left on device")
        done = await do()
        if is_last:
            await self._crash(f"dies after change {self.changes}")
        if again is not None and chance() < faults.doubled:
            await again()
        await self._pass_time()
        if again is not None and chance() < faults.unanswered:
            self.refused += 1
            self._tell("its answer is lost")
            raise LogWriteError(path=name, reason="Connection reset by peer")
        return done

    async def _crash(self, how: str) -> None:
        self._tell(how)
        await self.end_process()
        await self._watch()
        raise SimulatedCrashError

    async def _pass_time(self) -> None:
        self._require_alive()
        least, most = self._faults.seconds
        if most:
            await asyncio.sleep(self._random.uniform(least, most) / 2)
            self._require_alive()

    def _require_alive(self) -> None:
        if self.is_dead:
            raise SimulatedCrashError


def _nobody(_: str) -> None:
    return None


async def _nothing() -> None:
    return None
