"""When a server says that it may be asked again: its promises in headers and words, as waits and as moments.

A promise is read against the answer's own `Date`, so neither our clock nor its error matters.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from fanfold.providers.retry import LONGEST_RETRY_AFTER_MS

_LONGEST_RESET_MS = 400 * 86_400_000
"""From the answer on; a moment behind it is a mistake of somebody's, not a promise."""
_LAST_MS = 1 << 45
"""Where the answer has no date: the year 3084."""
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|[smhd]))+")
_PART_OF_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_REGAIN = re.compile(r"regain access on (\d{4}-\d\d-\d\d)(?: at (\d\d:\d\d))?")
_OPENAI, _ANTHROPIC = "x-ratelimit-", "anthropic-ratelimit-"
_BUCKETS = (
    *((f"{_OPENAI}remaining-{each}", f"{_OPENAI}reset-{each}") for each in ("requests", "tokens")),
    *(
        (f"{_ANTHROPIC}{each}-remaining", f"{_ANTHROPIC}{each}-reset")
        for each in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
)


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """`retry-after-ms`, else `retry-after` in seconds or as a date (RFC 9110, 10.2.3)."""
    try:
        if (text := headers.get("retry-after-ms")) is not None:
            return max(0, round(float(text)))
        if (text := headers.get("retry-after")) is None:
            return None
        if text[:1].isdigit():
            return round(float(text) * 1000)
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(headers["date"])
        return max(0, round(wait.total_seconds() * 1000))
    except (ValueError, OverflowError, KeyError, TypeError):
        return None  # Not a promise that can be read: wait as if there were none.


def reset_ms(headers: Mapping[str, str], message: str = "", at_s: object = None, in_s: object = None) -> int | None:
    """The moment, Unix ms, at which a refusal is said to end. None: nobody says so, or it is so near that it is waited
    for anyway, and so no end of anything that would not pass by itself.

    Args:
        message: of the error object; it may name the moment.
        at_s: Unix seconds, of the error object.
        in_s: seconds from the answer on, of the error object.
    """
    sent_ms = _sent_ms(headers)
    if sent_ms is None:
        first_ms, last_ms = 1, _LAST_MS
    else:
        first_ms, last_ms = sent_ms + LONGEST_RETRY_AFTER_MS, sent_ms + _LONGEST_RESET_MS
    moments = _moments(headers, sent_ms, message, at_s, in_s)
    return next((round(moment) for moment in moments if first_ms < moment < last_ms), None)


def _moments(
    headers: Mapping[str, str], sent_ms: int | None, message: str, at_s: object, in_s: object
) -> Iterator[float]:
    """The most exact one first."""
    if isinstance(at_s, int | float):
        yield at_s * 1000
    if isinstance(in_s, int | float) and sent_ms is not None:
        yield sent_ms + in_s * 1000
    if (found := _REGAIN.search(message)) and (moment := _instant(f"{found[1]} {found[2] or '00:00'}")) is not None:
        yield moment
    if (wait_ms := retry_after_ms(headers)) is not None and sent_ms is not None:
        yield sent_ms + wait_ms
    yield from sorted(_bucket_resets(headers, sent_ms), reverse=True)


def _bucket_resets(headers: Mapping[str, str], sent_ms: int | None) -> Iterator[float]:
    """Of the limits that are used up; when another one is full again says nothing."""
    used_up = [reset for remaining, reset in _BUCKETS if headers.get(remaining) == "0"]
    if headers.get(f"{_ANTHROPIC}unified-status") == "rejected":
        used_up.append(f"{_ANTHROPIC}unified-reset")
    for name in used_up:
        text = headers.get(name, "")
        if name.startswith(_ANTHROPIC):
            moment = float(text) * 1000 if text.isascii() and text.isdigit() else _instant(text)
            if moment is not None:
                yield moment
        elif sent_ms is not None and (wait_ms := _duration_ms(text)) is not None:
            yield sent_ms + wait_ms


def _sent_ms(headers: Mapping[str, str]) -> int | None:
    try:
        return round(_utc(parsedate_to_datetime(headers["date"])).timestamp() * 1000)
    except (ValueError, OverflowError, KeyError, TypeError):
        return None


def _instant(text: str) -> float | None:
    """Of RFC 3339; UTC where it names no zone."""
    try:
        return _utc(datetime.fromisoformat(text)).timestamp() * 1000
    except (ValueError, OverflowError):
        return None


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _duration_ms(text: str) -> float | None:
    """`6m0s`, `20ms`, or bare seconds."""
    if not _DURATION.fullmatch(text):
        return float(text) * 1000 if text.isascii() and text.isdigit() else None
    return sum(float(count) * _UNIT_MS[unit] for count, unit in _PART_OF_DURATION.findall(text))
