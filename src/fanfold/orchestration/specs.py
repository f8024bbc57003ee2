"""Specs as callers write them, made into `AgentStepSpec`s: all of them checked before any of them runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fanfold.contracts.codec import encode_readable
from fanfold.contracts.steps import AgentStepSpec
from fanfold.errors import InvalidSpecError
from fanfold.kernel.plain_text import is_plain
from fanfold.kernel.schema import compile_schema
from fanfold.nearest import did_you_mean

MAX_TASK_ID = 256
_FIELDS = AgentStepSpec.__struct_fields__
_REQUIRED = ("task_id", "agent", "prompt")
_TEXTS = ("task_id", "agent", "description", "prompt", "model", "parent_session_id")
_MOST = 10**9
ISOLATED = "worktree"
_LEAST = (("max_steps", 0), ("timeout_ms", 1), ("retries", 0))

_any_json = msgspec.json.Decoder()

SpecLike = AgentStepSpec | Mapping[str, Any]


def listed(specs: Sequence[SpecLike]) -> Sequence[SpecLike]:
    """The specs as a list that can be gone through more than once.

    Raises:
        InvalidSpecError: they are none.
    """
    if isinstance(specs, Mapping | str | bytes) or not isinstance(specs, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSpecError("expected a list of specs, got one " + type(specs).__name__)
    return list(specs)


def parse_specs(specs: Sequence[SpecLike]) -> list[AgentStepSpec]:
    """The specs, checked.

    Raises:
        InvalidSpecError: `invalid AgentStepSpec: specs[2].max_steps: ...`, for the first fault found; also for a
            `task_id` that occurs twice.
    """
    parsed = [parse_spec(each, index) for index, each in enumerate(listed(specs))]
    seen: dict[str, int] = {}
    for index, spec in enumerate(parsed):
        first = seen.setdefault(spec.task_id, index)
        if first != index:
            reason = f"'{spec.task_id}' is already the id of specs[{first}]; every step needs its own"
            raise InvalidSpecError(reason, index=index, field="task_id")
    return parsed


def parse_spec(source: SpecLike, index: int | None = None) -> AgentStepSpec:
    """One spec, checked; `index` is named in the error."""
    spec = _converted(source, index)
    if not spec.task_id.strip() or len(spec.task_id) > MAX_TASK_ID:
        raise InvalidSpecError(f"must be 1 to {MAX_TASK_ID} characters", index=index, field="task_id")
    texts = f"{spec.task_id}{spec.agent}{spec.description}{spec.prompt}{spec.model}{spec.parent_session_id}"
    if not is_plain(texts):
        field = next(field for field in _TEXTS if not is_plain(getattr(spec, field) or ""))
        raise InvalidSpecError("holds a lone surrogate, which is no text", index=index, field=field)
    for field, least in _LEAST:
        value = getattr(spec, field)
        if value is not None and not least <= value <= _MOST:
            bound = f"{least} or more" if value < least else f"{_MOST:,} or less"
            raise InvalidSpecError(f"must be {bound}, got {value:.6g}", index=index, field=field)
    if spec.metadata is not None:
        _require_json(spec.metadata, index)
    if spec.output_schema is None:
        return spec
    try:
        schema = compile_schema(spec.output_schema).schema
    except InvalidSpecError as error:
        raise InvalidSpecError(error.reason, index=index, field="output_schema") from error
    return spec if schema is spec.output_schema else msgspec.structs.replace(spec, output_schema=schema)


def _require_json(metadata: object, index: int | None) -> None:
    try:
        encode_readable(metadata, _any_json)
    except ValueError as error:
        raise InvalidSpecError(f"must be JSON data: {error}", index=index, field="metadata") from error


def _converted(source: SpecLike, index: int | None) -> AgentStepSpec:
    if isinstance(source, dict):
        try:
            return msgspec.convert(source, AgentStepSpec)  # the usual case, three times as fast
        except msgspec.ValidationError:
            pass  # it is said more precisely below, or it is none: null stands for what is not given
    return _from_mapping(source, index)


def _from_mapping(source: SpecLike, index: int | None) -> AgentStepSpec:
    if not isinstance(source, Mapping | AgentStepSpec):  # pyright: ignore[reportUnnecessaryIsInstance]  callers are not type-checked
        raise InvalidSpecError(f"expected a mapping, got {type(source).__name__}", index=index)
    fields = {str(key): value for key, value in source.items()}
    for key in fields:
        if key not in _FIELDS:
            raise InvalidSpecError(f"unknown key '{key}'{did_you_mean(key, _FIELDS)}", index=index)
    for key in _REQUIRED:
        if fields.get(key) is None:
            raise InvalidSpecError("is required", index=index, field=key)
    if fields.get("isolation") not in (None, ISOLATED):
        raise InvalidSpecError(f"must be '{ISOLATED}', got {fields['isolation']!r}", index=index, field="isolation")
    given = {key: value for key, value in fields.items() if value is not None}
    try:
        return msgspec.convert(given, AgentStepSpec)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        raise InvalidSpecError(reason, index=index, field=place.strip("`").removeprefix("$.") or None) from None
