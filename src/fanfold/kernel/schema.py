"""An output schema ready for use: found sane, compiled once, applied to values without any I/O."""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.contracts.steps import schema_of
from fanfold.errors import InvalidSpecError
from fanfold.kernel.contradictions import contradictions
from fanfold.kernel.subschemas import escaped, subschemas
from fanfold.kernel.wire_schema import wire_form

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator, ValidationError

MAX_ERRORS = 20
MAX_DEPTH = 200
"""Levels of arrays and objects in a value. The native validator recurses: a bomb would end the process."""

_MAX_REASON_CHARS = 300
_MAX_BRANCHES = 3
_MAX_FAULTS = 5
_CACHED_SCHEMAS = 256
_BACKTRACK_LIMIT = 100_000
"""Steps that one match of a pattern with look-around or back-references may take, some 4 ms. All others
are matched in linear time."""

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_CONTAINERS = (dict, list, tuple)
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


class OutputSchema(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Made by `compile_schema` and shared by all who gave the same schema: treat its dicts as read-only."""

    schema: JsonObject
    """As given (draft 2020-12); `True` is `{}`."""
    wire_schema: JsonObject
    """What a model is shown and a provider is sent: the same with an object as its root."""
    envelope: str | None
    """The key under which `wire_schema` holds the value, if the root had to be wrapped."""
    _validator: "Draft202012Validator"

    def validate(self, value: JsonValue) -> tuple[str, ...]:
        """Lines `<instance path>: <reason>`, at most `MAX_ERRORS`; none when `value` matches `schema`.

        `$` is the value itself: `$.items[2].name: 5 is not of type "string"`.
        """
        unfit = _unfit(value)
        if unfit is not None:
            return (f"$: {unfit}",)
        try:
            if self._validator.is_valid(value):
                return ()
            found = islice(self._validator.iter_errors(value), MAX_ERRORS)
            return tuple(f"{instance_path(each.instance_path)}: {_reason(each)}" for each in found)
        except ValueError as error:  # a key that is no string
            return (f"$: not a JSON value: {error}",)

    def unwrap(self, value: JsonValue) -> JsonValue:
        """What the envelope holds; `value` itself when there is no envelope around it."""
        if self.envelope is not None and isinstance(value, dict) and value.keys() == {self.envelope}:
            inner: JsonValue = value[self.envelope]
            return inner
        return value


def compile_schema(source: object) -> OutputSchema:
    """The schema of what a user gave as `output_schema`: a dict, a boolean, or a class that has a schema.

    Equal schemas are compiled once; the later use of `source` does not change what came of it.

    Raises:
        InvalidSpecError: no schema, one that does not compile, one that refers to something outside itself,
            or one that nothing can match. `reason` is `schema at <JSON pointer>: <fault>; <fix>`.
    """
    try:
        schema: object = schema_of(source)
    except Exception as error:  # a model class runs its own code here, which may raise anything
        raise InvalidSpecError(f"no JSON Schema: {error}; {_WANTED}") from error
    if not isinstance(schema, dict | bool):
        raise InvalidSpecError(f"no JSON Schema: {type(source).__name__}; {_WANTED}")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSpecError(f"schema is not JSON: {error}; use plain JSON values only") from error
    return _compiled(text)


_WANTED = "give a dict, or a pydantic model, dataclass, TypedDict or msgspec Struct class"


# Keyed by the text, not by its sorted form: a model writes properties in the order in which it reads them.
@lru_cache(maxsize=_CACHED_SCHEMAS)
def _compiled(text: str) -> OutputSchema:
    given: JsonObject | bool = json.loads(text)
    if given is False:
        raise _invalid("#: false matches nothing; give a schema that some value can match")
    schema: JsonObject = {} if given is True else given
    validator = _validator_of(schema)
    faults = list(islice(contradictions(schema), _MAX_FAULTS))
    if faults:
        raise _invalid("; ".join(faults))
    wire_schema, envelope = wire_form({} if given is True else json.loads(text))
    return OutputSchema(schema=schema, wire_schema=wire_schema, envelope=envelope, _validator=validator)


def _validator_of(schema: JsonObject) -> "Draft202012Validator":
    # Imported here: 13 ms that `import fanfold` and runs without an output_schema should not pay.
    import jsonschema_rs

    try:
        return jsonschema_rs.Draft202012Validator(
            schema,
            # The default fetches: a schema written by a model could reach into the host's network.
            retriever=_refuse_remote,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT),
        )
    except jsonschema_rs.ValidationError as error:
        raise _invalid(_compile_fault(schema, error)) from error
    except ValueError as error:
        raise _invalid(f"#: {error}; make the schema simpler") from error


def _refuse_remote(uri: str) -> NoReturn:
    raise ValueError(f"remote schemas are never fetched: {uri}")


def _compile_fault(schema: JsonObject, error: "ValidationError") -> str:
    if error.instance_path:
        return f"#/{'/'.join(escaped(str(each)) for each in error.instance_path)}: {_reason(error)}"
    for pointer, each in subschemas(schema):
        for keyword in ("$ref", "$dynamicRef"):
            reference = each.get(keyword)
            if isinstance(reference, str) and _is_named(reference, error.message):
                return (
                    f"{pointer}/{keyword}: nothing at '{reference}'; remote schemas are never fetched, "
                    "put the definition under $defs and refer to #/$defs/<name>"
                )
    return f"#: {_reason(error)}"


def _is_named(reference: str, message: str) -> bool:
    """The validator names the document it wanted, or the fragment that it missed there, in single quotes."""
    return any(part and f"'{part}'" in message for part in reference.split("#"))


def _invalid(fault: str) -> InvalidSpecError:
    return InvalidSpecError(f"schema at {fault}")


def _unfit(value: JsonValue) -> str | None:
    """Why `value` cannot even be handed to the validator, which is lazy and would let some of it pass."""
    try:
        text = encode_json(value)
    except RecursionError:
        return _TOO_DEEP
    except (TypeError, ValueError) as error:  # a lone surrogate in a string, an object of Python
        return f"not a JSON value: {error}"
    # Few brackets cannot be deep: true of nearly all values, and ten times faster to find out than the depth.
    has_few_brackets = text.count(b"[") + text.count(b"{") <= MAX_DEPTH
    return _TOO_DEEP if not has_few_brackets and _is_nested_beyond(MAX_DEPTH, value) else None


def _is_nested_beyond(depth: int, value: JsonValue) -> bool:
    level: list[Any] = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(depth):
        level = [
            child
            for each in level
            for child in (each.values() if hasattr(each, "values") else each)
            if isinstance(child, _CONTAINERS)
        ]
        if not level:
            return False
    return bool(level)


def instance_path(path: Sequence[str | int]) -> str:
    """`$.items[2].name`, `$["odd name"]`; `$` is the value itself."""
    steps = (
        f"[{json.dumps(each, ensure_ascii=False)}]"
        if isinstance(each, int) or not re.fullmatch(_NAME, each)
        else f".{each}"
        for each in path
    )
    return "$" + "".join(steps)


def _reason(error: "ValidationError") -> str:
    """The validator's message, for a failed choice with what failed in its branches."""
    branches: Sequence[Sequence[ValidationError]] = getattr(error.kind, "context", ())
    failed = [_shortened(each[0].message) for each in branches[:_MAX_BRANCHES] if each]
    return _shortened(error.message) + (f" ({'; or '.join(failed)})" if failed else "")


def _shortened(text: str) -> str:
    half = _MAX_REASON_CHARS // 2
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[:half]} … {text[-half:]}"
