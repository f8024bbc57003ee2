"""Progress: what one attempt of a run has come to so far, and its voice."""

from collections.abc import Callable, Mapping
from typing import Any

from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.messages import Usage, UsageSum
from fanfold.contracts.workflow_runs import MAX_FAILURES_TOLD, AgentStatus, RunCounts, RunFailure
from fanfold.protocols import EventSink
from fanfold.workflow.calls import AgentCall
from fanfold.workflow.script_host import SlotFailure

_NOTHING: Mapping[str, Any] = {}


class Progress:
    """Everything here happens on the run's loop."""

    def __init__(self, run_id: str, task_id: str, tell: EventSink, now_ms: Callable[[], int]) -> None:
        self._run_id = run_id
        self._task_id = task_id
        self._tell = tell
        self._now_ms = now_ms
        self.launched = 0
        self.done = 0
        self.cached = 0
        self.failed = 0
        self.skipped = 0
        self.slots = 0
        """Branches of `parallel` and items of `pipeline`."""
        self.null_results = 0
        self.parked = 0
        """Agents that wait for a person where nobody can answer."""
        self.usage = UsageSum()
        """Of this attempt."""
        self.cost_usd: float | None = None
        self.tool_uses = 0
        self.phase: str | None = None
        self.failures: list[RunFailure] = []
        self.has_failures = False
        self._announced: set[str] = set()
        self.is_over = False
        """The script has ended: what it left running may ask for nothing any more."""

    def counts(self, *, unclaimed: int = 0, rejected: int = 0) -> RunCounts:
        return RunCounts(
            launched=self.launched,
            done=self.done,
            cached=self.cached,
            failed=self.failed,
            skipped=self.skipped,
            null_results=self.null_results,
            unclaimed=unclaimed,
            rejected=rejected,
        )

    # ---- what is told ----

    def tell(self, kind: str, **payload: Any) -> None:
        self._tell(event(kind, run_id=self._run_id, task_id=self._task_id, **payload))

    def pass_on(self, told: AgentEvent) -> None:
        """An event of an agent that concerns people, such as a call that waits for an approval."""
        self._tell(told)

    def phase_is(self, title: str) -> None:
        self.phase = title
        if title not in self._announced:
            self._announced.add(title)
            self.tell("task_progress", type="workflow_phase", title=title)

    def log(self, message: str) -> None:
        self.tell("task_progress", type="workflow_log", message=message)

    def activity(self, where: str, tool: str) -> None:
        self.tell("task_progress", type="workflow_activity", where=where, tool=tool)

    def agent(
        self,
        where: str,
        title: str,
        phase: str | None,
        call: AgentCall,
        status: AgentStatus,
        more: Mapping[str, Any] = _NOTHING,
    ) -> None:
        if status == "started" and phase is not None:
            self.phase = phase
        # Built in one go: it is told two times for each agent, and once for each answer that was recorded.
        payload = {
            "run_id": self._run_id,
            "task_id": self._task_id,
            "type": "workflow_agent",
            "where": where,
            "label": title,
            "phase": phase,
            "agent": call.agent_type,
            "model": call.model,
            "status": status,
            "at_ms": self._now_ms(),
            **more,
        }
        self._tell(AgentEvent(type="task_progress", payload=payload))

    # ---- what it costs ----

    def spent(self, usage: Usage | None, cost_usd: float | None, tool_uses: int) -> None:
        if usage is not None:
            self.usage.add(usage)
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd
        self.tool_uses += tool_uses

    # ---- what went wrong ----

    def agent_failed(self, where: str, label: str, code: str, message: str) -> None:
        self._fail(RunFailure(where=where, code=code, message=message, label=label))

    def slot_failed(self, failure: SlotFailure) -> None:
        """A slot became None: by an agent that failed in it, which is one failure and not two, or by its script."""
        self.null_results += 1
        slot = f"{failure.where}#"
        for index in range(len(self.failures) - 1, -1, -1):
            known = self.failures[index]
            if known.index is None and known.where.startswith(slot) and known.label == failure.label:
                self.failures[index] = RunFailure(
                    where=known.where,
                    code=known.code,
                    message=known.message,
                    label=known.label,
                    index=failure.index,
                    stage=failure.stage,
                    line=failure.line,
                )
                self._tell_failure(self.failures[index])
                return
        self._fail(
            RunFailure(
                where=failure.where,
                code=failure.code,
                message=failure.message,
                label=failure.label,
                index=failure.index,
                stage=failure.stage,
                line=failure.line,
            )
        )
        self._tell_failure(self.failures[-1])

    def _fail(self, failure: RunFailure) -> None:
        self.has_failures = True
        if len(self.failures) < MAX_FAILURES_TOLD:
            self.failures.append(failure)

    def _tell_failure(self, failure: RunFailure) -> None:
        self.tell("task_progress", type="workflow_failure", **failure.to_dict())
