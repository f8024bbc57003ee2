"""How many steps of one session run at once, over all its fan-outs (decisions 3.3)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Limiter:
    def __init__(self, slots: int) -> None:
        self.slots = max(1, slots)
        self._free = asyncio.Semaphore(self.slots)

    def slot(self) -> "Slot":
        return Slot(self._free)


class Slot:
    """One step's place, as a context manager."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._is_held = False

    async def __aenter__(self) -> "Slot":
        await self._free.acquire()
        self._is_held = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._is_held:
            self._free.release()

    @asynccontextmanager
    async def given_back(self) -> AsyncGenerator[None]:
        """Free the place while the step waits for a person; a cancelled step does not take it again."""
        self._free.release()
        self._is_held = False
        yield
        await self._free.acquire()
        self._is_held = True
