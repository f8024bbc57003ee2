"""`task`: the tool by which a model hands work to agents, and its call's children (notes 5.7).

Children run on the session's executor, and so on its limiter and under its permissions; they never see this tool.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.notices import Notice
from fanfold.contracts.record import JsonObject
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, StepOutcome, child_session_id, failed
from fanfold.delegation.builtin_agents import find_agent
from fanfold.delegation.task_call import TaskCall, until_done
from fanfold.delegation.task_events import TaskEvents
from fanfold.delegation.task_report import Verdict, is_long, refused, report
from fanfold.delegation.task_request import InvalidTaskError, TaskRequest, parse_request, task_spec
from fanfold.delegation.tracker import Tracker
from fanfold.env import HostEnv
from fanfold.errors import RunCancelledError
from fanfold.kernel.call_ids import HOST_PREFIX
from fanfold.kernel.notification import is_shown_whole, render_notification
from fanfold.kernel.plain_text import plain
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.runner import StepRunner
from fanfold.protocols import AgentExecutor, EventSink, ToolScope

_DESCRIPTION_CHARACTERS = 300

Launch = Callable[[str, Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]
"""Starts work of that name as a task of its owner, who cancels it at its own end and waits for it. It may refuse by
raising. The work of a background child is named by its task id and gives its `StepOutcome`."""
Keep = Callable[[str], Awaitable[str | None]]
"""Keeps a text that is too long to be shown; returns what `read` takes to show it, None when it cannot be kept."""


class TaskTool:
    def __init__(
        self,
        *,
        executor: AgentExecutor,
        env: HostEnv,
        agents: Mapping[str, AgentDefinition],
        tracker: Tracker | None = None,
        launch: Launch | None = None,
        new_control: Callable[[], FanOutControl] = FanOutControl,
        keep: Keep | None = None,
        notify: Callable[[Notice], None] | None = None,
    ) -> None:
        """Args:
        agents: those that the description lists, but for hidden ones.
        tracker: the one that `executor` tells of its children.
        launch: for background tasks; None: there are none.
        new_control: makes the control of one call, by which its children can be cancelled.
        keep: for texts of children that a model sees in part only; None: the rest is not kept.
        notify: hears of the end of each background task that a model has started; the host looks after its own.
        """
        self._executor = executor
        self._env = env
        self._agents = agents
        self._launch = launch
        self._new_control = new_control
        self._tracker = tracker
        self._keep = keep
        self._notify = notify

    @property
    def spec(self) -> ToolSpec:
        """As a model is told of it, with the agents that there are now."""
        return task_spec(_listed(self._agents))

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        try:
            request = parse_request(args)
            ids = [f"task-{self._env.ids.new_id()}" for _ in request.tasks]
            specs = request.specs(ids, scope.session_id)
        except InvalidTaskError as error:
            return refused(str(error))
        if request.is_background and find_agent(specs[0].agent, self._agents) is not None:
            return await self._in_background(replace(specs[0], timeout_ms=request.timeout_ms), scope)
        return await self._in_foreground(specs, request, scope.emit)

    # ---- foreground ----

    async def _in_foreground(self, specs: Sequence[AgentStepSpec], request: TaskRequest, emit: EventSink) -> ToolOutput:
        clock = self._env.clock
        start = clock.monotonic_ms()
        call = TaskCall(
            self._executor, specs, TaskEvents(emit, clock, self._tracker), self._new_control(), request.timeout_ms
        )
        left = await call.run(request.needed if request.min_success_count else None)
        outcomes = call.results()
        if left is not None:
            await self._leave(left)
        verdict = Verdict(
            needed=request.needed,
            allow_partial_failure=bool(request.allow_partial_failure),
            min_success_count=request.min_success_count,
            timeout_ms=request.timeout_ms,
            timed_out=call.was_cut and call.timed_out,
            returned_early=call.was_cut and not call.timed_out,
            duration_ms=clock.monotonic_ms() - start,
        )
        return report(specs, outcomes, verdict, await self._kept(outcomes))

    async def _leave(self, work: "asyncio.Task[None]") -> None:
        """Hand children that would not stop to the owner of background work, or wait for them where there is none."""
        if self._launch is None or not await _handed_over(self._launch, "cancelled children", until_done(work)):
            await until_done(work)

    async def _kept(self, outcomes: Sequence[StepOutcome]) -> dict[str, str]:
        kept: dict[str, str] = {}
        for outcome in outcomes:
            if self._keep is not None and is_long(outcome.output):
                place = await self._keep(outcome.output)
                if place is not None:
                    kept[outcome.task_id] = place
        return kept

    # ---- background ----

    async def _in_background(self, spec: AgentStepSpec, scope: ToolScope) -> ToolOutput:
        if self._launch is None:
            return refused("task cannot run in the background here; leave background out to wait for its result")
        events = TaskEvents(scope.emit, self._env.clock, self._tracker)
        notify = None if scope.call_id.startswith(HOST_PREFIX) else self._notify
        if not await _handed_over(self._launch, spec.task_id, self._child(spec, events, notify)):
            return report([spec], [_cancelled(spec)], Verdict(needed=1), {})
        started = {"task_id": spec.task_id, "session_id": child_session_id(spec.task_id), "agent": spec.agent}
        return ToolOutput(
            output=f"Task started in background. Task ID: {spec.task_id}", metadata={**started, "background": True}
        )

    async def _child(
        self, spec: AgentStepSpec, events: TaskEvents, notify: Callable[[Notice], None] | None
    ) -> StepOutcome:
        events.announce(spec)
        told: list[StepOutcome] = []
        try:
            runner = StepRunner(self._executor, events=events, control=self._new_control())
            await runner.run(spec, told.append)
        finally:
            events.end(spec, told[0] if told else _cancelled(spec))
        if notify is not None:
            notify(Notice(spec.task_id, await self._notification(spec, told[0])))
        return told[0]

    async def _notification(self, spec: AgentStepSpec, outcome: StepOutcome) -> str:
        status = "completed" if outcome.success else "failed"
        if outcome.error_code == RunCancelledError.code:
            status = "cancelled"
        place = None
        if self._keep is not None and not is_shown_whole(outcome.output):
            place = await self._keep(outcome.output)
        fields = {"agent": spec.agent, "description": spec.description}
        if outcome.usage is not None:
            fields["tokens"] = str(outcome.usage.total_tokens)
        fields = {name: value for name, value in fields.items() if value}
        return render_notification("task", spec.task_id, status, fields, outcome.output, place)


async def _handed_over(launch: Launch, name: str, work: Coroutine[Any, Any, Any]) -> bool:
    """Start `work` as its owner's, and return once its first step is made. False: its owner ended it before that,
    for a task that is cancelled before its first step runs none of it."""
    first_step: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    has_begun = False

    def settle() -> None:
        if not first_step.done():
            first_step.set_result(None)

    async def begin() -> Any:
        nonlocal has_begun
        has_begun = True
        settle()
        return await work

    task: asyncio.Task[Any] | None = None
    try:
        task = launch(name, begin())
        task.add_done_callback(lambda _: settle())
        await first_step
    finally:
        if not has_begun:  # and it will not either
            if task is not None:
                task.cancel()
            work.close()
    return has_begun


def _cancelled(spec: AgentStepSpec) -> StepOutcome:
    return failed(spec, CANCELLED, code=RunCancelledError.code)


def _listed(agents: Mapping[str, AgentDefinition]) -> str:
    lines = [f"- {name}: {_brief(agent.description)}" for name, agent in dict(agents).items() if not agent.is_hidden]
    return plain("\n".join(lines)) or "(none)"  # what one agent calls itself must not fail every model call


def _brief(description: str) -> str:
    line = " ".join(description.split())
    return line if len(line) <= _DESCRIPTION_CHARACTERS else f"{line[: _DESCRIPTION_CHARACTERS - 1]}…"
