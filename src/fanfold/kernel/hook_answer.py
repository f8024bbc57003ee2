"""What a hook's handler may answer, read strictly: a slip of the pen in it must not pass for a yes (notes 9.3)."""

from typing import Any, cast

import msgspec

from fanfold.contracts.codec import decode_json, encode_readable
from fanfold.contracts.governance import Blocked, HookEvent, HookVerdict, Proceed, RetryLater, Skipped
from fanfold.contracts.record import JsonObject
from fanfold.kernel.plain_text import plain

MODIFIABLE: dict[HookEvent, dict[str, type]] = {
    "pre_tool_use": {"args": dict},
    "pre_prompt": {"prompt": str},
    "permission_request": {"approved": bool},
}
"""What a hook may give a new value for, and of which type."""
DEFAULT_REASON = "Blocked by hook"
DEFAULT_DELAY_MS = 1_000

_ACTIONS = ("continue", "block", "skip", "retry")
_KEYS = ("action", "modified", "reason", "delay_ms")
_any_json = msgspec.json.Decoder(Any)


class MalformedAnswer(ValueError):
    """The text says what is wrong with it."""


def read_answer(event: HookEvent, answer: object) -> HookVerdict:
    """The verdict in what a handler of `event` returned; it shares nothing with `answer`.

    Raises:
        MalformedAnswer: it is none.
    """
    if answer is None:
        return Proceed()
    if not isinstance(answer, dict):
        raise MalformedAnswer(f"hook callback must return None or a response dict, got {type(answer).__name__}")
    response = cast("JsonObject", answer)
    for key in response:
        if key not in _KEYS:
            raise MalformedAnswer(f"hook response has the unknown key {key!r}; there are: {', '.join(_KEYS)}")
    match response.get("action"):
        case "continue":
            return Proceed(_modified(event, response.get("modified")))
        case "block":
            return Blocked(_reason(response.get("reason")))
        case "skip":
            return Skipped()
        case "retry":
            return RetryLater(_delay(response.get("delay_ms")))
        case other:
            raise MalformedAnswer(f"hook response needs an action: {', '.join(_ACTIONS)}; got {other!r}")


def _modified(event: HookEvent, given: object) -> JsonObject | None:
    if given is None or given == {}:
        return None
    if not isinstance(given, dict):
        raise MalformedAnswer(f"'modified' of a hook response must be a dict, got {type(given).__name__}")
    known = MODIFIABLE.get(event, {})
    changes = cast("JsonObject", given)
    for key, value in changes.items():
        if key not in known:
            there_are = ", ".join(known) or "nothing"
            raise MalformedAnswer(f"'modified' of a hook response has {key!r}; at {event} may be modified: {there_are}")
        if not isinstance(value, known[key]):
            raise MalformedAnswer(f"'{key}' in 'modified' must be a {known[key].__name__}, got {type(value).__name__}")
    try:
        copied: JsonObject = decode_json(encode_readable(changes, _any_json))
    except ValueError as error:
        raise MalformedAnswer(f"'modified' of a hook response is no JSON data: {error}") from None
    return copied


def _reason(given: object) -> str:
    if given is None:
        return DEFAULT_REASON
    if not isinstance(given, str):
        raise MalformedAnswer(f"'reason' of a hook response must be text, got {type(given).__name__}")
    return plain(given)


def _delay(given: object) -> int:
    if given is None:
        return DEFAULT_DELAY_MS
    if type(given) is not int or given < 0:
        raise MalformedAnswer(f"'delay_ms' of a hook response must be a whole number, 0 or more, got {given!r}")
    return given
