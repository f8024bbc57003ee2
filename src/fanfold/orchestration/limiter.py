"""How many steps of one session run at once, over all its fan-outs (decisions 3.3)."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context, ContextVar, Token
from typing import Any, Self

from fanfold.orchestration.control import stop_if_unwanted


class Limiter:
    """Places, handed out in the order in which they were asked for.

    What is given back goes straight to the next one who waits. (An `asyncio.Semaphore` looks, for each place that is
    given back, through all those who were given one in the same turn of the loop.)
    """

    __slots__ = ("_free", "_waiting", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = max(1, slots)
        self._free = self.slots
        self._waiting: deque[asyncio.Future[None]] | None = None
        """Nobody, as long as a place is free; but for those who were cancelled. Made for the first one who waits: an
        idle session has one of these, and an empty deque takes 600 bytes."""

    @property
    def is_full(self) -> bool:
        """The next step has to wait for its place."""
        return self._free == 0

    def slot(self) -> "Slot":
        """One step's place, to be entered. A step inside a step (a tool that fans out) runs on the place that the outer
        one lends: it only waits meanwhile, and a slot is never held for waiting."""
        return Slot(self)

    async def take(self) -> None:
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self.give_back()  # it was handed over in this very turn of the loop
            raise

    def give_back(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


class Slot:
    # Entered and left by hand: `asynccontextmanager` on every step took a twentieth of what a step costs.

    __slots__ = ("_before", "_is_held", "_lender", "_lent", "_limiter")

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._is_held = False
        self._lent = 0
        self._lender: AbstractAsyncContextManager[None] | None = None
        self._before: Token[Slot | None] | None = None

    async def __aenter__(self) -> Self:
        outer = _held.get()
        if outer is not None and outer._limiter is self._limiter:
            self._lender = outer.given_back()
            await self._lender.__aenter__()
        try:
            await self._limiter.take()
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
            await self._limiter.take()
            self._is_held = True
        await stop_if_unwanted()

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._limiter.give_back()


_held: ContextVar[Slot | None] = ContextVar("fanfold_slot", default=None)


def give_up_place(context: Context) -> None:
    """Free the place that work in `context` has taken, and its surroundings had not: nobody waits for it any more."""
    slot = context.get(_held)
    if slot is not None and slot is not _held.get():
        slot.end()
