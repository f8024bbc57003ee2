"""StepRunner: one step through the seam, with everything that the grammar promises of a step whoever runs it.

Whatever the executor does, the answer is an outcome of that step; the ledger is asked and charged; `timeout_ms` and
`retries` are kept; a step that the journal has finished is answered from it, and one that ends is recorded before it
counts.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from fanfold.contracts.codec import encode_readable
from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.facts import Fact
from fanfold.contracts.governance import BudgetDenial
from fanfold.contracts.messages import NO_USAGE, Usage, UsageSum
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, StepOutcome, child_session_id, failed
from fanfold.errors import BudgetExhaustedError, ExecutorError, RunCancelledError, StorageError, UsageError
from fanfold.foreign import call_foreign, described, logger, tolerant
from fanfold.kernel.journal import outcomes, usage_of
from fanfold.kernel.step_identity import step_identity
from fanfold.orchestration.control import FanOutControl, StepScope, running_scope
from fanfold.orchestration.journal import EndedStep, WorkflowJournal
from fanfold.orchestration.leaving import run_apart
from fanfold.orchestration.ledger import TokenLedger, spending
from fanfold.orchestration.parsing import Parser, with_parsed
from fanfold.orchestration.spent import Spent, spent_by
from fanfold.orchestration.step_attempt import AttemptEvents, StepAttempt, step_attempt
from fanfold.protocols import AgentExecutor, EventSink, ResumableExecutor, StepFacts

TIMEOUT = "TIMEOUT"
LEFT_BEHIND = "it has not ended since, and was left behind"

Counts = Callable[[StepOutcome], None]


class KeptStep(StepFacts, Protocol):
    """What is kept of one step over its attempts."""

    has_ended: bool
    """An attempt of this call has, of which nobody was told: another one follows."""

    @property
    def has_news(self) -> bool:
        """Facts were told that may not be durable yet."""
        ...

    async def land(self) -> None:
        """Have durable what the attempt told, for another one must not begin behind facts that are still on their way.

        Raises:
            StorageError: that could not be, which is no failure of the step.
        """
        ...


class Tally(msgspec.Struct):
    """What the steps of one runner came to so far."""

    succeeded: int = 0
    failed: int = 0
    cached: int = 0
    """Of those, how many were answered from the journal."""
    spent: UsageSum = msgspec.field(default_factory=UsageSum)
    """Of those that were run."""
    cost_usd: float | None = None
    unpriced: int = 0
    stopped: int = 0
    """Chains that a stage ended by an error or by no valid spec."""

    def take(self, outcome: StepOutcome, *, is_cached: bool = False) -> StepOutcome:
        if outcome.success:
            self.succeeded += 1
        else:
            self.failed += 1
        if is_cached:
            self.cached += 1
            return outcome
        if outcome.usage is not None:
            self.spent.add(outcome.usage)
        if outcome.cost_usd is None:
            self.unpriced += 1
        else:
            self.cost_usd = (self.cost_usd or 0.0) + outcome.cost_usd
        return outcome


def _limit_of(executor: AgentExecutor) -> int:
    if not isinstance(executor, AgentExecutor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{executor!r} is no executor: it needs execute_step(spec, events) and concurrency_hint()")
    hint = executor.concurrency_hint()
    if not isinstance(hint, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"concurrency_hint() of {executor!r} must give a whole number, gave {hint!r}")
    return max(1, hint)


class StepRunner:
    """For one call of a combinator."""

    def __init__(
        self,
        executor: AgentExecutor,
        *,
        events: EventSink | None = None,
        ledger: TokenLedger | None = None,
        control: FanOutControl | None = None,
        journal: WorkflowJournal | None = None,
        scope: str = "",
        leaves_behind: bool = False,
    ) -> None:
        """Args:
        ledger: for executors that do not charge it themselves.
        scope: stands before the places of the steps.
        leaves_behind: no step is waited for longer than a grace once it was cancelled; those with a `timeout_ms` never
            are. It costs a task for each, and of one without a `timeout_ms` that is left `events` may hear more.
        """
        self.limit = _limit_of(executor)
        self._executor = executor
        self.tell = None if events is None else tolerant(events)
        self._ledger = ledger
        self._control = control or FanOutControl()
        self._journal = journal
        self.scope = scope
        self._leaves_behind = leaves_behind
        self.tally = Tally()
        self._resumable = executor if isinstance(executor, ResumableExecutor) else None
        self._loop = self._control.attach()

    async def run(
        self,
        spec: AgentStepSpec,
        counts: Counts,
        place: str | None = None,
        *,
        identity: str | None = None,
        parser: Parser | None = None,
    ) -> StepOutcome:
        """The outcome of the step at `place` (its task id, if it has no other), with `identity` if that is known.

        With a `parser` the outcome holds the instance in `parsed`; a value that it refuses is a failure of the step.

        `counts` hears it when it counts: at once, or with a journal when it is durable there. Meanwhile the caller may
        go on with the next one; `settle` waits for all of them.

        Raises:
            StorageError: an outcome could not be recorded, so it does not count.
        """
        if self._journal is None:
            outcome = self.tally.take(await self.attempts(spec, None, parser))
            counts(outcome)
            return outcome
        where, identity = self.scope + (place or spec.task_id), identity or step_identity(spec)
        self._journal.asked_for.add(where)
        known = self._journal.finished(where, identity)
        if known is not None:
            known = with_parsed(known, parser)
            if known.success:  # else the class refuses what it took when it was recorded
                self._tell("step_cached", spec, place=where)
                counts(known)
                return self.tally.take(known, is_cached=True)
        if where in self._journal.view.succeeded:
            self._tell("step_changed", spec, place=where)
        kept = _KeptFacts(self._journal, where, identity)
        outcome = self.tally.take(await self.attempts(spec, kept, parser))
        told = counts if self.tell is None else partial(self._recorded, spec, where, counts)
        if not self._journal.record(kept.end(outcome, told)):
            await self._journal.room()
        return outcome

    def _recorded(self, spec: AgentStepSpec, place: str, counts: Counts, outcome: StepOutcome) -> None:
        self._tell("step_recorded", spec, place=place, success=outcome.success)
        counts(outcome)

    async def settle(self) -> None:
        """Return when every outcome counts. Raises as `run`."""
        if self._journal is not None:
            await self._journal.flush()

    def recorded(self, spec: AgentStepSpec, place: str | None = None) -> StepOutcome | None:
        """The outcome that the journal has of this very step, which `run` would answer with."""
        if self._journal is None:
            return None
        return self._journal.finished(self.scope + (place or spec.task_id), step_identity(spec))

    def _tell(self, kind: str, spec: AgentStepSpec, **payload: Any) -> None:
        if self.tell is not None:
            self.tell(event(kind, task_id=spec.task_id, **payload))

    async def attempts(
        self, spec: AgentStepSpec, kept: "KeptStep | None" = None, parser: Parser | None = None
    ) -> StepOutcome:
        """The first success, or the last failure; with the usage and the cost of all attempts. Nothing is recorded but
        what `kept` keeps.

        Raises:
            StorageError: what the step told `kept` could not be kept.
        """
        earlier: StepOutcome | None = None
        for attempt in range(1, (spec.retries or 0) + 2):
            if self._ledger is None:
                outcome, is_final = await self._attempt(spec, kept)
            else:
                outcome, is_final = await self._charged(self._ledger, spec, kept)
            if kept is not None and kept.has_news:
                await kept.land()
            if earlier is not None:
                outcome = _together(earlier, outcome)
            outcome = with_parsed(outcome, parser)
            if outcome.success or is_final or attempt > (spec.retries or 0):
                return outcome
            earlier = outcome
            if kept is not None:
                kept.has_ended = True
            self._tell("step_retry", spec, attempt=attempt + 1, reason=outcome.output)
        raise AssertionError("a step has at least one attempt")

    async def _charged(
        self, ledger: TokenLedger, spec: AgentStepSpec, kept: "KeptStep | None"
    ) -> tuple[StepOutcome, bool]:
        """An attempt that the ledger has room for."""
        if self._control.is_unwanted(spec.task_id):
            return _unwanted(spec), True
        room = await ledger.reserve(len(spec.prompt) // 4)
        if isinstance(room, BudgetDenial):
            return failed(spec, f"Task failed: {room}", code=BudgetExhaustedError.code, usage=NO_USAGE), True
        if self._control.is_unwanted(spec.task_id):  # it was cancelled while it waited for room
            room.settle(None)
            return _unwanted(spec), True
        used: Usage | None = None
        token = spending.set(ledger)
        try:
            outcome, is_final = await self._attempt(spec, kept)
            used = outcome.usage
        finally:
            spending.reset(token)
            room.settle(used)
        return outcome, is_final or ledger.denial() is not None

    async def _attempt(self, spec: AgentStepSpec, kept: "KeptStep | None") -> tuple[StepOutcome, bool]:
        """An outcome, and whether another attempt would be pointless."""
        if self._control.is_unwanted(spec.task_id):
            return _unwanted(spec), True
        seconds = None if spec.timeout_ms is None else spec.timeout_ms / 1000
        # The session's own executor tells when a step starts; any other one is taken to start it at once.
        timer = asyncio.Timeout(None if seconds is None or self._resumable is not None else self._loop.time() + seconds)
        scope = StepScope(spec.task_id, timer, self._control)
        events = self.tell if seconds is None else AttemptEvents(self._restarting(scope, seconds))
        attempt = None
        if seconds is not None or self._leaves_behind:
            attempt = step_attempt(spec, self._called, kept, events, self._ledger)
        self._control.begin(spec.task_id, scope)
        outer = running_scope.get()
        running_scope.set(scope)
        try:
            async with timer:
                if attempt is None:
                    answer = await self._called(spec, events, kept)
                else:
                    answer = await run_apart(attempt, self._loop)
        except TimeoutError as stop:
            return _cut(spec, scope, spent_by(stop.__cause__), attempt), scope.is_cancelled
        finally:
            running_scope.set(outer)
            self._control.end(scope)
        return (answer if self._resumable is not None else _sound(spec, answer)), False

    def _called(
        self, spec: AgentStepSpec, events: EventSink | None, kept: StepFacts | None
    ) -> Coroutine[Any, Any, StepOutcome]:
        return call_foreign(self._execute(spec, events, kept), partial(_raised, spec))

    async def _execute(self, spec: AgentStepSpec, events: EventSink | None, kept: StepFacts | None) -> StepOutcome:
        if self._resumable is None or kept is None:
            return await self._executor.execute_step(spec, events)
        return await self._resumable.within(kept).execute_step(spec, events)

    def _restarting(self, scope: StepScope, seconds: float) -> EventSink:
        """A listener by which a step's time begins when it says that it starts, and not while it waits for a slot."""
        clock = asyncio.get_running_loop().time

        def hear(item: AgentEvent) -> None:
            if item.type == "subagent_start":
                scope.restart(clock() + seconds)
            if self.tell is not None:
                self.tell(item)

        return hear


