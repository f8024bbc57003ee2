"""Tool calls as models really send them: cut into fragments, without ids, with arguments that are no JSON."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fanfold.contracts.messages import ToolCall
from fanfold.contracts.record import JsonObject
from fanfold.kernel.call_ids import LONGEST_ID, unique_ids
from fanfold.providers.wire_json import decoded

MOST_LEVELS = 128
"""Of nesting in arguments: deeper ones could be read here and then not in the log, or not by another Python."""

_object = msgspec.json.Decoder(dict[str, Any])
_string = msgspec.json.Decoder(str)
_encoder = msgspec.json.Encoder()
_NOTHING = re.compile(rb"(null|\{\s*\})?")


@dataclass(slots=True)
class CallFragments:
    """One call as far as it has arrived."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def take(self, id: str, name: str, arguments: str) -> None:
        self.id = self.id or id
        self.name = self.name or name
        self.pieces.append(arguments)


class CallAssembly:
    """Puts streamed fragments together, in the order in which the calls began."""

    def __init__(self) -> None:
        self.calls: list[CallFragments] = []
        self._by_index: dict[int, CallFragments] = {}

    def take(self, index: int | None, id: str, name: str, arguments: str) -> None:
        call = self._unindexed(id, name) if index is None else self._indexed(index, id, name)
        call.take(id, name, arguments)

    def _indexed(self, index: int, id: str, name: str) -> CallFragments:
        call = self._by_index.get(index)
        # Some servers number every call 0: another id together with a name is another call.
        if call is None or (id and name and call.id and id != call.id):
            call = self._by_index[index] = self._begin()
        return call

    def _unindexed(self, id: str, name: str) -> CallFragments:
        call = next((each for each in reversed(self.calls) if id and each.id == id), None)
        if call is not None:
            # The id again: the same call goes on, unless it was whole and a name begins another.
            return self._begin() if name and _parsed(call.arguments) is not None else call
        return self._begin() if id or name or not self.calls else self.calls[-1]

    def _begin(self) -> CallFragments:
        call = CallFragments()
        self.calls.append(call)
        return call


def finished_calls(fragments: list[CallFragments]) -> tuple[ToolCall, ...]:
    """The calls with unique ids that every provider accepts back, and with parsed arguments."""
    ids = unique_ids([each.id for each in fragments])
    return tuple(
        ToolCall(id, each.name, parsed_arguments(each.arguments)) for id, each in zip(ids, fragments, strict=True)
    )


def arguments_text(raw: msgspec.Raw) -> str:
    """Arguments out of a reply, which may be a string or JSON itself; empty for `{}`: a stream begins so and sends the
    real ones in pieces."""
    data = bytes(raw)
    if data.startswith(b'"'):
        return decoded(_string, data)
    return "" if _NOTHING.fullmatch(data) else data.decode(errors="replace")


def parsed_arguments(text: str) -> JsonObject | str:
    """The JSON object in `text`; nothing or `null` is `{}`; what is no object stays the text that it is."""
    if not text.strip() or text.strip() == "null":
        return {}
    parsed = _parsed(text)
    return text if parsed is None else parsed


def replayed_arguments(args: JsonObject | str) -> JsonObject:
    """Arguments as they go back to a model: always an object, for some servers parse what they are given."""
    return {"unparsed_arguments": args} if isinstance(args, str) else args


def replayed_name(name: str) -> str:
    """A made-up name in the form that providers accept: else a session that recorded it could never go on."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:LONGEST_ID] or "unnamed"


def json_text(value: object) -> str:
    return _encoder.encode(value).decode()


def _parsed(text: str) -> JsonObject | None:
    try:
        found = _object.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if _is_too_deep(found) else found


def _is_too_deep(value: JsonObject) -> bool:
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        level = [child for each in level for child in _children(each) if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _children(value: JsonObject | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
