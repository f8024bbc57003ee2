"""Schemas that no value can satisfy are named before anything is spent on them."""

from typing import Any

import pytest

from fanfold.kernel.contradictions import contradictions


def in_property(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a/b": schema}}


CLOSED = {"additionalProperties": False}

CONTRADICTORY: list[tuple[dict[str, Any], str]] = [
    ({"minimum": 3, "maximum": 1}, "minimum 3 is greater than maximum 1"),
    ({"minLength": 3, "maxLength": 2}, "minLength 3 is greater than maxLength 2"),
    ({"minItems": 1, "maxItems": 0}, "minItems 1 is greater than maxItems 0"),
    ({"minProperties": 2, "maxProperties": 1}, "minProperties 2 is greater than maxProperties 1"),
    ({"contains": {}, "minContains": 2, "maxContains": 1}, "minContains 2 is greater than maxContains 1"),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 1}, "no number lies between"),
    ({"exclusiveMinimum": 1, "maximum": 1}, "no number lies between"),
    ({"minimum": 1, "exclusiveMaximum": 1}, "no number lies between"),
    ({"enum": []}, "enum is empty"),
    ({"const": 3, "enum": [1, 2]}, "const is not one of the values of enum"),
    ({"const": True, "enum": [1]}, "const is not one of the values of enum"),
    ({"type": "string", "enum": [1, None]}, "no value of enum is of type string"),
    ({"type": ["string", "array"], "const": {}}, "no value of const is of type array or string"),
    ({"type": "integer", "const": 1.5}, "no value of const is of type integer"),
    ({"type": "number", "const": True}, "no value of const is of type number"),
    ({"type": "object", "required": ["a"], **CLOSED}, "'a' is required, but additionalProperties is false"),
    ({"required": ["a"], "properties": {"a": False}}, "'a' is required, but its schema is false"),
    ({"required": ["a", "b"], "maxProperties": 1}, "2 required names, but maxProperties is 1"),
]

SOUND: list[dict[str, Any]] = [
    {},
    {"minimum": 1, "maximum": 1},
    {"exclusiveMinimum": 0, "maximum": 1},
    {"const": 1, "enum": [1.0]},
    {"type": "integer", "const": 2.0},
    {"type": "number", "enum": [1]},
    {"type": ["string", "null"], "enum": ["a", None]},
    {"type": "boolean", "const": False},
    {"type": "array", "const": []},
    {"type": "object", "enum": [{}]},
    {"required": ["a"], "patternProperties": {"^a$": {}}, **CLOSED},
    {"required": ["a"], "properties": {"a": True, "b": False}, **CLOSED},
    {"required": ["a", "a"], "maxProperties": 1},
    {"not": {"enum": []}},
    {"if": {"minimum": 3, "maximum": 1}, "then": {}},
    {"const": {"minimum": 3, "maximum": 1}},
    {"properties": {"enum": {"type": "array"}, "items": {"minItems": 1}}},
]


@pytest.mark.parametrize(("schema", "fault"), CONTRADICTORY)
def test_a_contradiction_is_named_with_its_place(schema: dict[str, Any], fault: str) -> None:
    (at_root,) = contradictions(schema)
    assert at_root.startswith(f"#: {fault}")
    (inside,) = contradictions(in_property(schema))
    assert inside.startswith(f"#/properties/a~1b: {fault}")


@pytest.mark.parametrize("schema", SOUND)
def test_a_sound_schema_has_no_contradiction(schema: dict[str, Any]) -> None:
    assert list(contradictions(schema)) == []
    assert list(contradictions(in_property(schema))) == []


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"items": {"enum": []}}, "#/items"),
        ({"prefixItems": [{}, {"enum": []}]}, "#/prefixItems/1"),
        ({"anyOf": [{"type": "null"}, {"enum": []}]}, "#/anyOf/1"),
        ({"$defs": {"x": {"enum": []}}}, "#/$defs/x"),
        ({"additionalProperties": {"enum": []}}, "#/additionalProperties"),
        ({"dependentSchemas": {"x": {"enum": []}}}, "#/dependentSchemas/x"),
    ],
)
def test_every_place_that_holds_a_schema_is_looked_at(schema: dict[str, Any], place: str) -> None:
    (fault,) = contradictions(schema)
    assert fault.startswith(f"{place}: ")


