"""Workflow: several fan-outs as one piece of work, with one ledger, one journal and one story."""

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol, Self, TypeVar

from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.steps import BudgetSnapshot, StepOutcome
from fanfold.contracts.workflow import PhaseReport
from fanfold.errors import LifecycleError, UsageError
from fanfold.foreign import logger, tolerant
from fanfold.kernel.plain_text import is_plain
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.journal import WorkflowJournal
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.parallel import run_all
from fanfold.orchestration.parsing import parsers_of
from fanfold.orchestration.pipeline import STAGE_TIMEOUT_MS, Stage, StepSink, run_chains
from fanfold.orchestration.resumable import run_recorded
from fanfold.orchestration.runner import StepRunner
from fanfold.orchestration.specs import SpecLike, listed, parse_specs
from fanfold.portal import Portal, blocking, on_loop
from fanfold.protocols import AgentExecutor, EventSink

R = TypeVar("R")
Level = Literal["debug", "info", "warning", "error"]
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Run(Protocol):
    """Runs work as an operation of the workflow's owner, who may cancel it."""

    def __call__(self, work: Coroutine[Any, Any, R], /) -> Awaitable[R]: ...


class Workflow:
    """Made by `Session.workflow`; a context manager, sync and async. Every operation exists as `x_async` and as `x`.

    With a session store everything that finishes is recorded, and the same program under the same `workflow_id` runs
    only what is not: its calls are told apart by name, those of one name by their order, their steps by `task_id` (in a
    pipeline by item and stage) and meaning. Finished phases are kept until the workflow closes; closing one in which
    everything succeeded removes its journal, leaving its block by an exception keeps it.
    """

    def __init__(
        self,
        *,
        portal: Portal,
        workflow_id: str,
        executor: AgentExecutor,
        ledger: TokenLedger,
        runner_ledger: TokenLedger | None,
        journal: WorkflowJournal | None,
        events: EventSink | None,
        control: FanOutControl,
        run: Run,
    ) -> None:
        """`runner_ledger` is `ledger` where the executor does not charge it itself."""
        self.portal = portal
        self._workflow_id = workflow_id
        self._executor = executor
        self._ledger = ledger
        self._runner_ledger = runner_ledger
        self._journal = journal
        self._tell = None if events is None else tolerant(events)
        self._control = control
        self._run = run
        self._reports: list[PhaseReport | None] = []
        self._numbers: dict[str, int] = {}
        """How many calls of each name there were: the second `find` is another place than the first."""
        self._unfinished: set[str] = set()
        """Scopes of calls in which not everything succeeded."""
        self._running = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_closed = False

    @property
    def workflow_id(self) -> str:
        """Its name in the store; `wf-<session id>` unless it was given another."""
        return self._workflow_id

    # ---- verbs ----

    @on_loop
    async def phase_async(self, name: str, specs: Sequence[SpecLike], *, strict: bool = False) -> list[StepOutcome]:
        """A named barrier: every spec run, or answered from the journal; outcomes in input order.

        Raises:
            InvalidSpecError, StepChangedError: as `parallel_resumable`.
        """
        if not isinstance(name, str) or not name or not is_plain(name) or set(name) & set("/#()"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"the name of a phase must be text without any of / # ( ), got {name!r}")
        return await self._all(name, specs, strict=strict, is_told=True)

    phase = blocking(phase_async)

    @on_loop
    async def parallel_async(self, specs: Sequence[SpecLike]) -> list[StepOutcome]:
        """A fan-out without a name and without milestone events."""
        return await self._all("(parallel)", specs, strict=False, is_told=False)

    parallel = blocking(parallel_async)

    @on_loop
    async def pipeline_async(
        self,
        items: Sequence[Any],
        stages: Sequence[Stage],
        *,
        timeout_ms: int = STAGE_TIMEOUT_MS,
        on_step: StepSink | None = None,
    ) -> list[StepOutcome | None]:
        """Each item through the stages, see `execute_pipeline`. The stages themselves run again on a resume; what they
        ask for does not."""

        items = list(items)

        async def chains(runner: StepRunner) -> list[StepOutcome | None]:
            return await run_chains(runner, items, stages, timeout_ms=timeout_ms, on_step=on_step)

        return await self._verb("(pipeline)", len(items), chains, is_told=False)

    pipeline = blocking(pipeline_async)

    def log(self, level: Level, message: str, **fields: Any) -> None:
        """Tell the listener of the workflow's events; without one, Python's log."""
        if level not in _LEVELS:
            raise UsageError(f"level must be one of {', '.join(_LEVELS)}, got {level!r}")
        if self._tell is None or self.portal.loop.is_closed():
            logger.log(_LEVELS[level], "%s %s", message, fields or "")
            return
        told = event("log", level=level, message=message, fields=fields)
        if self.portal.is_current():
            self._tell(told)
        else:
            self.portal.loop.call_soon_threadsafe(self._tell, told)

    # ---- what it came to ----

    def budget_snapshot(self) -> BudgetSnapshot:
        """Tokens spent by the whole workflow, its earlier runs included."""
        return self._ledger.snapshot()

    def reports(self) -> list[PhaseReport]:
        """One for each call that has ended, in the order of the calls."""
        return [report for report in self._reports if report is not None]

    @property
    def usage(self) -> Usage:
        """Of everything that this run of the workflow has run."""
        return sum((report.usage for report in self.reports()), NO_USAGE)

    @property
    def cost_usd(self) -> float | None:
        """Likewise; None when nothing had a price."""
        costs = [report.cost_usd for report in self.reports() if report.cost_usd is not None]
        return sum(costs) if costs else None

    # ---- end ----

    @on_loop
    async def close_async(self, *, keep: bool = False) -> None:
        """Let the workflow go. Its journal is removed when everything that was asked succeeded and it holds nothing
        else, unless it is to be kept; then calls that are still running are cancelled first."""
        if self._is_closed:
            return
        if self._running and not keep:
            raise LifecycleError(f"a call of workflow '{self._workflow_id}' is still running; cancel it or wait for it")
        if self._running:
            self._control.cancel()
            await self._is_idle.wait()
        self._is_closed = True
        if self._journal is not None:
            is_over = bool(self._reports) and not self._unfinished and not self._journal.holds_more
            await self._journal.close(is_over=is_over and not keep)

    close = blocking(close_async)

    def is_closed(self) -> bool:
        return self._is_closed

    async def abandon(self) -> None:
        """The end of one that nobody closed: what it finished stays recorded."""
        if not self._is_closed and self._journal is not None:
            warnings.warn(
                f"workflow '{self._workflow_id}' was not closed, so what it finished stays recorded for the next run; "
                "use `with session.workflow() as workflow`",
                ResourceWarning,
                stacklevel=2,
            )
        await self.close_async(keep=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.close(keep=kind is not None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *rest: object) -> None:
        await asyncio.shield(self.close_async(keep=kind is not None))

    # ---- inside ----

    async def _all(self, name: str, specs: Sequence[SpecLike], *, strict: bool, is_told: bool) -> list[StepOutcome]:
        asked = listed(specs)
        steps, parsers = parse_specs(asked), parsers_of(asked)

        async def all_steps(runner: StepRunner) -> list[StepOutcome]:
            if self._journal is None:
                return await run_all(runner, steps, parsers)
            return await run_recorded(runner, self._journal, steps, parsers, strict=strict)

        return await self._verb(name, len(steps), all_steps, is_told=is_told)

    async def _verb(
        self, name: str, count: int, work: Callable[[StepRunner], Coroutine[Any, Any, R]], *, is_told: bool
    ) -> R:
        if self._is_closed:
            raise LifecycleError(f"workflow '{self._workflow_id}' is closed")
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        scope = f"{name}/" if number == 1 else f"{name}#{number}/"
        self._unfinished.add(scope)
        index = len(self._reports)
        self._reports.append(None)
        runner = StepRunner(
            self._executor,
            events=self._tell,
            ledger=self._runner_ledger,
            control=self._control,
            journal=self._journal,
            scope=scope,
        )
        if is_told:
            self._emit(event("phase_start", name=name, index=index, step_count=count))
        self._running += 1
        self._is_idle.clear()
        try:
            result = await self._run(work(runner))
        except BaseException as error:
            self._numbers[name] -= 1  # asked again, it is the same call
            if isinstance(error, UsageError | TypeError):  # it was refused, and never was
                self._unfinished.discard(scope)
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._is_idle.set()
        report = self._reports[index] = _report(name, index, runner)
        if not report.failed and not report.stopped:
            self._unfinished.discard(scope)
        if is_told:
            self._emit(event("phase_end", **report.to_dict()))
        denial = self._ledger.denial()
        if denial is not None:
            self._emit(event("budget_exhausted", resource=denial.resource, reason=denial.reason))
        return result

    def _emit(self, told: AgentEvent) -> None:
        if self._tell is not None:
            self._tell(told)


def _report(name: str, index: int, runner: StepRunner) -> PhaseReport:
    tally = runner.tally
    return PhaseReport(
        name=name,
        index=index,
        succeeded=tally.succeeded,
        failed=tally.failed,
        cached=tally.cached,
        usage=tally.spent.usage(),
        cost_usd=tally.cost_usd,
        unpriced=tally.unpriced,
        stopped=tally.stopped,
    )
