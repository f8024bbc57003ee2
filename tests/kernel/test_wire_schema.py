"""Models see a schema whose root is an object; it means the same as the one that was given."""

import copy
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.kernel.wire_schema import wire_form

TREE = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}

WRAPPED: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "items": {"type": "integer"}}, "elements"),
    ({"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}, "elements"),
    (
        {"type": "array", "items": {"$ref": "#/definitions/n"}, "definitions": {"n": {"type": "null"}}},
        "elements",
    ),
    ({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}}, "elements"),
    (
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"$ref": "#/prefixItems/0"}},
        "elements",
    ),
    (
        {"type": "array", "items": {"$ref": "#i"}, "$defs": {"n": {"$anchor": "i", "type": "integer"}}},
        "elements",
    ),
    (
        {"$id": "urn:x", "type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "null"}}},
        "elements",
    ),
    ({"type": "string"}, "value"),
    ({"enum": ["a", 1, None]}, "value"),
    ({"anyOf": [{"type": "integer"}, {"type": "object"}]}, "value"),
    ({"type": ["object", "null"]}, "value"),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, "value"),
    ({"$ref": "#/$defs/n", "minProperties": 1, "$defs": {"n": {"type": "object"}}}, "value"),
    ({"$ref": "#"}, "value"),
    ({}, "value"),
]

OBJECTS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"properties": {"a": {"type": "integer"}}},
    {"$ref": "#/$defs/Tree", "$defs": {"Tree": TREE}},
    {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/Tree"}, "Tree": TREE}, "title": "T"},
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "object", "required": ["a"]}}},
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abn"), inner, max_size=3),
    max_leaves=6,
)


def matches(schema: dict[str, Any], value: object) -> bool:
    return jsonschema_rs.Draft202012Validator(schema).is_valid(value)


@given(value=json_values)
@pytest.mark.parametrize(("schema", "envelope"), WRAPPED)
def test_an_envelope_holds_exactly_what_the_schema_matches(
    schema: dict[str, Any], envelope: str, value: object
) -> None:
    wire, key = wire_form(copy.deepcopy(schema))
    assert (wire["type"], key) == ("object", envelope)
    assert matches(wire, {envelope: value}) == matches(schema, value)
    assert not matches(wire, value) or isinstance(value, dict)


@given(value=st.dictionaries(st.sampled_from("abn"), json_values, max_size=3))
@pytest.mark.parametrize("schema", OBJECTS)
def test_an_object_root_keeps_its_meaning_and_gets_no_envelope(schema: dict[str, Any], value: object) -> None:
    wire, key = wire_form(copy.deepcopy(schema))
    assert (wire["type"], key) == ("object", None)
    assert matches(wire, value) == matches(schema, value)


def test_definitions_stand_at_the_root_of_an_envelope() -> None:
    wire, _ = wire_form({"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}})
    assert wire == {
        "type": "object",
        "properties": {"elements": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
        "required": ["elements"],
        "additionalProperties": False,
        "$defs": {"n": {"type": "integer"}},
    }


def test_a_struct_class_needs_no_envelope() -> None:
    class Finding(msgspec.Struct):
        title: str

    wire, key = wire_form(msgspec.json.schema(Finding))
    assert key is None
    assert wire["properties"] == {"title": {"type": "string"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "urn:a", "type": "object"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": True}},
    ],
)
def test_a_root_that_cannot_be_inlined_is_wrapped(schema: dict[str, Any]) -> None:
    assert wire_form(schema)[1] == "value"
