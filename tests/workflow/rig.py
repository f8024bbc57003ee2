"""A workflow runtime on its own: real files, an executor that a test writes, and what it was asked."""

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from fanfold.contracts.codec import encode_json
from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.messages import Usage
from fanfold.contracts.policy import Decision
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowResult
from fanfold.env import HostEnv
from fanfold.portal import Portal, start_kept
from fanfold.protocols import EventSink, WorkflowFiles
from fanfold.stores.run_files import open_run_files
from fanfold.workflow.host import AgentProfile
from fanfold.workflow.launching import Launcher
from fanfold.workflow.registry import Registry
from fanfold.workflow.run_notices import RunNotices
from fanfold.workflow.runtime import WorkflowRuntime

META: dict[str, Any] = {"name": "demo", "description": "a demo"}
TOKENS = 10
Answer = Callable[[AgentStepSpec], Awaitable[StepOutcome | str | dict[str, Any]]]


class Team:
    """An executor: answers each step by `answer`, an echo of the prompt unless given; counts."""

    def __init__(self, answer: Answer | None = None, hint: int = 64) -> None:
        self.answer = answer
        self.hint = hint
        self.asked: list[AgentStepSpec] = []
        self.in_flight = 0
        self.most_in_flight = 0

    @property
    def prompts(self) -> list[str]:
        return [spec.prompt for spec in self.asked]

    def concurrency_hint(self) -> int:
        return self.hint

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        self.asked.append(spec)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if events is not None:
            events(event("subagent_start", task_id=spec.task_id, agent=spec.agent, description=spec.description))
        try:
            given = f"re: {spec.prompt}" if self.answer is None else await self.answer(spec)
        finally:
            self.in_flight -= 1
        return outcome(spec, given)


def outcome(spec: AgentStepSpec, given: StepOutcome | str | dict[str, Any] | list[Any]) -> StepOutcome:
    if isinstance(given, StepOutcome):
        return given
    usage = Usage(prompt_tokens=TOKENS - 3, completion_tokens=3, total_tokens=TOKENS)
    output, structured = (given, None) if isinstance(given, str) else (encode_json(given).decode(), given)
    return StepOutcome(
        task_id=spec.task_id, agent=spec.agent, output=output, success=True, structured=structured, usage=usage
    )


def failure(spec: AgentStepSpec, reason: str = "it broke", **more: Any) -> StepOutcome:
    usage = Usage(prompt_tokens=TOKENS, total_tokens=TOKENS)
    more = {"error_code": "NO_ANSWER", "usage": usage, **more}
    return StepOutcome(task_id=spec.task_id, agent=spec.agent, output=reason, success=False, **more)


class Folder:
    """A project's scripts, held in memory."""

    def __init__(self) -> None:
        self.scripts: dict[str, str] = {}
        self.approved: set[tuple[str, str]] = set()

    def files(self) -> list[Any]:
        from fanfold.config.workflow_files import WorkflowFile

        return [WorkflowFile(path=path, text=text) for path, text in sorted(self.scripts.items())]

    def is_approved(self, path: str, sha256: str) -> bool:
        return (path, sha256) in self.approved

    def approve(self, path: str, sha256: str) -> None:
        self.approved.add((path, sha256))


class Rig:
    """What one process has; several on one folder are several processes."""

    def __init__(
        self,
        place: Path,
        team: Team | None = None,
        *,
        files: WorkflowFiles | None = None,
        env: HostEnv | None = None,
        limits: WorkflowLimits | None = None,
        takes_inline: bool = False,
        rules: Mapping[str, Decision] | None = None,
        model: str | None = "test/one",
        agents: Mapping[str, str] | None = None,
        session_id: str = "s-1",
    ) -> None:
        self.team = team or Team()
        self.files = files or open_run_files(place)
        self.events: list[AgentEvent] = []
        self.folder = Folder()
        self.rules = dict(rules or {})
        self.model = model
        self.agents = dict(agents or {})
        self.env = env or HostEnv()
        registry = Registry(self.folder)
        self.looks = 0
        self.notices = RunNotices(lambda: self.files, session_id, first=lambda: None, look=self._look)
        self.tasks: set[asyncio.Task[WorkflowResult]] = set()
        launcher = Launcher(
            session_id=session_id,
            files=lambda: self.files,
            registry=registry,
            gate=lambda name: self.rules.get(name, "allow"),
            executor=self.team,
            profiles=self._profile,
            env=self.env,
            limits=limits or WorkflowLimits(),
            takes_inline=takes_inline,
            notices=self.notices,
            model=lambda: self.model,
        )
        self.workflows = WorkflowRuntime(
            portal=Portal.of_running_loop(),
            files=lambda: self.files,
            registry=registry,
            launcher=launcher,
            start=self._start,
            now_ms=lambda: int(self.env.clock.now_ms()),
            on_change=lambda: None,
        )

    def _look(self) -> None:
        self.looks += 1

    def _profile(self, name: str, model: str | None) -> AgentProfile:
        text = self.agents.get(name, name)
        return AgentProfile(model or self.model, hashlib.sha256(text.encode()).hexdigest())

    def _start(self, work: Any) -> asyncio.Task[WorkflowResult]:
        task: asyncio.Task[WorkflowResult] = start_kept(work)
        self.tasks.add(task)
        return task

    def register(self, script: Any, **meta: Any) -> None:
        self.workflows.register({**META, **meta}, script)

    async def run(self, script: Any = None, args: Any = None, **more: Any) -> WorkflowResult:
        """Register `script` if it is given, and run it, or go on with `resume_from_run_id`."""
        if script is not None:
            self.register(script)
        name = None if "resume_from_run_id" in more or "script" in more else META["name"]
        return await self.workflows.run_async(name, args, events=self.events.append, **more)

    def progress(self, kind: str) -> list[dict[str, Any]]:
        return [each.payload for each in self.events if each.payload.get("type") == kind]

    def notification(self) -> dict[str, Any]:
        (found,) = [each.payload for each in self.events if each.type == "task_notification"]
        return found


async def reached(condition: Callable[[], bool]) -> None:
    for _ in itertools.count():
        if condition():
            return
        await asyncio.sleep(0.001)
