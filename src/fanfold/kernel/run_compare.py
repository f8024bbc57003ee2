"""Two runs of a workflow side by side: which calls gave something else, and what they cost."""

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from fanfold.contracts.codec import decode_json
from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.contracts.workflow_runs import ComparedCall, RunComparison
from fanfold.kernel.changed_lines import changed_lines
from fanfold.kernel.run_entries import RunEntry
from fanfold.kernel.run_journal import changed_call
from fanfold.kernel.run_view import RunJournalView

MAX_LINES = 200
"""Changed lines that are told of one call or output."""

_Pair = tuple[RunEntry | None, RunEntry | None]


def compare_runs(
    before: RunJournalView, after: RunJournalView, output_before: JsonValue, output_after: JsonValue
) -> RunComparison:
    """What changed from one run to another, in the order in which the later one made its calls.

    Calls belong together that are equal and at the same place; then those that are equal, in their order; then those
    at the same place.
    """
    pairs = sorted(_paired(_standing(before), _standing(after)), key=_order)
    is_equal = _sorted_json(output_before) == _sorted_json(output_after)
    return RunComparison(
        before=before.run_id,
        after=after.run_id,
        calls=tuple(_compared(old, new) for old, new in pairs),
        is_output_equal=is_equal,
        output_changes=None if is_equal else _told(changed_lines(output_before, output_after)),
        tokens=(before.usage.total_tokens, after.usage.total_tokens),
        cost_usd=(before.cost, after.cost),
    )


def _standing(view: RunJournalView) -> list[RunEntry]:
    entries = [entry for entry in view.places().values() if not entry.is_superseded]
    return sorted(entries, key=lambda entry: entry.seq)


def _order(pair: _Pair) -> tuple[bool, int]:
    """As the later run has them; what it has no more comes last."""
    _, new = pair
    return (new is None, 0 if new is None else new.seq)


def _paired(before: list[RunEntry], after: list[RunEntry]) -> Iterator[_Pair]:
    old_at = {entry.path: entry for entry in before}
    left: list[RunEntry] = []
    for new in after:
        old = old_at.get(new.path)
        if old is not None and old.identity == new.identity:
            yield old_at.pop(new.path), new
        else:
            left.append(new)
    equal: dict[str, deque[RunEntry]] = {}
    for old in old_at.values():
        equal.setdefault(old.identity, deque()).append(old)
    changed: list[RunEntry] = []
    for new in left:
        olds = equal.get(new.identity)
        if olds:
            yield old_at.pop(olds.popleft().path), new
        else:
            changed.append(new)
    for new in changed:
        yield old_at.pop(new.path, None), new
    for old in old_at.values():
        yield old, None


def _compared(old: RunEntry | None, new: RunEntry | None) -> ComparedCall:
    if old is None or new is None:
        there = new or old
        assert there is not None
        return ComparedCall(where=there.path, label=there.label, change="removed" if new is None else "added")
    if old.identity != new.identity:
        reason, lines = changed_call(old.call, new.call)
        return ComparedCall(where=new.path, label=new.label, change="call", detail=_told([reason, *(lines or ())]))
    was, became = _outcome(old), _outcome(new)
    if _sorted_json(was) == _sorted_json(became):
        return ComparedCall(where=new.path, label=new.label, change="same")
    if was.keys() == became.keys() == {"value"}:
        was, became = was["value"], became["value"]
    return ComparedCall(where=new.path, label=new.label, change="result", detail=_told(changed_lines(was, became)))


def _outcome(entry: RunEntry) -> JsonObject:
    """What came of a call, as far as the journal holds it: of a long value only the name of its file."""
    result = entry.result
    if result is None:
        return {"status": "in doubt"}
    if result.status != "ok":
        return {"status": result.status, "error": None if result.error is None else msgspec.to_builtins(result.error)}
    return {"value": decode_json(bytes(result.value))} if result.blob is None else {"file": result.blob}


def _sorted_json(value: JsonValue) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _told(lines: Iterable[str]) -> tuple[str, ...]:
    found = list(lines)
    if len(found) <= MAX_LINES:
        return tuple(found)
    return (*found[:MAX_LINES], f"({len(found) - MAX_LINES:,} more lines)")
