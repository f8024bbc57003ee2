"""Globs mean what their translation to a regular expression means, in linear time."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.kernel.globs import compile_glob


def as_regex(pattern: str) -> str:
    pieces = re.split(r"((?:(?<=/)|^)\*\*/|\*\*|\*|\?)", pattern)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(meaning.get(piece, re.escape(piece)) for piece in pieces)


@given(pattern=st.text("ab/*?", max_size=10), text=st.text("ab/\n", max_size=12))
def test_a_glob_matches_what_its_regular_expression_matches(pattern: str, text: str) -> None:
    expected = re.fullmatch(as_regex(pattern), text, re.DOTALL) is not None
    assert compile_glob(pattern).matches(text) == expected


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("**/*.py", "a.py", True),
        ("**/*.py", "a/b/c.py", True),
        ("src/**/a", "src/a", True),
        ("src/**/a", "src/x/y/a", True),
        ("src/**/a", "src/xa", False),
        ("*.py", "a/b.py", False),
        ("a?c", "a/c", False),
        ("**", "any/thing\nat all", True),
        ("[x]{y}", "[x]{y}", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_stars_stop_at_slashes_and_double_stars_do_not(pattern: str, text: str, expected: bool) -> None:
    assert compile_glob(pattern).matches(text) is expected


def test_many_stars_over_a_long_text_take_linear_time() -> None:
    glob = compile_glob("**a*a**a*a**a*a**b*c")
    began = time.perf_counter()
    assert not glob.matches("a" * 100_000 + "c")
    assert time.perf_counter() - began < 5
