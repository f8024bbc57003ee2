"""What simulated steps do: a host's own executor, and a model with a tool for the executor of fanfold itself.

Both look, before they begin anything, whether it may begin at all.
"""

import asyncio
from typing import Protocol

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.messages import (
    AssistantMessage,
    Message,
    ModelRequest,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolSpec,
    Usage,
    UserMessage,
)
from fanfold.contracts.policy import PermissionPolicy
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.contracts.steps import AgentStepSpec, StepOutcome, failed
from fanfold.delegation.tracker import Tracker
from fanfold.env import HostEnv
from fanfold.errors import ProviderError
from fanfold.governance.budget import BudgetGate
from fanfold.governance.hooks import Hooks
from fanfold.kernel.decide import Limits
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.limiter import Limiter
from fanfold.protocols import AgentExecutor, EventSink, ToolScope
from fanfold.session.child import TaskExecutor
from fanfold.session.inbox import Inbox
from fanfold.session.setup import AgentSetup
from fanfold.stores.memory import MemoryFactLog
from fanfold.testing.scripted import Reply, ScriptedModel
from fanfold.testing.simulated_world import SimulatedStep, SimulatedWorld

HOST_WAYS = ("fails", "raises", "panics", "cancels itself", "another's outcome", "no outcome", "unmetered", "hangs",
             "stubborn")  # fmt: skip
MODEL_WAYS = ("fails", "raises", "empty", "unmetered", "hangs", "broken off")
HANGS_SECONDS = 3600.0


class Work(Protocol):
    """A call as its steps see it."""

    world: SimulatedWorld
    slots: int
    retried: set[str]
    """Steps of which this call has told that it tries them again."""

    @property
    def is_live(self) -> bool:
        """Its process has not ended, and nobody has taken the workflow from it."""
        ...

    async def begin(self, step: SimulatedStep, what: str) -> None:
        """Something of `step` begins: what must not be so is a broken law."""
        ...

    def end(self, step: SimulatedStep) -> None: ...

    def used(self, step: SimulatedStep, tokens: int | None) -> None:
        """Tokens that it took and told of, if it told."""
        ...

    def tell(self, what: str) -> None: ...


class SimulatedHost:
    """An executor such as a host would write, with every fault that one can have."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def concurrency_hint(self) -> int:
        return self._work.slots

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        work, world = self._work, self._work.world
        step = world.steps[spec.task_id]
        if work.is_live:
            world.require(spec.prompt == step.prompt, f"{spec.task_id} is run with the prompt '{spec.prompt}'")
        await work.begin(step, "runs")
        way = step.next_way() if work.is_live else "ok"
        try:
            await self._pass_time(way)
        finally:
            work.end(step)
            if work.is_live:
                work.tell(f"{step.task_id} ends: {way}")
        return self._answer(spec, way, step)

    async def _pass_time(self, way: str) -> None:
        try:
            await asyncio.sleep(HANGS_SECONDS if way == "hangs" else self._work.world.latency())
        except asyncio.CancelledError:
            if way != "stubborn":
                raise

    def _answer(self, spec: AgentStepSpec, way: str, step: SimulatedStep) -> StepOutcome:
        tokens = self._work.world.random.randrange(1, 60)
        usage = Usage(prompt_tokens=tokens // 2, completion_tokens=tokens - tokens // 2, total_tokens=tokens)
        match way:
            case "raises":
                raise ValueError("simulated")
            case "panics":
                raise SystemExit("simulated")
            case "cancels itself":
                raise asyncio.CancelledError
            case "no outcome":
                return None  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
            case _:
                pass
        is_told = way != "unmetered" and way != "another's outcome"
        self._work.used(step, tokens if is_told else None)
        if way == "fails":
            return failed(spec, "Task failed: simulated", usage=usage)
        return StepOutcome(
            task_id="another" if way == "another's outcome" else spec.task_id,
            agent=spec.agent,
            output=f"{spec.prompt} run {self._work.world.number()}",
            success=True,
            usage=usage if is_told else None,
        )


def local_executor(work: Work, ledger: TokenLedger | None, env: HostEnv) -> AgentExecutor:
    """fanfold's own executor over a model that answers by the plan of each step, and its one tool."""
    tool = SimulatedTool(work)
    setup = AgentSetup(
        model=ScriptedModel(SimulatedModel(work).answer),
        model_id="simulated",
        system="",
        tools={"probe": tool},
        specs=(tool.spec,),
        policies=(PermissionPolicy(default_decision="allow"),),
        real_path=str,
        limits=Limits.of(50),
    )
    executor = TaskExecutor(
        agents={"worker": AgentDefinition(name="worker", description="", tools=("probe",))},
        setup_for=lambda agent, spec: setup,
        new_log=MemoryFactLog,
        limiter=Limiter(work.slots),
        inbox=Inbox(),
        env=env,
        hooks=Hooks(),
        budget=BudgetGate(),
        tracker=Tracker(SessionRetentionLimits(), env.clock),
    )
    return executor.charging(ledger)


