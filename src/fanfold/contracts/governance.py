"""What a host may decide at set points of a run: hooks, and the budget guard (seed 003; notes 8.6 and 9.3)."""

from typing import Literal

import msgspec

from fanfold.contracts.record import JsonObject

HookEvent = Literal[
    "session_start",
    "session_end",
    "pre_prompt",
    "post_response",
    "pre_planning",
    "post_planning",
    "generate_start",
    "generate_end",
    "pre_tool_use",
    "post_tool_use",
    "permission_request",
    "on_confirmation",
    "pre_compact",
    "post_compact",
    "pre_run_control",
    "post_run_control",
    "on_success",
    "on_error",
]

BLOCKING_EVENTS: frozenset[HookEvent] = frozenset(
    {
        "pre_prompt",
        "pre_planning",
        "generate_start",
        "pre_tool_use",
        "permission_request",
        "pre_compact",
        "pre_run_control",
    }
)
"""Points at which a hook may stop what comes next; there a hook that raises, hangs or answers nonsense stops it."""


class HookMatcher(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events of its kind a hook hears; every pattern that is set must match, none set matches all."""

    tool: str | None = None
    """A tool's name, with `*` and `?`."""
    path_pattern: str | None = None
    """Compared with each path argument of the call, as permission rules are."""
    command_pattern: str | None = None
    """Compared with the command of a `bash` call."""
    session_id: str | None = None


class HookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    priority: int = 100
    """Lower runs first; equal ones in the order of their registration."""
    timeout_ms: int = 30_000
    async_execution: bool = False
    """Run beside the session: its answer is not waited for and counts for nothing."""
    max_retries: int = 0
    """How often it is called again after it raised or timed out."""


class Proceed(msgspec.Struct, frozen=True):
    modified: JsonObject | None = None
    """New values for keys of the payload: `args` of `pre_tool_use`, `prompt` of `pre_prompt`."""


class Blocked(msgspec.Struct, frozen=True):
    reason: str


class Skipped(msgspec.Struct, frozen=True):
    """Leave this one thing out: the tool is not run, the model is told so, the turn goes on."""


class RetryLater(msgspec.Struct, frozen=True):
    delay_ms: int


HookVerdict = Proceed | Blocked | Skipped | RetryLater


class BudgetAllowed(msgspec.Struct, frozen=True):
    """Go on."""


class BudgetSoft(msgspec.Struct, frozen=True, kw_only=True):
    """Go on, and tell that a threshold was crossed."""

    resource: str
    consumed: float
    limit: float
    message: str | None = None


class BudgetDenial(msgspec.Struct, frozen=True, kw_only=True):
    """The call is not made."""

    resource: str
    reason: str

    def __str__(self) -> str:
        return f"Budget exhausted on '{self.resource}': {self.reason}"


BudgetDecision = BudgetAllowed | BudgetSoft | BudgetDenial
