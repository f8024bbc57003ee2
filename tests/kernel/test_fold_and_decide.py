"""Tables of (facts -> action), and the laws of the fold."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.codec import decode_fact, encode_fact
from fanfold.contracts.facts import (
    BudgetDenied,
    Compacted,
    ConfirmationAnswered,
    Fact,
    NewFact,
    Note,
    Payload,
    QuestionAnswered,
    QuestionTurn,
    RecordedCall,
    TextTurn,
    ToolResulted,
    ToolTurn,
    UserMessaged,
)
from fanfold.contracts.messages import AssistantMessage, Entry, ToolMessage, Usage, UserMessage
from fanfold.errors import CorruptLogError
from fanfold.kernel.decide import (
    Action,
    AwaitAnswer,
    AwaitConfirmation,
    CallModel,
    Compact,
    Deny,
    Finish,
    Idle,
    Limits,
    RunTools,
    StopAtLimit,
    decide,
)
from fanfold.kernel.fold import evolve, fold
from fanfold.kernel.state import EMPTY, SessionState

LIMITS = Limits()


def log(*payloads: Payload | tuple[str, Payload]) -> list[Fact]:
    facts: list[Fact] = []
    for seq, each in enumerate(payloads, start=1):
        key, payload = each if isinstance(each, tuple) else (f"k{seq}", each)
        facts.append(NewFact(key, None, payload).at(seq))
    return facts


def call(id: str, name: str = "read", *, ask: bool = False) -> RecordedCall:
    return RecordedCall(id=id, name=name, args={}, needs_confirmation=ask)


def tools(*calls: RecordedCall, text: str = "") -> ToolTurn:
    return ToolTurn(text=text, call=calls[0], also=calls[1:])


def ok(id: str) -> ToolResulted:
    return ToolResulted(tool_call_id=id, ok=True, output="fine")


def bad(id: str) -> ToolResulted:
    return ToolResulted(tool_call_id=id, ok=False, output="broken")


ASK = UserMessaged("do it")
QUESTION = QuestionTurn(question_id="q", question="which?", options=("a", "b"), allow_free_text=False)

ROUND: list[Payload] = [tools(call("a")), ok("a")]
FAILED_ROUND: list[Payload] = [tools(call("a")), bad("a")]
EIGHT_ROUNDS: list[Payload] = [ASK, *(ROUND * 8)]

TABLE: list[tuple[str, Sequence[Payload | tuple[str, Payload]], Limits, Action]] = [
    ("nothing was asked", [], LIMITS, Idle()),
    ("a prompt calls the model", [ASK], LIMITS, CallModel(with_tools=True)),
    ("a text ends the turn", [ASK, TextTurn(text="yes")], LIMITS, Finish("yes", "stop")),
    ("a cut text says so", [ASK, TextTurn(text="ye", stop_reason="length")], LIMITS, Finish("ye", "length")),
    ("a tool turn runs its tools", [ASK, tools(call("a"))], LIMITS, RunTools((call("a"),))),
    ("all calls of one response", [ASK, tools(call("a"), call("b"))], LIMITS, RunTools((call("a"), call("b")))),
    ("only the missing result", [ASK, tools(call("a"), call("b")), ok("a")], LIMITS, RunTools((call("b"),))),
    ("the model after the results", [ASK, *ROUND], LIMITS, CallModel(with_tools=True)),
    ("an ask parks", [ASK, tools(call("a", ask=True))], LIMITS, AwaitConfirmation(call("a", ask=True))),
    ("calls before an ask run first", [ASK, tools(call("a"), call("b", ask=True))], LIMITS, RunTools((call("a"),))),
    (
        "an approved call runs",
        [ASK, tools(call("a", ask=True)), ConfirmationAnswered(tool_call_id="a", approved=True)],
        LIMITS,
        RunTools((call("a", ask=True),)),
    ),
    (
        "a denied call ends the turn",
        [ASK, tools(call("a", ask=True), text="I will"), ConfirmationAnswered(tool_call_id="a", approved=False)],
        LIMITS,
        Finish("I will", "denied"),
    ),
    (
        "an answer for another call changes nothing",
        [ASK, tools(call("a", ask=True)), ConfirmationAnswered(tool_call_id="zzz", approved=True)],
        LIMITS,
        AwaitConfirmation(call("a", ask=True)),
    ),
    (
        "a question parks",
        [ASK, QUESTION],
        LIMITS,
        AwaitAnswer(
            RecordedCall(
                id="q",
                name="ask_user",
                args={"question": "which?", "options": ["a", "b"], "allow_free_text": False},
            )
        ),
    ),
    (
        "an answered question goes on",
        [ASK, QUESTION, QuestionAnswered(question_id="q", text="a")],
        LIMITS,
        CallModel(with_tools=True),
    ),
    ("eight good results leave one more call", EIGHT_ROUNDS, LIMITS, CallModel(with_tools=True)),
    ("then a further request is denied", [*EIGHT_ROUNDS, tools(call("z"))], LIMITS, Deny(call("z"))),
    (
        "failures do not use up the budget",
        [ASK, *(FAILED_ROUND * 9), tools(call("z"))],
        LIMITS,
        RunTools((call("z"),)),
    ),
    (
        "a response that began under the budget is finished",
        [ASK, *(ROUND * 7), tools(call("x"), call("y")), ok("x")],
        LIMITS,
        RunTools((call("y"),)),
    ),
    (
        "the budget's end is the turn's end",
        [ASK, *(ROUND * 8), tools(call("z"), text="one more"), BudgetDenied("z")],
        LIMITS,
        Finish("one more", "tool_budget"),
    ),
    ("a capped run loses its tools", [ASK, *ROUND, *ROUND], Limits.of(2), CallModel(with_tools=False)),
    ("zero rounds means no tools at all", [ASK], Limits.of(0), CallModel(with_tools=False)),
    ("a call in spite of that is denied", [ASK, *ROUND, tools(call("b"))], Limits.of(1), Deny(call("b"))),
    ("a higher cap raises the budget", [*EIGHT_ROUNDS, tools(call("z"))], Limits.of(20), RunTools((call("z"),))),
    (
        "a steer gives a new budget",
        [*EIGHT_ROUNDS, ("steer:1", UserMessaged("rather this")), tools(call("z"))],
        LIMITS,
        RunTools((call("z"),)),
    ),
    ("the step limit stops an unfinished run", [ASK, *ROUND], Limits(steps=2), StopAtLimit(2)),
    ("a limit of zero takes no step", [ASK], Limits(steps=0), StopAtLimit(0)),
    ("nor does it run what waits for its result", [ASK, tools(call("a"))], Limits(steps=0), StopAtLimit(0)),
    ("a turn that is over has no limit", [ASK, TextTurn(text="x")], Limits(steps=0), Finish("x", "stop")),
    ("nothing has none either", [], Limits(steps=0), Idle()),
    ("a run that ends at its limit succeeds", [ASK, TextTurn(text="x")], Limits(steps=1), Finish("x", "stop")),
    (
        "no more calls than steps are left",
        [ASK, tools(call("a"), call("b"), call("c"))],
        Limits(steps=3),
        RunTools((call("a"), call("b"))),
    ),
    (
        "a notice gives a new budget",
        [*EIGHT_ROUNDS, ("notice-1", UserMessaged("it has ended")), tools(call("z"))],
        LIMITS,
        RunTools((call("z"),)),
    ),
    (
        "a steer does not give new steps",
        [ASK, *ROUND, ("steer:1", UserMessaged("rather this"))],
        Limits(steps=2),
        StopAtLimit(2),
    ),
    ("a new prompt gives new steps", [ASK, *ROUND, UserMessaged("next")], Limits(steps=2), CallModel(with_tools=True)),
    (
        "a full context is compacted",
        [ASK, TextTurn(text="x" * 4000), UserMessaged("next")],
        Limits(context_tokens=1000),
        Compact(1),
    ),
    (
        "once a turn",
        [
            *(ASK, TextTurn(text="x" * 4000), UserMessaged("next")),
            *(Compacted(summary="s" * 4000, kept_messages=1), tools(call("a")), ok("a")),
        ],
        Limits(context_tokens=1000),
        CallModel(with_tools=True),
    ),
    (
        "and in the next turn again",
        [
            *(ASK, TextTurn(text="x" * 4000), UserMessaged("next")),
            *(Compacted(summary="s" * 4000, kept_messages=1), *ROUND, TextTurn(text="done"), UserMessaged("and now")),
        ],
        Limits(context_tokens=1000),
        Compact(5),
    ),
    ("notes change nothing", [ASK, Note("note.run.started", {"run": "r"})], LIMITS, CallModel(with_tools=True)),
]


@pytest.mark.parametrize(("payloads", "limits", "action"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table_of_facts_and_actions(
    payloads: Sequence[Payload | tuple[str, Payload]], limits: Limits, action: Action
) -> None:
    assert decide(fold(log(*payloads)), limits) == action


def test_assistant_text_is_part_of_the_transcript() -> None:
    state = fold(log(ASK, TextTurn(text="yes"), UserMessaged("and now?")))
    assert state.transcript is not None
    assert list(state.transcript) == [UserMessage("do it"), AssistantMessage("yes"), UserMessage("and now?")]


def test_every_call_has_a_result_before_the_next_user_message() -> None:
    state = fold(log(ASK, tools(call("a"), call("b")), ok("a"), UserMessaged("forget it")))
    assert state.transcript is not None
    kinds = [type(message) for message in state.transcript]
    assert kinds == [UserMessage, AssistantMessage, ToolMessage, ToolMessage, UserMessage]
    assert state.pending == ()


def test_a_denied_approval_leaves_no_open_call() -> None:
    state = fold(
        log(
            ASK,
            tools(call("a", ask=True), call("b")),
            ConfirmationAnswered(tool_call_id="a", approved=False, reason="no"),
        )
    )
    assert state.transcript is not None
    results = [message for message in state.transcript if isinstance(message, ToolMessage)]
    assert [(result.call_id, result.ok) for result in results] == [("a", False), ("b", False)]
    assert results[0].output == "denied by the user: no"


def test_compaction_keeps_the_newest_messages_after_the_summary() -> None:
    state = fold(log(ASK, TextTurn(text="one"), UserMessaged("two"), Compacted(summary="before", kept_messages=1)))
    assert state.transcript is not None
    assert list(state.transcript) == [UserMessage("before"), UserMessage("two")]


def test_usage_and_counters_are_of_the_run() -> None:
    used = Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5)
    state = fold(log(ASK, ToolTurn(call=call("a"), usage=used), ok("a"), TextTurn(text="x", usage=used)))
    assert (state.usage.total_tokens, state.steps, state.tool_results) == (10, 3, 1)
    state = evolve(state, Fact(5, "m-5", None, UserMessaged("next")))
    assert (state.usage.total_tokens, state.steps, state.tool_results) == (0, 0, 0)


@pytest.mark.parametrize("cause", [None, "turn:1"])
def test_a_notice_continues_the_run_that_it_names_and_otherwise_begins_one(cause: str | None) -> None:
    used = Usage(total_tokens=5)
    before = fold(log(ASK, ToolTurn(call=call("a"), usage=used), ok("a"), TextTurn(text="done", usage=used)))
    state = evolve(before, Fact(5, "notice-x", cause, UserMessaged("x has ended")))
    assert (state.phase, state.turn, state.is_notice) == ("infer", 2, True)
    assert (state.rounds, state.successes, state.cycle, state.text) == (0, 0, 0, "")
    of_run = (state.steps, state.usage.total_tokens, state.tool_results)
    assert of_run == ((3, 10, 1) if cause else (0, 0, 0))
    assert state.session_usage.total_tokens == 10
    assert before.history is state.history  # until the turn is over
    done = evolve(state, Fact(6, "k6", None, TextTurn(text="noted")))
    assert [type(message) for message in list(done.history or ())[-2:]] == [UserMessage, AssistantMessage]
    assert not evolve(done, Fact(7, "m-6", None, ASK)).is_notice
    assert not evolve(state, Fact(6, "steer:1", None, ASK)).is_notice


@pytest.mark.parametrize("cause", [None, "turn:1"])
def test_a_notice_within_a_turn_that_is_aside_is_aside_too_and_one_behind_it_is_not(cause: str | None) -> None:
    state = fold(log(("aside-0", ASK), TextTurn(text="aside")))
    state = evolve(state, Fact(3, "notice-x", cause, UserMessaged("x has ended")))
    state = evolve(state, Fact(4, "k4", None, TextTurn(text="noted")))
    assert list(state.history or ()) == ([] if cause else [UserMessage("x has ended"), AssistantMessage("noted")])


@pytest.mark.parametrize(
    ("payloads", "says"),
    [
        ([TextTurn(text="unasked")], "phase 'idle'"),
        ([ASK, ok("a")], "no call 'a' waits"),
        ([ASK, tools(call("a")), ok("a"), ok("a")], "no call 'a' waits"),
        ([ASK, tools(call("a")), TextTurn(text="too early")], "phase 'calls'"),
    ],
)
def test_a_fact_that_cannot_come_next_is_corruption(payloads: list[Payload], says: str) -> None:
    with pytest.raises(CorruptLogError, match=says):
        fold(log(*payloads))


def test_a_gap_in_seq_is_corruption() -> None:
    with pytest.raises(CorruptLogError, match="expected seq 1"):
        evolve(EMPTY, Fact(2, "m-1", None, ASK))


# ---- laws -----------------------------------------------------------------------------------------------------------


_TEXT = st.text(max_size=8)
_USAGE = st.none() | st.builds(Usage, total_tokens=st.integers(0, 500))
_CALL = st.builds(
    RecordedCall,
    id=st.sampled_from("abc"),
    name=st.sampled_from(["read", "bash"]),
    args=st.sampled_from([{}, {"n": 1}, "{broken"]),
    needs_confirmation=st.booleans(),
)
_CALLS = st.lists(_CALL, min_size=1, max_size=3, unique_by=lambda each: each.id)
_ALWAYS: list[st.SearchStrategy[Payload]] = [
    st.builds(UserMessaged, _TEXT),
    st.builds(Note, st.just("note.x"), st.just({})),
]
_IN_INFER: list[st.SearchStrategy[Payload]] = [
    st.builds(TextTurn, text=_TEXT, usage=_USAGE),
    st.builds(lambda made, used: ToolTurn(call=made[0], also=tuple(made[1:]), usage=used), _CALLS, _USAGE),
    st.builds(QuestionTurn, question_id=st.just("q"), question=_TEXT),
    st.builds(Compacted, summary=_TEXT, kept_messages=st.integers(0, 3)),
]
_ANYTHING = st.one_of(_ALWAYS)
_NEXT_TO_INFER = st.one_of(*_ALWAYS, *_IN_INFER)


@st.composite
def logs(draw: st.DrawFn) -> list[Fact]:
    """Logs as the driver writes them: whatever the state allows next."""
    facts: list[Fact] = []
    state = EMPTY
    for _ in range(draw(st.integers(0, 12))):
        fact = Fact(state.last_seq + 1, f"k{state.last_seq}", None, _next_payload(draw, state))
        state = evolve(state, fact)
        facts.append(fact)
    return facts


def _next_payload(draw: st.DrawFn, state: SessionState) -> Payload:
    if state.phase == "infer":
        chosen: Payload = draw(_NEXT_TO_INFER)
        return chosen
    if state.phase != "calls" or draw(st.integers(0, 5)) == 0:
        anything: Payload = draw(_ANYTHING)
        return anything
    call_id = draw(st.sampled_from([each.id for each in state.pending]))
    match draw(st.integers(0, 3)):
        case 0:
            return ToolResulted(tool_call_id=call_id, ok=draw(st.booleans()), output=draw(_TEXT))
        case 1:
            return ConfirmationAnswered(tool_call_id=call_id, approved=draw(st.booleans()))
        case 2:
            return QuestionAnswered(question_id=call_id, text=draw(_TEXT))
        case _:
            return BudgetDenied(call_id)


def _seen(state: SessionState) -> object:
    fields = {name: getattr(state, name) for name in state.__struct_fields__}
    return {name: tuple(value) if isinstance(value, Entry) else value for name, value in fields.items()}


@given(logs(), st.integers(0, 40))
def test_fold_of_a_prefix_then_the_rest_is_fold_of_all(facts: list[Fact], cut: int) -> None:
    assert _seen(fold(facts[cut:], fold(facts[:cut]))) == _seen(fold(facts))


@given(logs())
def test_decode_of_encode_is_the_fact(facts: list[Fact]) -> None:
    assert [decode_fact(encode_fact(fact)) for fact in facts] == facts


@given(logs(), st.sampled_from([Limits(), Limits.of(0), Limits.of(2), Limits(steps=1), Limits(context_tokens=50)]))
def test_decide_is_total(facts: list[Fact], limits: Limits) -> None:
    assert decide(fold(facts), limits) is not None


@given(logs())
def test_a_finished_turn_stays_finished_until_somebody_speaks(facts: list[Fact]) -> None:
    state = fold(facts)
    if state.phase == "done":
        later = evolve(state, Fact(state.last_seq + 1, "late", None, Note("note.late", {})))
        assert decide(later, LIMITS) == decide(state, LIMITS)


@given(logs())
def test_no_provider_ever_sees_an_unanswered_call_before_a_user_message(facts: list[Fact]) -> None:
    state = fold(facts)
    open_ids: list[str] = []
    for message in state.transcript or ():
        match message:
            case AssistantMessage():
                open_ids = [each.id for each in message.calls]
            case ToolMessage():
                open_ids = [each for each in open_ids if each != message.call_id]
            case UserMessage():
                assert not open_ids


def test_evolving_costs_the_same_at_any_length_and_a_long_transcript_is_freed_without_recursion() -> None:
    state = EMPTY
    for seq in range(1, 200_001):
        payload: Payload = UserMessaged("x") if seq % 2 else TextTurn(text="y")
        state = evolve(state, Fact(seq, "k", None, payload))
    assert state.transcript is not None
    assert state.transcript.length == 200_000
    del state
