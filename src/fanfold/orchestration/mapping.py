"""map: one step, or a chain of steps, over many items; what is finished is journaled and never run again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.record import Record
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.errors import InvalidSpecError, UsageError
from fanfold.foreign import tolerant
from fanfold.kernel.plain_text import is_plain, plain
from fanfold.kernel.schema import compile_schema
from fanfold.kernel.step_identity import digest
from fanfold.orchestration import template
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.fanout import fan_out
from fanfold.orchestration.journal import WorkflowJournal
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.parsing import Parser, parsers_of, with_parsed
from fanfold.orchestration.runner import Counts, StepRunner
from fanfold.protocols import AgentExecutor, EventSink

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
    journal: WorkflowJournal | None = None,
    ledger: TokenLedger | None = None,
    events: EventSink | None = None,
    on_row: Callable[[int, MapRow], None] | None = None,
    control: FanOutControl | None = None,
) -> MapResult:
    """Run the chain of `steps` for each item, at most the executor's `concurrency_hint()` items at once.

    Each step that succeeded is recorded in `journal` before it counts as done; what is found there costs nothing. Equal
    items are asked once. A failed step is tried again by the next call. `on_row` hears each finished row with its
    index, in the order in which they finish.

    Raises:
        UsageError: no step, or a template that names a field some item does not have; nothing has started.
    """
    asked, chains = chains_of(items, steps)
    runner = StepRunner(executor, events=events, ledger=ledger, control=control, journal=journal)
    tell = tolerant(on_row or _nobody)
    rows: dict[int, MapRow] = {}

    def finish(index: int, outcome: StepOutcome, *, is_cached: bool) -> None:
        rows[index] = MapRow(key=asked[index].key, outcome=outcome, is_cached=is_cached)
        tell(index, rows[index])

    waiting: list[Chain] = []
    for each in chains:
        known = each.recorded(runner.recorded)
        if known is None:
            waiting.append(each)
        else:
            for index in each.indices:
                finish(index, known, is_cached=True)

    async def run(position: int) -> None:
        first, *others = waiting[position].indices

        def counts(outcome: StepOutcome) -> None:
            finish(first, outcome, is_cached=False)
            for index in others:
                finish(index, outcome, is_cached=True)

        await waiting[position].run(runner, counts)

    await fan_out(len(waiting), runner.limit, run)
    await runner.settle()
    return MapResult(rows=[rows[index] for index in range(len(asked))])


def _nobody(index: int, row: MapRow) -> None:
    return None


def chains_of(
    items: Sequence[MapItem | Mapping[str, Any]], steps: Sequence[MapStep | Mapping[str, Any]]
) -> "tuple[list[MapItem], list[Chain]]":
    """The items, checked, and one chain for each distinct one of them.

    Raises:
        UsageError: as `execute_map`.
    """
    asked = [_checked(MapItem, f"items[{index}]", item) for index, item in enumerate(items)]
    wanted = [_checked(MapStep, f"steps[{index}]", step) for index, step in enumerate(steps)]
    parsers = parsers_of(steps)
    _check(asked, wanted)
    equal: dict[str, list[int]] = {}
    for index, item in enumerate(asked):
        equal.setdefault(identity(item, wanted), []).append(index)
    return asked, [Chain(asked[indices[0]], indices, each, wanted, parsers) for each, indices in equal.items()]


def identity(item: MapItem, steps: Sequence[MapStep]) -> str:
    """Digest of what an item's answer depends on: its fields and each step's meaning, not its place in the list."""
    return digest(encode_json([sorted(item.fields.items()), [step.to_dict() for step in steps]]))


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


Finished = Callable[[AgentStepSpec, str], StepOutcome | None]
"""The recorded success of that step at that place, if there is one."""


class Chain:
    """The steps of one item, and of all items equal to it."""

    def __init__(
        self,
        item: MapItem,
        indices: Sequence[int],
        identity: str,
        steps: Sequence[MapStep],
        parsers: Sequence[Parser | None],
    ) -> None:
        self.indices = indices
        self._item = item
        self._identity = identity
        self._steps = steps
        self._parsers = parsers

    def known(self, finished: Finished) -> list[StepOutcome]:
        """The recorded outcomes of its steps, up to the first step that has none."""
        outcomes: list[StepOutcome] = []
        for number in range(1, len(self._steps) + 1):
            outcome = finished(self.spec(number, outcomes[-1] if outcomes else None), self.place(number))
            if outcome is None:
                break
            outcomes.append(outcome)
        return outcomes

    def recorded(self, finished: Finished) -> StepOutcome | None:
        """The last outcome with the usage of the whole chain, where all of it is recorded."""
        outcomes = self.known(finished)
        if len(outcomes) < len(self._steps):
            return None
        usage = sum((each.usage or NO_USAGE for each in outcomes), NO_USAGE)
        outcome = _with_usage(outcomes[-1], usage, self._parsers[-1])
        return outcome if outcome.success else None  # else the class refuses what it took when it was recorded

    async def run(self, runner: StepRunner, counts: Counts) -> None:
        """`counts` hears the last outcome likewise; a failure ends the chain."""
        before, usage, last = None, NO_USAGE, len(self._steps)
        for number in range(1, last + 1):

            def ended(outcome: StepOutcome, number: int = number, usage: Usage = usage) -> None:
                if number == last or not outcome.success:
                    counts(_with_usage(outcome, usage + (outcome.usage or NO_USAGE), self._parsers[number - 1]))

            parser = self._parsers[number - 1]
            before = await runner.run(self.spec(number, before), ended, self.place(number), parser=parser)
            if not before.success:
                return
            usage += before.usage or NO_USAGE

    def place(self, number: int) -> str:
        """Where step `number`, counted from 1, is recorded."""
        return f"{self._identity}/{number}"

    def spec(self, number: int, before: StepOutcome | None) -> AgentStepSpec:
        """Step `number` after the outcome `before` it."""
        step, index = self._steps[number - 1], self.indices[0]
        fields = self._item.fields if before is None else {**self._item.fields, PREVIOUS: _as_text(before)}
        return AgentStepSpec(
            task_id=f"item-{index + 1}" + (f"-step-{number}" if number > 1 else ""),
            agent=step.agent,
            description=self._item.key,
            prompt=template.render(step.prompt, fields),
            max_steps=step.max_steps,
            output_schema=step.output_schema,
            model=step.model,
        )


def _with_usage(outcome: StepOutcome, usage: Usage, parser: Parser | None) -> StepOutcome:
    return with_parsed(replace(outcome, usage=usage), parser)


def _as_text(outcome: StepOutcome) -> str:
    if outcome.structured is None:
        return outcome.output
    return encode_json(outcome.structured).decode()
