"""What a run's journal has of each call, and which entry answers which call of a resumed script (spec-workflow 5.3).

An entry answers one call. A call gets the unclaimed answer that was recorded for an equal call at the same place, else
the oldest one of an equal call, else it is run; then it goes on as an equal call that has no answer yet, if there is
one. So equal calls never share an answer, no order of completion matters, and only what is new or changed is run.
"""

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Literal

import msgspec

from fanfold.contracts.run_journal import Identity, Moved, Result

NOTHING = msgspec.Raw(b"null")


class RunEntry(msgspec.Struct, gc=False):  # there is one for each call: the collector need not look at them
    seq: int
    identity: Identity
    path: str
    """Where the call stands; see `Moved`."""
    label: str
    phase: str | None
    key: str
    attempt: int
    call: msgspec.Raw
    """JSON; `null` where it was lost, and of what was taken live."""
    placed: int
    """Rises with each record that puts a call at a place: of two at one place the later one stands there."""
    result: Result | None = None
    """None: it is under way, or was cut off ("in doubt"). Of what was taken live no more than its status is kept."""
    turns: tuple[msgspec.Raw, ...] = ()
    """Facts of its agent from the first on, while there is no answer."""
    last_fact: int = 0
    """`seq` of the last one."""
    has_ended: bool = False
    """An attempt has ended behind the turns."""
    has_been_answered: bool = False
    """Behind that end a person has answered the call that it waits for: it goes on wherever its turn stands by now."""
    is_answered_last: bool = False
    """The last that is recorded of it is such an answer, also where it was cut off: nobody has gone on from it yet."""
    has_begun_before: bool = False
    """An earlier entry of its key may have done something."""
    is_claimed: bool = False
    is_superseded: bool = False
    """A later entry has the same key: that one counts."""
    is_rejected: bool = False
    """Its answer could not be used."""

    @property
    def is_answer(self) -> bool:
        """It can be replayed: a legitimate None and a skip are answers like any other."""
        result = self.result
        return result is not None and result.status in ("ok", "skipped") and not self.is_rejected

    @property
    def is_open(self) -> bool:
        """Nobody has it yet, and nothing stands for it."""
        return not self.is_claimed and not self.is_superseded


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the journal has for one call."""

    kind: Literal["recorded", "again", "new"]
    """`again`: it is run, as the call that failed or was cut off."""
    path: str
    key: str
    """The idempotency key, the same each time that this call is run."""
    entry: RunEntry | None = None

    @property
    def is_answered(self) -> bool:
        return self.kind == "recorded"

    @property
    def result(self) -> Result:
        """Of an answered one."""
        if self.entry is None or self.entry.result is None:
            raise ValueError(f"nothing is recorded for the call at {self.path}")
        return self.entry.result

    @property
    def has_ended(self) -> bool:
        """An attempt has ended behind the turns, and its result tells what they took."""
        return self.entry is not None and self.entry.has_ended

    @property
    def has_been_answered(self) -> bool:
        """A person has answered, behind that end, what the agent waits for."""
        return self.entry is not None and self.entry.has_been_answered

    @property
    def moved(self) -> Moved | None:
        """What is to be recorded of an answer that was recorded for another place."""
        if self.kind != "recorded" or self.entry is None or self.entry.path == self.path:
            return None
        return Moved(seq=self.entry.seq, path=self.path)


class EqualCalls(msgspec.Struct, gc=False):
    """The recorded entries of one identity. Nearly always there is one, which then costs nothing more."""

    _only: RunEntry
    _more: list[RunEntry] | None = None
    """All of them, where there are several."""
    _waiting: "tuple[_Waiting, _Waiting] | None" = None
    """Of several: the answers, and the others; made when the first one is claimed."""

    def add(self, entry: RunEntry) -> None:
        self._waiting = None
        if self._more is None:
            self._more = [self._only, entry]
        else:
            self._more.append(entry)

    def claim(self, path: str, *, answers: bool) -> RunEntry | None:
        """An answer, or one that has none; nobody else gets it."""
        if self._more is not None:
            return self._sorted(self._more)[not answers].claim(path)
        return self._only if _is_claimed_now(self._only, answers) else None

    def reject(self, entry: RunEntry) -> None:
        """Have the call of a claimed answer wait to be run again."""
        entry.is_rejected, entry.is_claimed = True, False
        if self._more is not None:
            self._sorted(self._more)[1].put(entry)

    def _sorted(self, entries: list[RunEntry]) -> "tuple[_Waiting, _Waiting]":
        if self._waiting is None:
            self._waiting = _Waiting(entries, answers=True), _Waiting(entries, answers=False)
        return self._waiting


class _Waiting:
    """Entries that wait for a call, if they are answers, or if they are none. Each is looked at twice at most."""

    __slots__ = ("_answers", "_at", "_oldest")

    def __init__(self, entries: Sequence[RunEntry], *, answers: bool) -> None:
        self._answers = answers
        self._oldest = deque(sorted(entries, key=attrgetter("seq")))
        self._at: dict[str, list[RunEntry]] = {}
        for entry in sorted(entries, key=attrgetter("placed")):
            self._at.setdefault(entry.path, []).append(entry)

    def put(self, entry: RunEntry) -> None:
        """In front of all others: it is the next one to be claimed."""
        self._at.setdefault(entry.path, []).append(entry)
        self._oldest.appendleft(entry)

    def claim(self, path: str) -> RunEntry | None:
        here = self._at.get(path)
        while here:
            if _is_claimed_now(entry := here.pop(), self._answers):
                return entry
        while self._oldest:
            if _is_claimed_now(entry := self._oldest.popleft(), self._answers):
                return entry
        return None


def _is_claimed_now(entry: RunEntry, answers: bool) -> bool:
    # Asked here, for what was claimed by its place lies among the oldest still, and may be rejected meanwhile.
    if not entry.is_open or entry.is_answer is not answers:
        return False
    entry.is_claimed = True
    return True
