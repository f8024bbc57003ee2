"""Answers that are no reply (HTTP errors, error objects, nonsense) become a classified `ProviderError`."""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from fanfold.errors import ProviderError
from fanfold.providers.http import HttpAnswer
from fanfold.providers.route import HttpRoute
from fanfold.providers.wire_json import decoded

SHOWN_CHARACTERS = 200
"""Of a body, in a message."""

_RETRYABLE = frozenset({"rate_limit", "overloaded", "server", "timeout"})
_KIND_OF_STATUS = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "not_found",
    408: "timeout",
    409: "server",
    425: "server",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_NO_CREDIT = "credit balance is too low"
# Codes and types of error objects, of both wires: all that an error inside a stream has. An HTTP status is a
# better witness, except for an empty account, which hides behind 429 and 400.
_KIND_OF_CODE = {
    "insufficient_quota": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_not_active": "quota",
    "billing_error": "quota",
    "insufficient_balance": "quota",
    "authentication_error": "auth",
    "permission_error": "auth",
    "invalid_api_key": "auth",
    "invalid_request_error": "bad_request",
    "context_length_exceeded": "bad_request",
    "request_too_large": "bad_request",
    "not_found_error": "not_found",
    "model_not_found": "not_found",
    "rate_limit_error": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
    "overloaded_error": "overloaded",
    "timeout_error": "timeout",
    "api_error": "server",
    "server_error": "server",
}
_HINTS = {
    "auth": "check the key ({key_source})",
    "quota": "the account behind the key ({key_source}) has no credit or quota left",
    "rate_limit": "lower --concurrency (max_parallel_tasks), or wait before you go on",
    "not_found": "check the model's id and base_url ({base_url}); most servers want one that ends with /v1",
}


class ErrorObject(msgspec.Struct, frozen=True):
    """`error` of either wire, when it is an object."""

    message: Any = None
    type: Any = None
    code: Any = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorObject | str | None = None
    message: Any = None


_error_body = msgspec.json.Decoder(_ErrorBody)


def refused(route: HttpRoute, answer: HttpAnswer) -> ProviderError:
    """The error of an answer whose status is not 200."""
    try:
        body = decoded(_error_body, answer.body)
    except msgspec.DecodeError:
        body = _ErrorBody()  # An HTML page or plain text: shown as it is.
    error = body.error if isinstance(body.error, ErrorObject) else ErrorObject(message=body.error or body.message)
    kind = _kind(answer.status, error)
    advice = answer.headers.get("x-should-retry")
    moved = f" (moved to {answer.headers['location']}: change base_url)" if "location" in answer.headers else ""
    return _error(
        route,
        f"answered {answer.status}{moved}",
        _words(error.message) or _text(answer.body),
        kind=kind,
        retryable=advice == "true" if advice in ("true", "false") else kind in _RETRYABLE,
        status=answer.status,
        retry_after_ms=retry_after_ms(answer.headers),
    )


def reported(route: HttpRoute, error: ErrorObject | str) -> ProviderError:
    """The error of an error object inside a stream, or in a body of status 200."""
    if isinstance(error, str):
        error = ErrorObject(message=error)
    status = error.code if isinstance(error.code, int) and 400 <= error.code < 600 else None
    kind = _kind(status, error)
    return _error(
        route,
        "reported an error in its answer" + (f" ({status})" if status else ""),
        _words(error.message) or _words(error.type) or _words(error.code),
        kind=kind,
        retryable=kind in _RETRYABLE,
        status=status,
    )


def nonsense(route: HttpRoute, reason: str, body: bytes = b"", *, retryable: bool = True) -> ProviderError:
    """The error of an answer with status 200 that is no reply; worth another try, for most such faults pass.

    `reason` follows `answered`: `200, but with a poem`.
    """
    return _error(route, f"answered {reason}", _text(body), kind="protocol", retryable=retryable, status=200)


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """`retry-after-ms`, else `retry-after` in seconds or as a date (RFC 9110, 10.2.3).

    A date is measured against the answer's own `Date`, so neither our clock nor its error matters.
    """
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


def _kind(status: int | None, error: ErrorObject) -> str:
    codes = [code for code in (error.code, error.type) if isinstance(code, str)]
    named = next((_KIND_OF_CODE[code] for code in codes if code in _KIND_OF_CODE), "server")
    if status is None or named == "quota":
        return named
    if _NO_CREDIT in _words(error.message):
        return "quota"
    return _KIND_OF_STATUS.get(status) or ("server" if status >= 500 else "bad_request")


def _words(value: object) -> str:
    """Nothing of an object or a list: what is all there is to see then is the whole body."""
    return str(value) if isinstance(value, str | int) and value else ""


def _text(body: bytes) -> str:
    # Enough bytes for the characters shown, also when a secret at their edge is replaced.
    return body[: 16 * SHOWN_CHARACTERS].decode("utf-8", "replace")


def _error(
    route: HttpRoute,
    what: str,
    detail: str,
    *,
    kind: str,
    retryable: bool,
    status: int | None,
    retry_after_ms: int | None = None,
) -> ProviderError:
    shown = route.shown(detail)[:SHOWN_CHARACTERS]
    before = " " if what.endswith("?") else ": "
    error = ProviderError(
        f"{route.provider} ({route.host}) {route.shown(what)}" + (before + shown if shown else ""),
        kind=kind,
        retryable=retryable,
        provider=route.provider,
        status=status,
        retry_after_ms=retry_after_ms,
    )
    hint = _HINTS.get(kind)
    return (
        error.with_hint(hint.format(key_source=route.key_source or "api_key", base_url=route.base_url))
        if hint
        else error
    )
