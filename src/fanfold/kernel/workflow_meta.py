"""What a launch brings, checked before anything is written or run: a workflow's meta data, args, and id of its run."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from fanfold.contracts.codec import decode_json, encode_json
from fanfold.contracts.record import JsonObject
from fanfold.contracts.workflow_runs import WorkflowMeta
from fanfold.errors import InvalidSpecError, WorkflowInputError
from fanfold.kernel.plain_text import is_plain
from fanfold.kernel.schema import MAX_DEPTH, OutputSchema, compile_schema, instance_path
from fanfold.nearest import did_you_mean

MAX_VALUE_BYTES = 67_108_864
"""Of a value whose taker names no limit of its own."""

_FIELDS = WorkflowMeta.__struct_fields__
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RUN_ID = re.compile(r"wf_(.{1,64})_[0-9a-f]{16}")
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_MAX_NUMBER_BITS = 10_000
"""Python itself refuses to read whole numbers of more than 4300 digits."""
_MAX_SHOWN_CHARS = 80
_AGENT_ID_DIGITS = 12


# ---- meta data -----------------------------------------------------------------------------------------------


def parse_meta(given: object) -> WorkflowMeta:
    """The meta data of a workflow, as its author wrote it: a dict, or any other mapping, or a `WorkflowMeta`.

    Raises:
        WorkflowInputError: `bad_meta`, naming the field and the fix; for the first fault found.
    """
    if not isinstance(given, Mapping | WorkflowMeta):
        raise _bad_meta(f'must be a dict like {{"name": "...", "description": "..."}}, got {type(given).__name__}')
    fields = dict(cast("Mapping[object, Any]", given))
    for key in fields:
        if key not in _FIELDS:
            raise _bad_meta(f"has an unknown key {_shown(key)}{did_you_mean(str(key), _FIELDS)}")
    schema = fields.get("args_schema")
    when_to_use = fields.get("when_to_use")
    return WorkflowMeta(
        name=_name(fields.get("name")),
        description=_text("description", fields.get("description")),
        phases=_phases(fields.get("phases")),
        when_to_use=None if when_to_use is None else _text("when_to_use", when_to_use),
        args_schema=None if schema is None else _args_schema(schema),
    )


def name_fault(name: str) -> str | None:
    """Why `name` can name no workflow, or None: it becomes a part of file names, on every system (D13)."""
    if not _NAME.fullmatch(name):
        return "must be 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
    if name.endswith("."):
        return "must not end in '.', which some file systems drop"
    if _WINDOWS_DEVICE.fullmatch(name):
        return "is the name of a device on Windows; choose another one"
    return None


def _name(given: object) -> str:
    if type(given) is not str:
        raise _bad_meta(f"name must be a str, got {_shown(given)}")
    fault = name_fault(given)
    if fault is not None:
        raise _bad_meta(f"name {fault}, got {_shown(given)}")
    return given


def _text(field: str, given: object) -> str:
    if type(given) is not str or not given.strip():
        raise _bad_meta(f"{field} must be a str that is not blank, got {_shown(given)}")
    if not is_plain(given):
        raise _bad_meta(f"{field} holds a lone surrogate, which is no text; write the character itself")
    return given


def _phases(given: object) -> tuple[str, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list | tuple):
        raise _bad_meta(f"phases must be a list of titles, got {_shown(given)}")
    titles: dict[str, None] = {}
    for index, each in enumerate(cast("list[object]", given)):
        title = _text(f"phases[{index}]", each)
        if title in titles:
            raise _bad_meta(f"phases[{index}] repeats {_shown(title)}; progress is grouped by title: name each once")
        titles[title] = None
    return tuple(titles)


def _args_schema(given: object) -> JsonObject:
    if not isinstance(given, dict):
        raise _bad_meta(f"args_schema must be a JSON Schema (dict), got {_shown(given)}")
    try:
        schema = compile_schema(cast("object", given)).schema
        types = schema.get("type", "object")
        if "object" not in ([types] if isinstance(types, str) else types):
            raise _bad_meta(f"args_schema can never match: args are an object, and its type is {_shown(types)}")
        _schema_of_objects(schema)
    except InvalidSpecError as error:
        raise _bad_meta(f"args_schema: {error.reason}") from None
    return schema


def _schema_of_objects(schema: JsonObject) -> OutputSchema:
    """`schema` where it is known that the value is an object: then more of its contradictions show."""
    return compile_schema({**schema, "type": "object"})


def _bad_meta(reason: str) -> WorkflowInputError:
    return WorkflowInputError("bad_meta", f"workflow meta {reason}")


# ---- args ----------------------------------------------------------------------------------------------------


def parse_args(given: object, meta: WorkflowMeta, limit_bytes: int) -> JsonObject:
    """What a script gets as its args: a copy, as JSON gives it back, in the first run as in every later one.

    Args:
        given: A mapping, nothing, or the JSON text of an object, for models send it so; a text counts by its own size.
        limit_bytes: Of the args as JSON.

    Raises:
        WorkflowInputError: `bad_args`, naming the place of the fault.
    """
    if isinstance(given, str):
        given = _read_args(given, meta, limit_bytes)
    if given is not None and not isinstance(given, Mapping):
        raise _bad_args(meta, f"must be a JSON object (dict), got {_shown(given)}")
    fields = dict(cast("Mapping[object, object]", given or {}))
    fault = json_fault(fields, limit_bytes)
    if fault is not None:
        raise _bad_args(meta, f"are not JSON: {fault}")
    written = encode_json(fields)
    if len(written) > limit_bytes:
        raise _bad_args(meta, _too_large(limit_bytes))
    args: JsonObject = decode_json(written)
    if meta.args_schema is not None:
        errors = _schema_of_objects(meta.args_schema).validate(args)
        if errors:
            raise _bad_args(meta, f"do not match its args_schema: {'; '.join(errors)}")
    return args


def _read_args(text: str, meta: WorkflowMeta, limit_bytes: int) -> object:
    if len(text) > limit_bytes:
        raise _bad_args(meta, _too_large(limit_bytes))
    try:
        value: object = decode_json(text)
    except ValueError as error:
        raise _bad_args(meta, f"must be a JSON object, got a str that is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise _bad_args(meta, f"must be a JSON object, got a str that holds {_shown(value)}")
    return cast("object", value)


def _too_large(limit_bytes: int) -> str:
    return f"take more than {limit_bytes:,} bytes as JSON; put large data into files and pass their paths"


def _bad_args(meta: WorkflowMeta, reason: str) -> WorkflowInputError:
    return WorkflowInputError("bad_args", f"args of workflow '{meta.name}' {reason}")


# ---- JSON ----------------------------------------------------------------------------------------------------

_Place = tuple["_Place | None", str | int]
"""The place of the container, and the key in it: a path that costs nothing until somebody asks for it."""


def json_fault(value: object, limit_bytes: int = MAX_VALUE_BYTES) -> str | None:
    """Why `value` would not come back from JSON as it is, `<path>: <reason>`; None when it would, but for tuples, which
    come back as lists.

    Takes no longer than `limit_bytes` allows, also for what holds itself, or one part a million times.
    """
    size = 0
    pending: list[tuple[object, _Place | None, int]] = [(value, None, 0)]
    while pending:
        each, place, depth = pending.pop()
        fault, least = _weighed(each)
        size += least
        if fault is None and depth >= MAX_DEPTH and isinstance(each, dict | list | tuple):
            fault = f"nested deeper than {MAX_DEPTH} levels"
        if fault is not None:
            return f"{instance_path(_steps(place))}: {fault}"
        parts: Iterable[tuple[str | int, object]] = ()
        if isinstance(each, dict):
            parts = cast("dict[str, object]", each).items()
        elif isinstance(each, list | tuple):
            parts = enumerate(cast("list[object]", each))
        inner: list[tuple[object, _Place | None, int]] = []
        for key, part in parts:
            if type(part) is str and part.isascii():  # as most are, and it need not wait for its turn
                size += 2 + len(part)
            else:
                inner.append((part, (place, key), depth + 1))
        if size > limit_bytes:
            return f"$: it takes more than {limit_bytes:,} bytes"
        pending.extend(reversed(inner))
    return None


def _weighed(value: object) -> tuple[str | None, int]:
    """(What is wrong with `value` but for its parts, bytes that it takes at least)."""
    kind = type(value)
    if kind is str:
        text = cast("str", value)
        return (None if is_plain(text) else "a lone surrogate, which is no text"), 2 + len(text)
    if value is None or kind is bool:
        return None, 4
    if kind is int:
        bits = cast("int", value).bit_length()
        return (None if bits <= _MAX_NUMBER_BITS else "too large a number; pass it as text"), max(1, bits // 4)
    if kind is float:
        return (None if math.isfinite(cast("float", value)) else f"{value} is no JSON number; use None"), 3
    if isinstance(value, dict):
        keys = cast("Mapping[object, object]", value)
        for key in keys:
            if type(key) is not str or not is_plain(key):
                return f"the key {_shown(key)} is no text; JSON objects have str keys", 0
        return None, 1 + 4 * len(keys) + sum(map(len, cast("dict[str, object]", keys)))
    if isinstance(value, list | tuple):
        return None, 1 + len(cast("list[object]", value))
    return f"{kind.__name__} is no JSON type; use dict, list, str, int, float, bool or None", 0


def _steps(place: _Place | None) -> list[str | int]:
    steps: list[str | int] = []
    while place is not None:
        place, step = place
        steps.append(step)
    return steps[::-1]


def _shown(value: object) -> str:
    text = repr(value) if value is None or isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 1]}…"


# ---- ids -----------------------------------------------------------------------------------------------------


def run_id_of(name: str, random_hex16: str) -> str:
    """`wf_<name>_<16 hex digits>`, the id of a new run of the workflow `name`.

    Raises:
        WorkflowInputError: `bad_run_id`, one of the two is not what it should be.
    """
    run_id = f"wf_{name}_{random_hex16}"
    workflow_of(run_id)
    return run_id


def is_run_id(text: object) -> bool:
    """True for what `run_id_of` gives, which is safe in file names."""
    found = _RUN_ID.fullmatch(text) if isinstance(text, str) else None
    return found is not None and name_fault(found[1]) is None


def workflow_of(run_id: str) -> str:
    """The name of the workflow that it is a run of.

    Raises:
        WorkflowInputError: `bad_run_id`.
    """
    if not is_run_id(run_id):
        raise WorkflowInputError(
            "bad_run_id", f"{_shown(run_id)} is no run id; one looks like wf_<name>_<16 hex digits>"
        )
    return run_id[len("wf_") : -len("_0123456789abcdef")]


def task_id_of(run_id: str) -> str:
    return f"local_workflow_{run_id}"


def agent_id_of(key: str) -> str:
    """The task id of the agent of a call, the same in each attempt at it.

    Args:
        key: Its idempotency key, `<run id>:<identity>:<occurrence>`.
    """
    run_id, identity, occurrence = key.rsplit(":", 2)
    return f"{run_id}-{identity[:_AGENT_ID_DIGITS]}-{occurrence}"