def _step_of(work: Work, session_id: str) -> SimulatedStep:
    return work.world.steps[session_id.removeprefix("task-run-")]


class SimulatedModel:
    """Asks for the tool as many rounds as the step has, then answers."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def answer(self, request: ModelRequest) -> Reply:
        work, world = self._work, self._work.world
        step = _step_of(work, request.session_id)
        messages = list(request.transcript)
        turns = sum(isinstance(message, AssistantMessage) for message in messages)
        await work.begin(step, f"asks for turn {turns + 1}")
        way = "ok"
        if work.is_live:
            self._check(step, turns, messages)
            way = step.next_way()
        try:
            await asyncio.sleep(HANGS_SECONDS if way == "hangs" else world.latency())
        finally:
            work.end(step)
            if work.is_live:
                work.tell(f"{step.task_id} turn {turns + 1}: {way}")
        return self._reply(step, turns, way)

    def _check(self, step: SimulatedStep, turns: int, messages: list[Message]) -> None:
        world = self._work.world
        thread = world.witness.threads.get(step.task_id)
        if thread is None or thread.meaning != step.prompt:
            world.require(turns == 0 or not step.rounds, f"{step.task_id} asks for turn {turns + 1}, none is recorded")
            return
        world.require(
            turns >= thread.turns or (turns == 0 and (thread.has_failed or step.task_id in self._work.retried)),
            f"{step.task_id} asks for turn {turns + 1} again, {thread.turns} are recorded",
        )
        first = messages[0]
        world.require(isinstance(first, UserMessage) and first.text == step.prompt, f"{step.task_id} lost its prompt")
        if turns == thread.turns:
            heard = {message.call_id: message.output for message in messages if isinstance(message, ToolMessage)}
            world.require(heard == thread.results, f"{step.task_id} goes on with other results than those recorded")

    def _reply(self, step: SimulatedStep, turns: int, way: str) -> Reply:
        world = self._work.world
        if way == "fails":
            return Reply(error=ProviderError("simulated", kind="server", retryable=True))
        if way == "raises":
            return Reply(error=ValueError("simulated"))
        tokens = world.random.randrange(1, 30)
        usage = Usage(prompt_tokens=tokens // 2, completion_tokens=tokens - tokens // 2, total_tokens=tokens)
        is_told = way != "unmetered"
        self._work.used(step, tokens if is_told else None)
        told = usage if is_told else None
        if turns < step.rounds:
            args = {"prompt": step.prompt}
            wanted = [ToolCall(f"{turns}-{each}", "probe", args) for each in range(1 + world.random.randrange(2))]
            return Reply(calls=wanted, usage=told)
        if way == "empty":
            return Reply(text="", usage=told)
        if way == "broken off":
            return Reply(text="half of an", usage=told, stop_reason="incomplete")
        return Reply(text=f"{step.prompt} run {world.number()}", usage=told)


class SimulatedTool:
    """Answers with a number that no other run of it has."""

    spec = ToolSpec(
        name="probe", description="", parameters={"type": "object"}, is_read_only=True, is_parallel_safe=True
    )

    def __init__(self, work: Work) -> None:
        self._work = work

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        work, world = self._work, self._work.world
        step = _step_of(work, scope.session_id)
        await work.begin(step, f"runs tool {scope.call_id}")
        if work.is_live:
            thread = world.witness.threads.get(step.task_id)
            is_known = thread is not None and thread.meaning == step.prompt and scope.call_id in thread.calls
            world.require(is_known, f"tool {scope.call_id} of {step.task_id} runs before its turn is recorded")
            has_result = thread is not None and scope.call_id in thread.results
            world.require(not has_result, f"tool {scope.call_id} of {step.task_id} runs again, its result is recorded")
        try:
            await asyncio.sleep(world.latency())
        finally:
            work.end(step)
        if world.random.random() < 0.1:
            raise ValueError("simulated")
        return ToolOutput(output=f"result {world.number()}")
