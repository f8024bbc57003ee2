"""What an append may do, given the keys that its thread already has (spec 4.3): write, repeat nothing, or conflict."""

from collections.abc import Mapping, Sequence

from fanfold.contracts.codec import encode_fact
from fanfold.contracts.facts import Fact, NewFact
from fanfold.errors import AppendConflictError, LifecycleError, UsageError


def stored_seqs(thread: str, keys: Mapping[str, int], facts: Sequence[NewFact]) -> list[int]:
    """Seqs of the facts that have these keys when all are known, `[]` when all are new.

    Raises:
        AppendConflictError: some are known and some are new, so this is neither a replay nor news.
        UsageError: an empty key, or one key twice among `facts`.
    """
    seqs: list[int] = []
    for fact in facts:
        if not fact.key:
            raise UsageError("a fact needs a key")
        if fact.key in keys:
            seqs.append(keys[fact.key])
    if not seqs:
        if len(facts) > 1:
            _require_distinct(facts)
    elif len(seqs) < len(facts):
        raise AppendConflictError(thread=thread, key=next(fact.key for fact in facts if fact.key in keys), seq=seqs[0])
    return seqs


def require_same(thread: str, stored: Sequence[Fact], facts: Sequence[NewFact]) -> None:
    """Return when each stored fact has the payload of its new twin; causes are not compared.

    Raises:
        AppendConflictError: one has not.
    """
    for old, new in zip(stored, facts, strict=True):
        # Equal on disk is equal: a tuple in memory and the list that was read back are the same JSON.
        twin = Fact(old.seq, old.key, old.cause, new.payload)
        if old != twin and encode_fact(old) != encode_fact(twin):
            raise AppendConflictError(thread=thread, key=old.key, seq=old.seq)


def _require_distinct(facts: Sequence[NewFact]) -> None:
    seen: set[str] = set()
    for fact in facts:
        if fact.key in seen:
            raise UsageError(f"two facts of one append have the key '{fact.key}'")
        seen.add(fact.key)


def used_after_release(thread: str) -> LifecycleError:
    return LifecycleError(f"thread '{thread}' was released; hold it again to append to it")
