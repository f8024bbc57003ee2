"""Planner: the model calls around a run: a plan before it, its goal, and the judgement after it.

None of them can fail the run. Where one gives nothing usable the run goes on without it, and an event says so.
"""

from collections.abc import Awaitable, Callable

from fanfold.contracts.events import event
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.record import JsonObject
from fanfold.env import Clock
from fanfold.errors import ProviderError
from fanfold.foreign import described, logger, tolerant
from fanfold.kernel.goals import (
    GOAL_PROMPT,
    GOAL_SCHEMA,
    JUDGEMENT_SCHEMA,
    JUDGING_PROMPT,
    Goal,
    Judgement,
    judging_text,
    read_goal,
    read_judgement,
)
from fanfold.kernel.planning import PLAN_SCHEMA, PLANNING_PROMPT, Plan, read_plan
from fanfold.protocols import EventSink

Ask = Callable[[str, str, JsonObject], Awaitable[tuple[object | None, Usage]]]
"""One model call: system prompt, text, schema of the answer. Gives the answer, checked and parsed, or None when it
failed; and what it used. A `ProviderError` counts as a failure too; all else that it raises ends the run."""


class Planner:
    """Makes one model call for each method; the events go to `emit`, or are dropped with nobody to hear them."""

    def __init__(self, ask: Ask, *, session_id: str, clock: Clock, emit: EventSink | None = None) -> None:
        self._ask = ask
        self._session_id = session_id
        self._clock = clock
        self._hear = None if emit is None else tolerant(emit)

    async def plan(self, prompt: str) -> tuple[Plan | None, Usage]:
        """A plan for `prompt`. Tells `planning_start`, `planning_end` in any case, and `task_updated` with a plan."""
        self._emit("planning_start", prompt=prompt)
        answer, usage, fault = await self._asked(PLANNING_PROMPT, prompt, PLAN_SCHEMA)
        plan = read_plan(answer)
        if plan is None:
            # No steps are made up in its place: a list that nobody has thought of would be shown as the run's plan.
            warning = self._warning("no plan was made", fault)
            self._emit("planning_end", plan=[], estimated_steps=0, warning=warning)
            return None, usage
        self._emit("planning_end", plan=list(plan.steps), estimated_steps=len(plan.steps))
        self._emit("task_updated", session_id=self._session_id, tasks=plan.tasks)
        return plan, usage

    async def extract_goal(self, prompt: str) -> tuple[Goal | None, Usage]:
        """What `prompt` wants to achieve. Tells `goal_extracted`, or `goal_warning` when nothing came of it."""
        since_ms = self._clock.monotonic_ms()
        answer, usage, fault = await self._asked(GOAL_PROMPT, prompt, GOAL_SCHEMA)
        goal = read_goal(answer, since_ms)
        if goal is None:
            self._emit("goal_warning", message=self._warning("no goal was found", fault))
        else:
            self._emit("goal_extracted", goal=goal.text, criteria=list(goal.criteria))
        return goal, usage

    async def judge(self, goal: Goal, work: str) -> tuple[Judgement | None, Usage]:
        """Whether `work`, the record of a run, reached `goal`. Tells `goal_judging`, then `goal_progress`, and
        `goal_achieved` when it did; `goal_warning` when the judge gave no verdict: then nothing is achieved."""
        self._emit("goal_judging", goal=goal.text)
        answer, usage, fault = await self._asked(JUDGING_PROMPT, judging_text(goal, work), JUDGEMENT_SCHEMA)
        judgement = read_judgement(answer, goal)
        if judgement is None:
            self._emit("goal_warning", message=self._warning("the goal was not judged", fault))
            return None, usage
        self._emit(
            "goal_progress",
            goal=goal.text,
            progress=judgement.progress,
            completed_steps=judgement.completed_steps,
            total_steps=goal.total_steps,
        )
        if judgement.is_achieved:
            duration_ms = self._clock.monotonic_ms() - goal.since_ms
            self._emit("goal_achieved", goal=goal.text, total_steps=goal.total_steps, duration_ms=duration_ms)
        return judgement, usage

    async def _asked(self, system: str, text: str, schema: JsonObject) -> tuple[object | None, Usage, str]:
        """Answer, usage, and why there is no answer."""
        try:
            answer, usage = await self._ask(system, text, schema)
        except ProviderError as error:
            return None, NO_USAGE, described(error)
        return answer, usage, "the model gave no usable answer"

    def _warning(self, what: str, why: str) -> str:
        warning = f"{what}: {why}; the run goes on without"
        if self._hear is None:
            logger.warning("session %s: %s", self._session_id, warning)
        return warning

    def _emit(self, type: str, **payload: object) -> None:
        if self._hear is not None:
            self._hear(event(type, **payload))
