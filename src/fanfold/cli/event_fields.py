"""The fields of an event as a view takes them: whatever stands there, a safe line, a count or nothing."""

from typing import Any, cast

from fanfold.cli.cells import ELLIPSIS, one_line
from fanfold.cli.safe_text import printable
from fanfold.contracts.record import JsonObject
from fanfold.kernel.plain_text import plain

_LONGEST_TEXT = 1_000


def object_of(value: Any) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def text_of(value: Any) -> str:
    """One safe line of bounded length; empty for what is no text."""
    if not isinstance(value, str):
        return ""
    text = one_line(printable(plain(value[:_LONGEST_TEXT])))
    return f"{text}{ELLIPSIS}" if len(value) > _LONGEST_TEXT else text


def count_of(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def amount_of(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
