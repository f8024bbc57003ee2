"""Laws of retrying: what is tried again, how long is waited, and what siblings learn from each other."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.messages import ModelReply
from fanfold.env import HostEnv
from fanfold.errors import ProviderError
from fanfold.protocols import ModelClient
from fanfold.providers.retry import Endpoint, RetryingClient
from fanfold.testing.clock import ManualClock
from tests.providers.calls import BOTH_WIRES, OPENAI, Heard, Wire, asking, with_client
from tests.support.chat_server import Answer, ChatServer, Http, Say, Script, events

BUSY = Http((b'{"error":{"message":"busy"}}',), status=503)


@dataclass
class Bench:
    client: RetryingClient
    server: ChatServer
    clock: ManualClock
    endpoint: Endpoint

    async def ask(self) -> ModelReply:
        return await self.client.generate(asking())

    def throttle(self, seconds: int) -> None:
        """What happens when a sibling is told to wait."""
        told = ProviderError("busy", kind="rate_limit", retryable=True, retry_after_ms=1000 * seconds)
        self.endpoint.learn(told, self.clock.monotonic_ms())


def retrying(
    script: Script, use: Callable[[Bench], Awaitable[Any]], *, wire: Wire = OPENAI, max_attempts: int = 5
) -> Any:
    async def wrapped(client: ModelClient, server: ChatServer) -> Any:
        clock, endpoint = ManualClock(), Endpoint()
        env = HostEnv(clock=clock, random=Random(7))
        return await use(Bench(RetryingClient(client, env, endpoint, max_attempts), server, clock, endpoint))

    return with_client(wire, script, wrapped)


async def one_call(bench: Bench) -> tuple[ModelReply, int, list[float]]:
    return await bench.ask(), len(bench.server.requests), bench.clock.sleeps


async def failing_call(bench: Bench) -> tuple[ProviderError, int, list[float]]:
    with pytest.raises(ProviderError) as caught:
        await bench.ask()
    return caught.value, len(bench.server.requests), bench.clock.sleeps


@pytest.mark.parametrize("wire", BOTH_WIRES)
@pytest.mark.parametrize(
    "failure",
    [*(Http(status=status) for status in (408, 409, 425, 429, 500, 502, 503, 529)), Say(), Http((b"<p>",))],
)
def test_what_may_work_later_is_tried_again(wire: Wire, failure: Answer) -> None:
    reply, sent, sleeps = retrying([failure, failure, Say("third")], one_call, wire=wire)
    assert (reply.text, sent, len(sleeps)) == ("third", 3, 2)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_what_cannot_work_is_not_tried_again(status: int) -> None:
    error, sent, sleeps = retrying([Http(status=status)], failing_call)
    assert (error.status, sent, sleeps) == (status, 1, [])


def test_a_lost_connection_is_tried_again() -> None:
    reply, sent, _ = retrying([Http((b"{",), then="break"), Say("again")], one_call)
    assert (reply.text, sent) == ("again", 2)


def test_attempts_are_bounded_and_the_last_error_says_how_many_there_were() -> None:
    error, sent, sleeps = retrying([BUSY] * 9, failing_call, max_attempts=4)
    assert (sent, len(sleeps)) == (4, 3)
    assert str(error).endswith("answered 503: busy (gave up after 4 attempts)")
    assert (error.kind, error.status, error.provider) == ("overloaded", 503, "acme")


def test_an_empty_turn_is_tried_at_most_twice_more() -> None:
    error, sent, _ = retrying([Say()] * 9, failing_call)
    assert sent == 3
    assert str(error).endswith("said nothing: no text and no tool call (gave up after 3 attempts)")


def test_backoff_is_full_jitter_below_a_doubling_limit() -> None:
    _, _, sleeps = retrying([BUSY] * 9, failing_call, max_attempts=9)
    limits = [0.5, 1, 2, 4, 8, 16, 20, 20]
    assert all(0 <= slept <= limit for slept, limit in zip(sleeps, limits, strict=True))
    random = Random(7)
    assert sleeps == [random.uniform(0, limit * 1000) / 1000 for limit in limits]


@pytest.mark.parametrize("headers", [{"retry-after": "3"}, {"retry-after-ms": "3000"}])
def test_retry_after_is_waited_in_full(headers: dict[str, str]) -> None:
    _, _, sleeps = retrying([Http(status=429, headers=headers), Say("ok")], one_call)
    assert len(sleeps) == 1
    assert 3.0 <= sleeps[0] <= 3.5


def test_a_retry_after_beyond_the_cap_is_not_waited_but_told() -> None:
    error, sent, sleeps = retrying([Http(status=429, headers={"retry-after": "3600"})], failing_call)
    assert (sent, sleeps, error.retry_after_ms) == (1, [], 3_600_000)
    assert str(error).endswith("answered 429 (it asks to wait 3600 s, of which 60 s would be waited)")


def test_siblings_wait_too_after_one_was_throttled() -> None:
    async def use(bench: Bench) -> None:
        await bench.ask()
        before = len(bench.clock.sleeps)
        bench.endpoint.learn(  # The moment in which a sibling was told to wait.
            ProviderError("busy", kind="rate_limit", retryable=True, retry_after_ms=5000),
            bench.clock.monotonic_ms(),
        )
        await bench.ask()
        assert 5.0 <= sum(bench.clock.sleeps[before:]) <= 5.5

    retrying([], use)


def test_no_request_leaves_before_the_moment_that_the_server_named() -> None:
    """Many calls, one of which is throttled: the others that have not started wait for the same moment."""

    async def use(bench: Bench) -> None:
        first = await asyncio.gather(bench.ask(), return_exceptions=True)
        assert isinstance(first[0], ModelReply)
        waited_to = bench.endpoint.not_before_ms
        assert waited_to > 0
        bench.clock.advance(-bench.clock.monotonic_ms() / 1000)  # The siblings ask at once.
        await asyncio.gather(*(bench.ask() for _ in range(20)))
        assert bench.clock.monotonic_ms() >= waited_to

    retrying([Http(status=429, headers={"retry-after": "10"})], use)


def test_siblings_fail_unsent_when_the_named_moment_is_too_far_away() -> None:
    async def use(bench: Bench) -> ProviderError:
        for _ in range(2):
            with pytest.raises(ProviderError) as caught:
                await bench.ask()
        assert len(bench.server.requests) == 1
        bench.clock.advance(301)
        assert (await bench.ask()).text
        return caught.value

    error = retrying([Http(status=429, headers={"retry-after": "300"})], use)
    assert str(error) == "LLM error: not sent, because acme asked to wait another 300 s"
    assert (error.kind, error.retryable, error.retry_after_ms) == ("rate_limit", True, 300_000)


@pytest.mark.parametrize(
    "refusal",
    [
        Http((b'{"error":{"message":"bad key"}}',), status=401),
        Http((b'{"error":{"message":"bad key","code":"insufficient_quota"}}',), status=429),
        Http((b'{"error":{"message":"bad key"}}',), status=402),
    ],
)
def test_a_refused_key_opens_the_circuit_for_all_siblings(refusal: Http) -> None:
    async def use(bench: Bench) -> ProviderError:
        with pytest.raises(ProviderError) as first:
            await bench.ask()
        with pytest.raises(ProviderError) as later:
            await bench.ask()
        assert len(bench.server.requests) == 1
        assert str(first.value).removeprefix("LLM error: ") in str(later.value)
        assert later.value.hint == first.value.hint
        return later.value

    error = retrying([refusal], use)
    assert (error.kind, error.retryable) == ("circuit_open", False)
    assert str(error).startswith("LLM error: not sent, because an earlier call failed for good: acme (127.0.0.1:")


def test_a_sibling_that_waits_learns_that_the_circuit_opened() -> None:
    async def use(bench: Bench) -> None:
        bench.endpoint.learn(
            ProviderError("busy", kind="rate_limit", retryable=True, retry_after_ms=5000),
            bench.clock.monotonic_ms(),
        )
        waiting = asyncio.create_task(bench.ask())
        await asyncio.sleep(0)
        bench.endpoint.learn(ProviderError("bad key", kind="auth", retryable=False), 0)
        with pytest.raises(ProviderError, match="bad key"):
            await waiting
        assert not bench.server.requests

    retrying([], use)


def test_a_repeated_stream_tells_its_listener_to_start_over() -> None:
    heard = Heard()

    async def use(bench: Bench) -> ModelReply:
        return await bench.client.generate(asking(), heard)

    begun = events({"choices": [{"delta": {"content": "wro"}}]}, {"error": {"message": "x", "code": 503}})
    assert retrying([begun, Say("ok")], use).text == "ok"
    assert heard.pieces == [("text", "wro"), ("restart", ""), ("text", "o"), ("text", "k")]


def test_cancelling_ends_a_wait_at_once() -> None:
    class Standstill(ManualClock):
        async def sleep(self, seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

    waiting = asyncio.Event()

    async def use(client: ModelClient, server: ChatServer) -> int:
        patient = RetryingClient(client, HostEnv(clock=Standstill()), Endpoint())
        call = asyncio.create_task(patient.generate(asking()))
        await waiting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return len(server.requests)

    assert with_client(OPENAI, [BUSY] * 5, use) == 1


def test_an_error_that_is_not_the_provider_s_passes_through() -> None:
    async def use(bench: Bench) -> None:
        class Broken(Heard):
            def text(self, piece: str) -> None:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await bench.client.generate(asking(), Broken())
        assert len(bench.server.requests) == 1

    retrying([], use)


def test_capabilities_are_those_of_the_inner_client() -> None:
    async def use(bench: Bench) -> str:
        return bench.client.capabilities.structured

    assert retrying([], use) == "prompt"


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1))
def test_the_latest_named_moment_counts(waits: list[tuple[int, int]]) -> None:
    endpoint = Endpoint()
    for now_ms, wait_ms in waits:
        endpoint.learn(ProviderError("x", kind="rate_limit", retryable=True, retry_after_ms=wait_ms), now_ms)
    assert endpoint.not_before_ms == max(now_ms + wait_ms for now_ms, wait_ms in waits)
