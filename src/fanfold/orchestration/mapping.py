"""map: one step, or a chain of steps, over many items; what is finished is journaled and never run again."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import NO_USAGE
from fanfold.contracts.record import Record
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.errors import InvalidSpecError, UsageError
from fanfold.foreign import tolerant
from fanfold.kernel.plain_text import is_plain, plain
from fanfold.kernel.schema import compile_schema
from fanfold.orchestration import template
from fanfold.orchestration.fanout import fan_out, run_step
from fanfold.protocols import AgentExecutor, BudgetGuard, EventSink, ItemJournal

PREVIOUS = "previous"
"""The field that holds the text of the step before, in every step but the first."""


class MapItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: str
    """How people know the item: a path, a line, a row's id. Need not be unique."""
    fields: dict[str, str]
    """What its prompts may name."""


class MapStep(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str
    """A template (see `template.py`)."""
    agent: str = "answer"
    output_schema: Any = None
    """As in `AgentStepSpec`."""
    max_steps: Annotated[int, msgspec.Meta(ge=0)] | None = None
    model: str | None = None


class MapRow(Record, frozen=True, kw_only=True):
    key: str
    outcome: StepOutcome
    is_cached: bool = False
    """Answered without a run: from the journal, or by an equal item of the same call."""


class MapResult(Record, frozen=True, kw_only=True):
    rows: list[MapRow]
    """In input order."""

    @property
    def failed(self) -> list[MapRow]:
        return [row for row in self.rows if not row.outcome.success]


async def execute_map(
    executor: AgentExecutor,
    items: Sequence[MapItem | Mapping[str, Any]],
    steps: Sequence[MapStep | Mapping[str, Any]],
    *,
    journal: ItemJournal | None = None,
    ledger: BudgetGuard | None = None,
    events: EventSink | None = None,
    on_row: Callable[[int, MapRow], None] | None = None,
) -> MapResult:
    """Run the chain of `steps` for each item, at most the executor's `concurrency_hint()` items at once.

    An item whose chain succeeded is recorded in `journal` before it counts as done; an item found there is answered
    from it and costs nothing. Equal items are asked once. A failed item is not recorded, so the next call tries it
    again. `on_row` hears each finished row with its index, in the order in which they finish.

    Raises:
        UsageError: no step, or a template that names a field some item does not have; nothing has started.
    """
    asked = [_checked(MapItem, f"items[{index}]", item) for index, item in enumerate(items)]
    chain = [_checked(MapStep, f"steps[{index}]", step) for index, step in enumerate(steps)]
    _check(asked, chain)
    events = None if events is None else tolerant(events)
    tell = tolerant(on_row or _nobody)
    rows: dict[int, MapRow] = {}

    def finish(index: int, outcome: StepOutcome, *, is_cached: bool) -> None:
        rows[index] = MapRow(key=asked[index].key, outcome=outcome, is_cached=is_cached)
        tell(index, rows[index])

    equal: dict[str, list[int]] = {}
    for index, item in enumerate(asked):
        equal.setdefault(identity(item, chain), []).append(index)
    waiting: list[str] = []
    for each, indices in equal.items():
        known = None if journal is None else journal.finished.get(each)
        if known is None:
            waiting.append(each)
        else:
            for index in indices:
                finish(index, known, is_cached=True)

    async def run(position: int) -> None:
        first, *others = equal[waiting[position]]
        outcome = await _run_chain(executor, asked[first], first, chain, events, ledger)
        if journal is not None and outcome.success:
            await journal.record(waiting[position], outcome)
        finish(first, outcome, is_cached=False)
        for index in others:
            finish(index, outcome, is_cached=True)

    await fan_out(len(waiting), executor.concurrency_hint(), run)
    return MapResult(rows=[rows[index] for index in range(len(asked))])


def _nobody(index: int, row: MapRow) -> None:
    return None


def identity(item: MapItem, steps: Sequence[MapStep]) -> str:
    """Digest of what an item's answer depends on: its fields and each step's meaning, not its place in the list."""
    meaning = encode_json([sorted(item.fields.items()), [step.to_dict() for step in steps]])
    return hashlib.sha256(meaning).hexdigest()


R = TypeVar("R", MapItem, MapStep)


def _checked(kind: type[R], place: str, source: object) -> R:
    """The record that `source` is, or describes as a mapping, with its schema made plain."""
    is_described = isinstance(source, Mapping | Record)
    fields = dict(cast("Mapping[str, Any]", source)) if is_described else {}
    try:
        if fields.get("output_schema") is not None:
            fields["output_schema"] = compile_schema(fields["output_schema"]).schema
        return msgspec.convert(fields if is_described else source, kind)
    except (msgspec.ValidationError, InvalidSpecError) as error:
        raise UsageError(f"{place}: {error}") from error


def _check(items: Sequence[MapItem], steps: Sequence[MapStep]) -> None:
    if not steps:
        raise UsageError("a map needs at least one step")
    for number, step in enumerate(steps):
        if not step.prompt.strip():
            raise UsageError(f"steps[{number}]: the prompt is empty")
    seen: set[frozenset[str]] = set()
    for item in items:
        for name, value in item.fields.items():
            if not is_plain(name) or not is_plain(value):
                raise UsageError(f"item {plain(item.key)!r}: {plain(name)} holds a lone surrogate, which is no text")
        names = frozenset(item.fields)
        if names in seen:
            continue
        seen.add(names)
        template.check(steps[0].prompt, names)
        for step in steps[1:]:
            template.check(step.prompt, names | {PREVIOUS})


async def _run_chain(
    executor: AgentExecutor,
    item: MapItem,
    index: int,
    steps: Sequence[MapStep],
    events: EventSink | None,
    ledger: BudgetGuard | None,
) -> StepOutcome:
    """The last outcome of the chain, with the usage of the whole of it."""
    usage = NO_USAGE
    fields: Mapping[str, str] = item.fields
    for number, step in enumerate(steps, start=1):
        outcome = await run_step(executor, _spec(step, item, fields, index, number), events, ledger)
        usage += outcome.usage or NO_USAGE
        if not outcome.success or number == len(steps):
            return msgspec.structs.replace(outcome, usage=usage)
        fields = {**item.fields, PREVIOUS: _as_text(outcome)}
    raise UsageError("a map needs at least one step")


def _spec(step: MapStep, item: MapItem, fields: Mapping[str, str], index: int, number: int) -> AgentStepSpec:
    return AgentStepSpec(
        task_id=f"item-{index + 1}" + (f"-step-{number}" if number > 1 else ""),
        agent=step.agent,
        description=item.key,
        prompt=template.render(step.prompt, fields),
        max_steps=step.max_steps,
        output_schema=step.output_schema,
        model=step.model,
    )


def _as_text(outcome: StepOutcome) -> str:
    if outcome.structured is None:
        return outcome.output
    return msgspec.json.encode(outcome.structured).decode()
