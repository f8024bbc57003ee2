"""ReportedUsage: what a server says of its tokens, believed only when it can be true."""

from collections.abc import Callable
from typing import Annotated, Protocol

import msgspec

from fanfold.contracts.messages import Usage

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Beyond 2**53 not every reader of JSON counts exactly (RFC 8259, section 6), and no model ever got there."""

_parts = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_encoder = msgspec.json.Encoder()


class WireUsage(Protocol):
    """A wire's own counts."""

    def as_usage(self) -> Usage: ...


class ReportedUsage:
    """Comes in one or several parts, of which the newest word on each count holds; null says nothing.

    Kept as the server wrote it until it is asked for: a wrong count must cost the usage, never the reply.
    """

    def __init__(self, read: Callable[[bytes], WireUsage]) -> None:
        self._read = read
        self._said: dict[str, msgspec.Raw] = {}

    def take(self, part: msgspec.Raw) -> None:
        try:
            said = _parts.decode(part) if part else None
        except msgspec.DecodeError:
            return  # No object: no counts.
        if said:
            self._said.update((name, value) for name, value in said.items() if bytes(value) != b"null")

    def counted(self) -> Usage | None:
        """None where none was sent, a needed count is missing, or one is negative, no integer or absurd."""
        if not self._said:
            return None
        try:
            return self._read(_encoder.encode(self._said)).as_usage()
        except msgspec.ValidationError:
            return None
