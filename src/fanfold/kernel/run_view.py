"""The fold of a run's journal: records in, what each call came to and what was spent out.

Pure but for its own state, which `take` and the claims change.
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import get_args

import msgspec

from fanfold.contracts.codec import read_json
from fanfold.contracts.messages import Usage, UsageSum
from fanfold.contracts.run_journal import (
    AttemptEnd,
    Header,
    Identity,
    Moved,
    Result,
    ResultStatus,
    RunRecord,
    Started,
    Turns,
)
from fanfold.errors import InternalError, WorkflowInputError
from fanfold.kernel.run_entries import NOTHING, Claim, EqualCalls, RunEntry
from fanfold.kernel.run_refusals import has_done_nothing

_KEY_CHARS = 32


class _Numbered(msgspec.Struct):
    seq: int


_numbers = msgspec.json.Decoder(_Numbered)
_RAN = {status: Result(seq=0, id="", path="", status=status) for status in get_args(ResultStatus)}
"""Of what was taken live no more than its status."""


class RunJournalView:
    """What the journal of the run `run_id` says.

    What was read can be claimed, and so can the copies that a fork begins with. What is taken live cannot, and its
    contents (call, turns, value) are not kept here: a run may be long.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.seed = run_id
        self.first_ms = 0
        """When the run that was launched first was launched, Unix ms; 0: no header tells."""
        self.header: Header | None = None
        """The newest."""
        self.attempts = 0
        self.attempt_end: AttemptEnd | None = None
        """Of the newest attempt; None: it is under way, or was cut off."""
        self.entries: dict[int, RunEntry] = {}
        self.last_seq = 0
        self.results = 0
        """Whose usage is counted."""
        self.cost: float | None = None
        """Of all attempts, in USD, as far as they have a price."""
        self.tool_uses = 0
        self.is_partial = False
        """Something was spent of which nobody told, so that `usage` is too low."""
        self.rejected = 0
        """Recorded answers that could not be used."""
        self.rejected_lines: tuple[int, ...] = ()
        """Lines, 1-based, that were passed over as damaged, or as contradicting earlier ones."""
        self.whole_lines: int | None = None
        """How many lines to keep, where something torn stands behind them; None: the journal ends well."""
        self._usage = UsageSum()
        self._equal: dict[Identity, EqualCalls] = {}
        self._occurrences: dict[Identity, int] = {}
        """Keys that were given out, or might have been."""
        self._keyed: dict[str, RunEntry] = {}
        """The newest entry of each key."""
        self._placed = 0
        self._places: dict[str, RunEntry] | None = None

    @property
    def usage(self) -> Usage:
        """Of all results of this run's attempts; what was copied into it cost it nothing."""
        usage = self._usage.usage()
        return msgspec.structs.replace(usage, is_estimated=True) if self.is_partial else usage

    @property
    def parent(self) -> str | None:
        """The run that this one was forked from."""
        return None if self.header is None else self.header.parent

    def take(self, record: RunRecord) -> None:
        """Take in what is written just now.

        Raises:
            InternalError: it does not fit to what was written before.
        """
        fault = self._fold(record, is_live=True)
        if fault is not None:
            raise InternalError(f"the journal of run '{self.run_id}' was given a record that does not fit: {fault}")

    def load(self, record: RunRecord) -> str | None:
        """Take in what was read; the answer is why it could not be used.

        Raises:
            WorkflowInputError: `journal_refused`, it is of another run.
        """
        return self._fold(record, is_live=False)

    def _fold(self, record: RunRecord, *, is_live: bool) -> str | None:
        match record:
            case Started():
                return self._take_started(record, is_live=is_live and record.attempt > 0)  # 0: a copy
            case Result():
                return self._take_result(record, is_live=is_live and record.attempt > 0)
            case Turns():
                return self._take_turns(record, is_live=is_live)
            case Moved():
                return self._take_moved(record)
            case Header():
                self._take_header(record)
            case AttemptEnd():
                self.attempt_end = record
        return None

    def _take_header(self, record: Header) -> None:
        if record.run_id != self.run_id:
            raise refused(self.run_id, f"it is that of run '{record.run_id}', renamed")
        if self.header is None:
            self.seed = record.seed or record.run_id
            self.first_ms = record.first_ms or record.at_ms
        self.header, self.attempt_end = record, None
        self.attempts = max(self.attempts, record.attempt)

    def _take_started(self, record: Started, *, is_live: bool) -> str | None:
        known = self.entries.get(record.seq)
        if known is not None:
            return None if known.identity == record.id else f"another call has number {record.seq} already"
        self._add(
            RunEntry(
                record.seq,
                record.id,
                record.path,
                record.label,
                record.phase,
                record.key,
                record.attempt,
                NOTHING if is_live else record.call,
                self._next_place(),
                is_claimed=is_live,
            )
        )
        return None

    def _take_result(self, record: Result, *, is_live: bool) -> str | None:
        entry = self.entries.get(record.seq)
        if entry is None:  # its beginning was lost, and that it has ended counts all the same
            key = f"{self.seed}:{record.id[:_KEY_CHARS]}:lost-{record.seq}"
            attempt, placed = record.attempt, self._next_place()
            entry = RunEntry(record.seq, record.id, record.path, "", None, key, attempt, NOTHING, placed)
            self._add(entry)
        elif entry.identity != record.id:
            return f"another call has number {record.seq}"
        elif entry.result is not None:
            return None  # an append that was tried twice: the first one counts
        if record.attempt > 0:
            self._count(record)
        if is_live:
            entry.result = _RAN[record.status]
        elif record.path == entry.path:
            entry.result = record
        else:
            entry.result = msgspec.structs.replace(record, path=entry.path)
        entry.has_ended, entry.has_been_answered = True, False
        if is_live or entry.is_answer:
            entry.turns = ()
        return None

    def _take_turns(self, record: Turns, *, is_live: bool) -> str | None:
        entry = self.entries.get(record.seq)
        if entry is None:
            return f"no call has number {record.seq}"
        if entry.is_answer or not record.facts:
            return None
        try:
            numbers = [read_json(fact, _numbers).seq for fact in record.facts]
        except msgspec.DecodeError as error:
            return f"a fact of call {record.seq} cannot be read: {error}"
        first, last = numbers[0], numbers[-1]
        if first not in (1, entry.last_fact + 1) or numbers != list(range(first, last + 1)):
            return f"turns of call {record.seq} are missing"
        if not is_live:
            entry.turns = record.facts if first == 1 else (*entry.turns, *record.facts)
        # What comes behind a result is a person's answer, which takes nothing that was not counted.
        entry.last_fact, entry.has_ended = last, entry.result is not None
        entry.has_been_answered = entry.has_ended
        entry.is_answered_last = entry.has_ended or record.is_answer
        return None

    def _take_moved(self, record: Moved) -> str | None:
        entry = self.entries.get(record.seq)
        if entry is None:
            return f"no call has number {record.seq}"
        entry.path, entry.placed = record.path, self._next_place()
        self._stands(entry)
        return None

    def _add(self, entry: RunEntry) -> None:
        self.entries[entry.seq] = entry
        if entry.seq > self.last_seq:
            self.last_seq = entry.seq
        older = self._keyed.get(entry.key)
        if older is not None and older.identity == entry.identity:
            older.is_superseded = True
            entry.turns, entry.last_fact, entry.has_ended = older.turns, older.last_fact, older.has_ended
            entry.has_been_answered = older.has_been_answered
            entry.has_begun_before = not has_done_nothing(older)
            if not older.is_claimed:  # else whoever claimed it is about to go on from them
                older.turns = ()
        self._stands(entry)
        if entry.is_claimed:
            return  # it is run now, under a key that was given out here, and to nobody else
        self._keyed[entry.key] = entry
        self._count_occurrence(entry)
        equal = self._equal.get(entry.identity)
        if equal is None:
            self._equal[entry.identity] = EqualCalls(entry)
        else:
            equal.add(entry)

    def _count_occurrence(self, entry: RunEntry) -> None:
        known = self._occurrences.get(entry.identity, 0)
        occurrence = _occurrence(entry.key)
        self._occurrences[entry.identity] = known + 1 if occurrence is None else max(known, occurrence + 1)

    def _stands(self, entry: RunEntry) -> None:
        if self._places is not None:
            self._places[entry.path] = entry

    def _next_place(self) -> int:
        self._placed += 1
        return self._placed

    def _count(self, record: Result) -> None:
        self.results += 1
        if record.usage is not None:
            self._usage.add(record.usage)
        else:
            self.is_partial = True
        if record.cost is not None:
            self.cost = (self.cost or 0.0) + record.cost
        self.tool_uses += record.tools

    # ---- claims ----

    def claim(self, identity: Identity, path: str) -> Claim:
        """What is recorded for the call at `path`; nobody else gets it."""
        equal = self._equal.get(identity)
        if equal is not None:
            entry = equal.claim(path, answers=True)
            if entry is not None:
                return Claim(kind="recorded", path=path, key=entry.key, entry=entry)
            entry = equal.claim(path, answers=False)
            if entry is not None:
                return Claim(kind="again", path=path, key=entry.key, entry=entry)
        return Claim(kind="new", path=path, key=self.next_key(identity))

    def next_key(self, identity: Identity) -> str:
        """An idempotency key that no call has had: `<run id>:<identity>:<occurrence>`, the identity cut to 128 bits."""
        occurrence = self._occurrences.get(identity, 0)
        self._occurrences[identity] = occurrence + 1
        return f"{self.run_id}:{identity[:_KEY_CHARS]}:{occurrence}"

    def reject(self, claim: Claim) -> None:
        """An answer cannot be used: whoever claims for that call again has it run under the same key (D12)."""
        if claim.entry is None or not claim.is_answered:
            raise InternalError(f"the call at {claim.path} was not answered, so no answer can be rejected")
        self.rejected += 1
        self._equal[claim.entry.identity].reject(claim.entry)

    def unclaimed(self) -> list[RunEntry]:
        """Recorded answers that nothing asked for, oldest first."""
        found = [entry for entry in self.entries.values() if entry.is_open and entry.is_answer]
        return sorted(found, key=attrgetter("seq"))

    def places(self) -> "Mapping[str, RunEntry]":
        """Of each place the call that was put there last."""
        if self._places is None:
            in_order = sorted(self.entries.values(), key=attrgetter("placed"))
            self._places = {entry.path: entry for entry in in_order}
        return self._places


def _occurrence(key: str) -> int | None:
    """Which of its equals a call is, as its key has it."""
    tail = key.rpartition(":")[2]
    return int(tail) if tail.isdecimal() and len(tail) < 10 else None


def refused(run_id: str, reason: str) -> WorkflowInputError:
    return WorkflowInputError("journal_refused", f"the journal of run '{run_id}' cannot be used: {reason}")
