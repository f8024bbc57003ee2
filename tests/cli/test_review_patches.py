"""What git prints of a change is never given to the wrong file, however it is cut, and no file is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.cli.review_patches import Entry, changed_file, parted, sections_of

MODES = b":100644 100644 1111111 2222222 "
NAMES = st.binary(min_size=1, max_size=8).filter(lambda name: b"\0" not in name)


def header(name: bytes) -> bytes:
    return Entry("M", name, name).header()


def test_entries_stand_before_their_patches() -> None:
    output = MODES + b"M\0a\0" + MODES + b"R100\0b\0c\0" + b"\0" + b"patch"
    assert parted(output) == ([Entry("M", b"a", b"a"), Entry("R", b"b", b"c")], b"patch")
    assert parted(b"") == ([], b"")


def test_an_output_that_ends_within_its_entries_has_none() -> None:
    output = MODES + b"M\0a\0" + MODES + b"R100\0b\0c\0"
    for length in range(1, len(output)):
        entries, _ = parted(output[:length])
        assert entries == [] or length == len(MODES + b"M\0a\0")


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True), st.data())
def test_each_section_belongs_to_the_file_that_it_names(names: list[bytes], data: st.DataObject) -> None:
    entries = [Entry("M", name, name) for name in names]
    shown = data.draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names)))
    patches = [header(name) + b"@@ -1 +1 @@\n+" + bytes([65 + number]) + b"\n" for number, name in enumerate(names)]
    patch = b"".join(patch for patch, is_shown in zip(patches, shown, strict=True) if is_shown)
    assert sections_of(entries, patch) == {number: patches[number] for number, is_shown in enumerate(shown) if is_shown}


def test_a_section_that_nobody_knows_costs_no_other_one() -> None:
    entries = [Entry("M", b"a", b"a"), Entry("M", b"b", b"b")]
    patch = b"* Unmerged path x\n" + header(b"a") + b"+1\n" + header(b"unknown") + b"+2\n" + header(b"b") + b"+3\n"
    assert sections_of(entries, patch) == {0: header(b"a") + b"+1\n", 1: header(b"b") + b"+3\n"}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (b"plain", b"a/plain b/plain"),
        (b"with space", b"a/with space b/with space"),
        ("größe".encode(), "a/größe b/größe".encode()),
        (b'q"\\\n\x01\x7f', b'"a/q\\"\\\\\\n\\001\\177" "b/q\\"\\\\\\n\\001\\177"'),
    ],
)
def test_names_are_quoted_as_git_does(name: bytes, written: bytes) -> None:
    assert header(name) == b"diff --git " + written + b"\n"


def test_a_file_of_which_git_shows_nothing_is_not_taken_for_unchanged() -> None:
    assert changed_file(Entry("M", b"a", b"a"), b"").sent() == {
        "path": "a",
        "status": "modified; git shows no patch of it",
        "patch": "",
        "is_cut": True,
    }
