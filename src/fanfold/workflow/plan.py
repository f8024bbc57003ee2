"""The plan of a resume: the script is run over its journal, and where it asks for what is not there, it waits for ever.

So each lane goes as far as it can without an agent; when all of them have ended or wait, the plan is what was seen.
"""

import asyncio
from collections.abc import Awaitable, Callable

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.contracts.workflow_runs import (
    REPEAT_UNDECIDED,
    PlanAction,
    PlannedCall,
    RepeatDecision,
    RunFault,
    WorkflowLimits,
    WorkflowPlan,
)
from fanfold.errors import WorkflowAgentError
from fanfold.kernel.run_entries import Claim
from fanfold.kernel.run_journal import NOT_RECORDED, copied_records, forked_view, miss_reason
from fanfold.kernel.run_view import RunJournalView
from fanfold.orchestration.fanout import stand_in
from fanfold.orchestration.ledger import FIRST_ESTIMATE
from fanfold.workflow.host import PlacedCall, PlayNested, Profiles, RunHost
from fanfold.workflow.lanes import Lane
from fanfold.workflow.only_failed import failed_lanes
from fanfold.workflow.playing import ReadyScript, play_script
from fanfold.workflow.progress import Progress
from fanfold.workflow.scripts import fault_of

QUIET_SECONDS = 0.05
"""A script of which nothing was heard for so long has gone as far as it can."""
QUIET_IN_SANDBOX_SECONDS = 0.3
GRACE_SECONDS = 5.0
"""For a script that was cancelled, and may swallow it."""
RECORDED = "recorded"
_KEPT = "recorded; what is asked there now is not run"
_ASKED_ANEW = "it waited for a person; the answer stays with the first run, and a fork asks anew"
_NOT_RUN = "nothing has failed there"


class _Planned:
    """An `Ask` that has no answers."""

    def __init__(self, view: RunJournalView, before: RunJournalView, lanes: Callable[[str], bool] | None) -> None:
        """Args:
        view: what the script is answered from.
        before: of the run that is resumed; of a fork another one than `view`.
        lanes: where agents may run; None: anywhere.
        """
        self._view = view
        self._before = before
        self._lanes = lanes
        self._estimate = before.usage.total_tokens // max(1, before.results)
        self._unasked: set[str] = set()
        """Places at which nothing recorded answers what is asked, and nothing may run."""
        self.calls: list[PlannedCall] = []
        self.waiting = 0

    def may_run(self, where: str) -> bool:
        """Asked by the host of what no equal call answers."""
        if self._lanes is None or self._lanes(where):
            return True
        self._unasked.add(where)
        return False

    def hear(self, item: AgentEvent) -> None:
        payload = item.payload
        if payload.get("status") == "cached":
            self.calls.append(
                PlannedCall(
                    where=payload["where"],
                    label=payload["label"],
                    phase=payload["phase"],
                    action="cached",
                    reason=_KEPT if payload["where"] in self._unasked else RECORDED,
                )
            )

    async def __call__(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        reason, changes = self._open(placed, claim)
        tokens = self._estimate or FIRST_ESTIMATE + len(placed.call.prompt) // 4
        self._note(placed, "new" if reason == NOT_RECORDED else "re-run", reason, changes, tokens)
        self.waiting += 1
        stand_in.get()()  # a branch that waits for ever must not keep the next one from being planned
        never: asyncio.Future[JsonValue] = asyncio.get_running_loop().create_future()
        return await never

    async def skipped(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        reason, changes = self._open(placed, claim)
        self._note(placed, "skip", reason, changes)
        return None

    async def undecided(self, placed: PlacedCall, claim: Claim) -> JsonValue:
        reason, changes = self._open(placed, claim)
        self._note(placed, "ask", reason, changes)
        raise _failed(placed, reason, REPEAT_UNDECIDED)

    async def settled(self) -> None:
        """At once: nothing is recorded here."""

    def _open(self, placed: PlacedCall, claim: Claim) -> tuple[str, tuple[str, ...] | None]:
        """Why it is run, as `miss_reason`. Raises WorkflowAgentError: nothing may run there."""
        reason, changes = self._why(placed, claim)
        if self.may_run(placed.where):
            return reason, changes
        reason = f"{reason}; {_NOT_RUN}"
        self._note(placed, "not run", reason, changes)
        raise _failed(placed, reason, "NOT_RECORDED")

    def _note(
        self,
        placed: PlacedCall,
        action: PlanAction,
        reason: str,
        changes: tuple[str, ...] | None,
        estimated_tokens: int = 0,
    ) -> None:
        self.calls.append(
            PlannedCall(
                where=placed.where,
                label=placed.title,
                phase=placed.phase,
                action=action,
                reason=reason,
                changes=changes,
                estimated_tokens=estimated_tokens,
            )
        )

    def _why(self, placed: PlacedCall, claim: Claim) -> tuple[str, tuple[str, ...] | None]:
        reason, changes = miss_reason(self._view, claim, placed.identity, placed.where, placed.written)
        stood = None if self._before is self._view else self._before.places().get(placed.where)
        if reason != NOT_RECORDED or stood is None or stood.is_answer:
            return reason, changes
        # A fork gets answers alone, so it does not know what stood there without one.
        if stood.identity == placed.identity:
            if stood.has_been_answered:
                return _ASKED_ANEW, None
            claim = Claim(kind="again", path=placed.where, key=stood.key, entry=stood)
        return miss_reason(self._before, claim, placed.identity, placed.where, placed.written)


def _failed(placed: PlacedCall, reason: str, code: str) -> WorkflowAgentError:
    """As the resume will."""
    return WorkflowAgentError(label=placed.title, where=placed.where, reason=reason, agent_code=code)


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
    is_fork: bool = False,
    only_failed: bool = False,
    repeat: RepeatDecision | None = None,
) -> WorkflowPlan:
    """See `WorkflowRuntime.plan_async`. Raises what the script raises, when that is on its way to its first agent."""
    before = view
    if is_fork:
        view = forked_view(before, before.run_id)
        for record in copied_records(before):
            view.take(record)
    ask = _Planned(view, before, failed_lanes(before) if only_failed else None)
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
        may_run=ask.may_run if only_failed else None,
        repeat=repeat,
    )
    script = asyncio.ensure_future(play_script(what, args, host, Lane()))
    fault: RunFault | None = None
    try:
        await _until_quiet(script, ask, QUIET_IN_SANDBOX_SECONDS if what.function is None else QUIET_SECONDS)
        is_complete = script.done() and not ask.waiting
        if script.done() and not script.cancelled() and (error := script.exception()) is not None:
            if not ask.calls:
                raise error
            fault = fault_of(error, what.script.file_name)
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
        is_fork=is_fork,
        only_failed=only_failed,
        error=fault,
    )


async def _until_quiet(script: "asyncio.Future[JsonValue]", ask: _Planned, seconds: float) -> None:
    heard = -1
    while not script.done() and (heard != len(ask.calls) or not ask.waiting):
        heard = len(ask.calls)
        await asyncio.wait({script}, timeout=seconds)
