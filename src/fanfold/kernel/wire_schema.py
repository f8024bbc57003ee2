"""The form of a schema that models are shown: its root is an object, as providers demand (spec 6.2)."""

from fanfold.contracts.record import JsonObject
from fanfold.kernel.subschemas import subschemas, unescaped

_DEFINITIONS = ("$defs", "definitions")
_BESIDE_REF = frozenset({*_DEFINITIONS, "$ref", "$schema", "$comment", "title", "description"})
"""Keywords beside a root `$ref` that do not change what it matches."""
_IDENTITY = frozenset({"$id", "$anchor", "$dynamicAnchor"})
_OBJECT_KEYWORDS = frozenset({"properties", "required", "additionalProperties", "patternProperties"})


def wire_form(schema: JsonObject) -> tuple[JsonObject, str | None]:
    """`schema` with an object root, and the envelope's key if it had to be wrapped for that.

    A root that refers to a definition (as msgspec and recursive pydantic models give) is replaced by that
    definition. Arrays are wrapped under `elements`, anything else that is no object under `value`. The result
    shares parts with `schema`, which is used up.
    """
    root = _resolved(schema)
    if root.get("type") == "object":
        return root, None
    if "type" not in root and _OBJECT_KEYWORDS & root.keys():
        return {"type": "object", **root}, None
    envelope = "elements" if root.get("type") == "array" else "value"
    return _wrapped(schema, envelope), envelope


def _resolved(schema: JsonObject) -> JsonObject:
    """The root after following its local `$ref`s; `schema` itself where plain inlining cannot do that."""
    root = schema
    seen: set[str] = set()
    while "$ref" in root and root.keys() <= _BESIDE_REF and root["$ref"] not in seen:
        seen.add(root["$ref"])
        target = _definition(schema, root["$ref"])
        if target is None or _IDENTITY & target.keys():
            return schema
        root = {**target, **{keyword: value for keyword, value in root.items() if keyword != "$ref"}}
    return root


def _definition(schema: JsonObject, reference: str) -> JsonObject | None:
    group, _, token = reference.removeprefix("#/").partition("/")
    found: JsonObject | bool | None = schema.get(group, {}).get(unescaped(token)) if group in _DEFINITIONS else None
    return found if isinstance(found, dict) else None


def _wrapped(schema: JsonObject, envelope: str) -> JsonObject:
    hoisted: JsonObject = {}
    if "$id" not in schema:  # with an id of its own the inner schema stays the root of its references
        for _, each in subschemas(schema):
            _move_references(each, envelope)
        hoisted = {keyword: schema.pop(keyword) for keyword in _DEFINITIONS if keyword in schema}
    schema.pop("$schema", None)
    return {
        "type": "object",
        "properties": {envelope: schema},
        "required": [envelope],
        "additionalProperties": False,
        **hoisted,
    }


def _move_references(schema: JsonObject, envelope: str) -> None:
    for keyword in ("$ref", "$dynamicRef"):
        reference: str | None = schema.get(keyword)
        if reference is None or not (reference == "#" or reference.startswith("#/")):
            continue
        if not reference.startswith(tuple(f"#/{group}/" for group in _DEFINITIONS)):
            schema[keyword] = f"#/properties/{envelope}{reference[1:]}"
