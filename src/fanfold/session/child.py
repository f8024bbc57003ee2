"""TaskExecutor: the local end of the executor seam. A step is a child session.

Its facts stay in memory, but for a step of a resumable call (`within`), which keeps them and lets the step go on.
"""

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.codec import encode_json
from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.facts import Fact
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.steps import CANCELLED, SCHEMA_MISMATCH, AgentStepSpec, StepOutcome, child_session_id, failed
from fanfold.delegation.builtin_agents import find_agent
from fanfold.delegation.tracker import Tracker
from fanfold.env import HostEnv
from fanfold.errors import FanfoldError, ProviderError
from fanfold.foreign import described
from fanfold.governance.budget import BudgetGate
from fanfold.governance.hooks import Hooks
from fanfold.kernel.fold import fold
from fanfold.kernel.schema import OutputSchema, compile_schema
from fanfold.kernel.state import SessionState
from fanfold.kernel.structured import Extraction, answer_contract, extract, failure_text, repair_prompt
from fanfold.orchestration.control import stop_if_unwanted
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.limiter import Limiter, Slot
from fanfold.orchestration.spent import Spent, carry_spent, spent_by
from fanfold.protocols import AgentExecutor, EventSink, FactLog, HeldThread, StepFacts, StepFolders
from fanfold.session.driver import Driver
from fanfold.session.effects import Effects
from fanfold.session.inbox import Inbox
from fanfold.session.isolation import run_isolated
from fanfold.session.keeper import Keeper
from fanfold.session.setup import AgentSetup
from fanfold.session.surroundings import Surroundings

REPAIR_ROUNDS = 2
UNKNOWN_AGENT, NO_ANSWER = "UNKNOWN_AGENT", "NO_ANSWER"

SetupFor = Callable[[AgentDefinition, AgentStepSpec], AgentSetup]
"""Composes what a child of that role thinks with; raises FanfoldError when it cannot (unknown model, missing key)."""


