"""A structured answer is shown while it is being written, wherever in the reply it stands."""

import json
import time
from typing import Any

import pytest

from fanfold.contracts.codec import encode_json
from fanfold.contracts.events import AgentEvent
from fanfold.kernel.schema import OutputSchema, compile_schema
from fanfold.session.partials import MIN_NEW_CHARS, PartialObjects

PLACE = compile_schema(
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
        "required": ["city", "people"],
    }
)
NAMES = compile_schema({"type": "array", "items": {"type": "string"}})
MOOD = compile_schema({"enum": ["sunny", "miserable"]})
ANSWER = '{"city": "Paris", "people": 2102650}'
SHOWN = [{"city": "Pa"}, {"city": "Paris"}, {"city": "Paris", "people": 2102650}]


def partials(schema: OutputSchema, *pieces: str) -> list[Any]:
    heard: list[AgentEvent] = []
    sink = PartialObjects(heard.append, schema)
    for piece in pieces:
        sink.text(piece)
    assert all(each.type == "structured_partial" for each in heard)
    return [each.payload["object"] for each in heard]


def in_pieces(text: str, size: int = 12) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("```json\n", "\n```"),
        ("Here it is, as {asked} in [1]:\n\n", "\nDone."),
        ("use {} or {x}: ", ""),
        ('{"no": "place"} but ', ""),
        ('<think>\nmaybe {"city": "Rome", "people": 1}, or</think>\n', ""),
        ("", ' or {"city": "Rome", "people": 1}'),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_the_answer_is_found_behind_prose_fences_and_thoughts(before: str, after: str, size: int) -> None:
    found = partials(PLACE, *in_pieces(before + ANSWER + after + " " * MIN_NEW_CHARS, size))
    found = [each for each in found if "no" not in each]
    assert found[-1] == json.loads(ANSWER)
    assert all(each.get("city", "") in "Paris" for each in found)
    assert len(found) == 1 if size == 1_000 else len(found) > 1


def test_each_change_is_told_once_and_strings_may_be_cut() -> None:
    assert partials(PLACE, *in_pieces(ANSWER)) == SHOWN


def test_fewer_than_8_new_characters_are_not_looked_at() -> None:
    assert partials(PLACE, '{"c":"x"') == [{"c": "x"}]
    assert partials(PLACE, '{"c":"', "x") == []
    assert partials(PLACE, *'{"c":"abcdefghij') == [{"c": "ab"}, {"c": "abcdefghij"}]


@pytest.mark.parametrize("text", ['{"elements": ["one", "two", "three"]}', '["one", "two", "three"]'])
def test_an_array_publishes_completed_elements_out_of_its_envelope(text: str) -> None:
    found = partials(NAMES, *in_pieces(text, 8), " " * MIN_NEW_CHARS)
    assert found[-1] == ["one", "two", "three"]
    assert all(each == ["one", "two", "three"][: len(each)] for each in found)
    assert ["one"] in found


def test_a_scalar_comes_out_of_its_envelope() -> None:
    assert partials(MOOD, *in_pieces('{"value": "miserable"}', 8), " " * MIN_NEW_CHARS) == ["miser", "miserable"]


def test_what_stands_in_a_broken_answer_is_not_shown() -> None:
    text = '{"city": "Bonn" "inner": {"city": "Rome", "people": 1}}'
    assert [each["city"] for each in partials(PLACE, *in_pieces(text))] == ["Bo", "Bonn"]


@pytest.mark.parametrize(
    "text", ["", "no JSON at all, but long", "{", "[1, 2, 3, 4, 5]", "{see} {this}", '"Paris" "Rome"']
)
def test_without_json_of_the_schemas_kind_nothing_is_told(text: str) -> None:
    assert partials(PLACE, text + " " * MIN_NEW_CHARS) == []


def test_reasoning_is_not_shown() -> None:
    heard: list[AgentEvent] = []
    PartialObjects(heard.append, PLACE).reasoning(ANSWER)
    assert heard == []


def test_a_restart_begins_anew() -> None:
    heard: list[AgentEvent] = []
    sink = PartialObjects(heard.append, PLACE)
    for _ in range(2):
        for piece in in_pieces(ANSWER)[:2]:
            sink.text(piece)
        sink.restart()
    for piece in in_pieces(ANSWER):
        sink.text(piece)
    assert [each.payload["object"] for each in heard] == [*SHOWN[:2], *SHOWN[:2], *SHOWN]


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "' + "x" * 500_000,
        '{"elements": [' + '"name", ' * 60_000,
        "[" + '{"a": 1}, ' * 50_000,
        *["{x" * 250_000, "{} " * 150_000, "[1] " * 120_000, '{"a": ' * 80_000, "<think>" + "{} " * 150_000],
    ],
    ids=["string", "elements", "array", "braces", "empty", "arrays", "deep", "thought"],
)
@pytest.mark.parametrize("size", [4, 1_000_000])
def test_half_a_megabyte_is_shown_in_linear_time(text: str, size: int) -> None:
    """Anything worse than linear would take much longer, also for the listener, who encodes each value."""
    sizes: list[int] = []
    sink = PartialObjects(lambda item: sizes.append(len(encode_json(item.payload))), NAMES)
    start = time.perf_counter()
    for piece in in_pieces(text, size):
        sink.text(piece)
    assert time.perf_counter() - start < 10
    assert sum(sizes) < 150 * len(text)
