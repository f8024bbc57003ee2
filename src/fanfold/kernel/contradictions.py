"""What a schema asks for that no value can give: found before any model is paid for trying.

Only plain contradictions within one schema object are looked for. A general proof of emptiness takes
exponential time on schemas that a model can write, and a schema may come from a model.
"""

from collections.abc import Callable, Iterator
from typing import Any

from fanfold.contracts.record import JsonObject
from fanfold.kernel.subschemas import subschemas

_BOUNDS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minContains", "maxContains"),
)
_OPEN_BOUNDS = (
    ("exclusiveMinimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "maximum"),
    ("minimum", "exclusiveMaximum"),
)
_NEGATED = ("not", "if")
"""A schema that nothing matches has its uses here."""


def contradictions(schema: JsonObject) -> Iterator[str]:
    """Lines `<JSON pointer>: <what contradicts what>; <the fix>`, none for a schema without an obvious fault.

    `schema` is valid against the draft's meta-schema.
    """
    for pointer, each in subschemas(schema, without=_NEGATED):
        for rule in _RULES:
            for fault in rule(each):
                yield f"{pointer}: {fault}"


def _crossed_bounds(schema: JsonObject) -> Iterator[str]:
    for low, high in _BOUNDS:
        if low in schema and high in schema and schema[low] > schema[high]:
            yield f"{low} {schema[low]} is greater than {high} {schema[high]}; swap them or drop one"
    for low, high in _OPEN_BOUNDS:
        if low in schema and high in schema and schema[low] >= schema[high]:
            yield f"no number lies between {low} {schema[low]} and {high} {schema[high]}; widen one of them"


def _impossible_choice(schema: JsonObject) -> Iterator[str]:
    enum: list[Any] | None = schema.get("enum")
    if enum is not None and not enum:
        yield "enum is empty; list the allowed values"
    elif enum is not None and "const" in schema and not any(_same(schema["const"], each) for each in enum):
        yield "const is not one of the values of enum; keep one of the two"
    elif "type" in schema and ("const" in schema or enum is not None):
        types = {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
        keyword, choices = ("const", [schema["const"]]) if "const" in schema else ("enum", enum or [])
        if not any(types & _types_of(each) for each in choices):
            yield f"no value of {keyword} is of type {' or '.join(sorted(types))}; correct one of the two"


def _forbidden_required(schema: JsonObject) -> Iterator[str]:
    required: list[str] = schema.get("required", [])
    properties: JsonObject = schema.get("properties", {})
    # With patternProperties a name may be allowed by a pattern, which is not for this module to match.
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    for name in required:
        if name in properties and properties[name] is False:
            yield f"'{name}' is required, but its schema is false; give it a schema or drop it from required"
        elif is_closed and name not in properties:
            yield f"'{name}' is required, but additionalProperties is false; add it to properties"
    if len(set(required)) > schema.get("maxProperties", len(required)):
        most = schema["maxProperties"]
        yield f"{len(set(required))} names are required, but maxProperties is {most}; raise it"


_RULES: tuple[Callable[[JsonObject], Iterator[str]], ...] = (
    _crossed_bounds,
    _impossible_choice,
    _forbidden_required,
)


def _same(left: Any, right: Any) -> bool:
    """Equal as JSON: `True` is not 1, but 1.0 is."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _types_of(value: Any) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}
