"""`outcome.parsed`: what a step answered, as an instance of the class that was given as its `output_schema`."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from fanfold.contracts.record import JsonValue, Record
from fanfold.contracts.steps import SCHEMA_MISMATCH, StepOutcome
from fanfold.foreign import described
from fanfold.kernel.schema import instance_path

Parser = Callable[[Any], Any]
"""Makes the instance of a value that matches the class's schema. Raises what the class raises when it refuses it."""

MAX_REFUSALS = 20
"""Faults named of one value."""


def parsers_of(specs: Sequence[Mapping[str, Any] | Record]) -> list[Parser | None]:
    """For each spec, as its caller gave it, the parser of its class; None where it has none or a plain schema."""
    return [_parser_of(spec.get("output_schema")) for spec in specs]


def with_parsed(outcome: StepOutcome, parser: Parser | None) -> StepOutcome:
    """`outcome` with `parsed` set, or a failure where the class, which may be stricter than its schema, refuses."""
    if parser is None or not outcome.success:
        return outcome
    try:
        instance = parser(_with_whole_numbers(outcome.structured))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  the class runs its own code here, which may raise anything
        why = f"[structured output failed: {_refusal(error)}]"
        output = f"{outcome.output}\n\n{why}"
        return msgspec.structs.replace(
            outcome, success=False, structured=None, output=output, error_code=SCHEMA_MISMATCH
        )
    parsed = msgspec.structs.replace(outcome)  # the one that was given may be somebody else's too
    vars(parsed)["parsed"] = instance
    return parsed


def _parser_of(source: Any) -> Parser | None:
    if source is None or isinstance(source, dict | bool):
        return None
    if not hasattr(source, "model_json_schema"):
        return partial(msgspec.convert, type=source, str_keys=True)
    # As JSON where the class can: a strict model refuses a date or an enum that comes as a string in Python's mode.
    read: Parser | None = getattr(source, "model_validate_json", None)
    return source.model_validate if read is None else lambda value: read(json.dumps(value))


def _with_whole_numbers(value: JsonValue) -> Any:
    """`value` with 2 for 2.0, which JSON Schema calls an integer, as classes do not; some gateways write it so."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_whole_numbers(each) for key, each in value.items()}
    return [_with_whole_numbers(each) for each in value] if isinstance(value, list) else value


def _refusal(error: BaseException) -> str:
    """`$.a[0]: <reason>; ...`, as far as the error says where."""
    if isinstance(error, msgspec.ValidationError):
        reason, _, place = str(error).partition(" - at ")
        return f"{place.strip('`') or '$'}: {reason}"
    if type(error).__module__.partition(".")[0] not in ("pydantic", "pydantic_core"):
        return described(error)
    faults: Sequence[Any] = cast("Any", error).errors(include_url=False)[:MAX_REFUSALS]
    return "; ".join(f"{instance_path(each['loc'])}: {each['msg']}" for each in faults)
