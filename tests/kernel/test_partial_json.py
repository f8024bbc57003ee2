"""What of a JSON text can be shown before all of it has arrived."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.kernel.partial_json import PartialJson

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
containers = json_values.filter(lambda value: isinstance(value, dict | list))


def reading(*pieces: str) -> PartialJson:
    json = PartialJson()
    for piece in pieces:
        json.feed(piece)
    return json


def shown(*pieces: str) -> Any:
    found = reading(*pieces).shown()
    return found[0] if found else "nothing"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", "nothing"),
        (" \n", "nothing"),
        ("{", {}),
        ('{"na', {}),
        ('{"name"', {}),
        ('{"name": ', {}),
        ('{"name": "', {"name": ""}),
        ('{"name": "Ad', {"name": "Ad"}),
        ('{"name": "Ada", "a', {"name": "Ada"}),
        ('{"n": 12', {}),
        ('{"n": 12,', {"n": 12}),
        ('{"n": 12}', {"n": 12}),
        ('{"n": -1.5e3 ', {"n": -1500.0}),
        ('{"n": tru', {}),
        ('{"n": true', {}),
        ('{"n": null, "m": false }', {"n": None, "m": False}),
        ('{"a": {"b": {"c": "x', {"a": {"b": {"c": "x"}}}),
        ('{"a": 1, "b": {', {"a": 1, "b": {}}),
        ("[", []),
        ("[1", []),
        ("[1, 2", [1]),
        ('["one", "tw', ["one"]),
        ('[{"a": 1}, {"a": 2', [{"a": 1}]),
        ('{"a": [[1, 2], [3', {"a": [[1, 2]]}),
        ('{"a": [1], "b": [{"c": "x', {"a": [1], "b": []}),
        ('"half a str', "half a str"),
        ("12", "nothing"),
        ('{"q": "he said \\"no\\', {"q": 'he said "no'}),
        ('{"q": "tab\\t uni\\u00e9 \\u00', {"q": "tab\t unié "}),
        ('{"q": "\\ud83d', {"q": ""}),
        ('{"q": "\\ud83d\\ude00!', {"q": "😀!"}),
        ('{"q": "\\ud83d!', {"q": "\ufffd!"}),
        ('{"q": "raw\nbreak', {"q": "raw\nbreak"}),
    ],
)
def test_what_is_complete_is_shown_and_strings_may_be_cut(text: str, value: Any) -> None:
    assert shown(text) == value
    assert shown(*text) == value


@given(value=json_values, indent=st.sampled_from([None, 1]), is_ascii=st.booleans(), data=st.data())
def test_any_pieces_give_what_the_whole_gives(
    value: Any, indent: int | None, is_ascii: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii) + " "
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    found = reading(*(text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)))
    assert (found.state, found.shown()) == ("complete", (value,))


@given(value=containers)
def test_a_value_only_grows(value: Any) -> None:
    found, before = PartialJson(), json.loads("null")
    for piece in json.dumps(value):
        found.feed(piece)
        (now,) = found.shown()
        assert before is None or is_part(before, now)
        before = now
    assert before == value


def is_part(part: Any, whole: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and is_part(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and whole[: len(part)] == part
    if isinstance(part, str):
        return isinstance(whole, str) and whole.startswith(part)
    return bool(part == whole)


@pytest.mark.parametrize(
    "text",
    [
        *["x ", "{x", "{,", '{"a" 1', '{"a": 1 "b"', '{"a": 1]', "[1}", "[,", "[1,]", '{"a": 1,}', "[1 2", '{"a":: 1'],
        *["[01 ", "[1. ", "[NaN ", "[Infinity,", "[1e999,", "[tru ", '["\\q', '["\\u12g4', "[é ", "'a'", "[--1 "],
        *["[" + "9" * 5_000 + ",", "[" * 201, "]", "}", ":"],
    ],
)
def test_what_is_no_json_is_broken_and_keeps_what_it_had(text: str) -> None:
    found = reading(text)
    assert found.state == "broken"
    before = found.shown()
    assert found.feed('{"a": 1}') == 0
    assert found.shown() == before


def test_reading_stops_where_the_value_ends_or_breaks() -> None:
    assert PartialJson().feed('see {"a": 1} and', 4) == 12
    assert PartialJson().feed("see {x} and", 4) == 5
    assert PartialJson().feed("see {} ", 4) == 6
    found = reading("[tr")
    assert found.feed("ue] no") == 3
    assert (found.state, found.shown()) == ("complete", ([True],))
    found = reading("[tr")
    assert found.feed("y] no") == 0
    assert found.state == "broken"


@pytest.mark.parametrize(
    ("text", "is_json"),
    [("{", False), ('{"a', False), ('{"a":', True), ("[1", False), ("[1,", True), ("{}", True), ("[see", False)],
)
def test_a_bracket_alone_is_not_yet_json(text: str, is_json: bool) -> None:
    assert reading(text).is_json is is_json


def test_values_that_were_taken_do_not_change() -> None:
    found = PartialJson()
    taken: list[tuple[Any, str]] = []
    for piece in json.dumps({"a": [{"b": "text"}, 2], "c": {"d": "more", "e": [1, [2]]}}):
        found.feed(piece)
        (now,) = found.shown()
        taken.append((now, json.dumps(now)))
    assert all(json.dumps(value) == text for value, text in taken)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "' + "x" * 300_000 + '"}',
        '{"a": "' + "\\n" * 150_000 + '"}',
        "[" + ", ".join(f'{{"name": "n{index}", "size": {index}}}' for index in range(10_000)) + "]",
        "[" * 200 + "1," * 100_000,
        '{"a": ' + " " * 300_000,
    ],
    ids=["string", "escapes", "objects", "depth", "space"],
)
def test_a_long_text_in_small_pieces_takes_linear_time(text: str) -> None:
    """Anything worse than linear would take much longer."""
    found, start = PartialJson(), time.perf_counter()
    for at in range(0, len(text), 8):
        found.feed(text[at : at + 8])
    assert time.perf_counter() - start < 5
    assert found.state != "broken"
