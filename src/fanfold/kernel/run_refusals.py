"""Refused calls: which entry of a run's journal is certain to have done nothing, though its agent was launched."""

from fanfold.errors import (
    BudgetExhaustedError,
    ConfigError,
    HookBlockedError,
    ProviderError,
    RunCancelledError,
)
from fanfold.kernel.run_entries import RunEntry

_REFUSALS = frozenset(
    each.code for each in (BudgetExhaustedError, ConfigError, HookBlockedError, ProviderError, RunCancelledError)
)


def has_done_nothing(entry: RunEntry) -> bool:
    """Its only attempt was refused or cancelled before a model had answered.

    It has an end that says so, and took no token: with no answer of a model there was no call of a tool. One that was
    cut off may have done anything, and so may an executor of somebody else's that fails in its own words.
    """
    result = entry.result
    return (
        result is not None
        and result.error is not None
        and result.error.code in _REFUSALS
        and result.usage is not None
        and not result.usage.total_tokens
        and not result.tools
        and not entry.last_fact
        and not entry.has_begun_before
    )
