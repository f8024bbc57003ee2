"""What a user gives as a schema is checked before use, compiled once, and applied without any I/O."""

import dataclasses
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, TypedDict

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import InvalidSpecError
from fanfold.kernel.schema import MAX_DEPTH, MAX_ERRORS, compile_schema

PURPOSE = {
    "type": "object",
    "properties": {
        "purpose": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["purpose"],
    "additionalProperties": False,
}


class StructForm(msgspec.Struct):
    name: str


@dataclasses.dataclass
class DataclassForm:
    name: str


class TypedDictForm(TypedDict):
    name: str


class PydanticLikeForm:
    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class BrokenModel:
    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        raise LookupError("no schema for Callable")


# ---- compiling ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [StructForm, DataclassForm, TypedDictForm, PydanticLikeForm])
def test_a_class_stands_for_its_schema(form: type) -> None:
    schema = compile_schema(form)
    assert schema.validate({"name": "x"}) == ()
    assert schema.validate({"name": 1}) == ('$.name: 1 is not of type "string"',)
    assert schema.wire_schema["type"] == "object"


def test_true_allows_everything() -> None:
    schema = compile_schema(True)
    assert schema.schema == {}
    assert schema.validate(None) == ()


def test_an_equal_schema_is_compiled_once() -> None:
    compiled = {id(compile_schema({"type": "object", "title": "once"})) for _ in range(1_000)}
    assert len(compiled) == 1


def test_the_order_of_properties_is_kept() -> None:
    first = compile_schema({"type": "object", "properties": {"why": {}, "answer": {}}})
    second = compile_schema({"type": "object", "properties": {"answer": {}, "why": {}}})
    assert list(first.wire_schema["properties"]) == ["why", "answer"]
    assert list(second.wire_schema["properties"]) == ["answer", "why"]


def test_a_later_change_of_the_source_changes_nothing() -> None:
    source: dict[str, Any] = {"type": "object", "required": ["a"]}
    schema = compile_schema(source)
    source["required"].append("b")
    assert schema.validate({"a": 1}) == ()
    assert schema.schema == {"type": "object", "required": ["a"]}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "no JSON Schema: NoneType; give a dict"),
        (["object"], "no JSON Schema: "),
        ("object", "no JSON Schema: "),
        (BrokenModel, "no JSON Schema: no schema for Callable; give a dict"),
        ({"const": object()}, "schema is not JSON: "),
        ({"maximum": float("nan")}, "schema is not JSON: "),
        (False, "schema at #: false matches nothing; give"),
        ({"properties": {"a": {"type": "strng"}}}, 'schema at #/properties/a/type: "strng" is not'),
        ({"required": "a"}, 'schema at #/required: "a" is not of type "array"'),
        ({"properties": {"a": {"pattern": "("}}}, 'schema at #/properties/a/pattern: "(" is not a "regex"'),
        ({"items": {"$ref": "#/$defs/none"}}, "schema at #/items/$ref: nothing at '#/$defs/none'; "),
        ({"$ref": "#gone"}, "schema at #/$ref: nothing at '#gone'; "),
        ({"$ref": "other.json"}, "schema at #/$ref: nothing at 'other.json'; "),
        ({"$ref": "file:///etc/hostname"}, "schema at #/$ref: nothing at 'file:///etc/hostname'; "),
        ({"$id": "::bad::"}, "schema at #: "),
        ({"$ref": "#"}, "schema at #: it refers back to itself and says nothing of the value; "),
        ({"not": {}}, "schema at #: 'not' excludes every value; "),
        ({"type": "string", "pattern": "(a{1000}){1000}"}, "schema at #/pattern: "),
        ({"items": {"minimum": 2, "maximum": 1}}, "schema at #/items: minimum 2 is greater than maximum 1"),
        (
            {"items": {"enum": []}, "contains": {"enum": []}},
            "schema at #/items: enum is empty; list the allowed values; #/contains: enum is empty",
        ),
    ],
)
def test_an_unusable_schema_is_refused_with_its_place(source: object, reason: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        compile_schema(source)
    assert caught.value.reason.startswith(reason)


@pytest.mark.parametrize("levels", [300, 100_000])
def test_a_schema_bomb_is_refused(levels: int) -> None:
    bomb: dict[str, Any] = {}
    for _ in range(levels):
        bomb = {"items": bomb}
    with pytest.raises(InvalidSpecError, match="ecursion"):
        compile_schema(bomb)


def test_the_validator_is_loaded_only_with_the_first_schema() -> None:
    program = (
        "import sys, fanfold.kernel.schema as s; assert 'jsonschema_rs' not in sys.modules;"
        "s.compile_schema({}); assert 'jsonschema_rs' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- no I/O ------------------------------------------------------------------------------------------------


@pytest.fixture
def remote() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine that would gladly serve a schema, and the paths that were asked of it."""
    asked: list[str] = []

    class Schemas(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Schemas) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/schema", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_a_remote_reference_is_refused_and_never_fetched(remote: tuple[str, list[str]], keyword: str) -> None:
    address, asked = remote
    for schema in ({keyword: address}, {"properties": {"a": {"items": {keyword: f"{address}#/x"}}}}):
        with pytest.raises(InvalidSpecError, match="remote schemas are never fetched"):
            compile_schema(schema)
    assert asked == []


def test_a_foreign_dialect_or_base_is_never_fetched(remote: tuple[str, list[str]]) -> None:
    address, asked = remote
    array = {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}
    schema = compile_schema({"$schema": address, "$id": address, **array})
    assert schema.validate([1, "x"]) == ('$[1]: "x" is not of type "integer"',)
    assert asked == []


# ---- validating --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "errors"),
    [
        ({"purpose": "x", "tags": ["a"], "size": None}, ()),
        ({}, ('$: "purpose" is a required property',)),
        ({"purpose": "x", "tags": ["a", 1]}, ('$.tags[1]: 1 is not of type "string"',)),
        (
            {"purpose": "", "odd key": 1},
            (
                '$.purpose: "" is shorter than 1 character',
                "$: Additional properties are not allowed ('odd key' was unexpected)",
            ),
        ),
        (
            {"purpose": "x", "size": "9"},
            (
                "$.size: \"9\" is not valid under any of the schemas listed in the 'anyOf' keyword "
                '("9" is not of type "integer"; or "9" is not of type "null")',
            ),
        ),
    ],
)
def test_errors_name_the_place_and_the_reason(value: Any, errors: tuple[str, ...]) -> None:
    assert compile_schema(PURPOSE).validate(value) == errors


def test_a_name_that_is_no_identifier_is_quoted_in_the_path() -> None:
    schema = compile_schema({"additionalProperties": {"type": "array", "items": {"type": "null"}}})
    assert schema.validate({'a "b"': [1]}) == ('$["a \\"b\\""][0]: 1 is not of type "null"',)


def test_errors_are_bounded_in_number_and_length() -> None:
    schema = compile_schema({"type": "array", "items": {"type": "integer"}})
    errors = schema.validate(["x" * 100_000] * 1_000)
    assert len(errors) == MAX_ERRORS
    assert all(len(each) < 400 and each.endswith('is not of type "integer"') for each in errors)


@pytest.mark.parametrize(
    ("value", "is_allowed"),
    [(10**400, True), (-(10**30), True), (True, False), (1.0, True), (float("nan"), False), ("1", False)],
)
def test_numbers_are_those_of_json(value: Any, is_allowed: bool) -> None:
    assert (compile_schema({"type": "integer"}).validate(value) == ()) is is_allowed


@pytest.mark.parametrize("value", [{1: 2}, {"a": {1, 2}}, "\ud800", [object()]])
def test_what_is_no_json_is_an_error_and_no_exception(value: Any) -> None:
    (error,) = compile_schema({"type": ["object", "array"], "maxProperties": 0, "maxItems": 0}).validate(value)
    assert error.startswith("$: ")


def nested(levels: int) -> Any:
    value: Any = 1
    for each in range(levels):
        value = [value] if each % 2 else {"a": value}
    return value


def test_depth_is_bounded_exactly() -> None:
    schema = compile_schema({"$defs": {"any": {"items": {"$ref": "#/$defs/any"}}}, "$ref": "#/$defs/any"})
    assert schema.validate(nested(MAX_DEPTH)) == ()
    for levels in (MAX_DEPTH + 1, 10_000, 200_000):
        assert schema.validate(nested(levels)) == (f"$: nested deeper than {MAX_DEPTH} levels",)


def test_many_brackets_are_not_depth() -> None:
    assert compile_schema({"type": "array"}).validate([[] for _ in range(5_000)]) == ()


@pytest.mark.parametrize(
    "pattern",
    [
        "^(a+)+$",
        "(a+)+$",
        r"(x+x+)+y",
        r"^(([a-z])+.)+[A-Z]([a-z])+$",
        "^(?=a)(a+)+$",
        r"^(a|a)*\1$",
        r"^(a*)*(?!b)\1c$",
    ],
)
def test_no_pattern_explodes(pattern: str) -> None:
    """Backtracking would take longer than the test's time limit for any of them."""
    schema = compile_schema({"type": "string", "pattern": pattern})
    assert schema.validate("a" * 60 + "!") != ()


def test_lookaround_works() -> None:
    schema = compile_schema({"type": "string", "pattern": r"^(?!tmp)(?=.*\d)"})
    assert schema.validate("a1") == ()
    assert schema.validate("tmp1") != ()


def test_one_schema_serves_many_threads() -> None:
    schema = compile_schema(PURPOSE)
    wrong: list[object] = []

    def work() -> None:
        wrong.extend(
            each for each in range(500) if schema.validate({"purpose": "x"}) or not schema.validate({"purpose": each})
        )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["purpose", "tags", "a"]), inner),
    max_leaves=8,
)

