"""Answers that are no reply (HTTP errors, error objects, nonsense) become a classified `ProviderError`."""

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from fanfold.errors import ProviderError
from fanfold.providers.http import HttpAnswer
from fanfold.providers.resets import reset_ms, retry_after_ms
from fanfold.providers.retry import LONGEST_RETRY_AFTER_MS
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
_ACCOUNT_STATUSES = (None, 403, 429)
_SPENT = re.compile(
    r"(?i)credit balance|insufficient[ _](?:\w+ )?(?:balance|credits?|quota|funds)"
    r"|usage limit|spend(?:ing)? limit|billing"
)
"""In the words of a refusal that may be one of the account."""
_SPENT_IN_400 = re.compile(r"(?i)credit balance is too low|you have reached your [\w ]*usage limit")
"""A 400 speaks of the request, which has limits of its own, but for these sentences."""
_ENDS_SOON = re.compile(r"(?i)\b(?:re)?try (?:again )?(?:in|after) (?:\d+(?:\.\d+)? ?m(?:illi)?s|\d{1,2}(?:\.\d+)? ?s)")
_REQUEST_REFUSED = re.compile(r"(?i)moderation|flagged|content[ _](?:policy|filter)|safety|request blocked")
"""A 403 that is no word about the key."""
_ABOUT_KEY = re.compile(r"(?i)api.?key|permission|scope|credential|authori[sz]|account|organi[sz]ation")
# Codes and types of error objects, of both wires: all that an error inside a stream has. An HTTP status is a
# better witness, except for an empty account, which hides behind 429 and 400, and for a 403, which may mean the model.
_KIND_OF_CODE = {
    "insufficient_quota": "quota",
    "insufficient_balance": "quota",
    "exceeded_current_quota_error": "quota",
    "usage_limit_reached": "quota",
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
_PLAIN = ("auth", "not_found", "overloaded", "timeout", "server")
"""Named so, a refusal is not of the account, whatever its words."""
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
    resets_at: Any = None
    """Unix seconds; some plans with a usage limit tell it."""
    resets_in_seconds: Any = None


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
    said, wait_ms = _words(error.message) or _text(answer.body), retry_after_ms(answer.headers)
    kind = _kind(answer.status, error, said, wait_ms)
    # Not before then is any call of this key admitted: no throttling that passes while a call waits.
    is_long = kind == "rate_limit" and wait_ms is not None and wait_ms > LONGEST_RETRY_AFTER_MS
    advice = answer.headers.get("x-should-retry")
    moved = f" (moved to {answer.headers['location']}: change base_url)" if "location" in answer.headers else ""
    return _error(
        route,
        f"answered {answer.status}{moved}",
        said,
        kind=kind,
        retryable=advice == "true" if advice in ("true", "false") else kind in _RETRYABLE,
        status=answer.status,
        retry_after_ms=wait_ms,
        blocked_by="quota" if is_long else None,
        reset_ms=_reset_ms(answer.headers, error) if is_long or kind == "quota" else None,
    )


def reported(route: HttpRoute, error: ErrorObject | str) -> ProviderError:
    """The error of an error object inside a stream, or in a body of status 200."""
    if isinstance(error, str):
        error = ErrorObject(message=error)
    status = error.code if isinstance(error.code, int) and 400 <= error.code < 600 else None
    said = _words(error.message) or _words(error.type) or _words(error.code)
    kind = _kind(status, error, said, None)
    return _error(
        route,
        "reported an error in its answer" + (f" ({status})" if status else ""),
        said,
        kind=kind,
        retryable=kind in _RETRYABLE,
        status=status,
        reset_ms=_reset_ms({}, error) if kind == "quota" else None,
    )


def nonsense(route: HttpRoute, reason: str, body: bytes = b"", *, retryable: bool = True) -> ProviderError:
    """The error of an answer with status 200 that is no reply; worth another try, for most such faults pass.

    `reason` follows `answered`: `200, but with a poem`.
    """
    return _error(route, f"answered {reason}", _text(body), kind="protocol", retryable=retryable, status=200)


def _kind(status: int | None, error: ErrorObject, said: str, wait_ms: int | None) -> str:
    codes = [code for code in (error.code, error.type) if isinstance(code, str)]
    named = next((kind for code in codes if (kind := _KIND_OF_CODE.get(code) or _billing(code))), None)
    if named == "quota" or (named not in _PLAIN and _is_spent(status, said, wait_ms)):
        return "quota"
    if status is None:
        return named or "server"
    if status == 403:
        return _kind_of_403(named, said)
    return _KIND_OF_STATUS.get(status) or ("server" if status >= 500 else "bad_request")


def _billing(code: str) -> str | None:
    return "quota" if "billing" in code else None


def _is_spent(status: int | None, said: str, wait_ms: int | None) -> bool:
    """Whether a refusal says that the account is at its end, and not only this minute's share of it: servers print the
    address of their billing page below any 429, but promise a soon end only of the other kind."""
    if status == 400:
        return _SPENT_IN_400.search(said) is not None
    if status not in _ACCOUNT_STATUSES or _is_page(said) or _ENDS_SOON.search(said):
        return False
    return _SPENT.search(said) is not None and (wait_ms is None or wait_ms > LONGEST_RETRY_AFTER_MS)


def _kind_of_403(named: str | None, said: str) -> str:
    """It is about the key, unless it is about this model or this request: then the next one may pass."""
    if named in ("auth", "not_found", "rate_limit"):
        return named
    is_of_request = named == "bad_request" and not _ABOUT_KEY.search(said)
    # A page was written by something in between, which looks at requests too.
    return "bad_request" if is_of_request or _REQUEST_REFUSED.search(said) or _is_page(said) else "auth"


def _is_page(said: str) -> bool:
    return said.lstrip()[:1] == "<"


def _reset_ms(headers: Mapping[str, str], error: ErrorObject) -> int | None:
    return reset_ms(headers, _words(error.message), error.resets_at, error.resets_in_seconds)


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
    blocked_by: Literal["quota"] | None = None,
    reset_ms: int | None = None,
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
        blocked_by=blocked_by,
        reset_ms=reset_ms,
    )
    hint = _HINTS.get(kind)
    return (
        error.with_hint(hint.format(key_source=route.key_source or "api_key", base_url=route.base_url))
        if hint
        else error
    )
