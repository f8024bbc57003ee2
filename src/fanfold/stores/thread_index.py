"""What an append must know of a thread without reading its file: the keys, and where each fact's line ends."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fanfold.contracts.codec import decode_fact, decode_json
from fanfold.contracts.facts import Fact


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that a log may not have."""

    start: int
    """Byte offset of the line in the file."""
    reason: str
    seq: int
    """The fact that the next line has to follow."""
    is_torn: bool = False
    """The half-written end of a log: a line without its newline, or a last line that is no JSON at all. (A last
    line that is whole JSON but no fact of ours is not torn: a newer version may have written it.)"""


@dataclass(slots=True, eq=False)
class ThreadIndex:
    """Rises with the log, one fact at a time; fact `n` stands at `span(n)`. Each past has an index of its own."""

    keys: dict[str, int] = field(default_factory=dict[str, int])
    """Key of each fact -> its seq."""
    ends: "array[int]" = field(default_factory=lambda: array("Q"))
    size: int = 0

    @property
    def last_seq(self) -> int:
        return len(self.ends)

    def start_of(self, seq: int) -> int:
        return self.ends[seq - 2] if seq > 1 else 0

    def span(self, seq: int) -> tuple[int, int]:
        return self.start_of(seq), self.ends[seq - 1]

    def extend(self, facts: Sequence[Fact], lines: Sequence[bytes]) -> None:
        """Take in facts that were just written as `lines`."""
        for place, fact in enumerate(facts):
            self.size += len(lines[place])
            self.ends.append(self.size)
            self.keys[fact.key] = fact.seq

    def absorb(self, data: bytes) -> tuple[list[Fact], Fault | None]:
        """Take in the bytes that follow `size`: the facts up to the first fault, and that fault."""
        facts: list[Fact] = []
        for end, found in scan(data, self.size, self.last_seq, self.keys):
            if isinstance(found, Fault):
                return facts, found
            self.size = end
            self.ends.append(end)
            self.keys[found.key] = found.seq
            facts.append(found)
        return facts, None


def scan(data: bytes, offset: int, last_seq: int, keys: dict[str, int]) -> Iterator[tuple[int, Fact | Fault]]:
    """Each line of `data` as a fact or a fault, with the offset at which it ends.

    `data` begins at `offset` in the file, behind the fact `last_seq`; `keys` are those seen so far, and it is the
    caller who adds to them.
    """
    start = 0
    while start < len(data):
        newline = data.find(b"\n", start)
        end = len(data) if newline < 0 else newline + 1
        line = data[start:end]
        is_last = end == len(data)
        found: Fact | Fault
        if newline < 0:
            found = Fault(offset + start, "torn tail: the line has no end", last_seq + 1, is_torn=True)
        else:
            found = _fact_of(line, offset + start, last_seq + 1, keys, is_last)
        last_seq = found.seq
        yield offset + end, found
        start = end


def _fact_of(line: bytes, start: int, due_seq: int, keys: dict[str, int], is_last: bool) -> Fact | Fault:
    try:
        fact = decode_fact(line)
    except ValueError as error:
        is_torn = is_last and not is_json(line)
        return Fault(start, f"torn tail: {error}" if is_torn else f"bad record: {error}", due_seq, is_torn)
    if fact.seq != due_seq:
        return Fault(start, f"gap in seq: expected {due_seq}, found {fact.seq}", fact.seq)
    if fact.key in keys:
        return Fault(start, f"key '{fact.key}' was used before by fact {keys[fact.key]}", fact.seq)
    return fact


def is_json(line: bytes) -> bool:
    try:
        decode_json(line)
    except ValueError:
        return False
    return True
