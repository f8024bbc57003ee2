"""Arguments of a workflow as they are typed: `key=value`, `@file.json`, or a JSON object; later ones win."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from fanfold.cli.event_fields import object_of
from fanfold.cli.named_input import STDIN, read_stdin, read_text
from fanfold.contracts.codec import decode_json
from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.errors import UsageError

_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def parse_arguments(typed: Sequence[str], schema: JsonObject | None) -> JsonObject | None:
    """The arguments; None when none were typed.

    A value is text, unless the workflow's schema wants something else there: then it is JSON, or the next item of a
    list, for `key=value` may be repeated for one.

    Raises:
        UsageError: one of them is none of the three, or no such value; nothing is checked against the schema.
    """
    if not typed:
        return None
    args: JsonObject = {}
    singles: set[str] = set()
    properties = object_of((schema or {}).get("properties"))
    for each in typed:
        if each.startswith(("{", "@")):
            args |= _whole(each)
            continue
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise UsageError(f"--args {each}: give key=value, @file.json or a JSON object")
        of_one = object_of(properties.get(key))
        value, is_item = _value(f"--args {key}", text, of_one)
        if is_item and isinstance(args.get(key), list) and key in singles:
            args[key].append(value)
        elif key in singles:
            raise UsageError(f"--args {key}: it is given twice, and the workflow takes one value there")
        else:
            args[key] = [value] if is_item else value
        singles.add(key)
    return args


def _whole(typed: str) -> JsonObject:
    if typed.startswith("{"):
        label, text = "--args", typed
    elif typed[1:] == STDIN:
        label, text = "--args @-", read_stdin(sys.stdin.buffer)
    else:
        label, text = f"--args {typed}", read_text(Path(typed[1:]))
    try:
        given: JsonObject = decode_json(text, JsonObject)
        return given
    except msgspec.DecodeError as error:
        raise UsageError(f"{label}: it is no JSON object: {error}") from error


def _value(place: str, text: str, schema: JsonObject) -> tuple[JsonValue, bool]:
    """(the value, whether it is one item of a list)."""
    kinds = _kinds(schema)
    if not kinds or "string" in kinds:
        return text, False
    if "array" in kinds and not text.lstrip().startswith("["):
        return _value(place, text, object_of(schema.get("items")))[0], True
    try:
        value: JsonValue = decode_json(text, Any)
    except msgspec.DecodeError:
        raise UsageError(f"{place}: '{text}' is no {' or '.join(sorted(kinds))}") from None
    return value, False


def _kinds(schema: JsonObject) -> set[str]:
    """The JSON types that a schema names; empty when it names none."""
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {str(each) for each in cast("list[object]", named)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {_TYPES.get(type(each), "object") for each in cast("list[object]", values)}
    choices = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(choices, list):
        return set()
    found = [_kinds(object_of(each)) for each in cast("list[object]", choices)]
    return {kind for kinds in found for kind in kinds} if all(found) else set()