def test_all_contradictions_are_found_in_the_order_of_the_schema() -> None:
    schema = {
        "properties": {"a": {"enum": []}, "b": {"minimum": 2, "maximum": 1}},
        "required": ["b"],
        "enum": [],
    }
    assert [each.split(":")[0] for each in contradictions(schema)] == [
        "#",
        "#/properties/a",
        "#/properties/b",
    ]


# ---- from one schema object to another ---------------------------------------------------------------------

BACK = "it refers back to itself"
NEEDED = "false matches nothing, and it is needed"
ENDLESS = "a value would have to hold another of its kind without end"


def node(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#"}}, **fields}


def doubling(levels: int) -> dict[str, Any]:
    steps = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**steps, f"d{levels}": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"$ref": "#"}, f"#: {BACK}"),
        ({"allOf": [{"$ref": "#"}]}, f"#: {BACK}"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, f"#: {BACK}"),
        ({"not": {"$ref": "#"}}, f"#: {BACK}"),
        ({"$anchor": "me", "dependentSchemas": {"a": {"$ref": "#me"}}}, f"#: {BACK}"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, f"#/properties/a: {BACK}"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "#/$defs/"),
        (doubling(40), "#/$defs/d2"),
        ({"not": {}}, "#: 'not' excludes every value"),
        ({"not": True}, "#: 'not' excludes every value"),
        ({"allOf": [{}, {"$ref": "#/$defs/none"}], "$defs": {"none": {"not": {}}}}, "#/$defs/none: 'not' excludes"),
        ({"allOf": [True, False]}, f"#/allOf/1: {NEEDED}"),
        ({"anyOf": [False, {"not": {}}]}, f"#/anyOf/0: {NEEDED}"),
        ({"oneOf": [{"allOf": [False]}]}, f"#/oneOf/0/allOf/0: {NEEDED}"),
        ({"type": "array", "minItems": 1, "items": False}, f"#/items: {NEEDED}"),
        ({"type": "array", "minItems": 2, "prefixItems": [{}, {"not": {}}]}, "#/prefixItems/1: 'not' excludes"),
        (node(), f"#: {ENDLESS}"),
        (node(properties={"next": {"type": "array", "minItems": 1, "items": {"$ref": "#"}}}), f"#: {ENDLESS}"),
    ],
)
def test_a_root_that_nothing_matches_is_named_with_the_cause(schema: dict[str, Any], fault: str) -> None:
    (found,) = contradictions(schema)
    assert found.startswith(fault)


@pytest.mark.parametrize(
    "schema",
    [
        node(required=[]),
        node(properties={"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
        node(properties={"next": {"type": "array", "items": {"$ref": "#"}}}),
        node(type=["object", "null"]),
        {"properties": {"never": {"not": {}}}, "additionalProperties": {"not": {}}},
        {"anyOf": [{"not": {}}, {"type": "string"}]},
        {"type": "array", "items": False},
        {"type": "array", "minItems": 1, "prefixItems": [{}], "items": False},
        {"if": {"type": "string"}, "then": {"not": {}}},
        {"$ref": "#/elsewhere", "elsewhere": {"$ref": "#"}},
        {"$ref": "#", "$defs": {"other": {"$id": "urn:other"}}},
        {"anyOf": [{"const": number} for number in range(2_000)]},
        doubling(8),
    ],
)
def test_what_some_value_matches_is_no_contradiction(schema: dict[str, Any]) -> None:
    assert list(contradictions(schema)) == []


def test_a_schema_too_entangled_to_tell_counts_as_sound() -> None:
    steps: dict[str, Any] = {f"s{at:02}": {"$ref": f"#/$defs/s{at - 1:02}"} for at in range(1, 40)}
    assert list(contradictions({"$ref": "#/$defs/s39", "$defs": {"s00": {"not": {}}, **steps}})) != []
    backwards = {name: steps[name] for name in reversed(steps)}
    assert list(contradictions({"$ref": "#/$defs/s39", "$defs": {**backwards, "s00": {"type": "null"}}})) == []
