"""What a model or a server wrote can be shown, and cannot do anything to the terminal."""

import io
import json
import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.cli.console import open_console, show_warnings
from fanfold.cli.safe_text import escaped, printable

BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
STEERING = {
    char
    for char in map(chr, range(0x10000))
    if char not in "\n\t" and (unicodedata.category(char) == "Cc" or unicodedata.bidirectional(char) in BIDI)
}


def test_no_control_and_no_bidi_character_is_printable() -> None:
    assert printable("".join(STEERING)) == ""
    assert printable("tab\tline\nñ漢😀") == "tab\tline\nñ漢😀"


@given(st.recursive(st.text() | st.sampled_from(sorted(STEERING)), st.lists, max_leaves=5))
def test_escaped_json_means_the_same_and_is_printable(value: object) -> None:
    text = escaped(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert printable(text) == text


def test_json_on_stdout_is_escaped() -> None:
    out = io.StringIO()
    open_console(environ={}, streams=(io.StringIO(), out, io.StringIO())).write_json({"a": "\x9b\u202e\x7f"})
    assert out.getvalue() == '{"a":"\\u009b\\u202e\\u007f"}\n'


def test_warnings_of_the_library_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    show_warnings()
    logging.getLogger("fanfold").warning("%s cannot use tools", "x/\x1b[31mm")
    assert capsys.readouterr().err == "x/[31mm cannot use tools\n"
