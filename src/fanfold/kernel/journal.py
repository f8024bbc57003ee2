"""The fold of a workflow's journal: records in, what is finished, what was cut off and what was spent out.

Pure but for its own state, which only `absorb` and `take` change.
"""

import base64
import zlib
from collections.abc import Iterable, Sequence
from functools import cache

import msgspec

from fanfold.contracts.codec import decode_fact, encode_fact, encode_json, read_json
from fanfold.contracts.facts import Compacted, Fact, QuestionTurn, TextTurn, ToolTurn
from fanfold.contracts.journal import Asked, Ended, JournalRecord, Lived, Opened
from fanfold.contracts.messages import NO_USAGE, Usage, UsageSum
from fanfold.contracts.steps import AgentStepSpec, StepOutcome, child_session_id
from fanfold.contracts.workflow import SCHEMA_VERSION
from fanfold.errors import CheckpointRefusedError
from fanfold.kernel.step_identity import digest

SPECS_IN_ONE_RECORD = 1_000


# Made when they are needed: a start is to be short.
@cache
def _records() -> "msgspec.json.Decoder[JournalRecord]":
    return msgspec.json.Decoder(JournalRecord)


@cache
def outcomes() -> "msgspec.json.Decoder[StepOutcome]":
    """Reads an outcome, strictly."""
    return msgspec.json.Decoder(StepOutcome)


@cache
def _specs() -> "msgspec.json.Decoder[list[AgentStepSpec]]":
    return msgspec.json.Decoder(list[AgentStepSpec])


class Recorded(msgspec.Struct, frozen=True):
    """A step's end, as the journal has it."""

    place: str
    identity: str
    outcome: StepOutcome
    ms: int
    spent: Usage | None = None
    """What of its usage no earlier record counts; None: all of it."""
    cost_usd: float | None = None
    """Likewise of its cost."""


class Thread(msgspec.Struct):
    """The turns of one step that has not succeeded yet."""

    identity: str
    facts: list[Fact]
    has_failed: bool = False
    """An attempt at it has ended behind them."""
    cost_usd: float = 0.0
    """What the ends of attempts have counted of it."""


