"""JSON as servers really write it: with Python's NaN, half of a surrogate pair, or deeper than can be read."""

import json
from typing import TypeVar

import msgspec

from fanfold.kernel.plain_text import plain

T = TypeVar("T")


def decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """What `decoder` reads in `data`.

    What Python's and JavaScript's own writers let through costs no paid answer: NaN and Infinity are read as null,
    half of a surrogate pair as U+FFFD.

    Raises:
        msgspec.DecodeError: it is no JSON, not of the decoder's form, or nested too deep.
    """
    try:
        try:
            return decoder.decode(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            repaired = _repaired(data)
            if repaired is None:
                raise
            return decoder.decode(repaired)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deep") from None


def _repaired(data: bytes) -> bytes | None:
    try:
        found = json.loads(data, parse_constant=lambda constant: None)
    except ValueError:
        return None
    return plain(json.dumps(found, ensure_ascii=False)).encode()
