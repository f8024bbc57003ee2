"""One id, one file; never a path."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import UsageError
from fanfold.stores.thread_name import file_name, thread_of

_ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90).filter(lambda id: id.strip("."))
_near_ids = st.from_regex(r"\A(s-)?[0-9a-z:.\-]{1,20}\Z").filter(lambda id: id.strip("."))


@pytest.mark.parametrize("thread", ["a", "session-1", "A_b.c-d:e", "x" * 128, "s-1", "s-42", ".hidden", "-"])
def test_a_plain_id_is_its_own_file_name(thread: str) -> None:
    assert file_name(thread, is_windows=False) == thread + ".jsonl"


@given(_ids | _near_ids, _ids | _near_ids, st.booleans())
def test_no_two_ids_share_a_file(one: str, other: str, is_windows: bool) -> None:
    same = file_name(one, is_windows=is_windows) == file_name(other, is_windows=is_windows)
    assert same == (one == other)


@given(_ids | _near_ids, st.booleans())
def test_a_file_name_is_short_ascii_without_separators(thread: str, is_windows: bool) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}\.jsonl", file_name(thread, is_windows=is_windows))


@given(_ids | _near_ids, st.booleans())
def test_a_file_name_leads_back_to_its_id_or_to_an_id_of_the_same_file(thread: str, is_windows: bool) -> None:
    name = file_name(thread, is_windows=is_windows)
    listed = thread_of(name, is_windows=is_windows)
    assert listed is not None
    assert file_name(listed, is_windows=is_windows) == name
    if len(thread.encode()) <= 63:
        assert listed == thread


def test_long_odd_ids_that_differ_at_the_end_get_files_of_their_own() -> None:
    assert file_name("é" * 100 + "1") != file_name("é" * 100 + "2")


def test_an_id_that_is_the_encoding_of_another_does_not_take_its_file() -> None:
    assert file_name("a b") == "s-612062.jsonl"
    assert file_name("s-612062") != "s-612062.jsonl"


@pytest.mark.parametrize("thread", ["a:b", "con", "NUL", "com1.x"])
def test_what_windows_reserves_is_encoded_there(thread: str) -> None:
    assert file_name(thread, is_windows=True).startswith("s-")
    assert thread_of(file_name(thread, is_windows=True), is_windows=True) == thread


@pytest.mark.parametrize("thread", ["", ".", "..", "...", "\ud800"])
def test_ids_that_can_name_no_file_are_refused(thread: str) -> None:
    with pytest.raises(UsageError, match="invalid session id"):
        file_name(thread)


@pytest.mark.parametrize("name", ["t.jsonl.torn-1", "t.json", "a b.jsonl", "..jsonl", ".jsonl", "commits"])
def test_a_file_that_no_id_leads_to_is_no_thread(name: str) -> None:
    assert thread_of(name) is None
