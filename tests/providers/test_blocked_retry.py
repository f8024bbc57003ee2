"""What siblings of a blocked call are told, and when the way is free again."""

from typing import Any

import pytest

from fanfold.errors import ProviderError
from fanfold.providers.retry import Endpoint
from tests.providers.test_blocked import DATE, HOUR_MS, SENT_MS
from tests.providers.test_retry import Bench, retrying
from tests.support.chat_server import Http, Say

SPENT = b'{"error":{"message":"x","code":"insufficient_quota"}}'
HOUR = {"Date": DATE, "retry-after": "3600"}


async def failing(bench: Bench) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await bench.ask()
    return caught.value


@pytest.mark.parametrize(
    ("refusal", "blocked_by", "reset_ms"),
    [
        (Http(status=401), "auth", None),
        (Http((SPENT,), status=429), "quota", None),
        (Http((SPENT,), status=429, headers=HOUR), "quota", SENT_MS + HOUR_MS),
        (Http(status=429, headers=HOUR), "quota", SENT_MS + HOUR_MS),
        (Http(status=503, headers=HOUR), None, None),
    ],
)
def test_a_sibling_that_is_not_sent_is_as_blocked_as_the_call_that_was(
    refusal: Http, blocked_by: str | None, reset_ms: int | None
) -> None:
    async def use(bench: Bench) -> None:
        for _ in range(3):
            error = await failing(bench)
            assert (error.blocked_by, error.reset_ms) == (blocked_by, reset_ms)
        assert len(bench.server.requests) == 1

    retrying([refusal], use)


def test_the_circuit_closes_at_the_moment_that_was_named() -> None:
    async def use(bench: Bench) -> Any:
        first = await failing(bench)
        assert first.reset_ms is not None
        bench.clock.advance((first.reset_ms - bench.clock.now_ms()) / 1000 - 1)
        assert (await failing(bench)).kind == "circuit_open"
        bench.clock.advance(1)
        return (await bench.ask()).text

    assert retrying([Http((SPENT,), status=429, headers=HOUR), Say("back")], use) == "back"


def test_a_circuit_without_an_end_stays_open() -> None:
    endpoint = Endpoint()
    endpoint.learn(ProviderError("x", kind="quota", retryable=False), 0)
    endpoint.close_if_over(1 << 60)
    assert endpoint.terminal is not None


def test_an_answer_without_a_date_is_dated_when_it_comes() -> None:
    class Dateless:
        async def generate(self, request: Any, deltas: Any = None) -> Any:
            raise ProviderError("x", kind="quota", retryable=False, retry_after_ms=HOUR_MS)

    async def use(bench: Bench) -> None:
        bench.client._inner = Dateless()  # type: ignore[assignment]
        now_ms = bench.clock.now_ms()
        assert (await failing(bench)).reset_ms == now_ms + HOUR_MS
        bench.clock.advance(60)
        assert (await failing(bench)).reset_ms == now_ms + HOUR_MS

    retrying([], use)
