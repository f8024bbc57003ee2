"""Which refusals stand for every further call, and until when."""

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import ProviderError
from fanfold.providers.resets import reset_ms
from tests.providers.calls import BOTH_WIRES, OPENAI, Heard, Wire, asking, reply_to
from tests.support.chat_server import Http, events

DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
SENT_MS = 1_767_225_600_000
HOUR_MS = 3_600_000
WAF_PAGE = b"<!DOCTYPE html><title>403</title>Request blocked"


def refusal(status: int, body: Any = None, headers: dict[str, str] | None = None, wire: Wire = OPENAI) -> ProviderError:
    raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    with pytest.raises(ProviderError) as caught:
        reply_to(asking(), wire, [Http((raw,), status=status, headers={"Date": DATE, **(headers or {})})])
    return caught.value


def saying(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


@pytest.mark.parametrize("wire", BOTH_WIRES)
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, {}),
        (401, b"<html>Unauthorized"),
        (401, saying("You didn't provide an API key", type="invalid_request_error")),
        (403, {}),
        (403, {"detail": "Not authenticated"}),
        (403, saying("no", type="permission_error")),
        (403, saying("Your API key may not do that", type="invalid_request_error")),
        (403, saying("no billing scope", type="permission_error")),
        (403, saying("Country not supported", code="unsupported_country_region_territory")),
    ],
)
def test_a_refused_key_blocks_by_auth(wire: Wire, status: int, body: Any) -> None:
    error = refusal(status, body, wire=wire)
    assert (error.kind, error.blocked_by, error.reset_ms) == ("auth", "auth", None)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (saying("Input was flagged", code=403), "bad_request"),
        (saying("Blocked by the content policy"), "bad_request"),
        (saying("You are not allowed to sample from this model", type="invalid_request_error"), "bad_request"),
        (saying("no access to model x", code="model_not_found"), "not_found"),
        (saying("slow down", type="rate_limit_error"), "rate_limit"),
        (WAF_PAGE, "bad_request"),
    ],
)
def test_a_403_of_one_request_or_model_blocks_nothing_else(body: Any, kind: str) -> None:
    error = refusal(403, body)
    assert (error.kind, error.blocked_by) == (kind, None)


@pytest.mark.parametrize("wire", BOTH_WIRES)
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (402, {}),
        (400, saying("Your credit balance is too low to access the API", type="invalid_request_error")),
        (400, saying("You have reached your specified API usage limits.", type="invalid_request_error")),
        (403, saying("Insufficient credits")),
        (429, saying("x", code="insufficient_quota")),
        (429, saying("x", type="insufficient_quota")),
        (429, saying("x", code="billing_hard_limit_reached")),
        (429, saying("x", type="billing_error")),
        (429, saying("x", type="exceeded_current_quota_error")),
        (429, saying("You exceeded your current quota, please check your plan and billing details.")),
        (429, saying("Insufficient account balance, please recharge")),
        (429, saying("The usage limit has been reached", type="rate_limit_error")),
        (429, saying("Your usage limit is reached. Try again in 3 days 2 hours")),
        (429, {"detail": "insufficient_quota"}),
        (429, {"message": "monthly spend limit reached"}),
    ],
)
def test_an_account_at_its_end_blocks_by_quota(wire: Wire, status: int, body: Any) -> None:
    error = refusal(status, body, wire=wire)
    assert (error.kind, error.blocked_by, error.retryable) == ("quota", "quota", False)


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (429, {}, {}),
        (429, {}, {"retry-after": "60"}),
        (429, saying("x", type="rate_limit_error"), {"anthropic-ratelimit-tokens-remaining": "0"}),
        (429, saying("Try again in 20s. To raise it add a card at /account/billing"), {}),
        (429, saying("Check your plan and billing details. Please retry in 37.6s."), {}),
        (429, saying("The usage limit has been reached"), {"retry-after": "5"}),
        (429, b"<html>Too many requests; see our billing page", {}),
        (429, saying("x"), {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6h"}),
        (400, saying("usage limit of images passed"), {}),
        (500, saying("insufficient balance"), {}),
        (503, {}, {"retry-after": "3600"}),
        (529, saying("billing overloaded", type="overloaded_error"), {}),
        (404, saying("x", code="model_not_found"), {}),
    ],
)
def test_what_may_pass_while_a_call_waits_blocks_nothing(status: int, body: Any, headers: dict[str, str]) -> None:
    error = refusal(status, body, headers)
    assert (error.blocked_by, error.reset_ms) == (None, None)
    assert error.retryable is (status >= 429)