class _KeptFacts(msgspec.Struct):
    """The facts of one step in the journal."""

    journal: WorkflowJournal
    place: str
    identity: str
    has_ended: bool = False
    """An attempt of this run has, of which the journal is not told: another one follows."""
    has_news: bool = False
    """Facts were told that may not be durable yet."""
    newest: Fact | None = None
    counted: Usage = NO_USAGE
    """Usage that the records of facts have counted, of this call's and of those that it goes on from."""
    cost_counted: float = 0.0
    error: StorageError | None = None

    @property
    def key(self) -> str:
        return f"{self.journal.view.workflow_id}:{self.place}:{self.identity}"

    @property
    def recorded(self) -> list[Fact]:
        thread = self.journal.view.threads.get(self.place)
        return [] if thread is None or thread.identity != self.identity else list(thread.facts)

    @property
    def has_failed(self) -> bool:
        thread = self.journal.view.threads.get(self.place)
        return self.has_ended or (thread is not None and thread.has_failed)

    def go_on(self) -> Usage:
        thread = self.journal.view.threads.get(self.place)
        if thread is None or self.has_ended:
            return NO_USAGE
        self.counted, self.cost_counted = usage_of(thread.facts), thread.cost_usd
        return self.counted

    def end(self, outcome: StepOutcome, counts: Counts) -> EndedStep:
        """The end of the step, with what of its usage and cost is not recorded yet."""
        step = EndedStep(self.journal, self.place, self.identity, outcome, counts)
        if self.counted.total_tokens:
            usage = outcome.usage or NO_USAGE
            step.spent = usage - self.counted if usage.total_tokens > self.counted.total_tokens else NO_USAGE
        if self.cost_counted and outcome.cost_usd is not None:
            step.cost_usd = outcome.cost_usd - self.cost_counted
        return step

    async def record(self, facts: Sequence[Fact]) -> None:
        self.newest, self.has_news = facts[-1], True
        self.counted += usage_of(facts)
        try:
            await self.journal.record_facts(self.place, self.identity, facts)
        except StorageError as error:
            self.error = error
            raise

    async def land(self) -> None:
        if self.error is not None:
            raise self.error
        thread = self.journal.view.threads.get(self.place)
        if thread is None or thread.facts[-1] is not self.newest:
            await self.journal.flush()


