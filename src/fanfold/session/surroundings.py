"""Surroundings: what a run has around it, apart from the agent itself; and its voice."""

from typing import Any, Literal

import msgspec

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.governance import (
    Blocked,
    BudgetAllowed,
    BudgetDecision,
    BudgetDenial,
    BudgetSoft,
    HookEvent,
    Proceed,
    RetryLater,
    Skipped,
)
from fanfold.contracts.messages import UsageSum
from fanfold.contracts.record import JsonObject, own_copy
from fanfold.env import HostEnv
from fanfold.errors import HookBlockedError
from fanfold.foreign import tolerant
from fanfold.governance.budget import BudgetGate
from fanfold.governance.hooks import Hooks
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.limiter import Slot
from fanfold.protocols import EventSink
from fanfold.session.inbox import Inbox


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has around it, apart from the agent itself."""

    session_id: str
    env: HostEnv
    inbox: Inbox
    hooks: Hooks
    budget: BudgetGate
    workspace: str = ""
    approvals: Literal["park", "refuse"] = "park"
    ledger: TokenLedger | None = None
    emit: EventSink | None = None
    streams_text: bool = False
    streams_partials: bool = False
    id_prefix: str = ""
    """Put before call ids in the inbox, so that calls of different children cannot be confused."""
    slot: Slot | None = None
    idempotency_prefix: str = ""
    """Stands before the keys of tool calls; empty: the session id."""
    is_listened_to: bool = True
    """Somebody hears the events, and so that the run waits for a person."""
    memo: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    beside: UsageSum = msgspec.field(default_factory=UsageSum)
    """Of the model calls that no fact tells of: plans, goals, judgements; of the whole session."""


class Telling:
    """What a run says of itself, to whoever listens."""

    def __init__(self, around: Surroundings) -> None:
        self.hear: EventSink | None = None if around.emit is None else tolerant(around.emit)
        self._hooks = around.hooks
        self._session_id = around.session_id

    def tell(self, kind: str, /, **payload: Any) -> None:
        if self.hear is not None:
            if "args" in payload:  # what a listener does to them must not change the call
                payload["args"] = own_copy(payload["args"])
            self.hear(AgentEvent(type=kind, payload=payload))

    def budget(self, decision: BudgetDecision) -> None:
        match decision:
            case BudgetAllowed():
                return
            case BudgetSoft():
                more = {} if decision.message is None else {"message": decision.message}
                self.tell(
                    "budget_threshold_hit",
                    resource=decision.resource,
                    kind="soft",
                    consumed=decision.consumed,
                    limit=decision.limit,
                    **more,
                )
            case BudgetDenial():
                self.tell(
                    "budget_threshold_hit",
                    resource=decision.resource,
                    kind="hard",
                    consumed=0.0,
                    limit=0.0,
                    message=decision.reason,
                )

    async def ask_hooks(self, point: HookEvent, **payload: Any) -> JsonObject:
        """What the hooks made of `payload`.

        Raises:
            HookBlockedError: one of them stopped what comes next; a wish to retry stops it too, here.
        """
        verdict = await self._hooks.fire(point, {"session_id": self._session_id, **payload})
        match verdict:
            case Proceed():
                return payload if verdict.modified is None else {**payload, **verdict.modified}
            case Blocked():
                raise HookBlockedError(event=point, reason=verdict.reason)
            case Skipped():
                raise HookBlockedError(event=point, reason="skipped")
            case RetryLater():
                raise HookBlockedError(event=point, reason=f"to be tried again in {verdict.delay_ms} ms")
