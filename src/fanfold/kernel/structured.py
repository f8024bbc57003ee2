"""A value of the wanted schema from what a model wrote, and the words that ask for it.

A candidate is always a whole JSON value that stands in the text. What lies inside a value, or inside the
remains of a broken or truncated one, is a fragment of an answer and never taken for it. Nothing is completed.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, NoReturn

import msgspec

from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.kernel.schema import OutputSchema

MAX_QUOTED_BYTES = 2_000
"""How much of a wrong answer is sent back to the model (spec 6.5)."""

_MAX_VALUES = 1_000
"""Values looked at in one text: what is more than this is no answer, and each costs a validation."""

_MAX_SHOWN_CHARS = 60

START_OF_THOUGHT = "<think>"
END_OF_THOUGHT = "</think>"
"""Models write them where their server does not take the reasoning out of the text."""

_FENCE = r"(?ms)^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```"
_JSON_START = r'\{\s*+[}"]|\[\s*+(?:[]["{]|(?:-?\d[\d.eE+-]*+|true|false|null)\s*+(?:[],]|\Z))'
"""A bracket that opens JSON, not prose: `{"` and `[1,` do, `{x}` and `[see` do not."""
_STRING_OR_BRACKET = r'(?s)"(?:[^"\\]|\\.)*+"?|[][{}]'


class Extraction(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in `text`: a `valid` value, an `invalid` one with its errors, or `none`."""

    status: Literal["valid", "invalid", "none"]
    text: str
    value: JsonValue = None
    """The value, out of its envelope. Mind that `null` is one."""
    errors: tuple[str, ...] = ()
    """`<instance path>: <reason>`; with `none` why what looks like JSON is none."""

    @property
    def is_valid(self) -> bool:
        return self.status == "valid"


def extract(text: str, schema: OutputSchema, reasoning: str = "") -> Extraction:
    """The first value in `text` that matches `schema`, else the first one that does not, else none.

    Looked at in this order (spec 6.4): the whole text; fenced blocks; objects; arrays. A bare scalar counts
    only as the whole text. Takes linear time on any text.

    `reasoning`, and what stands in `text` before `</think>`, counts only where the answer itself holds no JSON,
    whole or broken: some servers deliver the whole answer there, but else it holds drafts.
    """
    for source in _sources(text, reasoning):
        found = _first_match(source, schema)
        if found.status != "none" or found.errors:
            return found
    return Extraction(status="none", text=text)


def _sources(text: str, reasoning: str) -> Iterator[str]:
    """Where an answer may stand, best place first."""
    begins_as_json = text.lstrip().startswith(("{", "[", '"'))  # and so may hold the mark as data
    _, mark, answer = text.rpartition(END_OF_THOUGHT)
    if mark and not begins_as_json:
        yield answer
    if mark or not text.lstrip().startswith(START_OF_THOUGHT):  # thoughts that broke off came to no answer
        yield text
    yield reasoning


def _first_match(text: str, schema: OutputSchema) -> Extraction:
    problems: list[str] = []
    first_invalid: Extraction | None = None
    for value in _candidates(text, problems):
        judged = judge(value, schema, text)
        if judged.is_valid:
            return judged
        first_invalid = first_invalid or judged
    return first_invalid or Extraction(status="none", text=text, errors=tuple(problems[:1]))


def judge(value: JsonValue, schema: OutputSchema, text: str) -> Extraction:
    """Whether `value`, which the model wrote as `text`, matches `schema` in or out of its envelope.

    The envelope goes first: models are shown the wire form, and a schema that allows any object matches both.
    """
    inner = schema.unwrap(value)
    errors = schema.validate(inner)
    if errors and inner is not value and not schema.validate(value):
        return Extraction(status="valid", text=text, value=value)
    return Extraction(status="invalid" if errors else "valid", text=text, value=inner, errors=errors)


