"""The only JSON of the records: a fact's line in the log and back.

Line: `{"seq", "type", "key", "cause", "payload"}` in this order, UTF-8, closed by a newline. The payload's class is
chosen by `type`; unknown fields and unknown kinds other than `note.*` are errors, for a fold must not guess.
"""

from typing import Any

import msgspec

from fanfold.contracts.facts import (
    BudgetDenied,
    Compacted,
    ConfirmationAnswered,
    Fact,
    ModelTurn,
    Note,
    Payload,
    QuestionAnswered,
    QuestionTurn,
    TextTurn,
    ToolResulted,
    ToolTurn,
    UserMessaged,
)


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seq: int
    type: str
    key: str
    cause: str | None
    payload: Any


class _RawLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seq: int
    type: str
    key: str
    cause: str | None
    payload: msgspec.Raw


_NOTE_PREFIX = "note."
_MODEL_TURN = "model.turn"
_encoder = msgspec.json.Encoder()
_line_decoder = msgspec.json.Decoder(_RawLine)
_payload_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    _MODEL_TURN: msgspec.json.Decoder(ModelTurn),
    **{
        each.kind: msgspec.json.Decoder(each)
        for each in (UserMessaged, ToolResulted, ConfirmationAnswered, QuestionAnswered, Compacted, BudgetDenied)
    },
}
_note_decoder = msgspec.json.Decoder(dict[str, Any])


def kind_of(payload: Payload) -> str:
    """The fact's `type` on the wire."""
    if isinstance(payload, TextTurn | ToolTurn | QuestionTurn):
        return _MODEL_TURN
    return payload.kind


def encode_fact(fact: Fact) -> bytes:
    """One line of the log, with its newline."""
    payload: object = fact.payload.data if isinstance(fact.payload, Note) else fact.payload
    line = _Line(fact.seq, kind_of(fact.payload), fact.key, fact.cause, payload)
    return _encoder.encode(line) + b"\n"


def decode_fact(line: bytes | memoryview) -> Fact:
    """The fact of one line.

    Raises:
        ValueError: not a fact this version knows; the text says what is wrong and where.
    """
    raw = _line_decoder.decode(line)
    if not raw.type or not raw.key:
        raise ValueError("type and key are required")
    if raw.type.startswith(_NOTE_PREFIX):
        return Fact(raw.seq, raw.key, raw.cause, Note(raw.type, _note_decoder.decode(raw.payload)))
    decoder = _payload_decoders.get(raw.type)
    if decoder is None:
        raise ValueError(f"unknown fact kind '{raw.type}'")
    return Fact(raw.seq, raw.key, raw.cause, decoder.decode(raw.payload))


def encode_json(value: object) -> bytes:
    """Compact JSON of a record or of plain data."""
    return _encoder.encode(value)
