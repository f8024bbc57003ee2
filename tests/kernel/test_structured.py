"""An answer is found wherever a model puts it; a fragment of one never is."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fanfold.kernel.schema import compile_schema
from fanfold.kernel.structured import Extraction, answer_contract, extract, failure_text, judge, repair_prompt

NAMED = compile_schema({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
LOOSE = compile_schema({"type": ["object", "array"]})
NUMBERS = compile_schema({"type": "array", "items": {"type": "integer"}})
MOOD = compile_schema({"enum": ["good", "bad"]})
ANYTHING = compile_schema(True)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
awkward = st.recursive(
    st.sampled_from(["{}", "[]", '{"a":1}', "```\n{}\n```", '"', "\\", '\\"']),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["{}", '{"a":1}', "[1]"]), inner),
    max_leaves=5,
).filter(lambda value: isinstance(value, dict | list))
containers = json_values.filter(lambda value: isinstance(value, dict | list))
WORDS = [
    "So:",
    "it's",
    '5" wide',
    "{x}",
    "[see",
    "[5 of",
    "a]",
    "}",
    "{ no",
    "`code`",
    "\n",
    "- ",
    "é",
    "\\",
    '"',
]
prose = st.lists(st.sampled_from(WORDS)).map(lambda words: " ".join(words) + " so ")
layouts = st.sampled_from([None, 2])


def only(value: Any) -> dict[str, Any]:
    return {"const": value}


# ---- where answers are found -------------------------------------------------------------------------------


@given(value=json_values, indent=layouts, margin=st.sampled_from(["", " ", "\n\t", "\ufeff"]))
def test_a_value_that_is_the_whole_text_is_found(value: Any, indent: int | None, margin: str) -> None:
    found = extract(margin + json.dumps(value, indent=indent) + margin.strip("\ufeff"), compile_schema(only(value)))
    assert found.is_valid
    assert found.value == value


@given(value=containers, before=prose, after=prose, indent=layouts, is_ascii=st.booleans())
@example(value={"a": '} ] " \\'}, before="", after="", indent=None, is_ascii=True)
def test_a_value_embedded_in_prose_is_found(
    value: Any, before: str, after: str, indent: int | None, is_ascii: bool
) -> None:
    text = before + json.dumps(value, indent=indent, ensure_ascii=is_ascii) + after
    found = extract(text, compile_schema(only(value)))
    assert found.is_valid
    assert found.value == value


@given(value=json_values, before=prose, after=prose, language=st.sampled_from(["", "json", "JSON5 x"]))
def test_a_value_in_a_fence_is_found(value: Any, before: str, after: str, language: str) -> None:
    fenced = f"```{language}\n{json.dumps(value)}\n```"
    assert extract(fenced, compile_schema(only(value))).is_valid
    if isinstance(value, dict | list):
        assert extract(f"{before}\n{fenced}\n{after}", compile_schema(only(value))).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"name": "a"} or {"name": "b"}', {"name": "a"}),
        ('{"n": 1} no, {"name": "b"}', {"name": "b"}),
        ('Example: {"name": "a"}\n```json\n{"name": "b"}\n```', {"name": "b"}),
        ('```\n{"name": 1}\n```\n```\n{"name": "b"}\n```', {"name": "b"}),
        ('```python\nprint({})\n```\n{"name": "b"}', {"name": "b"}),
        ('[1] says {"name": "b"}', {"name": "b"}),
        ('[[wiki]] [a](b) {"name": "b"}', {"name": "b"}),
        ('use {"name": ...} so {"name": "b"}', {"name": "b"}),
        ('f() { return {"name": "b"} }', {"name": "b"}),
        ('```json {"name": "```"} ```', {"name": "```"}),
        ('{"name": "line\nbreak"}', {"name": "line\nbreak"}),
        ('{"name": "\\ud83d\\ude00"}', {"name": "😀"}),
        (
            '{"name": "b", "n": 123456789012345678901234567890}',
            {"name": "b", "n": 123456789012345678901234567890},
        ),
    ],
)
def test_the_first_valid_object_wins(text: str, value: Any) -> None:
    found = extract(text, NAMED)
    assert found.is_valid
    assert found.value == value


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ('{"elements": [1, 2]}', NUMBERS, [1, 2]),
        ("[1, 2]", NUMBERS, [1, 2]),
        ('Here: {"elements": [1]} and [2]', NUMBERS, [1]),
        ('{"value": "good"}', MOOD, "good"),
        ('So {"value": "bad"}.', MOOD, "bad"),
        (' "good" ', MOOD, "good"),
        ('```json\n"good"\n```', MOOD, "good"),
        ('{"value": null}', ANYTHING, None),
        ('{"value": 1, "more": 2}', ANYTHING, {"value": 1, "more": 2}),
        ('{"value": {"value": 1}}', ANYTHING, {"value": 1}),
    ],
)
def test_the_envelope_is_taken_off(text: str, schema: Any, value: Any) -> None:
    found = extract(text, schema)
    assert found.is_valid
    assert found.value == value


def test_an_envelope_that_is_the_value_itself_stays() -> None:
    schema = compile_schema({"const": {"value": 1}})
    assert extract('{"value": 1}', schema).value == {"value": 1}
    assert extract('{"value": {"value": 1}}', schema).value == {"value": 1}


# ---- what is no answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "no", 'It is "good".', "It is good", 'so\n```\n"good"\n```', "NaN", "\ufeff"])
def test_a_scalar_counts_only_as_the_whole_text(text: str) -> None:
    assert extract(text, MOOD).status == "none"


@given(value=containers | awkward, indent=layouts, data=st.data())
def test_a_truncated_answer_is_never_completed_nor_cut_to_a_fragment(
    value: Any, indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent)
    cut = data.draw(st.integers(0, len(text) - 1))
    assert extract(text[:cut], LOOSE).status == "none"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"kids": [{"name": "x"}', "$: not JSON: "),
        ('```json\n{"kids": [{"name": "x"},\n', "$: not JSON: "),
        ('{"id": 1 "kid": {"name": "x"}}', "$: not JSON: Expecting ',' delimiter"),
        ('{"q": "he said "no" {x}", "kid": {"name": "x"}}', "$: not JSON: "),
        ('[{"name": "x"} {"name": "y"}]', "$: not JSON: "),
        ('{"name": "x", "name": "y"}', "$: not JSON: the key 'name' stands twice in one object"),
        ('{"kid": {"name": "x"}, "n": NaN}', "$: not JSON: NaN is not a JSON number"),
        ('{"name": "x", "n": -Infinity}', "$: not JSON: -Infinity is not a JSON number"),
        ('{"name": "x", "n": 1e999}', "$: not JSON: 1e999 is too large a number"),
        ('{"name": "x", "n": ' + "9" * 5_000 + "}", "$: not JSON: "),
        ('{"name": "x",}', "$: not JSON: "),
        ("{'name': 'x'}", ""),
        ("{name: 'x'}", ""),
    ],
)
def test_broken_json_gives_no_value_but_a_reason(text: str, error: str) -> None:
    found = extract(text, NAMED)
    assert (found.status, found.value) == ("none", None)
    assert "".join(found.errors).startswith(error)


def test_the_inside_of_a_wrong_value_is_no_answer() -> None:
    found = extract('The tree: {"kids": [{"name": "x"}]}', NAMED)
    assert found.status == "invalid"
    assert found.value == {"kids": [{"name": "x"}]}
    assert found.errors == ('$: "name" is a required property',)


def test_the_first_invalid_value_is_the_one_reported() -> None:
    found = extract('[0] {"name": 1} {"name": 2}', NAMED)
    assert found.errors == ('$.name: 1 is not of type "string"',)


def test_a_lone_surrogate_is_an_error_and_no_exception() -> None:
    assert extract('{"name": "\\ud800"}', NAMED).status == "invalid"


# ---- hostile text ------------------------------------------------------------------------------------------

MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    "unit",
    [
        *["{", "[", "{}", "[1]", "[1,", "[[x", "{ ", " {\n", "`", "```\n", "```a\n{", '"', '["', '\\"'],
        *['{"', '{"a":', '{"a":"', '{"a":x}', '{"x" ', '{\\"', '{"\\', "[1e", "[1 "],
    ],
)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    """Anything worse than linear would take longer than the test's time limit."""
    assert not extract(unit * (MEGABYTE // len(unit)), NAMED).is_valid
    assert not extract('{"' + unit * (MEGABYTE // len(unit)), NAMED).is_valid


def test_a_huge_object_with_a_duplicate_takes_linear_time() -> None:
    body = ",".join(f'"k{index}":1' for index in range(100_000))
    assert extract(f'{{{body},"k99999":2}}', NAMED).status == "none"


@pytest.mark.parametrize("levels", [500, 10_000, 300_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_depth_bomb_is_contained(levels: int, opening: str, closing: str) -> None:
    bomb = opening * levels + "1" + closing * levels
    assert not extract(bomb, LOOSE).is_valid
    assert extract(f'{bomb} {{"name": "x"}}', NAMED).value == {"name": "x"}


# ---- words -------------------------------------------------------------------------------------------------


def test_the_contract_shows_the_wire_schema() -> None:
    assert answer_contract(NUMBERS).endswith(json.dumps(NUMBERS.wire_schema, separators=(",", ":")))


def test_a_repair_names_every_error_and_quotes_the_reply() -> None:
    found = extract('{"name": 1}', NAMED)
    prompt = repair_prompt(found, NAMED)
    assert '- $.name: 1 is not of type "string"' in prompt
    assert 'Your reply was:\n{"name": 1}\n' in prompt
    assert json.dumps(NAMED.wire_schema, separators=(",", ":")) in prompt


def test_a_repair_without_a_value_says_why_there_is_none() -> None:
    assert "Your reply holds no complete JSON.\n- $: not JSON: " in repair_prompt(extract('{"name": "x', NAMED), NAMED)
    assert repair_prompt(extract("Hm.", NAMED), NAMED).startswith("Your reply holds no complete JSON.\n\nYour reply")


@pytest.mark.parametrize("letter", ["a", "é", "漢", "😀", "\ud800"])
def test_the_quoted_reply_is_cut_at_2000_bytes_between_characters(letter: str) -> None:
    quoted = repair_prompt(extract("x" + letter * 3_000, NAMED), NAMED).split("Your reply was:\n")[1].split("\n\n")[0]
    kept = quoted.removesuffix(" … (cut)")
    assert kept != quoted
    assert 2_000 - len(letter.encode(errors="replace")) < len(kept.encode()) <= 2_000
    assert set(kept) <= {"x", letter, "?"}


def test_a_reply_of_2000_bytes_is_quoted_whole() -> None:
    assert f"\n{'x' * 2_000}\n" in repair_prompt(extract("x" * 2_000, NAMED), NAMED)


def test_failures_have_the_texts_of_the_specification() -> None:
    invalid = Extraction(status="invalid", text="", errors=("$.a: x", "$.b: y"))
    assert failure_text(invalid, 2) == (
        "Structured output failed schema validation after 2 repair attempts. Errors: $.a: x; $.b: y"
    )
    assert failure_text(Extraction(status="none", text=""), 0) == (
        "Structured output parsing failed after 0 repair attempts: "
        "no JSON object found in tool call, text content, or reasoning channel"
    )


def test_a_parsed_value_is_judged_like_its_text() -> None:
    for value in ({"elements": [1]}, [1], {"elements": ["x"]}, {}):
        text = json.dumps(value)
        assert judge(value, NUMBERS, text) == extract(text, NUMBERS)


# ---- reasoning ---------------------------------------------------------------------------------------------

DRAFT, ANSWER = '{"name": "draft"}', '{"name": "answer"}'


@pytest.mark.parametrize("text", ["", " \n", "The answer is above.", "<think>", "<think>Hm."])
def test_reasoning_is_an_answer_where_the_text_has_no_json(text: str) -> None:
    found = extract(text, NAMED, f"So it is {DRAFT}.")
    assert found.value == {"name": "draft"}


@pytest.mark.parametrize(
    ("text", "status"),
    [(ANSWER, "valid"), (f"I say {ANSWER}", "valid"), ('{"name": 1}', "invalid"), ('{"name": "cut o', "none")],
)
def test_reasoning_never_stands_in_for_json_in_the_text(text: str, status: str) -> None:
    found = extract(text, NAMED, DRAFT)
    assert found.status == status
    assert found.value != {"name": "draft"}


def test_invalid_json_in_the_reasoning_feeds_the_repair() -> None:
    found = extract("", NAMED, 'So {"name": 1}')
    assert found.errors == ('$.name: 1 is not of type "string"',)
    assert 'Your reply was:\nSo {"name": 1}\n' in repair_prompt(found, NAMED)
    assert extract("In words.", NAMED, "Hm.") == Extraction(status="none", text="In words.")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"<think>maybe {DRAFT}</think>\n{ANSWER}", "answer"),
        (f"<think>maybe {DRAFT}</think>\n```json\n{ANSWER}\n```", "answer"),
        (f"\nmaybe {DRAFT}\n</think>\n{ANSWER}", "answer"),
        (f"<think>So {DRAFT}.</think>\nAs I said.", "draft"),
        ('{"name": "</think>", "more": {"name": "x"}}', "</think>"),
        ('```\n{"name": "</think>"}\n```', "</think>"),
    ],
)
def test_thoughts_within_the_text_are_reasoning(text: str, value: str) -> None:
    assert extract(text, NAMED).value["name"] == value  # type: ignore[index, call-overload]


def test_a_scalar_may_follow_thoughts() -> None:
    assert extract('<think>Is it "bad"?</think>\n"good"', MOOD).value == "good"


@pytest.mark.parametrize("text", [f"<think>maybe {DRAFT}", f"<think>maybe {DRAFT}</think> " + '{"name": "cut o'])
def test_a_draft_is_no_answer_when_the_answer_did_not_come(text: str) -> None:
    assert extract(text, NAMED).status == "none"