def answer_contract(schema: OutputSchema) -> str:
    """The section at the end of a step's prompt that says what its last message must be."""
    return (
        "## Final answer\n"
        "When the work is done, reply with one JSON object that matches this JSON Schema and nothing else: "
        f"no explanation, no code fence.\n{_schema_text(schema)}"
    )


def repair_prompt(extraction: Extraction, schema: OutputSchema) -> str:
    """The message that asks for the answer again after an extraction that is not valid."""
    faults = "\n".join(f"- {each}" for each in extraction.errors)
    if extraction.status == "none":
        opening = "Your reply holds no complete JSON." + (f"\n{faults}" if faults else "")
    else:
        opening = f"The JSON in your reply does not match the schema:\n{faults}"
    return (
        f"{opening}\n\nYour reply was:\n{_quoted(extraction.text)}\n\n"
        "Reply again, as message text, with one corrected JSON object that matches this JSON Schema "
        f"and nothing else:\n{_schema_text(schema)}"
    )


def failure_text(extraction: Extraction, attempts: int) -> str:
    """Why `attempts` repairs gave no value (spec 6.5), to stand in `[structured output failed: ...]`."""
    if extraction.status == "none":
        return (
            f"Structured output parsing failed after {attempts} repair attempts: "
            "no JSON object found in tool call, text content, or reasoning channel"
        )
    errors = "; ".join(extraction.errors)
    return f"Structured output failed schema validation after {attempts} repair attempts. Errors: {errors}"


def _candidates(text: str, problems: list[str]) -> Iterator[JsonValue]:
    """Values in the order in which to try them; what looked like JSON and is none goes to `problems`."""
    whole = text.strip().removeprefix("\ufeff")
    fence = re.fullmatch(_FENCE, whole)
    try:
        yield _decoder.decode(fence[1] if fence else whole)
    except (ValueError, RecursionError):
        yield from _fenced(text)
        # Stable: objects in their order, then arrays in theirs.
        yield from sorted(_embedded(text, problems), key=lambda value: isinstance(value, list))


def _fenced(text: str) -> Iterator[JsonValue]:
    for fence in islice(re.finditer(_FENCE, text), _MAX_VALUES):
        try:
            value = _decoder.decode(fence[1])
        except (ValueError, RecursionError):
            continue  # the search for brackets comes by here again and says what is wrong
        if isinstance(value, dict | list):
            yield value


def _embedded(text: str, problems: list[str]) -> Iterator[JsonObject | list[Any]]:
    at = 0
    for _ in range(_MAX_VALUES):
        opening = re.compile(_JSON_START).search(text, at)
        if opening is None:
            return
        try:
            value, at = _decoder.raw_decode(text, opening.start())
        except RecursionError:
            problems.append("$: nested too deeply")
        except ValueError as error:
            problems.append(f"$: not JSON: {error}")
        else:
            yield value
            continue
        at = _end_of_broken(text, opening.start())


def _end_of_broken(text: str, start: int) -> int:
    """Where the bracket at `start` closes, by counting; the end of the text when it is truncated."""
    depth = 0
    for token in re.compile(_STRING_OR_BRACKET).finditer(text, start):
        mark = token[0]
        if mark in "{[":
            depth += 1
        elif mark in "}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return len(text)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> JsonObject:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:_MAX_SHOWN_CHARS]!r} stands twice in one object")
    return made


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:_MAX_SHOWN_CHARS]} is too large a number")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_decoder = json.JSONDecoder(
    object_pairs_hook=_without_duplicates,
    parse_float=_finite,
    parse_constant=_refuse_constant,
    strict=False,  # a raw line break in a string can mean only one thing, and small models write it
)


def _quoted(text: str) -> str:
    whole = text[: MAX_QUOTED_BYTES + 1].encode("utf-8", "replace")
    if len(whole) <= MAX_QUOTED_BYTES:
        return whole.decode()
    return whole[:MAX_QUOTED_BYTES].decode("utf-8", "ignore") + " … (cut)"


def _schema_text(schema: OutputSchema) -> str:
    return json.dumps(schema.wire_schema, ensure_ascii=False, separators=(",", ":"))
