"""How many steps of one session run at once, over all its fan-outs (decisions 3.3)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context, ContextVar, Token
from typing import Any, Self


class Limiter:
    def __init__(self, slots: int) -> None:
        self.slots = max(1, slots)
        self._free = asyncio.Semaphore(self.slots)

    @property
    def is_full(self) -> bool:
        """The next step has to wait for its place."""
        return self._free.locked()

    def slot(self) -> "Slot":
        """One step's place, to be entered. A step inside a step (a tool that fans out) runs on the place that the outer
        one lends: it only waits meanwhile, and a slot is never held for waiting."""
        return Slot(self._free)


class Slot:
    # Entered and left by hand: `asynccontextmanager` on every step took a twentieth of what a step costs.

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._is_held = False
        self._lent = 0
        self._lender: AbstractAsyncContextManager[None] | None = None
        self._before: Token[Slot | None] | None = None

    async def __aenter__(self) -> Self:
        outer = _held.get()
        if outer is not None and outer._free is self._free:
            self._lender = outer.given_back()
            await self._lender.__aenter__()
        try:
            await self._free.acquire()
        except BaseException as error:
            if self._lender is not None:
                await self._lender.__aexit__(type(error), error, None)
            raise
        self._is_held = True
        self._before = _held.set(self)
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self._before is not None:
            _held.reset(self._before)
        self.end()
        if self._lender is not None:
            await self._lender.__aexit__(*error)

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


def give_up_place(context: Context) -> None:
    """Free the place that work in `context` has taken, and its surroundings had not: nobody waits for it any more."""
    slot = context.get(_held)
    if slot is not None and slot is not _held.get():
        slot.end()
