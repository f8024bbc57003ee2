"""The ledger: tokens spent by everything that shares a budget, and the refusal when they are spent."""

from fanfold.contracts.messages import Usage
from fanfold.contracts.steps import BudgetSnapshot
from fanfold.errors import UsageError
from fanfold.protocols import BudgetDenial

RESOURCE = "workflow_tokens"


class TokenLedger:
    """A soft cap (seed 000): once `consumed >= limit` the next model or tool call is refused; calls under way finish,
    so the cap can be passed by one call per running step."""

    def __init__(self, limit_tokens: int | None = None) -> None:
        if limit_tokens is not None and (type(limit_tokens) is not int or limit_tokens < 0):
            raise UsageError(f"budget_tokens must be a whole number, 0 or more, got {limit_tokens!r}")
        self._limit = limit_tokens
        self._consumed = 0

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> BudgetDenial | None:
        if not self._is_exhausted():
            return None
        reason = f"workflow token budget exhausted ({self._consumed} / {self._limit} tokens)"
        return BudgetDenial(resource=RESOURCE, reason=reason)

    def record_after_llm(self, session_id: str, usage: Usage) -> None:
        self._consumed += usage.total_tokens

    def check_before_tool(self, session_id: str, tool_name: str) -> BudgetDenial | None:
        if not self._is_exhausted():
            return None
        return BudgetDenial(resource=RESOURCE, reason="workflow token budget exhausted")

    def _is_exhausted(self) -> bool:
        return self._limit is not None and self._consumed >= self._limit

    def snapshot(self) -> BudgetSnapshot:
        return BudgetSnapshot(consumed_tokens=self._consumed, limit_tokens=self._limit)