def test_a_throttling_too_long_to_wait_for_blocks_until_it_ends() -> None:
    error = refusal(429, saying("slow down", type="rate_limit_error"), {"retry-after": "3600"})
    assert (error.kind, error.blocked_by, error.reset_ms) == ("rate_limit", "quota", SENT_MS + HOUR_MS)
    assert error.retry_after_ms == HOUR_MS


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({}, {"retry-after": "7200"}, SENT_MS + 2 * HOUR_MS),
        ({}, {"retry-after-ms": "90000"}, SENT_MS + 90_000),
        ({}, {"retry-after": "Thu, 01 Jan 2026 05:00:00 GMT"}, SENT_MS + 5 * HOUR_MS),
        ({}, {"retry-after": "30"}, None),
        (
            {},
            {
                "anthropic-ratelimit-requests-remaining": "12",
                "anthropic-ratelimit-requests-reset": "2026-01-01T09:00:00Z",
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2026-01-01T02:00:00Z",
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-01-01T03:00:00Z",
            },
            SENT_MS + 3 * HOUR_MS,
        ),
        (
            {},
            {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": "1767232800"},
            SENT_MS + 2 * HOUR_MS,
        ),
        (
            {},
            {"anthropic-ratelimit-unified-status": "allowed", "anthropic-ratelimit-unified-reset": "1767232800"},
            None,
        ),
        (
            {},
            {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1h30m0.5s"},
            SENT_MS + 5_400_500,
        ),
        ({}, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "3600"}, SENT_MS + HOUR_MS),
        ({}, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "8.64s"}, None),
        ({}, {"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "6h"}, None),
        (saying("x", resets_at=1767232800), {"retry-after": "120"}, SENT_MS + 2 * HOUR_MS),
        (saying("x", resets_in_seconds=3600), {}, SENT_MS + HOUR_MS),
        (saying("You will regain access on 2026-02-01 at 00:00 UTC."), {}, SENT_MS + 31 * 24 * HOUR_MS),
        (saying("You will regain access on 2026-99-01 at 00:00 UTC."), {}, None),
        (saying("x", resets_at="soon", resets_in_seconds=None), {"retry-after": "never"}, None),
        (saying("x", resets_at=10**15), {"retry-after": "1e300"}, None),
        (saying("x", resets_at=-5), {"retry-after": "3600"}, SENT_MS + HOUR_MS),
    ],
)
def test_the_end_of_a_block_is_what_the_server_says(body: Any, headers: dict[str, str], expected: int | None) -> None:
    assert refusal(402, body, headers).reset_ms == expected


def test_without_a_date_only_moments_are_believed() -> None:
    assert reset_ms({"retry-after": "3600"}, in_s=3600) is None
    assert reset_ms({}, at_s=1e-9) is None
    assert reset_ms({}, at_s=1767232800) == SENT_MS + 2 * HOUR_MS
    assert reset_ms({"date": "yesterday"}, "regain access on 2026-01-01") == SENT_MS


def test_a_refusal_inside_a_stream_blocks_too() -> None:
    def told(**error: Any) -> ProviderError:
        with pytest.raises(ProviderError) as caught:
            reply_to(asking(), OPENAI, [events({"error": {"message": "no", **error}})], heard=Heard())
        return caught.value

    assert told(type="authentication_error").blocked_by == "auth"
    spent = told(type="usage_limit_reached", resets_at=1767232800)
    assert (spent.blocked_by, spent.reset_ms) == ("quota", SENT_MS + 2 * HOUR_MS)
    assert told(message="Your credit balance is too low").blocked_by == "quota"
    assert told(type="rate_limit_error").blocked_by is None
    assert told(type="server_error", message="billing service is down").blocked_by is None


def test_what_blocks_survives_pickling_and_a_kind_says_it_by_itself() -> None:
    error = ProviderError("x", kind="rate_limit", retryable=True, blocked_by="quota", reset_ms=5)
    back = pickle.loads(pickle.dumps(error))
    assert (back.blocked_by, back.reset_ms) == ("quota", 5)
    kinds = ("auth", "quota", "rate_limit", "overloaded", "circuit_open")
    blocks = [ProviderError("x", kind=kind, retryable=False).blocked_by for kind in kinds]
    assert blocks == ["auth", "quota", None, None, None]


_NAMES = ("date", "retry-after", "retry-after-ms", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens")
_MORE = tuple(f"anthropic-ratelimit-{each}" for each in ("unified-status", "unified-reset", "tokens-reset"))
_TEXTS = st.sampled_from(["0", DATE, "rejected", "inf", "nan", "1e999", "9" * 400, "²", "1h" * 99, "0001-01-01T00:00Z"])


@given(
    st.dictionaries(st.sampled_from(_NAMES + _MORE), _TEXTS | st.text(max_size=30)),
    st.text(max_size=60),
    st.none() | st.floats() | st.integers() | st.text() | st.booleans(),
    st.none() | st.floats() | st.integers(),
)
def test_no_header_or_body_is_too_odd(headers: dict[str, str], message: str, at_s: object, in_s: object) -> None:
    found = reset_ms(headers, message, at_s, in_s)
    assert found is None or 0 < found < 1 << 53
