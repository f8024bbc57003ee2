"""What changed between two values, as lines: `- before` and `+ after`."""

from collections.abc import Iterator, Sequence

import msgspec

MAX_LINES = 2_000
"""Of each side that are compared line by line: that takes quadratic time where many are alike."""


def changed_lines(old: object, new: object) -> list[str]:
    """Texts line by line, other values by their JSON, indented and with sorted keys; None has no lines."""
    before, after = _lines(old), _lines(new)
    shorter = min(len(before), len(after))
    start = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    alike = zip(reversed(before[start:]), reversed(after[start:]), strict=False)
    end = next((count for count, (one, two) in enumerate(alike) if one != two), shorter - start)
    before, after = before[start : len(before) - end], after[start : len(after) - end]
    if max(len(before), len(after)) > MAX_LINES:
        return [f"-({len(before):,} lines)", f"+({len(after):,} lines)"]
    return list(_edits(before, after))


def _edits(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    import difflib  # a millisecond that only a change has to pay

    for kind, old_from, old_to, new_from, new_to in difflib.SequenceMatcher(None, before, after).get_opcodes():
        if kind != "equal":
            yield from (f"-{line}" for line in before[old_from:old_to])
            yield from (f"+{line}" for line in after[new_from:new_to])


def _lines(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split("\n") if value else []  # and nowhere else: a changed `\r` is a change
    if value is None:
        return []
    return msgspec.json.format(msgspec.json.encode(value, order="sorted")).decode().split("\n")
