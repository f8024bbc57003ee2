"""What was written whole is read again, whatever happened to the rest; what is damaged is never used."""

import json
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.codec import decode_fact, encode_fact
from fanfold.contracts.facts import Fact, TextTurn, UserMessaged
from fanfold.contracts.messages import Usage
from fanfold.contracts.run_journal import (
    AttemptEnd,
    CallFault,
    Header,
    Moved,
    Result,
    RunRecord,
    Started,
    Turns,
)
from fanfold.contracts.steps import Worktree
from fanfold.contracts.workflow_runs import WorkflowMeta
from fanfold.errors import InternalError, WorkflowInputError
from fanfold.kernel.call_identity import CallMeaning, call_identity
from fanfold.kernel.run_journal import (
    NOT_RECORDED,
    copied_records,
    decode_line,
    encode_line,
    facts_of,
    miss_reason,
    read_run_journal,
)
from fanfold.kernel.run_view import RunJournalView

RUN = "wf_audit_0123456789abcdef"
META = WorkflowMeta(name="audit", description="Looks at everything.")
USAGE = Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15)


def header(attempt: int = 1, **more: Any) -> Header:
    fields: dict[str, Any] = {"run_id": RUN, "at_ms": 1_000 * attempt, **more}
    return Header(workflow="audit", meta=META, args_sha="0" * 64, attempt=attempt, runtime="1.0", **fields)


def meaning(prompt: str, **more: Any) -> CallMeaning:
    return CallMeaning(prompt=prompt, agent="general", **more)


def identity(prompt: str, **more: Any) -> str:
    return call_identity(meaning(prompt, **more))[0]


def started(seq: int, prompt: str, *, path: str | None = None, key: str = "", attempt: int = 1) -> Started:
    found, written = call_identity(meaning(prompt))
    path = f"#{seq - 1}" if path is None else path
    call = msgspec.Raw(written)
    return Started(seq=seq, id=found, path=path, label=prompt, key=key or f"k:{seq}", attempt=attempt, call=call)


def result(seq: int, prompt: str, value: object = None, **more: Any) -> Result:
    fields: dict[str, Any] = {"status": "ok", "usage": USAGE, "path": f"#{seq - 1}", **more}
    return Result(seq=seq, id=identity(prompt), value=msgspec.Raw(msgspec.json.encode(value)), **fields)


def turns(seq: int, first: int, last: int) -> Turns:
    facts = (Fact(number, f"f{number}", None, UserMessaged(f"turn {number}")) for number in range(first, last + 1))
    return Turns(seq=seq, facts=tuple(msgspec.Raw(encode_fact(fact)[:-1]) for fact in facts))


def lines_of(*records: RunRecord) -> list[bytes]:
    return [encode_line(record) for record in records]


def view_of(*records: RunRecord, **how: Any) -> RunJournalView:
    return read_run_journal(lines_of(*records), RUN, **how)


def read_bytes(data: bytes) -> RunJournalView:
    """As a store reads a file: split at newlines, what stands behind the last one is torn."""
    *lines, rest = data.split(b"\n")
    return read_run_journal(lines, RUN, has_torn_end=bool(rest))


def answers(view: RunJournalView) -> dict[int, Any]:
    found = {seq: entry.result for seq, entry in view.entries.items()}
    return {seq: msgspec.json.decode(end.value) for seq, end in found.items() if end is not None}


def refusal(call: Any, *args: Any, **more: Any) -> WorkflowInputError:
    with pytest.raises(WorkflowInputError) as caught:
        call(*args, **more)
    assert caught.value.code == "journal_refused"
    return caught.value


# ---- lines ---------------------------------------------------------------------------------------------------