class TaskExecutor:
    """Runs steps as children of one session, on its limiter and with its inbox."""

    def __init__(
        self,
        *,
        agents: Mapping[str, AgentDefinition],
        setup_for: SetupFor,
        new_log: Callable[[], FactLog],
        limiter: Limiter,
        inbox: Inbox,
        env: HostEnv,
        hooks: Hooks,
        budget: BudgetGate,
        tracker: Tracker,
        workspace: str = "",
        folders: StepFolders | None = None,
        approvals: Literal["park", "refuse"] = "park",
        streams_partials: bool = False,
        parent_session_id: str = "",
    ) -> None:
        self._agents = agents
        self._setup_for = setup_for
        self._new_log = new_log
        self._limiter = limiter
        self._inbox = inbox
        self._env = env
        self._hooks = hooks
        self._budget = budget
        self._tracker = tracker
        self._workspace = workspace
        self._folders = folders
        self._approvals: Literal["park", "refuse"] = approvals
        self._streams_partials = streams_partials
        self._ledger: TokenLedger | None = None
        self._parent_session_id = parent_session_id

    def concurrency_hint(self) -> int:
        return self._limiter.slots

    def charging(self, ledger: TokenLedger | None) -> "TaskExecutor":
        """This executor with a ledger that its model calls draw on."""
        charging = copy.copy(self)
        charging._ledger = ledger
        return charging

    def within(self, facts: StepFacts) -> AgentExecutor:
        return _Within(self, facts)

    async def execute_step(
        self, spec: AgentStepSpec, events: EventSink | None = None, *, kept: StepFacts | None = None
    ) -> StepOutcome:
        agent = find_agent(spec.agent, self._agents)
        if agent is None:
            return failed(spec, f"Task failed: Unknown agent type: '{spec.agent}'", code=UNKNOWN_AGENT, usage=NO_USAGE)
        async with self._limiter.slot() as slot:
            await stop_if_unwanted()
            start = self._env.clock.monotonic_ms()
            self._emit_start(spec, events, self._env.clock.now_ms())
            try:
                outcome = await self._run(spec, agent, slot, events, start, kept)
            except BaseException as error:
                # Exactly one end for each start, whatever happens.
                is_cancelled = isinstance(error, asyncio.CancelledError)
                spent = spent_by(error)
                usage = None if spent is None else spent.usage
                why = CANCELLED if is_cancelled else described(error)
                self._emit_end(spec, events, failed(spec, why, usage=usage))
                raise
            self._emit_end(spec, events, outcome)
            return outcome

    async def _run(
        self,
        spec: AgentStepSpec,
        agent: AgentDefinition,
        slot: Slot,
        events: EventSink | None,
        start: int,
        kept: StepFacts | None,
    ) -> StepOutcome:
        try:
            setup = self._setup_for(agent, spec)
        except FanfoldError as error:
            return failed(spec, f"Task failed: {error}", code=error.code, usage=NO_USAGE)
        if spec.isolation is None:
            return await self._driven(spec, setup, self._surroundings(spec, slot, events, kept), start, kept)

        async def work(setup: AgentSetup, kept: StepFacts | None, folder: str) -> StepOutcome:
            around = replace(self._surroundings(spec, slot, events, kept), workspace=folder)
            return await self._driven(spec, setup, around, start, kept)

        return await run_isolated(self._folders, self._env.clock, spec, setup, kept, work)

    async def _driven(
        self, spec: AgentStepSpec, setup: AgentSetup, around: Surroundings, start: int, kept: StepFacts | None
    ) -> StepOutcome:
        child = _Child(spec, setup, around)
        try:
            outcome = await child.run(self._new_log(), kept)
        except FanfoldError as error:
            outcome = failed(spec, f"Task failed: {error}", code=error.code)
            if isinstance(error, ProviderError):
                outcome = replace(outcome, blocked_by=error.blocked_by, reset_ms=error.reset_ms)
        except asyncio.CancelledError as stop:
            carry_spent(stop, child.spent())
            raise
        spent = child.spent()
        duration = self._env.clock.monotonic_ms() - start
        return replace(
            outcome,
            usage=spent.usage,
            cost_usd=spent.cost_usd,
            duration_ms=duration,
            repairs=child.repairs or None,
        )

    def _surroundings(
        self, spec: AgentStepSpec, slot: Slot, events: EventSink | None, kept: StepFacts | None
    ) -> Surroundings:
        session_id = child_session_id(spec.task_id)
        return Surroundings(
            session_id=session_id,
            env=self._env,
            inbox=self._inbox,
            hooks=self._hooks,
            budget=self._budget,
            workspace=self._workspace,
            approvals=self._approvals,
            ledger=self._ledger,
            emit=None if events is None else _Progress(spec.task_id, session_id, events, self._tracker),
            is_listened_to=events is not None,
            id_prefix=f"{session_id}/",
            slot=slot,
            streams_partials=self._streams_partials,
            idempotency_prefix="" if kept is None else kept.key,
        )

    def _emit_start(self, spec: AgentStepSpec, events: EventSink | None, started_ms: int) -> None:
        payload = {
            "task_id": spec.task_id,
            "session_id": child_session_id(spec.task_id),
            "parent_session_id": spec.parent_session_id or self._parent_session_id,
            "agent": spec.agent,
            "description": spec.description,
            "started_ms": started_ms,
        }
        self._tracker.start(payload)
        if events is not None:
            events(AgentEvent(type="subagent_start", payload=payload))

    def _emit_end(self, spec: AgentStepSpec, events: EventSink | None, outcome: StepOutcome) -> None:
        payload = {
            "task_id": spec.task_id,
            "session_id": outcome.session_id,
            "agent": spec.agent,
            "output": outcome.output,
            "success": outcome.success,
            "finished_ms": self._env.clock.now_ms(),
        }
        self._tracker.end(payload)
        if events is not None:
            more = {"duration_ms": outcome.duration_ms, "usage": msgspec.to_builtins(outcome.usage or NO_USAGE)}
            events(AgentEvent(type="subagent_end", payload={**payload, **more}))


class _Within(msgspec.Struct):
    """The executor for one step whose facts are kept."""

    executor: TaskExecutor
    kept: StepFacts

    def concurrency_hint(self) -> int:
        return self.executor.concurrency_hint()

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        return await self.executor.execute_step(spec, events, kept=self.kept)