SCHEMAS: list[dict[str, Any]] = [
    PURPOSE,
    {"type": "array", "items": PURPOSE, "uniqueItems": True},
    {"oneOf": [{"type": "string"}, {"type": "array", "minItems": 1}, {"required": ["a"]}]},
    {"if": {"type": "object"}, "then": {"required": ["a"]}, "else": {"type": ["null", "integer"]}},
    {
        "$ref": "#/$defs/t",
        "$defs": {"t": {"type": ["object", "null"], "additionalProperties": {"$ref": "#/$defs/t"}}},
    },
    {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
]


@given(value=json_values)
@pytest.mark.parametrize("source", SCHEMAS)
def test_validation_agrees_with_the_validator_itself(source: dict[str, Any], value: Any) -> None:
    is_valid = jsonschema_rs.Draft202012Validator(source).is_valid(value)
    assert (compile_schema(source).validate(value) == ()) is is_valid


# ---- envelope ----------------------------------------------------------------------------------------------


def test_only_the_exact_envelope_is_unwrapped() -> None:
    items = compile_schema({"type": "array"})
    assert items.envelope == "elements"
    assert items.unwrap({"elements": [1]}) == [1]
    for other in ([1], {"elements": [1], "more": 2}, {"value": [1]}, {}):
        assert items.unwrap(other) is other
    plain = compile_schema(PURPOSE)
    assert plain.envelope is None
    assert plain.unwrap({"value": 1}) == {"value": 1}
