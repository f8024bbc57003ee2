"""What a map would do: which items its journal answers, which go on or run, and why. Nothing runs, nothing changes."""

from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.contracts.messages import NO_USAGE
from fanfold.contracts.record import Record
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.contracts.workflow import PlannedAction
from fanfold.kernel.journal import JournalView, usage_of
from fanfold.kernel.step_identity import step_identity
from fanfold.orchestration.journal import read_journal
from fanfold.orchestration.ledger import FIRST_ESTIMATE
from fanfold.orchestration.mapping import Chain, MapItem, MapStep, chains_of
from fanfold.protocols import SessionStore

_NOT_ANSWERED = StepOutcome(task_id="", agent="", output="", success=True)
"""Stands for the answer before a step, while nobody knows it."""


class PlannedItem(Record, frozen=True, kw_only=True):
    key: str
    """As in `MapItem`."""
    action: PlannedAction
    """`continue`: some of its steps are recorded, or one was cut off. An item that changed is a `new` one."""
    reason: str
    estimated_tokens: int = 0
    """Of all its steps that would run, by what the recorded ones took."""


class MapPlan(Record, frozen=True, kw_only=True):
    """What `map` would do with these items and steps. Making it costs nothing and changes nothing."""

    workflow_id: str
    rows: list[PlannedItem]
    """In input order."""
    spent_tokens: int
    """Already, by all earlier calls, for whatever items."""


async def plan_map(
    store: SessionStore,
    items: Sequence[MapItem | Mapping[str, Any]],
    steps: Sequence[MapStep | Mapping[str, Any]],
    workflow_id: str,
) -> MapPlan:
    """The plan of `map(items, steps, workflow_id=workflow_id)`.

    Raises:
        UsageError: the call would be refused for it.
        CheckpointRefusedError: likewise.
    """
    asked, chains = chains_of(items, steps)
    view = await read_journal(store, workflow_id)
    planner = _Planner(view, len(steps))
    planned: dict[int, PlannedItem] = {}
    for chain in chains:
        action, reason, tokens = planner.plan(chain)
        first, *others = chain.indices
        planned[first] = PlannedItem(key=asked[first].key, action=action, reason=reason, estimated_tokens=tokens)
        for index in others:
            why = reason if action == "cached" else f"equal to item {first + 1}, asked once"
            planned[index] = PlannedItem(key=asked[index].key, action="cached", reason=why)
    return MapPlan(
        workflow_id=workflow_id,
        rows=[planned[index] for index in range(len(asked))],
        spent_tokens=view.spent.total_tokens,
    )


class _Planner:
    def __init__(self, view: JournalView, length: int) -> None:
        self._view = view
        self._length = length
        took: dict[str, list[int]] = {}
        for place, end in view.succeeded.items():
            took.setdefault(place.rpartition("/")[2], []).append((end.outcome.usage or NO_USAGE).total_tokens)
        self._mean = {number: sum(each) // len(each) for number, each in took.items()}
        """Tokens that the step of that number took so far."""

    def plan(self, chain: Chain) -> tuple[PlannedAction, str, int]:
        """Action, reason and estimated tokens."""
        known = chain.known(self._finished)
        if len(known) == self._length:
            return "cached", "recorded", 0
        number = len(known) + 1
        spec, place = chain.spec(number, known[-1] if known else None), chain.place(number)
        later = range(number + 1, self._length + 1)
        tokens = self._tokens(spec, number) + sum(self._tokens(chain.spec(n, _NOT_ANSWERED), n) for n in later)
        thread, failure = self._view.threads.get(place), self._view.failed.get(place)
        if thread is not None and thread.identity == step_identity(spec) and not thread.has_failed:
            had = usage_of(thread.facts).total_tokens
            return "continue", f"step {number} was cut off after {had} tokens", max(1, tokens - had)
        if failure is not None and failure.identity == step_identity(spec):
            why = failure.outcome.output.strip().partition("\n")[0]
            return "re-run", f"failed before: {why}", tokens
        if known:
            return "continue", f"{len(known)} of {self._length} steps are recorded", tokens
        return "new", "not recorded", tokens

    def _finished(self, spec: AgentStepSpec, place: str) -> StepOutcome | None:
        known = self._view.succeeded.get(place)
        return None if known is None or known.identity != step_identity(spec) else known.outcome

    def _tokens(self, spec: AgentStepSpec, number: int) -> int:
        return self._mean.get(str(number)) or len(spec.prompt) // 4 + FIRST_ESTIMATE
