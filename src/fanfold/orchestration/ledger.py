"""The ledger: tokens spent by everything that shares a budget, and the refusal when they are spent."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar

import msgspec

from fanfold.contracts.governance import BudgetDenial
from fanfold.contracts.messages import Usage
from fanfold.contracts.steps import BudgetSnapshot
from fanfold.errors import UsageError

RESOURCE = "workflow_tokens"
FIRST_ESTIMATE = 512
"""Tokens that an answer is taken to need before the ledger has seen one."""

Waiting = Callable[[], AbstractAsyncContextManager[object]]
"""What to be inside of while waiting: it gives the step's slot to others."""


spending: ContextVar["TokenLedger | None"] = ContextVar("fanfold_spending", default=None)
"""The ledger in which this task is inside of a reservation: what it reserves more is a part of that, and never waits
for it."""


class Reservation(msgspec.Struct, gc=False):
    """The place of one call in the budget, to be settled once it has ended, however it ended."""

    ledger: "TokenLedger"
    tokens: int

    def settle(self, usage: Usage | None) -> None:
        """Charge what was used; None: the call never came to use anything."""
        self.ledger.settle(self, usage)


class TokenLedger:
    """A soft cap (seed 000): once `consumed >= limit` the next model or tool call is refused; calls under way finish.

    A call reserves what it is estimated to take. While the reservations of others would fill the budget it waits until
    one of them is settled, so a wide fan-out near its limit goes on with few calls at once instead of starting all of
    them: it passes the cap by no more than its running calls were underestimated.
    """

    def __init__(self, limit_tokens: int | None = None) -> None:
        if limit_tokens is not None and (type(limit_tokens) is not int or limit_tokens < 0):
            raise UsageError(f"a token budget must be a whole number, 0 or more, got {limit_tokens!r}")
        self._limit = limit_tokens
        self._consumed = 0
        self._estimated = 0
        self._reserved = 0
        self._calls = 0
        self._completion = 0
        self._waiters: list[asyncio.Future[None]] = []

    def carry_over(self, spent: Usage) -> None:
        """Count what earlier runs of the same work have spent."""
        self._consumed += spent.total_tokens
        if spent.is_estimated:
            self._estimated += spent.total_tokens

    def denial(self) -> BudgetDenial | None:
        """Why the next model call is refused, if it is."""
        if self._limit is None or self._consumed < self._limit:
            return None
        reason = f"workflow token budget exhausted ({self._consumed} / {self._limit} tokens)"
        return BudgetDenial(resource=RESOURCE, reason=reason)

    def tool_denial(self) -> BudgetDenial | None:
        if self.denial() is None:
            return None
        return BudgetDenial(resource=RESOURCE, reason="workflow token budget exhausted")

    async def reserve(self, prompt_tokens: int, waiting: Waiting = nullcontext) -> Reservation | BudgetDenial:
        """Room for a call with a prompt of about `prompt_tokens`, or the refusal."""
        while True:
            denial = self.denial()
            if denial is not None:
                return denial
            has_room = self._limit is None or self._consumed + self._reserved < self._limit
            if has_room or not self._reserved or spending.get() is self:
                tokens = prompt_tokens + self._expected_completion()
                self._reserved += tokens
                return Reservation(self, tokens)
            async with waiting():
                await self._next_settlement()

    def settle(self, reservation: Reservation, usage: Usage | None) -> None:
        self._reserved -= reservation.tokens
        reservation.tokens = 0
        if usage is not None:
            self._consumed += usage.total_tokens
            self._calls += 1
            self._completion += usage.completion_tokens
            if usage.is_estimated:
                self._estimated += usage.total_tokens
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def snapshot(self) -> BudgetSnapshot:
        return BudgetSnapshot(
            consumed_tokens=self._consumed, limit_tokens=self._limit, estimated_tokens=self._estimated or None
        )

    def _expected_completion(self) -> int:
        return self._completion // self._calls if self._calls else FIRST_ESTIMATE

    async def _next_settlement(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter
