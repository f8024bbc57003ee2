"""SimulatedCall: one call of a resumable workflow in one simulated process, and the laws that it must keep."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Literal

import msgspec

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, StepOutcome
from fanfold.env import HostEnv
from fanfold.errors import AlreadyActiveError, FencedError, LogWriteError, StepChangedError, StoreConflictError
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.journal import WorkflowJournal
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.resumable import execute_steps_parallel_resumable
from fanfold.orchestration.workflow import Workflow
from fanfold.portal import Portal
from fanfold.protocols import AgentExecutor, SessionStore
from fanfold.testing.faulty_store import FaultyStore, SimulatedCrashError, StoreFaults
from fanfold.testing.simulated_work import SimulatedHost, local_executor
from fanfold.testing.simulated_world import WORKFLOW, SimulatedStep, SimulatedWorld

Kind = Literal["host", "local", "phases"]
Resume = Callable[..., Coroutine[Any, Any, list[StepOutcome]]]
"""Called as `execute_steps_parallel_resumable`."""

_STOPPED = (CANCELLED, "Budget exhausted", "it did not end within")


class CallPlan(msgspec.Struct, kw_only=True):
    faults: StoreFaults
    slots: int
    budget: int | None = None
    is_strict: bool = False


class SimulatedCall:
    def __init__(
        self, name: str, world: SimulatedWorld, kind: Kind, plan: CallPlan, resume: Resume, env: HostEnv
    ) -> None:
        self.name = name
        self.world = world
        self.slots = plan.slots
        self.control = FanOutControl()
        self.is_fenced = False
        self.is_given_up = False
        """Its task was cancelled."""
        self.is_over = False
        self.store = FaultyStore(
            world.store, plan.faults, Random(world.random.random()), tell=self.tell, watch=self._watch
        )
        self._kind = kind
        self._plan = plan
        self._resume = resume
        self._env = env
        self._ledger = None if plan.budget is None and world.random.random() < 0.5 else TokenLedger(plan.budget)
        self._begun: set[str] = set()
        self._running: dict[str, int] = {}
        self._used: dict[str, list[int | None]] = {}
        self._cached: list[str] = []
        self._changed: set[str] = set()
        self._retrying: set[str] = set()
        self.retried: set[str] = set()
        self._cancelled: set[str] = set()

    # ---- what its steps see ----

    @property
    def is_live(self) -> bool:
        return not (self.store.is_dead or self.is_fenced)

    def tell(self, what: str) -> None:
        self.world.tell(self.name, what)

    async def begin(self, step: SimulatedStep, what: str) -> None:
        self._running[step.task_id] = self._running.get(step.task_id, 0) + 1
        self._retrying.discard(step.task_id)
        if not self.is_live:
            return
        world, name = self.world, step.task_id
        self.tell(f"{name} {what}")
        self._begun.add(name)
        await world.witness.look()
        world.require(not world.witness.has(name, step.prompt), f"{name} is recorded and {what} all the same")
        world.require(len(self._running) <= max(1, self.slots), f"{len(self._running)} run in {self.slots} slots")
        alone = self._running[name] == 1 or self._kind == "local"  # a step may run several of its tools at once
        world.require(alone, f"{name} {what} twice at once")
        world.require(not self.control.is_cancelled, f"{name} {what} though the call was cancelled")
        world.require(name not in self._cancelled, f"{name} {what} though it was cancelled")
        if self._ledger is not None and not what.startswith("runs tool"):
            world.require(self._ledger.denial() is None, f"{name} {what} though the budget is spent")

    def end(self, step: SimulatedStep) -> None:
        left = self._running[step.task_id] = self._running[step.task_id] - 1
        if not left:
            del self._running[step.task_id]

    def used(self, step: SimulatedStep, tokens: int | None) -> None:
        self._used.setdefault(step.task_id, []).append(tokens)

    async def _watch(self) -> None:
        new = await self.world.witness.look()
        self.world.require(not (self.is_fenced and new), f"{self.name} writes though its lease was taken over")

    # ---- what is done to it ----

    def cancel(self) -> None:
        self.tell("the whole call is cancelled")
        self.control.cancel()

    def cancel_step(self, task_id: str) -> None:
        self.tell(f"{task_id} is cancelled")
        self._cancelled.add(task_id)
        self.control.cancel_step(task_id)

    def fence(self) -> None:
        self.tell("is taken for dead: its lease is broken")
        self.is_fenced = True
        self.world.store.break_leases()

    async def kill(self, task: asyncio.Task[bool]) -> None:
        await self.store.end_process()
        task.cancel()

    def give_up(self, task: asyncio.Task[bool]) -> None:
        self.tell("its caller gives up")
        self.is_given_up = True
        task.cancel()

    # ---- the call ----

    async def run(self) -> bool:
        """True when every step succeeded."""
        steps = list(self.world.steps.values())
        self.tell(f"calls with {self._plan.slots} slots, {_said(self._plan)}")
        executor: AgentExecutor = (
            local_executor(self, self._ledger, self._env) if self._kind == "local" else SimulatedHost(self)
        )
        try:
            outcomes = await self._resume(
                executor,
                [step.spec() for step in steps],
                WORKFLOW,
                self.store,
                strict=self._plan.is_strict,
                events=self._hear,
                ledger=self._ledger,
                charges_ledger=self._kind == "local",
                control=self.control,
                env=self._env,
            )
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  which it may be is judged at once
            self.tell(f"ends with {type(error).__name__}: {error}")
            self.world.require(self._may_end_with(error), f"{self.name} ended with {type(error).__name__}: {error}")
            return False
        finally:
            self.is_over = True
        self.tell("returns " + ", ".join(f"{each.task_id}{'' if each.success else ' failed'}" for each in outcomes))
        if self.is_live:
            await self._judge(steps, outcomes)
        return all(outcome.success for outcome in outcomes)

    def _may_end_with(self, error: BaseException) -> bool:
        match error:
            case SimulatedCrashError() | asyncio.CancelledError():
                return self.store.is_dead or (self.is_given_up and isinstance(error, asyncio.CancelledError))
            case LogWriteError() | StoreConflictError():
                return self.store.refused > 0
            case FencedError():
                return self.is_fenced
            case AlreadyActiveError():
                return True  # the simulation sees to it that one of several callers gets the workflow
            case StepChangedError():
                successes = self.world.witness.successes
                changed = [s.task_id for s in self.world.steps.values() if s.task_id in successes
                           and not self.world.witness.has(s.task_id, s.prompt)]  # fmt: skip
                is_true = self.is_fenced or list(error.task_ids) == changed
                return self._plan.is_strict and is_true and not self._begun
            case _:
                return False

    def _hear(self, told: AgentEvent) -> None:
        task_id = told.payload.get("task_id", "")
        if told.type == "step_cached":
            self._cached.append(task_id)
        elif told.type == "step_changed":
            self._changed.add(task_id)
        elif told.type == "step_retry":
            self._retrying.add(task_id)
            self.retried.add(task_id)

    # ---- what must hold of what it returned ----

    async def _judge(self, steps: list[SimulatedStep], outcomes: list[StepOutcome]) -> None:
        world, witness = self.world, self.world.witness
        await witness.look()
        asked, got = [step.task_id for step in steps], [outcome.task_id for outcome in outcomes]
        world.require(got == asked, f"asked {asked}, got the outcomes of {got}")
        world.require(len(set(self._cached)) == len(self._cached), f"told as cached twice: {self._cached}")
        for step, outcome in zip(steps, outcomes, strict=False):
            self._judge_step(step, outcome)
        is_success = all(outcome.success for outcome in outcomes)
        world.require(witness.is_empty == is_success, "the journal is removed" if witness.is_empty else "it is kept")
        if self._ledger is not None and not witness.is_empty:
            self._judge_ledger(self._ledger.snapshot().consumed_tokens)

    def _judge_step(self, step: SimulatedStep, outcome: StepOutcome) -> None:
        world, name = self.world, step.task_id
        recorded = world.witness.ends.get(name) or world.witness.last_successes.get(name)
        if outcome.success:
            recorded = world.witness.last_successes.get(name)
            world.require(outcome.output.startswith(f"{step.prompt} run "), f"{name} has the output {outcome.output!r}")
        told = msgspec.to_builtins(outcome)
        same = recorded is not None and all(
            recorded.get(key) == told.get(key) for key in ("output", "success", "usage", "agent")
        )
        world.require(same, f"{name} returned {told}, recorded is {recorded}")
        is_cached = name in self._cached
        world.require(not (is_cached and name in self._begun), f"{name} is answered from the journal and run as well")
        is_stopped = _is_stopped(outcome)
        world.require(
            is_cached or is_stopped or name in self._begun or self._kind == "local",
            f"{name} has an outcome, but neither a run nor a record: {outcome.output!r}",
        )
        world.require(name not in self._retrying or is_stopped, f"another try at {name} did nothing")
        used = self._used.get(name, [])
        if not is_stopped and not is_cached and self._kind != "local" and used and None not in used:
            total = 0 if outcome.usage is None else outcome.usage.total_tokens
            spent = sum(tokens or 0 for tokens in used)
            world.require(total >= spent, f"{name} used {spent} tokens and its outcome tells of {total}")

    def _judge_ledger(self, consumed: int) -> None:
        """Nothing that was spent is forgotten, and nothing is made up."""
        spent = self.world.witness.tokens
        self.world.require(consumed == spent, f"the ledger says {consumed} tokens, the records {spent}")


def _is_stopped(outcome: StepOutcome) -> bool:
    return not outcome.success and any(why in outcome.output for why in _STOPPED)


def _said(plan: CallPlan) -> str:
    budget = "no budget" if plan.budget is None else f"a budget of {plan.budget}"
    return f"{budget}{', strict' if plan.is_strict else ''}; {plan.faults}"


async def in_phases(
    executor: AgentExecutor,
    specs: list[AgentStepSpec],
    workflow_id: str,
    store: SessionStore,
    *,
    strict: bool,
    events: Any,
    ledger: TokenLedger | None,
    charges_ledger: bool,
    control: FanOutControl,
    env: HostEnv,
) -> list[StepOutcome]:
    """The same steps as a Workflow of two phases."""
    journal = await WorkflowJournal.open(store, workflow_id, env)
    ledger = ledger or TokenLedger()
    ledger.carry_over(journal.view.spent)
    workflow = Workflow(
        portal=Portal.of_running_loop(),
        workflow_id=workflow_id,
        executor=executor,
        ledger=ledger,
        runner_ledger=None if charges_ledger else ledger,
        journal=journal,
        events=events,
        control=control,
        run=lambda work: work,
    )
    middle = (len(specs) + 1) // 2
    async with workflow:
        first = await workflow.phase_async("first", specs[:middle], strict=strict)
        return first + await workflow.phase_async("second", specs[middle:], strict=strict)


RESUMES: dict[Kind, Resume] = {
    "host": execute_steps_parallel_resumable,
    "local": execute_steps_parallel_resumable,
    "phases": in_phases,
}
