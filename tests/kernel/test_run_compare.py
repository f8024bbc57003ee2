"""Two runs side by side: what is the same stays out of the way, and what is not is told with its place."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.messages import Usage
from fanfold.contracts.record import JsonValue
from fanfold.contracts.run_journal import CallFault, Header, Moved, Result, RunRecord, Started
from fanfold.contracts.workflow_runs import RunComparison, WorkflowMeta
from fanfold.kernel.call_identity import CallMeaning, call_identity
from fanfold.kernel.run_compare import MAX_LINES, compare_runs
from fanfold.kernel.run_journal import encode_line, read_run_journal
from fanfold.kernel.run_view import RunJournalView

META = WorkflowMeta(name="audit", description="d")
ONE, TWO = "wf_audit_1111111111111111", "wf_audit_2222222222222222"


class Call(msgspec.Struct, kw_only=True):
    path: str
    prompt: str
    value: JsonValue = "fine"
    label: str = ""
    key: str = ""
    end: dict[str, Any] | None = {}
    """More of its result; None: there is none."""


def run_of(run_id: str, *calls: Call, also: tuple[RunRecord, ...] = (), cost: float | None = None) -> RunJournalView:
    records: list[RunRecord] = [
        Header(run_id=run_id, workflow="audit", meta=META, args_sha="0", attempt=1, runtime="1", at_ms=1)
    ]
    for seq, call in enumerate(calls, 1):
        found, written = call_identity(CallMeaning(prompt=call.prompt, agent="general"))
        records.append(
            Started(
                seq=seq,
                id=found,
                path=call.path,
                label=call.label,
                key=call.key or f"k:{seq}",
                attempt=1,
                call=msgspec.Raw(written),
            )
        )
        if call.end is not None:
            fields: dict[str, Any] = {"status": "ok", "usage": Usage(total_tokens=10), "cost": cost, **call.end}
            value = msgspec.Raw(msgspec.json.encode(call.value))
            records.append(Result(seq=seq, id=found, path=call.path, value=value, **fields))
    return read_run_journal([encode_line(record) for record in (*records, *also)], run_id, strict=True)


def compared(before: RunJournalView, after: RunJournalView) -> list[tuple[str, str]]:
    return [(call.where, call.change) for call in compare_runs(before, after, None, None).calls]


def details(before: RunJournalView, after: RunJournalView) -> list[tuple[str, ...] | None]:
    return [call.detail for call in compare_runs(before, after, None, None).calls]


def test_equal_calls_at_equal_places_are_the_same_whatever_they_are_called() -> None:
    before = run_of(ONE, Call(path="#0", prompt="a", label="old"), Call(path="#1", prompt="b", value={"x": 1, "y": 2}))
    after = run_of(TWO, Call(path="#0", prompt="a", label="new"), Call(path="#1", prompt="b", value={"y": 2, "x": 1}))
    found = compare_runs(before, after, {"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert [(call.where, call.label, call.change) for call in found.calls] == [
        ("#0", "new", "same"),
        ("#1", "", "same"),
    ]
    assert found.is_output_equal
    assert found.output_changes is None
    assert (found.before, found.after, found.tokens, found.cost_usd) == (ONE, TWO, (20, 20), (None, None))


def test_another_answer_to_the_same_call_is_shown() -> None:
    before = run_of(ONE, Call(path="#0", prompt="a", value="one\ntwo"), Call(path="#1", prompt="b", value={"n": 1}))
    after = run_of(TWO, Call(path="#0", prompt="a", value="one\n2"), Call(path="#1", prompt="b", value={"n": True}))
    assert compared(before, after) == [("#0", "result"), ("#1", "result")]
    assert details(before, after) == [("-two", "+2"), ('-  "n": 1', '+  "n": true')]


def test_an_answer_that_looks_like_the_lack_of_one_is_none() -> None:
    before = run_of(ONE, Call(path="#0", prompt="a", end=None), Call(path="#1", prompt="b", value=None))
    after = run_of(
        TWO,
        Call(path="#0", prompt="a", value={"status": "in doubt"}),
        Call(path="#1", prompt="b", end={"status": "skipped"}),
    )
    assert compared(before, after) == [("#0", "result"), ("#1", "result")]
    assert compared(before, before) == [("#0", "same"), ("#1", "same")]


def test_failures_and_long_answers_are_compared_by_what_the_journal_holds() -> None:
    failed = {"status": "error", "error": CallFault(code="TIMEOUT", message="slow")}
    before = run_of(ONE, Call(path="#0", prompt="a"), Call(path="#1", prompt="b", end={"blob": "b" * 64}))
    after = run_of(TWO, Call(path="#0", prompt="a", end=failed), Call(path="#1", prompt="b", end={"blob": "c" * 64}))
    assert compared(before, after) == [("#0", "result"), ("#1", "result")]
    lines = details(before, after)
    assert any("TIMEOUT" in line for line in lines[0] or ())
    assert lines[1] == (f'-  "file": "{"b" * 64}"', f'+  "file": "{"c" * 64}"')


def test_another_call_at_the_same_place_is_shown_with_what_changed_in_it() -> None:
    before, after = run_of(ONE, Call(path="#0", prompt="a\nb")), run_of(TWO, Call(path="#0", prompt="a\nc"))
    assert compared(before, after) == [("#0", "call")]
    assert details(before, after) == [("prompt changed", "-b", "+c")]


def test_a_call_that_moved_is_the_same_call() -> None:
    before = run_of(ONE, Call(path="#0", prompt="a"), Call(path="#1", prompt="b", value="B"))
    after = run_of(
        TWO, Call(path="#0", prompt="new"), Call(path="#1", prompt="a"), Call(path="#2", prompt="b", value="C")
    )
    assert compared(before, after) == [("#0", "added"), ("#1", "same"), ("#2", "result")]


def test_equal_calls_that_moved_belong_together_in_their_order() -> None:
    before = run_of(ONE, Call(path="#0", prompt="a", value=1), Call(path="#1", prompt="a", value=2))
    after = run_of(TWO, Call(path="#8", prompt="a", value=1), Call(path="#9", prompt="a", value=2))
    assert compared(before, after) == [("#8", "same"), ("#9", "same")]


def test_calls_that_are_new_or_gone_are_told_the_gone_ones_last() -> None:
    before = run_of(
        ONE, Call(path="#0", prompt="a"), Call(path="#1", prompt="gone", label="g"), Call(path="#2", prompt="c")
    )
    after = run_of(TWO, Call(path="#2", prompt="c"), Call(path="#0", prompt="a"), Call(path="#3", prompt="d"))
    found = compare_runs(before, after, None, None).calls
    assert [(call.where, call.change) for call in found] == [
        ("#2", "same"), ("#0", "same"), ("#3", "added"), ("#1", "removed"),
    ]  # fmt: skip
    assert found[-1].label == "g"


def test_of_several_calls_that_stood_at_a_place_the_last_one_counts() -> None:
    edited = run_of(ONE, Call(path="#0", prompt="old"), Call(path="#0", prompt="new"))
    again = run_of(
        ONE, Call(path="#0", prompt="new", end={"status": "error"}, key="k"), Call(path="#0", prompt="new", key="k")
    )
    moved = run_of(ONE, Call(path="#5", prompt="new"), Call(path="#0", prompt="old"), also=(Moved(seq=1, path="#0"),))
    for before in (edited, again, moved):
        assert compared(before, run_of(TWO, Call(path="#0", prompt="new"))) == [("#0", "same")]


def test_a_call_that_ran_again_elsewhere_is_one_call() -> None:
    failed = Call(path="#0", prompt="a", end={"status": "error"}, key="k")
    before = run_of(ONE, failed, Call(path="#1", prompt="a", key="k"))
    assert compared(before, run_of(TWO, Call(path="#1", prompt="a"))) == [("#1", "same")]


def test_outputs_and_costs_are_compared() -> None:
    before, after = run_of(ONE, Call(path="#0", prompt="a"), cost=0.5), run_of(TWO)
    found = compare_runs(before, after, {"n": 1}, {"n": 2})
    assert not found.is_output_equal
    assert found.output_changes == ('-  "n": 1', '+  "n": 2')
    assert (found.tokens, found.cost_usd) == ((10, 0), (0.5, None))
    assert not compare_runs(before, after, 1, True).is_output_equal
    assert compare_runs(before, after, None, None).is_output_equal
    assert compare_runs(before, after, "", None).output_changes == ()


def test_a_long_change_is_cut_and_says_so() -> None:
    lines = [f"line {number}" for number in range(MAX_LINES + 50)]
    found = compare_runs(run_of(ONE), run_of(TWO), None, "\n".join(lines)).output_changes
    assert found is not None
    assert len(found) == MAX_LINES + 1
    assert found[-1] == "(50 more lines)"
    found = compare_runs(run_of(ONE), run_of(TWO), None, "\n".join(lines[:MAX_LINES])).output_changes
    assert found is not None
    assert found[-1] == f"+line {MAX_LINES - 1}"


def test_a_comparison_goes_over_the_wire() -> None:
    found = compare_runs(run_of(ONE, Call(path="#0", prompt="a")), run_of(TWO, Call(path="#0", prompt="b")), 1, 2)
    assert msgspec.json.decode(msgspec.json.encode(found), type=RunComparison) == found


calls = st.dictionaries(
    st.sampled_from(["#0", "#1", "#2", "#3"]), st.tuples(st.sampled_from("ab"), st.sampled_from("xy"))
)


@given(calls, calls)
def test_each_call_is_told_once_and_what_is_equal_is_never_told_as_new(
    old: dict[str, tuple[str, str]], new: dict[str, tuple[str, str]]
) -> None:
    before, after = (
        run_of(run, *(Call(path=path, prompt=prompt, value=value) for path, (prompt, value) in each.items()))
        for run, each in ((ONE, old), (TWO, new))
    )
    found = compare_runs(before, after, None, None).calls
    changes = {call.where: call.change for call in found if call.change != "removed"}
    assert set(changes) == set(new)
    removed = sum(call.change == "removed" for call in found)
    added = sum(call.change == "added" for call in found)
    assert len(old) + added == len(new) + removed
    for path, call in new.items():
        if old.get(path) == call:
            assert changes[path] == "same"
    equal = sum(min(sum(p == q for q, _ in each.values()) for each in (old, new)) for p in "ab")
    assert sum(change in ("same", "result") for change in changes.values()) == equal
