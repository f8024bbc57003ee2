"""Every schema inside a JSON Schema (draft 2020-12), with its place."""

from collections.abc import Collection, Iterator
from typing import Any, cast

from fanfold.contracts.record import JsonObject

_ONE = frozenset(
    {
        "items",
        "unevaluatedItems",
        "contains",
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
    }
    | {"not", "if", "then", "else", "contentSchema"}
)
_LIST = frozenset({"prefixItems", "allOf", "anyOf", "oneOf"})
_MAP = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})


def subschemas(root: JsonObject, without: Collection[str] = ()) -> Iterator[tuple[str, JsonObject]]:
    """`root` and every object schema within it with its JSON pointer (`#/properties/a`), in document order.

    What merely looks like a schema (a value in `const`, a property that is called `items`) is not one.
    Keywords of the wrong shape are passed over: naming them is the compiler's business. What lies under the
    keywords in `without` is left out.
    """
    pending: list[tuple[str, JsonObject]] = [("#", root)]
    while pending:
        pointer, schema = pending.pop()
        yield pointer, schema
        inner = list(_children(pointer, schema, without))
        pending.extend(reversed(inner))


def _children(pointer: str, schema: JsonObject, without: Collection[str]) -> Iterator[tuple[str, JsonObject]]:
    for keyword, value in schema.items():
        if keyword in without:
            continue
        for place, each in _held_by(keyword, value):
            if isinstance(each, dict):
                yield f"{pointer}/{keyword}{place}", cast(JsonObject, each)


def _held_by(keyword: str, value: Any) -> Iterator[tuple[str, object]]:
    if keyword in _ONE:
        yield "", value
    elif keyword in _LIST and isinstance(value, list):
        for index, each in enumerate(cast(list[object], value)):
            yield f"/{index}", each
    elif keyword in _MAP and isinstance(value, dict):
        for name, each in cast(JsonObject, value).items():
            yield f"/{escaped(name)}", each


def escaped(name: str) -> str:
    """`name` as one token of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def unescaped(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")
