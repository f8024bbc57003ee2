"""Whether a call that has no answer is certain to do nothing twice when it is run (spec-workflow 5.5)."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fanfold.contracts.codec import encode_fact
from fanfold.contracts.facts import (
    ConfirmationAnswered,
    NewFact,
    Payload,
    RecordedCall,
    ToolResulted,
    ToolTurn,
    UserMessaged,
)
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.contracts.run_journal import CallFault, Result, ResultStatus, Started, Turns
from fanfold.kernel.run_entries import Claim
from fanfold.kernel.run_journal import miss_reason
from fanfold.kernel.run_repeats import is_repeat
from tests.kernel.test_run_entries import Story, identity

SOME = Usage(prompt_tokens=3, total_tokens=3)


class Call:
    """One call over its attempts, and what a person does between them."""

    def __init__(self) -> None:
        self.story = Story()
        self.seq = 0

    def begin(self) -> None:
        self.story.resume()
        claim = self.story.view.claim(identity("a"), "#0")
        self.seq = self.story.view.last_seq + 1
        self.story.write(Started(seq=self.seq, id=identity("a"), path="#0", key=claim.key, attempt=self.story.attempt))

    def end(
        self, code: str | None, usage: Usage | None = NO_USAGE, status: ResultStatus = "error", **more: Any
    ) -> None:
        fault = None if code is None else CallFault(code=code, message="it said so")
        fields: dict[str, Any] = {"seq": self.seq, "id": identity("a"), "path": "#0", "attempt": self.story.attempt}
        self.story.write(Result(status=status, usage=usage, error=fault, **fields, **more))

    def turns(self, *payloads: Payload, first: int = 1, is_answer: bool = False) -> None:
        facts = [NewFact(f"k{at}", None, each).at(at) for at, each in enumerate(payloads, first)]
        raw = tuple(msgspec.Raw(encode_fact(fact)[:-1]) for fact in facts)
        self.story.write(Turns(seq=self.seq, facts=raw, is_answer=is_answer))

    def claim(self) -> Claim:
        self.story.resume()
        return self.story.view.claim(identity("a"), "#0")


def asking(*ids: str, wants: Sequence[str]) -> tuple[Payload, Payload]:
    made = tuple(RecordedCall(id=each, name="change", args={}, needs_confirmation=each in wants) for each in ids)
    return UserMessaged(text="a"), ToolTurn(call=made[0], also=made[1:], usage=SOME)


YES = ConfirmationAnswered(tool_call_id="one", approved=True)


def test_a_call_that_was_never_begun_or_has_its_answer_is_no_repeat() -> None:
    call = Call()
    assert not is_repeat(call.claim())
    call.begin()
    call.end(None, status="ok")
    assert not is_repeat(call.claim())


def test_one_that_was_cut_off_is_a_repeat_whatever_it_had_told() -> None:
    call = Call()
    call.begin()
    assert is_repeat(call.claim())
    call.begin()
    call.turns(*asking("one", wants=()))
    assert is_repeat(call.claim())


def test_one_whose_tool_call_has_ended_or_whose_turns_contradict_each_other_is_a_repeat() -> None:
    call = Call()
    call.begin()
    call.turns(*asking("one", wants=()), ToolResulted(tool_call_id="one", ok=True, output="done"))
    odd = Call()
    odd.begin()
    odd.turns(UserMessaged(text="a"), YES)
    assert [is_repeat(each.claim()) for each in (call, odd)] == [True, True]


def test_an_answer_that_cannot_be_used_is_a_repeat() -> None:
    call = Call()
    call.begin()
    call.end(None, status="ok")
    call.story.resume()
    call.story.view.reject(call.story.view.claim(identity("a"), "#0"))
    assert is_repeat(call.story.view.claim(identity("a"), "#0"))


@pytest.mark.parametrize("code", ["LLM_ERROR", "BUDGET_EXHAUSTED", "RUN_CANCELLED", "CONFIG_ERROR", "HOOK_BLOCKED"])
def test_what_was_refused_before_a_model_had_answered_is_no_repeat(code: str) -> None:
    call = Call()
    call.begin()
    call.end(code)
    assert not is_repeat(call.claim())


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("NO_ANSWER", {}),
        ("EXECUTOR_ERROR", {}),
        ("LLM_ERROR", {"usage": SOME}),
        ("LLM_ERROR", {"usage": None}),
        ("LLM_ERROR", {"tools": 1}),
        (None, {"status": "cancelled"}),
    ],
)
def test_whatever_else_failed_may_have_done_something(code: str | None, more: Any) -> None:
    call = Call()
    call.begin()
    call.end(code, **more)
    assert is_repeat(call.claim())


def test_a_refusal_behind_turns_or_behind_an_attempt_that_was_cut_off_is_a_repeat() -> None:
    told = Call()
    told.begin()
    told.turns(*asking("one", wants=()))
    told.end("LLM_ERROR")
    cut = Call()
    cut.begin()
    cut.begin()
    cut.end("LLM_ERROR")
    refused = Call()
    refused.begin()
    refused.end("LLM_ERROR")
    refused.begin()
    refused.end("LLM_ERROR")
    assert [is_repeat(each.claim()) for each in (told, cut, refused)] == [True, True, False]


@pytest.mark.parametrize("code", ["PARKED", None])
def test_an_agent_that_waits_for_a_person_goes_on(code: str | None) -> None:
    """Whether it was parked, or its process died while it waited."""
    call = Call()
    call.begin()
    call.turns(*asking("one", "two", wants=("one",)))
    if code is not None:
        call.end(code, SOME)
    assert not is_repeat(call.claim())


def test_a_call_that_comes_before_the_one_that_waits_may_be_under_way() -> None:
    call = Call()
    call.begin()
    call.turns(*asking("one", "two", wants=("two",)))
    assert is_repeat(call.claim())


@pytest.mark.parametrize(("code", "is_answer"), [("PARKED", True), ("PARKED", False), (None, True)])
def test_an_agent_that_was_answered_while_nobody_ran_it_goes_on_once(code: str | None, is_answer: bool) -> None:
    """What comes behind an end is an answer also in a journal that does not say so."""
    call = Call()
    call.begin()
    call.turns(*asking("one", wants=("one",)))
    if code is not None:
        call.end(code, SOME)
    call.turns(YES, first=3, is_answer=is_answer)
    claim = call.claim()
    assert not is_repeat(claim)
    reason, _ = miss_reason(call.story.view, claim, identity("a"), "#0", b"")
    assert reason == "it waited for a person, who has answered"
    call.begin()
    assert is_repeat(call.claim()), "what was approved may have been done since"


def test_an_answer_that_its_own_process_was_given_does_not_tell_what_was_done_with_it() -> None:
    call = Call()
    call.begin()
    call.turns(*asking("one", wants=("one",)))
    call.turns(YES, first=3)
    assert is_repeat(call.claim())


def test_turns_that_this_version_cannot_read_are_gone_on_from_by_nobody() -> None:
    call = Call()
    call.begin()
    call.story.write(Turns(seq=call.seq, facts=(msgspec.Raw(b'{"seq":1,"type":"later"}'),), is_answer=True))
    assert is_repeat(call.claim())
