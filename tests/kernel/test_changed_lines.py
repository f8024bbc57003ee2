"""A change is shown line by line, and a long one by its size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.kernel.changed_lines import MAX_LINES, changed_lines


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("a\nb\nc", "a\nx\nc", ["-b", "+x"]),
        ("a\nb", "a\nb\nc", ["+c"]),
        ("a\na", "a", ["-a"]),
        ("a", "a\r", ["-a", "+a\r"]),
        ("a\u2028b", "a\u2028c", ["-a\u2028b", "+a\u2028c"]),
        ("-- x\n++ y\n@@", "z", ["--- x", "-++ y", "-@@", "+z"]),
        ("", "a", ["+a"]),
        ("a", "", ["-a"]),
        ("a", "a\n", ["+"]),
        (None, "a", ["+a"]),
        (5, None, ["-5"]),
        ({"b": 1, "a": [1]}, {"a": [2], "b": 1}, ["-    1", "+    2"]),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}, []),
        ("same\n", "same\n", []),
    ],
)
def test_what_changed(old: object, new: object, lines: list[str]) -> None:
    assert changed_lines(old, new) == lines


def test_a_change_in_a_long_text_is_found_and_a_long_change_is_counted() -> None:
    text = [f"line {number}" for number in range(50_000)]
    other = [*text[:25_000], "new", *text[25_000:]]
    assert changed_lines("\n".join(text), "\n".join(other)) == ["+new"]
    assert changed_lines("\n".join(other), "\n".join(text)) == ["-new"]
    many = ["x"] * (MAX_LINES + 1)
    assert changed_lines("\n".join(many), "a\nb") == ["-(2,001 lines)", "+(2 lines)"]
    assert len(changed_lines("\n".join(many[1:]), "a\nb")) == MAX_LINES + 2


texts = st.lists(st.sampled_from("abc"), max_size=8)


@given(texts, texts)
def test_the_lines_lead_from_one_text_to_the_other(old: list[str], new: list[str]) -> None:
    lines = changed_lines("\n".join(old), "\n".join(new))
    removed = sorted(line[1:] for line in lines if line[0] == "-")
    added = sorted(line[1:] for line in lines if line[0] == "+")
    assert sorted([*old, *added]) == sorted([*new, *removed])
    assert (not lines) == (old == new)
