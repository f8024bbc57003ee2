"""Refusals: why an agent is not launched: its run halts, the budget or the cap is spent, or nothing may run there."""

import asyncio
from collections.abc import Callable

import msgspec

from fanfold.contracts.governance import BudgetDenial
from fanfold.contracts.steps import StepOutcome
from fanfold.contracts.workflow_runs import RunFault, RunStatus, WorkflowLimits
from fanfold.errors import (
    BudgetExhaustedError,
    ExecutorError,
    ProviderError,
    WorkflowAgentError,
    WorkflowInputError,
)
from fanfold.kernel.counted import counted
from fanfold.orchestration.ledger import TokenLedger
from fanfold.workflow.host import PlacedCall
from fanfold.workflow.progress import Progress
from fanfold.workflow.script_host import RunHaltedError

MAX_REFUSALS = 1_000
"""A script that goes on launching behind so many is not going to stop by itself."""
_INFRASTRUCTURE = (ProviderError.code, ExecutorError.code)


class Halt(msgspec.Struct, frozen=True):
    """Why no agent is launched any more."""

    status: RunStatus
    reason: str
    reset_ms: int | None = None
    error: RunFault | None = None
    """Of one that failed."""


class Refusals:
    """What is refused here is counted as a failure of the run where it is one of its agents'."""

    def __init__(
        self,
        ledger: TokenLedger,
        limits: WorkflowLimits,
        progress: Progress,
        may_launch: Callable[[str], bool] | None = None,
    ) -> None:
        """`may_launch`: False for a place where nothing may run (`only_failed`); None: anywhere."""
        self._ledger = ledger
        self._limits = limits
        self._progress = progress
        self._may_launch = may_launch
        self._faults_in_a_row = 0
        self._count = 0
        self.halt: Halt | None = None
        self.halted = asyncio.Event()

    @property
    def are_too_many(self) -> bool:
        return self._count >= MAX_REFUSALS

    def begin(self, halt: Halt) -> None:
        """Refuse everything from now on. The first reason stands."""
        self.halt = self.halt or halt
        self.halted.set()

    def judge(self, outcome: StepOutcome) -> None:
        """The circuit breaker: launch nothing more where the model's side will refuse it or does not answer."""
        if outcome.blocked_by is not None:
            self.begin(Halt("paused", outcome.blocked_by, outcome.reset_ms))
        elif outcome.success:
            self._faults_in_a_row = 0
        elif outcome.error_code in _INFRASTRUCTURE:
            self._faults_in_a_row += 1
            if self._faults_in_a_row >= self._limits.break_after:
                self.begin(Halt("paused", "unreachable"))

    def of_launch(self, placed: PlacedCall) -> BaseException | None:
        """What is raised instead of a launch for this call, if anything is."""
        if self.halt is not None:
            return RunHaltedError(self.halt.reason)
        denial = self._ledger.denial()
        if denial is not None:
            return self.over_budget(denial)
        if self._progress.launched >= self._limits.max_agents:
            self._count += 1
            return WorkflowInputError(
                "agent_cap",
                f"this run has launched {counted(self._limits.max_agents, 'agent')}, which is its limit; resume it to "
                "go on, or raise max_agents",
            )
        return None if self._may_launch is None else self._of_place(placed)

    def of_call(self, placed: PlacedCall) -> BaseException | None:
        """The same for a call that takes no agent and no token."""
        return self._of_place(placed) if self.halt is None else RunHaltedError(self.halt.reason)

    def over_budget(self, denial: BudgetDenial) -> BudgetExhaustedError:
        self._count += 1
        total = self._ledger.snapshot()
        reason = f"{total.consumed_tokens} of {total.limit_tokens} tokens are spent"
        return BudgetExhaustedError(resource=denial.resource, reason=reason)

    def _of_place(self, placed: PlacedCall) -> WorkflowAgentError | None:
        if self._may_launch is None or self._may_launch(placed.where):
            return None
        reason = "it is not recorded, and only what failed before may run"
        self._progress.failed += 1
        self._progress.agent_failed(placed.where, placed.title, "NOT_RECORDED", reason)
        return WorkflowAgentError(label=placed.title, where=placed.where, reason=reason, agent_code="NOT_RECORDED")
