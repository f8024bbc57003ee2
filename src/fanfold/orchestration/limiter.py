"""How many steps of one session run at once, over all its fan-outs (decisions 3.3)."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar
from typing import Any, Self

from fanfold.errors import LifecycleError
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

    def take_free(self) -> bool:
        """Take a place, if nobody has to wait for one."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        if self.take_free():
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

    __slots__ = ("_around", "_borrowers", "_is_held", "_is_left", "_is_over", "_lender", "_lent", "_limiter")

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._is_held = False
        self._lent = 0
        self._lender: Slot | None = None
        self._around: Slot | None = None
        """That is held where this one is entered."""
        self._borrowers: set[Slot] | None = None
        """Of steps inside of this one."""
        self._is_left = False
        """Nobody waits for its step any more, see `leave`."""
        self._is_over = False
        """So, or its step has ended: work of it that goes on all the same gets no place for it any more."""

    async def __aenter__(self) -> Self:
        outer = self._around = _held.get()
        if outer is not None and outer._limiter is self._limiter:
            self._borrow(outer)
        try:
            if not self._limiter.take_free():
                await self._limiter.take()
            self._is_held = True
            if self._is_left:  # with the step around it, while it waited
                self.end()
                raise _refused()
        except BaseException as error:
            await self._give_to_lender(error)
            raise
        _held.set(self)
        return self

    def _borrow(self, outer: "Slot") -> None:
        if outer._is_left:
            raise _refused()
        if outer._is_over:
            return
        self._lender = outer
        outer._borrowers = outer._borrowers or set()
        outer._borrowers.add(self)
        outer._lend()

    async def _take(self) -> None:
        await self._limiter.take()
        if self._is_over or self._lent or self._is_held:  # while it waited: lent once more, or taken for it already
            self._limiter.give_back()
        else:
            self._is_held = True

    async def __aexit__(self, *error: Any) -> None:
        _held.set(self._around)  # not by a token, which would be one more object for each step under way
        self._is_over = True
        self.end()
        if self._lender is not None:
            await self._give_to_lender(error[1])

    async def _give_to_lender(self, error: BaseException | None) -> None:
        lender, self._lender = self._lender, None
        if lender is None:
            return
        if lender._borrowers is not None:
            lender._borrowers.discard(self)
        await lender._take_back(error)

    @asynccontextmanager
    async def given_back(self) -> AsyncGenerator[None]:
        """Free the place while its step waits, for a person or for steps of its own; the last of several that wait
        takes it again. A cancelled step does not take it again."""
        self._lend()
        try:
            yield
        except BaseException as error:
            await self._take_back(error)
            raise
        await self._take_back(None)

    def _lend(self) -> None:
        self._lent += 1
        if self._lent == 1:
            self.end()

    async def _take_back(self, error: BaseException | None) -> None:
        self._lent -= 1
        if error is not None:
            return
        if self._lent == 0 and not self._is_over:
            await self._take()
        await stop_if_unwanted()

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._limiter.give_back()

    async def leave(self, stop: BaseException | None) -> None:
        """Free it for good, and those of the steps inside, which nobody waits for either. The step around that had lent
        it takes it back, unless `stop` ends that too."""
        self._leave()
        await self._give_to_lender(stop)

    def _leave(self) -> None:
        self._is_left = self._is_over = True
        self.end()
        for borrower in self._borrowers or ():
            borrower._leave()


def _refused() -> LifecycleError:
    return LifecycleError("the step that this one is a part of was left behind")


_held: ContextVar[Slot | None] = ContextVar("fanfold_slot", default=None)


async def give_up_place(context: Context, stop: BaseException | None = None) -> None:
    """Free the place that work in `context` has taken, and its surroundings had not: nobody waits for it any more. It
    gets none again. For `stop` see `Slot.leave`."""
    slot = context.get(_held)
    if slot is not None and slot is not _held.get():
        await slot.leave(stop)
