"""Prompting: what happens around a prompt before the model is asked, and around its answer before it is given back."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.events import AgentResult, VerificationReport, VerificationStatus, event
from fanfold.contracts.messages import NO_USAGE, Attachment
from fanfold.contracts.record import JsonObject
from fanfold.delegation.builtin_agents import ALIASES
from fanfold.errors import BudgetExhaustedError, HookBlockedError, UsageError
from fanfold.kernel.delegation import plan_delegation
from fanfold.kernel.goals import Goal, Judgement
from fanfold.kernel.planning import PlanningMode, planning_mode, shown_plan, wants_plan
from fanfold.kernel.state import SessionState
from fanfold.kernel.transcript import as_plain_text, excerpt
from fanfold.options import AutoDelegation, SessionOptions
from fanfold.portal import complete
from fanfold.session.conversation import Begin, RunScope
from fanfold.session.planner import Planner


class Prompting:
    """Planning, goals, delegation and hooks of one session's prompts, as its options say."""

    def __init__(self, *, options: SessionOptions, agents: Mapping[str, AgentDefinition]) -> None:
        self._options = options
        self._agents = agents
        self._planning: PlanningMode = planning_mode(options.planning_mode, options.planning)

    # ---- before ----

    def prompt(
        self, prompt: str, history: Sequence[JsonObject] | None, attachments: tuple[Attachment, ...] = ()
    ) -> Begin:
        async def begin(scope: RunScope) -> None:
            effects, text = scope.effects, prompt
            if effects.around.hooks.hears("pre_prompt"):
                asked = await effects.telling.ask_hooks("pre_prompt", prompt=prompt)
                text = asked["prompt"]
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError("a prompt must be text")

            async def record(planned: str) -> None:
                await scope.driver.seed(history or ())
                await scope.driver.ask(planned, attachments, is_aside=history is not None)

            try:
                planned = await self._with_plan(scope, text)
                await scope.driver.look_for_notices(begins_run=True)
            except asyncio.CancelledError:
                if scope.run.is_stopping:  # what was asked is recorded, whenever somebody stops it
                    await complete(record(text))
                raise
            await complete(record(planned))
            self.prepare(scope, text, planned)

        return begin

    def prepare(self, scope: RunScope, asked: str = "", planned: str = "") -> None:
        """Have what is said be delegated where it is for an agent; of a planned prompt only the words of the user say
        whom it is for."""
        scope.effects.model.delegate = lambda said: self._delegated(asked if said == planned else said)

    async def _with_plan(self, scope: RunScope, prompt: str) -> str:
        is_planned, tracks_goal = wants_plan(self._planning, prompt), bool(self._options.goal_tracking)
        if not (is_planned or tracks_goal):
            return prompt
        effects, planner = scope.effects, self._planner(scope)
        if tracks_goal and (goal := (await planner.extract_goal(prompt))[0]) is not None:
            scope.run.goal = goal
        if not is_planned:
            return prompt
        if effects.around.hooks.hears("pre_planning"):
            await effects.telling.ask_hooks("pre_planning", prompt=prompt)
        plan, _ = await planner.plan(prompt)
        if effects.around.hooks.hears("post_planning"):
            await effects.telling.ask_hooks("post_planning", plan=[] if plan is None else list(plan.steps))
        return prompt if plan is None else f"{prompt}\n\n{shown_plan(plan)}"

    def _planner(self, scope: RunScope) -> Planner:
        around = scope.effects.around
        return Planner(
            scope.effects.model.ask_json, session_id=around.session_id, clock=around.env.clock, emit=scope.run.emit
        )

    def _delegated(self, prompt: str) -> JsonObject | None:
        wanted = self._options.auto_delegation or AutoDelegation()
        most = min(wanted.max_tasks, self._options.max_parallel_tasks or wanted.max_tasks)
        return plan_delegation(
            prompt,
            dict(self._agents),  # any thread may register one meanwhile
            aliases=ALIASES,
            enabled=wanted.enabled,
            min_confidence=wanted.min_confidence,
            max_tasks=most,
            allow_parallel=wanted.allow_parallel and self._options.auto_parallel is not False,
        )

    # ---- after ----

    async def finish(self, scope: RunScope) -> AgentResult:
        """The result of a run whose turn is over."""
        state, effects = scope.driver.state, scope.effects
        reports = await self._judged(scope, state)
        result = AgentResult(
            text=state.text,
            usage=state.usage + effects.model.extra_usage if effects.model.extra_usage.total_tokens else state.usage,
            tool_calls_count=state.tool_results,
            stop_reason=state.stop_reason,
            run_id=scope.run.id,
            verification=reports,
        )
        for point in ("post_response", "on_success"):
            if effects.around.hooks.hears(point):
                await effects.telling.ask_hooks(
                    point, text=result.text, usage=result.usage.to_dict(), run_id=result.run_id
                )
        return result

    async def _judged(self, scope: RunScope, state: SessionState) -> tuple[VerificationReport, ...] | None:
        goal = scope.run.goal
        if goal is None or state.transcript is None:
            return None
        work = excerpt(as_plain_text(list(state.transcript)))
        try:
            judgement, _ = await self._planner(scope).judge(goal, work)
        except (BudgetExhaustedError, HookBlockedError) as error:  # the answer is there, and stays
            return (VerificationReport(what=goal.text, status="needs_review", reason=str(error)),)
        return (_report(goal, judgement),)


def _report(goal: Goal, judgement: Judgement | None) -> VerificationReport:
    if judgement is None:
        return VerificationReport(what=goal.text, status="needs_review", reason="the goal was not judged")
    status: VerificationStatus = "passed" if judgement.is_achieved else "failed"
    return VerificationReport(what=goal.text, status=status, reason=judgement.reason)


# ---- commands -------------------------------------------------------------------------------------------------------


def answered(run: Callable[[RunScope], Awaitable[str]]) -> Begin:
    """A run that answers by itself, without the model: a slash command."""

    async def begin(scope: RunScope) -> AgentResult:
        text = await run(scope)
        scope.run.emit(event("text_delta", text=text))
        return AgentResult(text=text, usage=NO_USAGE, tool_calls_count=0, stop_reason="command", run_id=scope.run.id)

    return begin