def _unwanted(spec: AgentStepSpec) -> StepOutcome:
    return failed(spec, CANCELLED, code=RunCancelledError.code, usage=NO_USAGE)


def _raised(spec: AgentStepSpec, error: BaseException) -> StepOutcome:
    logger.warning("the executor raised at step '%s'", spec.task_id, exc_info=error)
    outcome = failed(spec, f"parallel branch panicked: {described(error)}", code=ExecutorError.code)
    return replace(outcome, usage=_estimate(spec, outcome))


def _together(earlier: StepOutcome, outcome: StepOutcome) -> StepOutcome:
    """The later outcome, with what both took."""
    usage = (earlier.usage or NO_USAGE) + (outcome.usage or NO_USAGE)
    costs = [each.cost_usd for each in (earlier, outcome) if each.cost_usd is not None]
    return replace(outcome, usage=usage, cost_usd=sum(costs) if costs else None)


def _cut(spec: AgentStepSpec, scope: StepScope, spent: Spent | None, attempt: StepAttempt | None) -> StepOutcome:
    """The outcome of a step that was stopped, with what it had used as far as anybody told."""
    if scope.is_cancelled:
        outcome = failed(spec, CANCELLED, code=RunCancelledError.code)
    else:
        outcome = failed(spec, f"Task failed: it did not end within {spec.timeout_ms} ms", code=TIMEOUT)
    if attempt is None or not attempt.is_left:
        return _spent(spec, outcome, spent)
    if attempt.usage.total_tokens:
        spent = Spent(attempt.usage)
    outcome = _spent(spec, replace(outcome, output=f"{outcome.output}; {LEFT_BEHIND}"), spent)
    attempt.counted = outcome.usage or NO_USAGE
    return outcome