class JournalView:
    """What the journal of `workflow_id` says."""

    def __init__(self, workflow_id: str) -> None:
        self.workflow_id = workflow_id
        self.opened: Opened | None = None
        self.succeeded: dict[str, Recorded] = {}
        """By place; the newest success there, whatever was tried since."""
        self.failed: dict[str, Recorded] = {}
        """By place; only where the last attempt failed."""
        self.threads: dict[str, Thread] = {}
        """By place; steps under way, cut off or failed in the middle."""
        self.asked: list[Asked] = []
        self._spent = UsageSum()
        self.cost_usd: float | None = None
        self.newest_ms = 0
        self._seal = digest(f"fanfold journal v{SCHEMA_VERSION}\0{workflow_id}".encode())
        """Of the newest record that has one: each seal covers the one before, so none can be moved or left out."""
        self._next_seal = self._seal

    @property
    def spent(self) -> Usage:
        """By everything that is recorded."""
        return self._spent.usage()

    @property
    def places(self) -> set[str]:
        """Wherever something was recorded."""
        return {*self.succeeded, *self.failed, *self.threads}

    # ---- reading ----

    def absorb(self, records: Iterable[bytes]) -> None:
        """Take in what was read from a store.

        Raises:
            CheckpointRefusedError: a record is of a later version, of another workflow, changed, out of its order, or
                none of ours.
        """
        for number, data in enumerate(records, 1):
            try:
                self._take(read_json(data, _records()))
            except ValueError as error:
                raise self._refused(f"record {number} cannot be read: {error}") from error

    def _take(self, record: JournalRecord) -> None:
        if isinstance(record, Opened):
            self._take_opening(record)
            return
        if self.opened is None:
            raise self._refused("it does not begin with the record that names its workflow")
        match record:
            case Ended():
                self._take_end(record, self.opened)
            case Lived():
                self._take_facts(record)
            case Asked():
                self.asked.append(record)

    def _take_opening(self, record: Opened) -> None:
        if record.version > SCHEMA_VERSION:
            raise self._refused(
                f"it has schema version {record.version} but this build supports at most {SCHEMA_VERSION}"
            )
        if record.workflow != self.workflow_id:
            raise self._refused(f"it is keyed to '{record.workflow}', not '{self.workflow_id}'")
        if self.opened is not None:
            raise self._refused("it is opened twice")
        self.opened = record
        self.newest_ms = max(self.newest_ms, record.at_ms)

    def _take_end(self, record: Ended, opened: Opened) -> None:
        outcome = read_json(record.o, outcomes())
        place = record.at or outcome.task_id
        if record.seal != self._seal_of(place, record.id, _also(record.ms, record.u, record.c), record.o):
            raise self._refused(f"the result of step '{place}' is not the one that was recorded")
        self._seal = record.seal
        if not outcome.session_id:
            outcome = msgspec.structs.replace(outcome, session_id=child_session_id(outcome.task_id))
        self.take_end(Recorded(place, record.id, outcome, opened.at_ms + record.ms, record.u, record.c))

    def _take_facts(self, record: Lived) -> None:
        if record.seal != self._seal_of(record.at, record.id, "", *record.facts):
            raise self._refused(f"the turns of step '{record.at}' are not those that were recorded")
        self._seal = record.seal
        facts = [decode_fact(bytes(raw)) for raw in record.facts]
        thread = self.threads.get(record.at)
        due = 1 if thread is None else len(thread.facts) + 1
        if not facts or facts[0].seq not in (1, due):
            raise self._refused(f"the turns of step '{record.at}' do not follow each other")
        self.take_facts(record.at, record.id, facts)

    # ---- what comes in, from a store or from the run itself ----

    def take_end(self, end: Recorded) -> None:
        self.newest_ms = max(self.newest_ms, end.ms)
        thread = self.threads.get(end.place)
        if thread is not None and thread.identity != end.identity:
            del self.threads[end.place]
            thread = None
        spent = end.outcome.usage if end.spent is None else end.spent
        if spent is not None:
            self._spent.add(spent)
        cost = end.outcome.cost_usd if end.cost_usd is None else end.cost_usd
        if cost is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost
        if end.outcome.success:
            self.succeeded[end.place] = end
            self.failed.pop(end.place, None)
            self.threads.pop(end.place, None)
            return
        self.failed[end.place] = end
        if thread is not None:
            thread.has_failed = True
            thread.cost_usd = end.outcome.cost_usd or 0.0

    def take_facts(self, place: str, identity: str, facts: Sequence[Fact]) -> None:
        thread = self.threads.get(place)
        if thread is None or thread.identity != identity or facts[0].seq == 1:
            thread = self.threads[place] = Thread(identity, [])
        thread.facts += facts
        thread.has_failed = False
        self._spent.add(usage_of(facts))

    # ---- writing ----

    def begin_batch(self) -> None:
        """What is encoded next follows what is recorded; an earlier batch that did not become durable is void."""
        self._next_seal = self._seal

    def opening(self, at_ms: int) -> bytes:
        self.opened = Opened(self.workflow_id, SCHEMA_VERSION, at_ms)
        self.newest_ms = max(self.newest_ms, at_ms)
        return encode_json(self.opened)

    def ending(self, end: Recorded) -> bytes:
        """The record of `end`."""
        outcome = end.outcome
        if outcome.session_id == child_session_id(outcome.task_id):
            outcome = msgspec.structs.replace(outcome, session_id="")
        written = msgspec.Raw(encode_json(outcome))
        ms = end.ms - (0 if self.opened is None else self.opened.at_ms)
        also = _also(ms, end.spent, end.cost_usd)
        seal = self._next_seal = self._seal_of(end.place, end.identity, also, written, after=self._next_seal)
        return encode_json(
            Ended(
                at="" if end.place == outcome.task_id else end.place,
                id=end.identity,
                seal=seal,
                ms=ms,
                u=end.spent,
                c=end.cost_usd,
                o=written,
            )
        )

    def living(self, place: str, identity: str, facts: Sequence[Fact]) -> bytes:
        """The record of turns of a step under way."""
        lines = tuple(msgspec.Raw(encode_fact(fact)[:-1]) for fact in facts)
        seal = self._next_seal = self._seal_of(place, identity, "", *lines, after=self._next_seal)
        return encode_json(Lived(at=place, id=identity, seal=seal, facts=lines))

    def seal_batch(self) -> None:
        """What was encoded since `begin_batch` is durable."""
        self._seal = self._next_seal

    def _seal_of(self, place: str, identity: str, also: str, *parts: msgspec.Raw, after: str | None = None) -> str:
        head = f"{after or self._seal}\0{place}\0{identity}\0{also}\0".encode()
        return digest(head + b"\0".join(map(bytes, parts)))

    def _refused(self, reason: str) -> CheckpointRefusedError:
        return CheckpointRefusedError(workflow_id=self.workflow_id, reason=reason)


def _also(ms: int, spent: Usage | None, cost_usd: float | None) -> str:
    return f"{ms}" if spent is None and cost_usd is None else f"{ms}\0{encode_json((spent, cost_usd)).decode()}"


def asking(scope: str, specs: Sequence[AgentStepSpec]) -> list[bytes]:
    """The records of what was asked, in pieces, so that none grows without bound."""
    pieces = (specs[start : start + SPECS_IN_ONE_RECORD] for start in range(0, len(specs), SPECS_IN_ONE_RECORD))
    return [
        encode_json(Asked(scope=scope, packed=base64.b64encode(zlib.compress(encode_json(list(piece)), 1)).decode()))
        for piece in pieces
    ]


def asked_specs(view: JournalView) -> dict[str, AgentStepSpec]:
    """By place, the newest spec that was asked there, as far as that can be read: no result depends on it."""
    specs: dict[str, AgentStepSpec] = {}
    for record in view.asked:
        try:
            found = read_json(zlib.decompress(base64.b64decode(record.packed)), _specs())
        except (ValueError, zlib.error):
            continue
        specs.update({record.scope + spec.task_id: spec for spec in found})
    return specs


def usage_of(facts: Iterable[Fact]) -> Usage:
    """What the model calls behind `facts` took."""
    total = NO_USAGE
    for fact in facts:
        payload = fact.payload
        if isinstance(payload, TextTurn | ToolTurn | QuestionTurn | Compacted) and payload.usage is not None:
            total += payload.usage
    return total
