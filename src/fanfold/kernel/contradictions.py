"""What a schema asks for that no value can give: found before any model is paid for trying.

Looked for are plain contradictions within one schema object, schemas that refer back to themselves, and roots
whose every value would have to hold what nothing matches. A general proof of emptiness takes exponential time
on schemas that a model can write, and a schema may come from a model.
"""

from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from fanfold.contracts.record import JsonObject
from fanfold.kernel.counted import counted
from fanfold.kernel.subschemas import escaped, subschemas

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
_BRANCHES = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("not", "if", "then", "else")
_MAX_CHECKS = 1_000_000
"""Schemas that one value may be checked against: references that double level by level reach billions."""
_MAX_PASSES = 20

_Places = dict[str, JsonObject]
"""Every object schema by its JSON pointer."""
_Part = tuple[str, Any]
"""A schema within another one: its JSON pointer and itself, which may be a boolean."""


def contradictions(schema: JsonObject) -> Iterator[str]:
    """Lines `<JSON pointer>: <what contradicts what>; <the fix>`, none for a schema without an obvious fault.

    `schema` is valid against the draft's meta-schema.
    """
    is_sound = True
    for pointer, each in subschemas(schema, without=_NEGATED):
        for rule in _RULES:
            for fault in rule(each):
                is_sound = False
                yield f"{pointer}: {fault}"
    if is_sound:
        places = dict(subschemas(schema))
        targets = _targets(places)
        yield from _endless_checks(places, targets) or _unmatchable_root(places, targets)


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
        yield f"{counted(len(set(required)), 'required name')}, but maxProperties is {most}; raise it"


_RULES: tuple[Callable[[JsonObject], Iterator[str]], ...] = (
    _crossed_bounds,
    _impossible_choice,
    _forbidden_required,
)


# ---- from one schema object to another ---------------------------------------------------------------------


def _targets(places: _Places) -> Mapping[str, str]:
    """Where the `$ref` of a place leads to. What is not followed here counts as in order."""
    if any("$id" in schema for pointer, schema in places.items() if pointer != "#"):
        return {}  # references have several bases
    anchors = {f"#{schema['$anchor']}": pointer for pointer, schema in places.items() if "$anchor" in schema}
    references = ((pointer, schema["$ref"]) for pointer, schema in places.items() if "$ref" in schema)
    found = ((pointer, anchors.get(reference, reference)) for pointer, reference in references)
    return {pointer: target for pointer, target in found if target in places}


def _endless_checks(places: _Places, targets: Mapping[str, str]) -> list[str]:
    """Why checking one value would not end, or not in reasonable time."""
    applied = {pointer: _applied(pointer, places, targets) for pointer in places}
    try:
        inner_first = tuple(TopologicalSorter(applied).static_order())
    except CycleError as error:
        return [
            f"{min(error.args[1], key=len)}: it refers back to itself and says nothing of the value; describe the value"
        ]
    checks: dict[str, int] = {}
    for pointer in inner_first:
        checks[pointer] = 1 + sum(checks[part] for part in applied[pointer])
        if checks[pointer] > _MAX_CHECKS:
            return [
                f"{pointer}: its references multiply to more than {_MAX_CHECKS:,} checks of one value; repeat fewer"
            ]
    return []


def _applied(pointer: str, places: _Places, targets: Mapping[str, str]) -> list[str]:
    """The places whose schemas are applied to the very value that `pointer` is applied to."""
    schema = places[pointer]
    parts = [targets.get(pointer, ""), *(f"{pointer}/{keyword}" for keyword in _CONDITIONS)]
    parts += [f"{pointer}/{keyword}/{index}" for keyword in _BRANCHES for index in range(len(schema.get(keyword, ())))]
    parts += [f"{pointer}/dependentSchemas/{escaped(name)}" for name in schema.get("dependentSchemas", ())]
    return [each for each in parts if each in places]


def _unmatchable_root(places: _Places, targets: Mapping[str, str]) -> list[str]:
    """Why no finite value matches the root: the way from there to the part that nothing matches."""
    needs = {pointer: list(_needs(pointer, places, targets)) for pointer in places}
    matchable = _matchable(places, needs)
    pointer, seen = "#", set[str]()
    while pointer not in matchable:
        seen.add(pointer)
        if _excludes_all(places[pointer]):
            return [f"{pointer}: 'not' excludes every value; give a schema that some value can match"]
        group = next(group for group in needs[pointer] if not _has_match(group, places, matchable))
        pointer, part = group[0]
        if part is False:
            return [f"{pointer}: false matches nothing, and it is needed; give a schema that some value can match"]
        if pointer in seen:
            return [f"{pointer}: a value would have to hold another of its kind without end; make that optional"]
    return []


def _matchable(places: _Places, needs: Mapping[str, list[list[_Part]]]) -> set[str]:
    """Places that some finite value may match. Built up from below: what needs itself never gets in."""
    found = set[str]()
    waiting = [pointer for pointer in reversed(places) if not _excludes_all(places[pointer])]
    for _ in range(_MAX_PASSES):
        before = len(found)
        for pointer in waiting:
            if all(_has_match(group, places, found) for group in needs[pointer]):
                found.add(pointer)
        if len(found) == before:
            return found
        waiting = [pointer for pointer in waiting if pointer not in found]
    return set(places)  # too entangled to tell


def _has_match(group: list[_Part], places: _Places, matchable: set[str]) -> bool:
    return any(part is not False and (pointer in matchable or pointer not in places) for pointer, part in group)


def _needs(pointer: str, places: _Places, targets: Mapping[str, str]) -> Iterator[list[_Part]]:
    """Groups of parts: whatever matches the place matches, or holds what matches, one part of each group."""
    schema = places[pointer]
    if pointer in targets:
        yield [(targets[pointer], places[targets[pointer]])]
    for index, each in enumerate(schema.get("allOf", ())):
        yield [(f"{pointer}/allOf/{index}", each)]
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            yield [(f"{pointer}/{keyword}/{index}", each) for index, each in enumerate(schema[keyword])]
    if schema.get("type") == "object":
        properties: JsonObject = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name in properties:
                yield [(f"{pointer}/properties/{escaped(name)}", properties[name])]
    if schema.get("type") == "array":
        least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
        for index, each in enumerate(first[: int(least)]):
            yield [(f"{pointer}/prefixItems/{index}", each)]
        if least > len(first) and "items" in schema:
            yield [(f"{pointer}/items", schema["items"])]


def _excludes_all(schema: JsonObject) -> bool:
    return "not" in schema and (schema["not"] is True or schema["not"] == {})


# ---- values ------------------------------------------------------------------------------------------------


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