RECORDS: list[RunRecord] = [
    header(2, script_sha="s", seed="wf_audit_fedcba9876543210", first_ms=5, parent="wf_audit_fedcba9876543210"),
    started(1, "Look."),
    result(1, "Look.", {"a": [1, None, "é\u2028\u0085\x1c"]}, blob="b" * 64, cost=0.5, tools=3, ms=7, attempt=2),
    result(2, "Look.", None, status="error", error=CallFault(code="TIMEOUT", message="too slow", raw="{"), usage=None),
    result(3, "Look.", 5, degraded=2, worktree=Worktree(base="c", branch="b", files=("a.py",), diff="+x")),
    turns(1, 1, 3),
    Moved(seq=1, path="/0.1#0"),
    AttemptEnd(attempt=2, status="completed_with_failures", at_ms=9),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_from_its_line(record: RunRecord) -> None:
    line = encode_line(record)
    assert decode_line(line) == record
    assert b"\n" not in line
    body, _, tail = line.rpartition(b',"crc":"')
    assert tail == b'%08x"}' % zlib.crc32(body)
    assert json.loads(line)["t"] == json.loads(body + b"}")["t"], "it is plain JSON with and without its checksum"


def test_raw_json_over_several_lines_becomes_one_line() -> None:
    line = encode_line(Result(seq=1, id="i", path="p", status="ok", value=msgspec.Raw(b'{\n  "a": "x\\ny"\n}')))
    assert b"\n" not in line
    record = decode_line(line)
    assert isinstance(record, Result)
    assert msgspec.json.decode(record.value) == {"a": "x\ny"}


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x1c", "\x1d", "\x1e", "\x0b", "\x0c", "\r", "\r\n"])
def test_what_only_looks_like_the_end_of_a_line_splits_nothing(mark: str) -> None:
    text = f"one{mark}two"
    data = b"".join(line + b"\n" for line in lines_of(header(), started(1, text), result(1, text, text)))
    view = read_bytes(data)
    assert answers(view) == {1: text}
    assert view.rejected_lines == ()
    assert view.whole_lines is None


def with_crc(body: dict[str, Any]) -> bytes:
    written = json.dumps(body).encode()[:-1]
    return written + b',"crc":"%08x"}' % zlib.crc32(written)


def test_types_of_later_versions_are_passed_over_and_kept() -> None:
    later = with_crc({"t": "weather", "seq": 5, "is": "fine"})
    assert decode_line(later) is None
    view = read_run_journal([*lines_of(header()), later], RUN, strict=True)
    assert (view.whole_lines, view.rejected_lines) == (None, ())


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"null",
        b'","crc":"00000000"}',
        encode_line(header())[:-1],
        encode_line(header()) + b" ",
        encode_line(header()) + b"\r",
        encode_line(header()).replace(b'"crc":"', b'"crc": "'),
        b'\xff,"crc":"%08x"}' % zlib.crc32(b"\xff"),
        with_crc({"seq": 1, "x": 1}),
        with_crc({"t": 5, "x": 1}),
        with_crc({"t": "header", "v": 1}),
        with_crc({"t": "started", "seq": "one"}),
        with_crc({"t": "result", "seq": 1, "id": "i", "path": "p", "status": "expired"}),
        with_crc({"t": "moved", "seq": 1, "path": None}),
    ],
)
def test_what_is_no_line_is_an_error(line: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        decode_line(line)


def test_the_checksum_counts_letter_by_letter() -> None:
    line = next(line for line in (encode_line(header(at_ms=n)) for n in range(1_000)) if line[-10:-2].isalnum())
    upper = line[:-10] + line[-10:-2].upper() + line[-2:]
    assert upper != line
    with pytest.raises(ValueError, match="damaged"):
        decode_line(upper)


# ---- damage --------------------------------------------------------------------------------------------------

STORY: list[RunRecord] = [
    header(),
    started(1, "a"),
    started(2, "b"),
    turns(2, 1, 2),
    result(1, "a", "A\u2028"),
    turns(2, 3, 3),
    result(2, "b", {"b": 1}),
    Moved(seq=1, path="/0.0#0"),
    AttemptEnd(attempt=1, status="completed", at_ms=5),
]


def test_a_journal_that_was_cut_at_any_byte_has_all_that_was_whole_and_nothing_else() -> None:
    lines = [line + b"\n" for line in lines_of(*STORY)]
    data = b"".join(lines)
    for cut in range(len(data) + 1):
        view = read_bytes(data[:cut])
        whole = data[:cut].count(b"\n")
        is_torn = not data[:cut].endswith(b"\n") and cut > 0
        assert view.whole_lines == (whole if is_torn else None)
        assert view.rejected_lines == ()
        expected = read_run_journal([line[:-1] for line in lines[:whole]], RUN, strict=True)
        assert answers(view) == answers(expected)
        assert list(view.entries) == list(expected.entries)
        assert [entry.turns for entry in view.entries.values()] == [e.turns for e in expected.entries.values()]
        assert view.usage == expected.usage
        assert view.last_seq == expected.last_seq


def test_a_flipped_bit_is_never_served() -> None:
    data = b"".join(line + b"\n" for line in lines_of(*STORY[:5]))
    truth = {1: "A\u2028"}
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            view = read_bytes(bytes(damaged))
            assert answers(view) in (truth, {}), (place, bit)
            assert view.rejected_lines or view.whole_lines is not None, "and it is told"
            for entry in view.entries.values():
                assert entry.identity in (identity("a"), identity("b"))


@given(st.lists(st.tuples(st.integers(0, len(STORY)), st.binary(max_size=60)), max_size=5))
def test_garbage_between_lines_costs_no_line(garbage: list[tuple[int, bytes]]) -> None:
    lines = lines_of(*STORY)
    for where, junk in sorted(garbage, reverse=True):
        lines.insert(where, junk.replace(b"\n", b""))
    view = read_run_journal(lines, RUN)
    assert answers(view) == {1: "A\u2028", 2: {"b": 1}}
    behind = sum(where == len(STORY) for where, _ in garbage)
    assert view.whole_lines == (len(lines) - behind if behind else None)
    assert len(view.rejected_lines) == len(garbage) - behind
    assert lines_of(*STORY) == [
        line for number, line in enumerate(lines[: view.whole_lines], 1) if number not in view.rejected_lines
    ]


def test_damaged_lines_at_the_end_are_torn_and_before_it_they_are_passed_over() -> None:
    lines = lines_of(header(), started(1, "a"), result(1, "a", "A"), started(2, "b"), result(2, "b", "B"))
    lines[2] = lines[2].replace(b'"A"', b'"X"')
    lines[4] = lines[4].replace(b'"B"', b'"X"')
    view = read_run_journal([*lines, b"", b"junk"], RUN)
    assert view.whole_lines == 4
    assert view.rejected_lines == (3,)
    assert answers(view) == {}
    assert list(view.entries) == [1, 2]
    assert "line 3" in str(refusal(read_run_journal, lines, RUN, strict=True))


def test_a_torn_end_is_no_reason_to_refuse_even_strictly() -> None:
    lines = lines_of(header(), started(1, "a"))
    assert read_run_journal([*lines, b'{"t":"resu'], RUN, strict=True).whole_lines == 2
    assert read_run_journal(lines, RUN, has_torn_end=True, strict=True).whole_lines == 2
    assert read_run_journal([b"x", b"y"], RUN, strict=True).whole_lines == 0


def test_a_sound_line_that_cannot_be_used_is_told_and_stays_in_the_file() -> None:
    """It may be of a later version: to cut it off would lose it."""
    line = with_crc({"t": "result", "seq": 1, "id": "i", "path": "p", "status": "expired"})
    lines = [*lines_of(header()), line]
    view = read_run_journal(lines, RUN)
    assert (view.whole_lines, view.rejected_lines) == (None, (2,))
    refusal(read_run_journal, lines, RUN, strict=True)


# ---- headers -------------------------------------------------------------------------------------------------


def test_no_lines_are_an_empty_view() -> None:
    view = read_run_journal((), RUN)
    assert view.entries == {}
    assert (view.header, view.attempts, view.last_seq, view.seed, view.first_ms) == (None, 0, 0, RUN, 0)
    assert view.usage == Usage()
    assert view.cost is None
    assert not view.is_partial


def test_the_journal_of_another_run_is_refused() -> None:
    assert "wf_other" in str(refusal(view_of, header(run_id="wf_other_0123456789abcdef"), started(1, "a")))
    assert "wf_other" in str(refusal(view_of, header(), header(2, run_id="wf_other_0123456789abcdef")))


def test_a_journal_of_a_later_version_is_refused_whatever_else_it_says() -> None:
    body = json.loads(encode_line(header()))
    del body["crc"]
    for later in ({**body, "v": 2}, {"t": "header", "v": 99, "everything": "else"}):
        assert "version" in str(refusal(read_run_journal, [with_crc(later)], RUN))
        assert "version" in str(refusal(read_run_journal, [*lines_of(header()), with_crc(later)], RUN))
        refusal(decode_line, with_crc(later))


def test_headers_repeat_and_the_first_one_says_where_chance_and_time_come_from() -> None:
    first = header(1, seed="wf_audit_fedcba9876543210", first_ms=7, parent="wf_audit_fedcba9876543210")
    view = view_of(first, AttemptEnd(attempt=1, status="failed", at_ms=1), header(2, seed="other", first_ms=8))
    assert (view.seed, view.first_ms, view.attempts) == ("wf_audit_fedcba9876543210", 7, 2)
    assert view.attempt_end is None
    assert view_of(first).parent == "wf_audit_fedcba9876543210"
    assert view_of(header(1)).first_ms == 1_000


def test_a_journal_whose_first_header_is_damaged_is_read_from_what_is_left() -> None:
    lines = lines_of(header(), started(1, "a"), result(1, "a", "A"), header(2, seed="s", first_ms=3))
    view = read_run_journal([b"damaged", *lines[1:]], RUN)
    assert (view.seed, view.first_ms, view.rejected_lines) == ("s", 3, (1,))
    assert answers(view) == {1: "A"}


# ---- entries -------------------------------------------------------------------------------------------------


def test_an_entry_has_all_that_was_written_of_its_call() -> None:
    view = view_of(*STORY)
    entry = view.entries[1]
    assert (entry.seq, entry.identity, entry.path, entry.label) == (1, identity("a"), "/0.0#0", "a")
    assert (entry.key, entry.attempt, bytes(entry.call)) == ("k:1", 1, call_identity(meaning("a"))[1])
    assert entry.result is not None
    assert entry.result.status == "ok"
    assert view.attempt_end == STORY[-1]
    assert view.last_seq == 2


def test_what_was_spent_is_the_sum_over_all_results_of_all_attempts() -> None:
    view = view_of(
        header(),
        *(started(1, "a"), result(1, "a", 1, cost=0.25, tools=2)),
        *(started(2, "b"), result(2, "b", None, status="error", cost=0.5, tools=1)),
        header(2),
        *(started(3, "b", key="k:2", attempt=2), result(3, "b", 2, attempt=2)),
        *(started(4, "c", attempt=2), result(4, "c", None, status="cancelled", attempt=2)),
    )
    assert view.usage == Usage(prompt_tokens=40, completion_tokens=20, total_tokens=60)
    assert (view.cost, view.tool_uses, view.results, view.is_partial) == (0.75, 3, 4, False)


def test_unknown_usage_is_told_and_is_not_zero() -> None:
    assert view_of(header(), started(1, "a"), result(1, "a", 1, usage=None)).is_partial
    assert view_of(header(), started(1, "a"), result(1, "a", status="error", usage=None)).is_partial
    assert view_of(header(), started(1, "a"), result(1, "a", status="skipped", usage=None)).is_partial
    assert view_of(header(), started(1, "a")).is_partial, "what was cut off had spent something"


def test_a_result_counts_though_its_beginning_was_lost() -> None:
    view = view_of(header(), result(2, "b", "B"), started(1, "a"), result(1, "a", "A"))
    assert answers(view) == {1: "A", 2: "B"}
    assert view.usage.total_tokens == 30
    claim = view.claim(identity("b"), "#1")
    assert claim.is_answered
    assert claim.key
    assert claim.key != view.next_key(identity("b"))


def test_of_two_results_for_one_call_the_first_counts() -> None:
    view = view_of(header(), started(1, "a"), result(1, "a", "A"), result(1, "a", "B"), strict=True)
    assert answers(view) == {1: "A"}
    assert view.usage.total_tokens == 15


def test_a_number_that_two_calls_have_is_the_firsts() -> None:
    view = view_of(header(), started(1, "a"), started(1, "b"), result(1, "b", "B"))
    assert view.rejected_lines == (3, 4)
    assert view.entries[1].identity == identity("a")
    assert answers(view) == {}


def test_what_belongs_to_no_call_is_told() -> None:
    assert view_of(header(), turns(1, 1, 1), Moved(seq=2, path="#1")).rejected_lines == (2, 3)


# ---- turns ---------------------------------------------------------------------------------------------------


def numbers(view: RunJournalView, seq: int) -> list[int]:
    return [decode_fact(bytes(fact)).seq for fact in view.entries[seq].turns]


def test_turns_follow_each_other_and_begin_anew_with_the_first() -> None:
    view = view_of(header(), started(1, "a"), turns(1, 1, 2), turns(1, 3, 3))
    assert numbers(view, 1) == [1, 2, 3]
    view = view_of(header(), started(1, "a"), turns(1, 1, 2), turns(1, 1, 1), turns(1, 2, 2), strict=True)
    assert numbers(view, 1) == [1, 2]


def test_turns_behind_a_gap_are_not_used() -> None:
    records: list[RunRecord] = [header(), started(1, "a"), turns(1, 1, 2), turns(1, 4, 4), turns(1, 3, 3)]
    view = view_of(*records)
    assert numbers(view, 1) == [1, 2, 3]
    assert view.rejected_lines == (4,)
    assert view_of(header(), started(1, "a"), turns(1, 2, 2)).rejected_lines == (3,)
    jump = Turns(seq=1, facts=(*turns(1, 1, 1).facts, *turns(1, 3, 3).facts))
    assert view_of(header(), started(1, "a"), jump).rejected_lines == (3,)


def test_turns_are_forgotten_once_there_is_an_answer_and_kept_for_the_next_try_else() -> None:
    for status, kept in (("ok", []), ("skipped", []), ("error", [1, 2]), ("cancelled", [1, 2])):
        records: list[RunRecord] = [header(), started(1, "a"), turns(1, 1, 2), result(1, "a", status=status)]
        assert numbers(view_of(*records), 1) == kept
    assert numbers(view_of(header(), started(1, "a"), result(1, "a", 1), turns(1, 1, 2), strict=True), 1) == []


def test_a_call_that_runs_again_goes_on_from_its_turns() -> None:
    story: list[RunRecord] = [
        header(),
        started(1, "a"),
        turns(1, 1, 2),
        header(2),
        started(2, "a", key="k:1", attempt=2),
    ]
    claim = view_of(*story[:3]).claim(identity("a"), "#0")
    assert [fact.seq for fact in facts_of(claim)] == [1, 2]
    assert not claim.has_ended
    view = view_of(*story, turns(2, 3, 3), strict=True)
    assert numbers(view, 2) == [1, 2, 3]
    assert numbers(view, 1) == []
    assert [fact.seq for fact in facts_of(view.claim(identity("a"), "#0"))] == [1, 2, 3]


def test_a_failed_attempt_behind_the_turns_is_told_until_there_are_more() -> None:
    story: list[RunRecord] = [header(), started(1, "a"), turns(1, 1, 2), result(1, "a", status="error"), header(2)]
    again: RunRecord = started(2, "a", key="k:1", attempt=2)
    assert view_of(*story).claim(identity("a"), "#0").has_ended
    assert view_of(*story, again).claim(identity("a"), "#0").has_ended
    assert not view_of(*story, again, turns(2, 3, 3)).claim(identity("a"), "#0").has_ended


def test_turns_that_this_version_cannot_read_are_no_turns() -> None:
    line = msgspec.Raw(b'{"seq":2,"type":"model.dream","key":"k","cause":null,"payload":{}}')
    record = Turns(seq=1, facts=(*turns(1, 1, 1).facts, line))
    view = view_of(header(), started(1, "a"), record, strict=True)
    assert list(facts_of(view.claim(identity("a"), "#0"))) == []


def test_a_fact_without_a_number_is_told() -> None:
    record = Turns(seq=1, facts=(msgspec.Raw(b'{"type":"user.message"}'),))
    assert view_of(header(), started(1, "a"), record).rejected_lines == (3,)


# ---- one state for what was read and what is written -----------------------------------------------------------


def test_what_is_taken_live_is_what_is_read_later() -> None:
    live = RunJournalView(RUN)
    story: list[RunRecord] = [
        header(),
        started(1, "a"),
        turns(1, 1, 2),
        result(1, "a", "A", cost=0.5, tools=2),
        started(2, "b"),
        result(2, "b", "B"),
    ]
    for record in story:
        live.take(record)
    read = view_of(*story)
    for name in ("seed", "first_ms", "attempts", "last_seq", "results", "usage", "cost", "tool_uses"):
        assert getattr(live, name) == getattr(read, name), name
    assert list(live.entries) == list(read.entries)


def test_what_is_taken_live_is_not_kept_in_memory() -> None:
    live = RunJournalView(RUN)
    written: list[RunRecord] = [header(), started(1, "a"), turns(1, 1, 2), result(1, "a", "A" * 1_000), started(2, "b")]
    for record in written:
        live.take(record)
    for entry in live.entries.values():
        assert bytes(entry.call) == b"null"
        assert entry.turns == ()
        assert entry.result is None or bytes(entry.result.value) == b"null"


def test_a_record_that_does_not_fit_is_our_bug() -> None:
    live = RunJournalView(RUN)
    live.take(started(1, "a"))
    for record in (result(1, "b", 1), started(1, "b"), turns(2, 1, 1), turns(1, 2, 2), Moved(seq=2, path="")):
        with pytest.raises(InternalError):
            live.take(record)


# ---- forks ---------------------------------------------------------------------------------------------------

FORK = "wf_audit_aaaaaaaaaaaaaaaa"


def test_a_fork_begins_with_the_answers_of_its_parent_and_with_nothing_spent() -> None:
    parent = view_of(
        header(),
        *(started(1, "a"), started(2, "a"), started(3, "b"), started(4, "c"), started(5, "d"), started(6, "e")),
        *(result(2, "a", "A2"), result(1, "a", "A1"), result(3, "b", status="error"), result(5, "d", status="skipped")),
        result(6, "e", None),
        Moved(seq=1, path="/0.7#0"),
        header(2),
        *(started(7, "c", key="k:4", attempt=2), result(7, "c", "C", attempt=2)),
    )
    copied = copied_records(parent)
    assert [record.seq for record in copied if isinstance(record, Started)] == [2, 5, 6, 1, 7]
    fork_header = header(1, run_id=FORK, seed=parent.seed, first_ms=parent.first_ms, parent=RUN)
    read = read_run_journal(lines_of(fork_header, *copied), FORK, strict=True)
    taken = RunJournalView(FORK)
    for record in (fork_header, *copied):
        taken.take(record)
    for view in (read, taken):
        assert answers(view) == {1: "A1", 2: "A2", 5: None, 6: None, 7: "C"}
        assert {seq: entry.key for seq, entry in view.entries.items()} == {
            1: "k:1",
            2: "k:2",
            5: "k:5",
            6: "k:6",
            7: "k:4",
        }
        assert view.usage == Usage()
        assert (view.cost, view.tool_uses, view.results, view.is_partial) == (None, 0, 0, False)
        assert (view.seed, view.parent, view.last_seq) == (RUN, RUN, 7)
        assert bytes(view.entries[1].call) == call_identity(meaning("a"))[1]
        values = {path: view.claim(identity("a"), path).result.value for path in ("#1", "/0.7#0")}
        assert {path: bytes(value) for path, value in values.items()} == {"#1": b'"A2"', "/0.7#0": b'"A1"'}
        assert view.claim(identity("b"), "#2").kind == "new"
        assert view.claim(identity("a"), "#9").key.startswith(FORK)


# ---- plans ---------------------------------------------------------------------------------------------------


def reason_of(view: RunJournalView, path: str, prompt: str, **more: Any) -> tuple[str, tuple[str, ...] | None]:
    found, written = call_identity(meaning(prompt, **more))
    return miss_reason(view, view.claim(found, path), found, path, written)


def test_why_a_call_runs_again() -> None:
    fault = CallFault(code="TIMEOUT", message="\nit did not end\nin time")
    view = view_of(
        header(),
        *(started(1, "a"), result(1, "a", status="error", error=fault)),
        *(started(2, "b"), result(2, "b", status="cancelled")),
        started(3, "c"),
        *(started(4, "d"), result(4, "d", "D")),
        *(started(5, "e"), result(5, "e", status="error", error=CallFault(code="X", message="y" * 1_000))),
    )
    assert reason_of(view, "#0", "a") == ("failed before: TIMEOUT: it did not end", None)
    assert reason_of(view, "#1", "b") == ("cancelled before", None)
    assert reason_of(view, "#2", "c") == ("in doubt", None)
    view.reject(view.claim(identity("d"), "#3"))
    assert reason_of(view, "#3", "d") == ("its recorded answer cannot be used", None)
    assert len(reason_of(view, "#4", "e")[0]) == 200
    assert reason_of(view, "#5", "f") == (NOT_RECORDED, None)


@pytest.mark.parametrize(
    ("prompt", "change", "reason", "lines"),
    [
        ("one\ntwo", {}, "prompt changed", ("-1", "+one", "+two")),
        ("1", {"schema": {"type": "string"}}, "schema changed", ("+{", '+  "type": "string"', "+}")),
        ("1", {"model": "a/b"}, "model changed", ("+a/b",)),
        ("1", {"max_steps": 5}, "max_steps changed", ("+5",)),
        ("1", {"isolation": "worktree"}, "isolation changed", ("+worktree",)),
        ("1", {"tools": ("read",)}, "tools changed", ("+[", '+  "read"', "+]")),
        ("1", {"agent_sha": "b"}, "agent definition changed", ()),
        ("1", {"agent": "review", "agent_sha": "b"}, "agent changed", ("-general", "+review")),
        ("2", {"v": 2, "model": "a/b"}, "format, prompt, model changed", ("-1", "+2", "-1", "+2", "+a/b")),
    ],
)
def test_what_changed_since_another_call_stood_there(
    prompt: str, change: dict[str, Any], reason: str, lines: tuple[str, ...]
) -> None:
    view = view_of(header(), started(1, "1"), result(1, "1", "A"))
    found, written = call_identity(CallMeaning(**{"agent": "general", "prompt": prompt, **change}))
    assert miss_reason(view, view.claim(found, "#0"), found, "#0", written) == (reason, lines)


def test_a_difference_that_only_json_sees_is_named() -> None:
    old, new = (call_identity(meaning("1", schema={"const": value})) for value in (1, True))
    record = Started(seq=1, id=old[0], path="#0", key="k", attempt=1, call=msgspec.Raw(old[1]))
    view = view_of(header(), record)
    assert miss_reason(view, view.claim(new[0], "#0"), new[0], "#0", new[1])[0] == "schema changed"


def test_a_call_that_went_elsewhere_is_not_what_changed() -> None:
    view = view_of(header(), started(1, "a"), result(1, "a", "A"))
    assert view.claim(identity("a"), "#1").is_answered
    assert reason_of(view, "#0", "new") == (NOT_RECORDED, None)


def test_what_was_asked_may_be_lost() -> None:
    view = view_of(header(), result(1, "a", "A"))
    assert reason_of(view, "#0", "b") == ("changed", None)


def test_a_text_turn_is_a_fact_too() -> None:
    fact = Fact(1, "f1", None, TextTurn(text="done", usage=USAGE))
    view = view_of(header(), started(1, "a"), Turns(seq=1, facts=(msgspec.Raw(encode_fact(fact)[:-1]),)))
    assert list(facts_of(view.claim(identity("a"), "#0"))) == [fact]
