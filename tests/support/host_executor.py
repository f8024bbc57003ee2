"""An executor as a host would write it: it answers from a function and counts what it is asked."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fanfold.contracts.messages import Usage
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.protocols import EventSink


class HostExecutor:
    """`answer` makes the output of a spec, or its outcome, or raises."""

    def __init__(
        self, answer: Callable[[AgentStepSpec], Any] = lambda spec: f"did {spec.prompt}", hint: int = 8
    ) -> None:
        self._answer = answer
        self._hint = hint
        self.started: list[str] = []
        self.running = 0
        self.most_running = 0

    def concurrency_hint(self) -> int:
        return self._hint

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        self.started.append(spec.task_id)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            answer = self._answer(spec)
            if isinstance(answer, Awaitable):
                answer = await answer
            return answer if isinstance(answer, StepOutcome) else done(spec, answer)
        finally:
            self.running -= 1


def done(spec: AgentStepSpec, output: str, tokens: int = 10) -> StepOutcome:
    return StepOutcome(
        task_id=spec.task_id, agent=spec.agent, output=output, success=True, usage=Usage(total_tokens=tokens)
    )


def spec(task_id: str, prompt: str = "p", **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "agent": "general", "description": "d", "prompt": prompt, **more}


def specs(count: int) -> list[dict[str, Any]]:
    return [spec(f"t{number}", f"p{number}") for number in range(count)]
