"""Repeats: whether to run a call would do again what an earlier attempt may have done (spec-workflow 5.5)."""

from collections.abc import Sequence

from fanfold.contracts.facts import Fact
from fanfold.contracts.messages import ASK_USER
from fanfold.errors import CorruptLogError
from fanfold.kernel.fold import fold
from fanfold.kernel.run_entries import Claim
from fanfold.kernel.run_journal import facts_of
from fanfold.kernel.run_refusals import has_done_nothing


def is_repeat(claim: Claim) -> bool:
    """An earlier attempt has begun the agent of this call, and there is no answer that could be used.

    An agent that waits for a person, or whose call a person has answered since, goes on: that is no repeat. Nor is it
    one where nothing was done.
    """
    entry = claim.entry
    if claim.kind != "again" or entry is None:
        return False
    facts = facts_of(claim)
    if facts and (entry.is_answered_last or _is_at_person(facts)):
        return False
    return not has_done_nothing(entry)


def _is_at_person(facts: Sequence[Fact]) -> bool:
    """What comes next is a person's answer: no tool call is under way."""
    try:
        state = fold(facts)
    except CorruptLogError:
        return False
    if not state.pending:
        return False
    first = state.pending[0]
    is_question = first.name == ASK_USER and isinstance(first.args, dict)
    return is_question or (first.needs_confirmation and first.id not in state.approved)
