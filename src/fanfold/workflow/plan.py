"""The plan of a resume: the script is run over its journal, and where it asks for what is not there, it waits for ever.

So each lane goes as far as it can without an agent; when all of them have ended or wait, the plan is what was seen.
"""

import asyncio
from collections.abc import Awaitable, Callable

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.contracts.workflow_runs import PlannedCall, WorkflowLimits, WorkflowPlan
from fanfold.kernel.run_entries import Claim
from fanfold.kernel.run_journal import NOT_RECORDED, miss_reason
from fanfold.kernel.run_view import RunJournalView
from fanfold.orchestration.fanout import stand_in
from fanfold.orchestration.ledger import FIRST_ESTIMATE
from fanfold.workflow.host import PlacedCall, PlayNested, Profiles, RunHost
from fanfold.workflow.lanes import Lane
from fanfold.workflow.playing import ReadyScript, play_script
from fanfold.workflow.progress import Progress

QUIET_SECONDS = 0.05
"""A script of which nothing was heard for so long has gone as far as it can."""
QUIET_IN_SANDBOX_SECONDS = 0.3
GRACE_SECONDS = 5.0
"""For a script that was cancelled, and may swallow it."""


class _Planned:
    """An `Ask` that has no answers."""

    def __init__(self, view: RunJournalView) -> None:
        self._view = view
        self._estimate = view.usage.total_tokens // max(1, view.results)
        self.calls: list[PlannedCall] = []
        self.waiting = 0

    def hear(self, item: AgentEvent) -> None:
        payload = item.payload
        if payload.get("status") == "cached":
            self.calls.append(
                PlannedCall(
                    where=payload["where"],
                    label=payload["label"],
                    phase=payload["phase"],
                    action="cached",
                    reason="recorded",
                )
            )

    async def __call__(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        reason, changes = miss_reason(self._view, claim, placed.identity, placed.where, placed.written)
        self.calls.append(
            PlannedCall(
                where=placed.where,
                label=placed.title,
                phase=placed.phase,
                action="new" if reason == NOT_RECORDED else "re-run",
                reason=reason,
                changes=changes,
                estimated_tokens=self._estimate or FIRST_ESTIMATE + len(placed.call.prompt) // 4,
            )
        )
        self.waiting += 1
        stand_in.get()()  # a branch that waits for ever must not keep the next one from being planned
        never: asyncio.Future[JsonValue] = asyncio.get_running_loop().create_future()
        return await never


async def plan_resume(
    what: ReadyScript,
    args: JsonObject,
    view: RunJournalView,
    *,
    read_blob: Callable[[str], Awaitable[bytes | None]],
    profiles: Profiles,
    limits: WorkflowLimits,
    nested: PlayNested,
    script_changed: bool,
) -> WorkflowPlan:
    """See `WorkflowRuntime.plan_async`. Raises what the script raises, when that is on its way to its first agent."""
    ask = _Planned(view)
    progress = Progress("", "", ask.hear, lambda: 0)
    host = RunHost(
        view=view,
        read_blob=read_blob,
        progress=progress,
        profiles=profiles,
        limits=limits,
        ask=ask,
        play_nested=nested,
        budget=lambda: (None, view.usage.total_tokens),
        moved=lambda record: None,
    )
    script = asyncio.ensure_future(play_script(what, args, host, Lane()))
    try:
        await _until_quiet(script, ask, QUIET_IN_SANDBOX_SECONDS if what.function is None else QUIET_SECONDS)
        is_complete = script.done() and not ask.waiting
        if script.done() and not script.cancelled() and (error := script.exception()) is not None and not ask.calls:
            raise error
    finally:
        script.cancel()
        await asyncio.wait({script}, timeout=GRACE_SECONDS)
        progress.is_over = True
    return WorkflowPlan(
        run_id=view.run_id,
        workflow=what.script.meta.name,
        calls=tuple(ask.calls),
        is_complete=is_complete,
        unclaimed=tuple(entry.path for entry in view.unclaimed()),
        script_changed=script_changed,
        spent_tokens=view.usage.total_tokens,
    )


async def _until_quiet(script: "asyncio.Future[JsonValue]", ask: _Planned, seconds: float) -> None:
    heard = -1
    while not script.done() and (heard != len(ask.calls) or not ask.waiting):
        heard = len(ask.calls)
        await asyncio.wait({script}, timeout=seconds)
