"""What a resumable call would do: which steps are recorded, which run again, and why. Nothing runs, nothing changes."""

from collections.abc import Mapping, Sequence

from fanfold.contracts.messages import NO_USAGE
from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow import PlannedStep, ResumePlan
from fanfold.kernel.changed_lines import changed_lines
from fanfold.kernel.counted import counted
from fanfold.kernel.journal import JournalView, Thread, asked_specs, usage_of
from fanfold.kernel.step_identity import MEANING, step_identity
from fanfold.orchestration.journal import read_journal
from fanfold.orchestration.ledger import FIRST_ESTIMATE
from fanfold.orchestration.specs import SpecLike, parse_specs
from fanfold.protocols import SessionStore


async def plan_resume(store: SessionStore, specs: Sequence[SpecLike], workflow_id: str) -> ResumePlan:
    """The plan of `parallel_resumable(specs, workflow_id)`.

    Raises:
        InvalidSpecError: the call would be refused for it.
        CheckpointRefusedError: likewise.
    """
    steps = parse_specs(specs)
    view = await read_journal(store, workflow_id)
    before = asked_specs(view)
    estimate = _Estimate(view)
    asked = {spec.task_id for spec in steps}
    return ResumePlan(
        workflow_id=workflow_id,
        steps=[_planned(spec, view, before, estimate) for spec in steps],
        dropped=[place for place in view.succeeded if place not in asked],
        spent_tokens=view.spent.total_tokens,
    )


def _planned(
    spec: AgentStepSpec, view: JournalView, before: Mapping[str, AgentStepSpec], estimate: "_Estimate"
) -> PlannedStep:
    place, identity = spec.task_id, step_identity(spec)
    success, failure, thread = view.succeeded.get(place), view.failed.get(place), view.threads.get(place)
    if success is not None and success.identity == identity:
        return PlannedStep(task_id=place, action="cached", reason="recorded")
    tokens = estimate.of(spec)
    if thread is not None and thread.identity == identity and not thread.has_failed:
        left = max(1, tokens - usage_of(thread.facts).total_tokens)
        return PlannedStep(task_id=place, action="continue", reason=_turns(thread), estimated_tokens=left)
    if failure is not None and failure.identity == identity:
        reason = f"failed before: {failure.outcome.output.strip().partition(chr(10))[0]}"
        return PlannedStep(task_id=place, action="re-run", reason=reason, estimated_tokens=tokens)
    old = before.get(place)
    if old is not None and step_identity(old) == identity:
        return PlannedStep(task_id=place, action="re-run", reason="started, not recorded", estimated_tokens=tokens)
    if old is None and success is None:
        return PlannedStep(task_id=place, action="new", reason="not recorded", estimated_tokens=tokens)
    reason, changes = _difference(old, spec)
    return PlannedStep(task_id=place, action="re-run", reason=reason, changes=changes, estimated_tokens=tokens)


def _turns(thread: Thread) -> str:
    return (
        f"interrupted after {counted(len(thread.facts), 'recorded fact')}, {usage_of(thread.facts).total_tokens} tokens"
    )


def _difference(old: AgentStepSpec | None, new: AgentStepSpec) -> tuple[str, tuple[str, ...]]:
    """What changed, in words and in lines."""
    if old is None:
        return "changed", ()
    changed = [field for field in MEANING if getattr(old, field) != getattr(new, field)]
    lines = [line for field in changed for line in changed_lines(getattr(old, field), getattr(new, field))]
    return ", ".join(_SPOKEN.get(field, field) for field in changed) + " changed", tuple(lines)


_SPOKEN = {"output_schema": "schema"}


class _Estimate:
    """Tokens of a step: what it took itself, else the mean of its agent's recorded steps, else by its size."""

    def __init__(self, view: JournalView) -> None:
        self._took = {
            place: (end.outcome.usage or NO_USAGE).total_tokens
            for place, end in {**view.failed, **view.succeeded}.items()
        }
        by_agent: dict[str, list[int]] = {}
        for end in view.succeeded.values():
            by_agent.setdefault(end.outcome.agent, []).append(self._took[end.place])
        self._mean = {agent: sum(each) // len(each) for agent, each in by_agent.items()}

    def of(self, spec: AgentStepSpec) -> int:
        own = self._took.get(spec.task_id, 0)
        return own or self._mean.get(spec.agent) or len(spec.prompt) // 4 + FIRST_ESTIMATE
