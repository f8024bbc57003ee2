"""The calls that a log has left parked, and the facts that answer them: the same in whatever keeps the log."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from fanfold.contracts.facts import ConfirmationAnswered, Fact, NewFact, QuestionAnswered, RecordedCall, UserMessaged
from fanfold.control.waiting import Waiting
from fanfold.errors import ControlError, FanfoldError
from fanfold.kernel.fold import fold
from fanfold.session.inbox import Approval, is_question
from fanfold.session.people import answer_fact, confirmation_fact

_LONGEST_ABOUT = 80

Answer = Approval | str
"""Of an approval, or the text for a question."""


class Parked(msgspec.Struct, frozen=True):
    waiting: list[Waiting]
    answered: dict[str, str]
    """Ids of calls of the last turns that have their answer, and what it was: `approved`, `denied`, `answered`."""
    unreadable: dict[str, FanfoldError | OSError]
    """Sessions, workflows and runs of which nothing can be said."""
    sessions: set[str] = set()
    """Those whose logs were read."""
    lost: list[tuple[str, str]] = []
    """(run, label) of agents that were left parked, and whose call is damaged in the journal of the run."""


def prompt_of(facts: Sequence[Fact]) -> str | None:
    """The beginning of what the step was asked: the steps of a map have no other words in their journal."""
    texts = (fact.payload.text for fact in facts if isinstance(fact.payload, UserMessaged))
    return " ".join(next(texts, "").split())[:_LONGEST_ABOUT] or None


def open_calls(facts: Iterable[Fact]) -> list[RecordedCall]:
    """Recorded calls that wait for an approval or an answer."""
    state = fold(facts)
    return [
        call
        for call in state.pending
        if call.id not in state.approved and (call.needs_confirmation or is_question(call))
    ]


def answers_of(facts: Sequence[Fact]) -> list[tuple[str, Literal["approved", "denied", "answered"]]]:
    """The answers of the last turn."""
    found: list[tuple[str, Literal["approved", "denied", "answered"]]] = []
    for fact in reversed(facts):
        match fact.payload:
            case ConfirmationAnswered(tool_call_id=call_id, approved=approved):
                found.append((call_id, "approved" if approved else "denied"))
            case QuestionAnswered(question_id=call_id):
                found.append((call_id, "answered"))
            case UserMessaged():
                break
            case _:
                pass
    return found


def require_waiting(waiting: Waiting, facts: Sequence[Fact]) -> None:
    if any(call.id == waiting.call_id for call in open_calls(facts)):
        return
    what = dict(answers_of(facts)).get(waiting.call_id)
    if what is None:
        raise ControlError("NOT_WAITING", f"nothing waits as '{waiting.id}' any more")
    raise ControlError("ALREADY_ANSWERED", f"'{waiting.id}' does not wait any more: it was {what}")


def new_fact(call_id: str, answer: Answer, length: int) -> NewFact:
    if isinstance(answer, str):
        return answer_fact(call_id, answer, length)
    return confirmation_fact(call_id, answer, length)