def _spent(spec: AgentStepSpec, outcome: StepOutcome, spent: Spent | None) -> StepOutcome:
    if spent is None:
        return replace(outcome, usage=_estimate(spec, outcome))
    return replace(outcome, usage=spent.usage, cost_usd=spent.cost_usd, worktree=spent.worktree)


def _sound(spec: AgentStepSpec, answer: object) -> StepOutcome:
    """The answer of somebody else's executor as an outcome of this step, such that a journal can give it back.

    Tokens that nobody reported are estimated, and so is a count below zero, which would refill a budget.
    """
    if not isinstance(answer, StepOutcome) or answer.task_id != spec.task_id:
        why = f"the executor answered with {_describe(answer)} instead of the outcome of this step"
        return failed(spec, why, code=ExecutorError.code, usage=NO_USAGE)
    try:
        encode_readable(answer, outcomes())
    except ValueError as error:
        why = f"the executor gave no valid outcome: {error}"
        return failed(spec, why, code=ExecutorError.code, usage=_estimate(spec, failed(spec, "")))
    usage = answer.usage
    if usage is None or min(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) < 0:
        usage = _estimate(spec, answer)
    return replace(answer, usage=usage, session_id=answer.session_id or child_session_id(spec.task_id))


def _estimate(spec: AgentStepSpec, outcome: StepOutcome) -> Usage:
    """Bytes / 4, as the session does for a model that reports nothing: unknown is not zero."""
    prompt, completion = 1 + len(spec.prompt) // 4, 1 + len(outcome.output) // 4
    return Usage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion, is_estimated=True
    )


def _describe(answer: object) -> str:
    if isinstance(answer, StepOutcome):
        return f"the outcome of '{answer.task_id}'"
    return f"a {type(answer).__name__}"
