"""LiveAgents: the answers that agents give now: launched within the limits, recorded before anybody gets them.

A slot is held while an agent runs, and given to others while it waits for the budget or for a person. An agent under
way always ends and is recorded; what is refused is the launch of the next one.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.governance import BudgetDenial
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.record import JsonValue
from fanfold.contracts.run_journal import CallFault, Result, ResultStatus
from fanfold.contracts.steps import AgentStepSpec, StepOutcome, failure_reason
from fanfold.contracts.workflow_runs import REPEAT_UNDECIDED, AgentStatus, RunFault, WorkflowLimits
from fanfold.env import Clock
from fanfold.errors import (
    BudgetExhaustedError,
    ParkedError,
    RunCancelledError,
    StorageError,
    WorkflowAgentError,
)
from fanfold.kernel.run_entries import Claim
from fanfold.kernel.run_journal import encode_line, why_again
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.fanout import stand_in
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.limiter import Limiter, Slot
from fanfold.orchestration.runner import StepRunner
from fanfold.protocols import AgentExecutor
from fanfold.workflow.agent_records import ended, left_out, started, step_of
from fanfold.workflow.host import PlacedCall
from fanfold.workflow.journal import RunJournal
from fanfold.workflow.kept_turns import KeptTurns
from fanfold.workflow.progress import Progress
from fanfold.workflow.refusals import Halt, Refusals
from fanfold.workflow.script_host import RunHaltedError
from fanfold.workflow.waits import Waits

E = TypeVar("E", bound=BaseException)

BLOB_BYTES = 262_144
"""A longer value lies in a file of its own, and its name in the journal (spec-workflow 5.4)."""
QUEUED_SECONDS = 0.1
"""So often is told who waits for a slot. Of one that waits for less it may never be told that it did."""
_NOTHING_SPENT: Mapping[str, Any] = {
    "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    "cost_usd": None,
    "duration_ms": 0,
    "tools": 0,
}
_PASSED_ON = (
    "confirmation_required",
    "confirmation_received",
    "confirmation_timeout",
    "user_question",
    "question_answered",
)


class _Agent(msgspec.Struct, frozen=True, gc=False):
    """One that was launched."""

    placed: PlacedCall
    spec: AgentStepSpec
    turns: KeptTurns
    seq: int
    begun_ms: int


class _GiveWay(msgspec.Struct, frozen=True):
    """What an agent does that is going to wait for a person."""

    slot: Slot
    others: Callable[[], None]

    def __call__(self) -> None:
        self.slot.end()
        self.others()


class _UnderWay:
    """The calls that are. Entered by each; what cannot be recorded of one ends them all."""

    def __init__(self, stored_badly: Callable[[StorageError], None]) -> None:
        self._stored_badly = stored_badly
        self._count = 0
        self._none_left = asyncio.Event()

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StorageError):
            self._stored_badly(error)
        self._count -= 1
        if not self._count:
            self._none_left.set()

    async def none_left(self) -> None:
        self._none_left.clear()
        if self._count:
            await self._none_left.wait()


class LiveAgents:
    def __init__(
        self,
        *,
        run_id: str,
        attempt: int,
        executor: AgentExecutor,
        journal: RunJournal,
        progress: Progress,
        ledger: TokenLedger,
        limits: WorkflowLimits,
        clock: Clock,
        is_listened_to: bool = True,
        may_launch: Callable[[str], bool] | None = None,
    ) -> None:
        """Args:
        is_listened_to: somebody hears what agents do; otherwise only their starts and ends are told.
        may_launch: False for a place where nothing may run (`only_failed`); None: anywhere.
        """
        self._run_id = run_id
        self._attempt = attempt
        self._journal = journal
        self._progress = progress
        self._ledger = ledger
        self._clock = clock
        self._slots = Limiter(limits.concurrency)
        self._control = FanOutControl()
        hear = self._hear if is_listened_to else None
        self._runner = StepRunner(executor, events=hear, control=self._control, leaves_behind=True)
        self._waits = Waits(run_id, progress)
        self._running: dict[str, PlacedCall] = {}
        """By task id."""
        self._queued: dict[str, PlacedCall] = {}
        """By place: those that wait for a slot, and of whom nobody was told yet."""
        self._is_telling_soon = False
        self._skipped: set[str] = set()
        self._refusals = Refusals(ledger, limits, progress, may_launch)
        self._under_way = _UnderWay(self._stored_badly)

    # ---- control ----

    def stop(self, halt: Halt) -> None:
        """Launch nothing more, and cancel what runs. The first reason stands."""
        self._refusals.begin(halt)
        self._control.cancel()

    async def end(self, seconds: float) -> None:
        """Stop what a script has left running behind its end, and return when that is recorded, or after `seconds`.
        What has settled since is recorded before whatever is recorded next."""
        self.stop(Halt("stopped", "its script has ended"))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._under_way.none_left(), seconds)

    @property
    def halt(self) -> Halt | None:
        """Why nothing more is launched, if nothing is; `halted` is set then."""
        return self._refusals.halt

    @property
    def halted(self) -> asyncio.Event:
        return self._refusals.halted

    @property
    def is_stopping(self) -> bool:
        """What runs was cancelled."""
        return self._control.is_cancelled

    def skip(self, where: str) -> bool:
        """End the agent at `where` with None as its answer; False when none runs there."""
        running = [task_id for task_id, placed in self._running.items() if placed.where == where]
        for task_id in running:
            self._skipped.add(task_id)
            self._control.cancel_running(task_id)
        return bool(running)

    @property
    def running(self) -> int:
        return len(self._running)

    # ---- one call ----

    async def __call__(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        with self._under_way:
            try:
                record, outcome = await self._launched(placed, claim)
            finally:
                self._queued.pop(placed.where, None)
            kept = record if len(record.value) <= BLOB_BYTES else await self._in_blob(record)
            if record.status == "ok" and placed.settles:
                await self._journal.submit(_Settling(self, placed, kept, outcome))
                return _answer_of(placed, record, outcome)
            await self._journal.result(kept)
            if record.status == "ok":
                self._done(placed, record, outcome)
                return _answer_of(placed, record, outcome)
            told = self._accounted(record, outcome)
            if record.status == "skipped":
                self._progress.skipped += 1
                self._tell(placed, "skipped", told)
                return None
            return await self._failed(placed, record, outcome, told)

    def land(self, answer: "_Settling") -> None:
        self._journal.view.take(answer.record)
        self._done(answer.placed, answer.record, answer.outcome)

    def _done(self, placed: PlacedCall, record: Result, outcome: StepOutcome) -> None:
        # Only when it is durable, and only then its value is seen by the script (D5).
        told = self._accounted(record, outcome)
        self._progress.done += 1
        self._tell(placed, "done", told)

    async def settled(self) -> None:
        try:
            await self._journal.flush()
        except StorageError as error:
            self._stored_badly(error)
            raise

    def _stored_badly(self, error: StorageError) -> None:
        # What cannot be recorded would have to be done again: a script that goes on all the same launches nothing.
        fault = RunFault(code=error.code, message=str(error))
        self.stop(Halt("failed", error.code, error=fault))

    # ---- one that is not simply run again ----

    async def skipped(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        await self._require_open(placed)
        seq = self._journal.view.last_seq + 1
        with self._under_way:
            self._journal.note(started(placed, claim, seq, self._attempt))
            await self._journal.result(left_out(placed, seq, self._attempt))
        self._progress.skipped += 1
        self._tell(placed, "skipped", _NOTHING_SPENT)
        return None

    async def undecided(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        await self._require_open(placed)
        assert claim.entry is not None
        why = why_again(claim.entry)
        reason = f'it was begun before ({why}): say whether it runs again, by a resume with repeat="rerun" or "skip"'
        self._progress.failed += 1
        self._progress.parked += 1
        self._tell(placed, "failed", {**_NOTHING_SPENT, "error": reason, "code": REPEAT_UNDECIDED})
        self._progress.agent_failed(placed.where, placed.title, REPEAT_UNDECIDED, reason)
        raise WorkflowAgentError(label=placed.title, where=placed.where, reason=reason, agent_code=REPEAT_UNDECIDED)

    async def _require_open(self, placed: PlacedCall) -> None:
        """Raises what keeps a call from being answered that takes no agent and no token."""
        refusal = self._refusals.of_call(placed)
        if refusal is not None:
            raise await self._refused(refusal)

    # ---- its launch ----

    async def _launched(self, placed: PlacedCall, claim: Claim) -> tuple[Result, StepOutcome]:
        refusal = self._refusals.of_launch(placed)
        if refusal is not None:
            raise await self._refused(refusal)
        self._progress.launched += 1
        if self._slots.is_full:
            self._queue(placed)
        async with self._slots.slot() as slot:
            others = stand_in.get()
            stand_in.set(_GiveWay(slot, others))
            try:
                room = await self._ledger.reserve(len(placed.call.prompt) // 4, slot.given_back)
                if isinstance(room, BudgetDenial):
                    self._progress.launched -= 1
                    raise await self._refused(self._refusals.over_budget(room))
                spent: Usage | None = None
                try:
                    if self.halt is not None:
                        self._progress.launched -= 1  # meanwhile, and it has not begun
                        raise await self._refused(RunHaltedError(self.halt.reason))
                    agent = self._begun(placed, claim)
                    try:
                        outcome = await self._runner.attempts(agent.spec, agent.turns)
                    finally:
                        del self._running[agent.spec.task_id]
                        self._waits.end(placed)
                    self._refusals.judge(outcome)
                    spent = outcome.usage
                finally:
                    room.settle(spent)
            finally:
                stand_in.set(others)
        return self._ended(agent, outcome)

    def _queue(self, placed: PlacedCall) -> None:
        self._queued[placed.where] = placed
        if not self._is_telling_soon:
            self._is_telling_soon = True
            asyncio.get_running_loop().call_later(QUEUED_SECONDS, self._tell_queued)

    def _tell_queued(self) -> None:
        self._is_telling_soon = False
        queued, self._queued = self._queued, {}
        for placed in queued.values():
            self._tell(placed, "queued")

    async def _refused(self, error: E) -> E:
        if self._refusals.are_too_many:
            self.stop(Halt("failed", "it goes on launching agents behind its limits"))
        await asyncio.sleep(0)  # a script that asks again and again must not keep the loop from ending it
        return error

    # ---- the agent ----

    def _begun(self, placed: PlacedCall, claim: Claim) -> _Agent:
        seq = self._journal.view.last_seq + 1
        self._journal.note(started(placed, claim, seq, self._attempt))
        spec = step_of(placed, claim)
        self._running[spec.task_id] = placed
        self._queued.pop(placed.where, None)
        self._tell(placed, "started")
        return _Agent(placed, spec, KeptTurns(self._journal, seq, claim), seq, self._clock.monotonic_ms())

    def _ended(self, agent: _Agent, outcome: StepOutcome) -> tuple[Result, StepOutcome]:
        if outcome.duration_ms is None:
            outcome = replace(outcome, duration_ms=self._clock.monotonic_ms() - agent.begun_ms)
        status: ResultStatus = "ok" if outcome.success else "error"
        if outcome.error_code == RunCancelledError.code:
            status = "skipped" if agent.spec.task_id in self._skipped else "cancelled"
        record = ended(
            agent.placed, outcome, seq=agent.seq, attempt=self._attempt, status=status, tools=agent.turns.tools
        )
        return record, outcome

    # ---- its end ----

    async def _in_blob(self, record: Result) -> Result:
        """Raises StorageError."""
        name = await self._journal.put_blob(bytes(record.value))
        return replace(record, value=msgspec.Raw(b"null"), blob=name)

    def _accounted(self, record: Result, outcome: StepOutcome) -> dict[str, Any]:
        """What is told of an end, which is recorded."""
        self._progress.spent(outcome.usage, outcome.cost_usd, record.tools)
        usage = NO_USAGE if outcome.usage is None else outcome.usage
        return {
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
            },
            "cost_usd": outcome.cost_usd,
            "duration_ms": outcome.duration_ms,
            "tools": record.tools,
        }

    async def _failed(
        self, placed: PlacedCall, record: Result, outcome: StepOutcome, told: dict[str, Any]
    ) -> JsonValue:
        fault = record.error or CallFault(code="FAILED", message=failure_reason(outcome))
        if record.status == "cancelled":
            self._tell(placed, "cancelled", told)
            if self.halt is not None:
                raise await self._refused(RunHaltedError(self.halt.reason))
        else:
            self._tell(placed, "failed", {**told, "error": fault.message, "code": fault.code})
        self._progress.failed += 1
        self._progress.parked += fault.code == ParkedError.code
        self._progress.agent_failed(placed.where, placed.title, fault.code, fault.message)
        if fault.code == BudgetExhaustedError.code:  # a guard of the host's denied it, and will deny the next one
            raise BudgetExhaustedError.saying(fault.message, resource="budget_guard")
        raise WorkflowAgentError(
            label=placed.title, where=placed.where, reason=fault.message, agent_code=outcome.error_code
        )

    def _tell(self, placed: PlacedCall, status: AgentStatus, more: Mapping[str, Any] | None = None) -> None:
        self._progress.agent(placed.where, placed.title, placed.phase, placed.call, status, more or {})

    def _hear(self, item: AgentEvent) -> None:
        task_id = item.payload.get("task_id") or (item.metadata or {}).get("task_id")
        placed = self._running.get(task_id) if isinstance(task_id, str) else None
        if placed is None:
            return
        if item.type == "subagent_progress" and item.payload.get("status") == "tool_started":
            self._progress.activity(placed.where, item.payload["metadata"]["tool"])
        elif item.type in _PASSED_ON:
            self._progress.pass_on(item)
            self._waits.hear(item, placed)


class _Settling(msgspec.Struct, frozen=True):
    """An answer on its way into the journal, for which nobody waits alone."""

    agents: LiveAgents
    placed: PlacedCall
    record: Result
    outcome: StepOutcome

    def encode(self) -> bytes:
        return encode_line(self.record)

    def written(self) -> None:
        self.agents.land(self)


def _answer_of(placed: PlacedCall, record: Result, outcome: StepOutcome) -> JsonValue:
    """What a resume would give: the script may change it, so it is none of what others hold; text cannot be changed."""
    if placed.schema is None and placed.call.isolation is None:
        return outcome.output
    answer: JsonValue = msgspec.json.decode(record.value)
    return answer