class _Child:
    """One step's run: drive to an answer, then, where a schema asks for it, to a valid value."""

    def __init__(self, spec: AgentStepSpec, setup: AgentSetup, around: Surroundings) -> None:
        self._spec = spec
        self._setup = setup
        self._around = around
        self._effects = Effects(setup, around)
        self._schema = None if spec.output_schema is None else compile_schema(spec.output_schema)
        self._usage: Usage = NO_USAGE
        self.repairs = 0
        """Answers against the schema that it was told of, those of a run that it goes on from included."""

    def spent(self) -> Spent:
        """By the model calls so far, also when the step fails or is cut off."""
        usage = self._usage + self._effects.model.cut if self._effects.model.cut.total_tokens else self._usage
        prices = self._setup.prices
        return Spent(usage, None if prices is None else prices.of(usage))

    async def run(self, log: FactLog, kept: StepFacts | None) -> StepOutcome:
        held = await log.hold(self._around.session_id)
        try:
            return await self._outcome(held, kept)
        finally:
            await held.release()

    async def _outcome(self, held: HeldThread, kept: StepFacts | None) -> StepOutcome:
        facts: Sequence[Fact] = ()
        keeper = None if kept is None else Keeper(kept)
        if keeper is not None:
            facts = await keeper.take_up(held, self._setup.limits)
            self._usage = keeper.carried
        driver = Driver(self._setup, self._effects, held, fold(facts), keeper)
        if self._schema is not None:
            self.repairs = max(0, driver.state.turn - 1)
        if facts:
            self._demand_schema(is_repair=driver.state.turn > 1)
            state = await self._driven(driver)
        else:
            state = await self._answer(driver, self._first_prompt())
        outcome = _judged(self._spec, state, may_be_thought=self._schema is not None)
        if outcome.success and self._schema is not None:
            outcome = await self._structured(driver, self._schema, outcome)
        return replace(outcome, source_anchors=self._effects.anchors() or None)

    def _first_prompt(self) -> str:
        self._demand_schema(is_repair=False)
        if self._schema is None or self._setup.model.capabilities.structured == "json_schema":
            return self._spec.prompt
        return f"{self._spec.prompt}\n\n{answer_contract(self._schema)}"

    def _demand_schema(self, *, is_repair: bool) -> None:
        """Have the provider enforce the schema, where it can and tools are not in the way."""
        mode = self._setup.model.capabilities.structured
        can_now = mode != "forced_tool" or is_repair or not self._setup.specs
        if self._schema is not None and can_now:
            self._effects.model.output_schema = self._schema.wire_schema
        self._effects.model.partials = None if is_repair else self._schema
        self._effects.model.is_repair = is_repair

    async def _answer(self, driver: Driver, prompt: str) -> SessionState:
        await driver.ask(prompt)
        return await self._driven(driver)

    async def _driven(self, driver: Driver) -> SessionState:
        before, known = self._usage, driver.state.usage
        try:
            return await driver.drive()
        finally:
            self._usage = before + (driver.state.usage - known)

    async def _structured(self, driver: Driver, schema: OutputSchema, outcome: StepOutcome) -> StepOutcome:
        found = _found(driver.state, schema)
        for _ in range(driver.state.turn - 1, REPAIR_ROUNDS):  # a resumed step may have had some
            if found.is_valid:
                break
            self.repairs += 1
            self._demand_schema(is_repair=True)
            state = await self._answer(driver, repair_prompt(found, schema))
            found = _found(state, schema)
            outcome = replace(outcome, output=state.text or outcome.output)
        if found.is_valid:
            output = outcome.output if outcome.output.strip() else encode_json(found.value).decode()
            return replace(outcome, structured=found.value, output=output)
        why = failure_text(found, REPAIR_ROUNDS)
        if self._setup.model.capabilities.structured == "prompt":
            why += " (a server that can enforce a schema is asked to by structured_output of its provider)"
        output = f"{outcome.output}\n\n[structured output failed: {why}]"
        return replace(outcome, success=False, output=output, error_code=SCHEMA_MISMATCH)


_WHY_FAILED: Mapping[str, str] = {
    "incomplete": "the model's answer broke off before its end",
    "content_filter": "the provider's content filter stopped the answer",
    "denied": "a tool call was denied",
    "tool_budget": "the tool budget of the turn was spent before an answer",
}


def _found(state: SessionState, schema: OutputSchema) -> Extraction:
    # Reasoning that was cut off came to no answer: what it holds is a draft.
    return extract(state.text, schema, state.reasoning if state.stop_reason == "stop" else "")


def _judged(spec: AgentStepSpec, state: SessionState, *, may_be_thought: bool) -> StepOutcome:
    """An outcome of the finished turn; an answer that did not come to its end is no success."""
    why = _WHY_FAILED.get(state.stop_reason)
    if why is None and not state.text.strip() and not (may_be_thought and state.reasoning.strip()):
        why = "child agent returned no final output"
    if why is not None:
        return failed(spec, f"Task failed: {why}" + (f"\n\n{state.text}" if state.text else ""), code=NO_ANSWER)
    return StepOutcome(
        task_id=spec.task_id,
        session_id=child_session_id(spec.task_id),
        agent=spec.agent,
        output=state.text,
        success=True,
        stop_reason=None if state.stop_reason == "stop" else state.stop_reason,
    )


class _Progress:
    """Turns a child's events into its parent's: `subagent_progress`, and the raw event of what a person must answer."""

    def __init__(self, task_id: str, session_id: str, events: EventSink, tracker: EventSink) -> None:
        self._who = {"task_id": task_id, "session_id": session_id}
        self._events = events
        self._tracker = tracker

    def __call__(self, item: AgentEvent) -> None:
        payload = item.payload
        match item.type:
            case "turn_end":
                usage: dict[str, Any] = payload["usage"]
                self._progress("turn_completed", {"turn": payload["turn"], **usage})
            case "tool_end":
                size = len(payload["output"])
                self._progress(
                    "tool_completed", {"tool": payload["name"], "exit_code": payload["exit_code"], "output_bytes": size}
                )
            case "tool_start":
                self._progress("tool_started", {"tool": payload["name"]})
            case _:
                self._events(AgentEvent(type=item.type, payload=payload, metadata=dict(self._who)))

    def _progress(self, status: str, metadata: dict[str, Any]) -> None:
        told = event("subagent_progress", **self._who, status=status, metadata=metadata)
        self._tracker(told)
        self._events(told)
