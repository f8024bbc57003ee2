"""How many steps of one session run at once, over all its fan-outs (decisions 3.3)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar


class Limiter:
    def __init__(self, slots: int) -> None:
        self.slots = max(1, slots)
        self._free = asyncio.Semaphore(self.slots)

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator["Slot"]:
        """One step's place. A step inside a step (a tool that fans out) runs on the place that the outer one lends: it
        only waits meanwhile, and a slot is never held for waiting."""
        outer = _held.get()
        if outer is not None and outer.is_of(self._free):
            async with outer.given_back(), self._taken() as slot:
                yield slot
        else:
            async with self._taken() as slot:
                yield slot

    @asynccontextmanager
    async def _taken(self) -> AsyncGenerator["Slot"]:
        slot = Slot(self._free)
        await self._free.acquire()
        token = _held.set(slot)
        try:
            yield slot
        finally:
            _held.reset(token)
            slot.end()


class Slot:
    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._is_held = True
        self._lent = 0

    def is_of(self, free: asyncio.Semaphore) -> bool:
        return self._free is free

    @asynccontextmanager
    async def given_back(self) -> AsyncGenerator[None]:
        """Free the place while its step waits, for a person or for steps of its own; the last of several that wait
        takes it again. A cancelled step does not take it again."""
        self._lent += 1
        if self._lent == 1:
            self.end()
        try:
            yield
        except BaseException:
            self._lent -= 1
            raise
        self._lent -= 1
        if self._lent == 0:
            await self._free.acquire()
            self._is_held = True

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._free.release()


_held: ContextVar[Slot | None] = ContextVar("fanfold_slot", default=None)
