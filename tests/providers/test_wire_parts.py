"""Laws of the small parts: event streams cut anywhere, ids of tool calls."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.kernel.call_ids import unique_ids
from fanfold.providers.sse import LONGEST_LINE_BYTES, LineTooLong, SseReader

data = st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))


@given(st.lists(data, max_size=8), st.sampled_from([b"\n", b"\r\n"]), st.lists(st.integers(0, 300), max_size=20))
def test_events_do_not_depend_on_where_the_stream_is_cut(sent: list[bytes], end: bytes, cuts: list[int]) -> None:
    lines = [b": comment", b"event: message"]
    stream = b"".join(b"".join(line + end for line in (*lines, b"data: " + each, b"")) for each in sent)
    reader, at = SseReader(), 0
    found: list[bytes] = []
    for cut in [*sorted(cut for cut in cuts if cut < len(stream)), len(stream)]:
        found += reader.feed(stream[at:cut])
        at = cut
    assert found == sent


def test_several_data_lines_are_one_event() -> None:
    assert list(SseReader().feed(b"data: {\ndata:}\n\n")) == [b"{\n}"]


def test_half_a_line_at_the_end_is_dropped_and_whole_lines_count() -> None:
    reader = SseReader()
    assert list(reader.feed(b"data: whole\ndata: ha")) == []
    assert list(reader.end()) == [b"whole"]


def test_the_cost_of_a_line_does_not_grow_with_its_pieces() -> None:
    reader, started = SseReader(), time.process_time()
    for _ in range(500_000):
        list(reader.feed(b"x"))
    assert time.process_time() - started < 5  # about 0.3 s; half a minute if each piece copied the line


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_is_refused_only_beyond_the_limit(end: bytes) -> None:
    longest = b"data: ".ljust(LONGEST_LINE_BYTES, b"x")
    assert list(SseReader().feed(longest + b"\n\n")) == [longest[6:]]
    with pytest.raises(LineTooLong):
        list(SseReader().feed(longest + b"x" + end))


ids = st.one_of(st.sampled_from(["", "a", "a-2", "call-1", "call-0", "x" * 64, "x" * 65]), st.text(max_size=70))


@given(st.lists(ids, max_size=12))
def test_ids_become_unique_and_well_formed_and_the_first_of_each_is_kept(given_ids: list[str]) -> None:
    found = unique_ids(given_ids)
    assert len(set(found)) == len(given_ids)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", id) for id in found)
    assert found == unique_ids(given_ids)
    for position, id in enumerate(given_ids):
        first = id not in given_ids[:position] and id not in found[:position]
        if first and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", id):
            assert found[position] == id


def test_ids_that_are_fine_stay() -> None:
    assert unique_ids(["call_1", "toolu-2", "c"]) == ["call_1", "toolu-2", "c"]
