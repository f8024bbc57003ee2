"""The only JSON of the records: a fact's line in the log and back.

Line: `{"seq", "type", "key", "cause", "payload"}` in this order, UTF-8, closed by a newline. The payload's class is
chosen by `type`; unknown fields and unknown kinds other than `note.*` are errors, for a fold must not guess.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar, cast

import msgspec

from fanfold.contracts.facts import (
    BudgetDenied,
    Compacted,
    ConfirmationAnswered,
    Fact,
    ModelTurn,
    Note,
    QuestionAnswered,
    QuestionTurn,
    TextTurn,
    ToolResulted,
    ToolTurn,
    UserMessaged,
)
from fanfold.errors import UsageError

T = TypeVar("T")


class _Line(msgspec.Struct, Generic[T], frozen=True, forbid_unknown_fields=True):
    seq: int
    type: str
    key: str
    cause: str | None
    payload: T


_NOTE_PREFIX = "note."
_encoder = msgspec.json.Encoder()
_raw_line_decoder = msgspec.json.Decoder(_Line[msgspec.Raw])
_kinds: dict[type, str] = {
    **dict.fromkeys((TextTurn, ToolTurn, QuestionTurn), "model.turn"),
    **{
        each: each.kind
        for each in (UserMessaged, ToolResulted, ConfirmationAnswered, QuestionAnswered, Compacted, BudgetDenied)
    },
}
_forms: dict[str, Any] = {kind: ModelTurn if kind == "model.turn" else each for each, kind in _kinds.items()}
_note_decoder = msgspec.json.Decoder(dict[str, Any])


# Decoders are made when they are needed: each takes a quarter of a millisecond, and a start is to be short.
@cache
def _written_as(payload: type) -> tuple[str, msgspec.json.Decoder[Any]]:
    """The `type` of a line with such a payload (a note has its own) and what reads the line."""
    line: Any = _Line
    if payload is Note:
        return "", msgspec.json.Decoder(line[dict[str, Any]])
    if payload not in _kinds:
        raise ValueError(f"{payload.__name__} is no payload")
    kind = _kinds[payload]
    return kind, msgspec.json.Decoder(line[_forms[kind]])


@cache
def _payload_decoder(kind: str) -> msgspec.json.Decoder[Any]:
    if kind not in _forms:
        raise ValueError(f"unknown fact kind '{kind}'")
    return msgspec.json.Decoder(_forms[kind])


def encode_fact(fact: Fact) -> bytes:
    """One line of the log, with its newline; `decode_fact` is sure to give the same fact back.

    A line that cannot be read would block its thread for good, and types are only a promise: so it is read back here.

    Raises:
        UsageError: some value is not of its type, or is nothing that JSON can hold.
    """
    payload = fact.payload
    try:
        kind, decoder = _written_as(type(payload))
        line: _Line[Any]
        if isinstance(payload, Note):
            line = _Line(fact.seq, _kind_of(payload), fact.key, fact.cause, payload.data)
        else:
            line = _Line(fact.seq, kind, fact.key, fact.cause, payload)
        return encode_readable(line, decoder) + b"\n"
    except ValueError as error:
        raise UsageError(f"fact {fact.key!r} was not written: {error}") from error


def decode_fact(line: bytes | memoryview) -> Fact:
    """The fact of one line.

    Raises:
        ValueError: not a fact this version knows; the text says what is wrong and where.
    """
    raw = read_json(line, _raw_line_decoder)
    if not raw.type or not raw.key:
        raise ValueError("type and key are required")
    if raw.type.startswith(_NOTE_PREFIX):
        return Fact(raw.seq, raw.key, raw.cause, Note(raw.type, read_json(raw.payload, _note_decoder)))
    return Fact(raw.seq, raw.key, raw.cause, read_json(raw.payload, _payload_decoder(raw.type)))


def read_json(data: bytes | memoryview | str | msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """What `decoder` finds in `data`.

    Raises:
        msgspec.DecodeError: no JSON, or not of its type; also for JSON that is nested too deeply, which msgspec alone
            tells as a RecursionError that nobody expects from data.
    """
    try:
        return decoder.decode(data)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None


def decode_json(data: bytes | str, type: Any = Any) -> Any:
    """The value of one JSON text; raises like `read_json`."""
    return read_json(data, msgspec.json.Decoder(type))


def encode_readable(value: object, decoder: msgspec.json.Decoder[Any]) -> bytes:
    """JSON of `value`, from which `decoder` gets an equal one.

    Raises:
        ValueError: that cannot be; the text says why.
    """
    try:
        written = _encoder.encode(value)
        twin = decoder.decode(written)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if twin != value and not _is_read_as(value, twin):
        raise ValueError("it holds a value that JSON would turn into another one, such as bytes or NaN")
    return written


def _is_read_as(value: Any, twin: Any) -> bool:
    """True when they are equal but for tuples, which come back as lists."""
    parts: Iterable[Any]
    if isinstance(value, list | tuple):
        parts, twins = cast(Sequence[Any], value), twin
    elif type(value) is not type(twin):
        return bool(value == twin)
    elif isinstance(value, dict):
        parts, twins = cast(Mapping[Any, Any], value).items(), twin.items()
    elif isinstance(value, msgspec.Struct):
        parts, twins = msgspec.structs.astuple(value), msgspec.structs.astuple(twin)
    else:
        return bool(value == twin)
    return all(_is_read_as(part, its_twin) for part, its_twin in zip(parts, twins, strict=True))


def _kind_of(note: Note) -> str:
    if not str(note.kind).startswith(_NOTE_PREFIX):
        raise ValueError(f"the kind of a note begins with '{_NOTE_PREFIX}', not '{note.kind}'")
    return note.kind


def encode_json(value: object) -> bytes:
    """Compact JSON of a record or of plain data."""
    return _encoder.encode(value)
