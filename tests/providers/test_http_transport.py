"""Laws of the transport: connections are shared, ended by a cancel, and their failures explained."""

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest

from fanfold.errors import LifecycleError, ProviderError
from fanfold.protocols import ModelClient
from fanfold.providers.http import HttpTransport
from fanfold.providers.openai import OpenAIClient
from tests.providers.calls import (
    ANTHROPIC,
    BOTH_WIRES,
    KEY,
    OPENAI,
    Heard,
    Wire,
    asking,
    provider,
    with_client,
)
from tests.support.chat_server import ChatServer, Http, Say, events


def test_importing_the_clients_does_not_load_aiohttp() -> None:
    code = "import sys, fanfold.providers.openai, fanfold.providers.anthropic, fanfold.providers.retry\n"
    code += "sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("script", [Http(then="hang"), Http((b'{"choices":',), then="hang")])
def test_cancelling_a_plain_call_closes_its_connection(script: Http) -> None:
    async def use(client: ModelClient, server: ChatServer) -> None:
        call = asyncio.create_task(client.generate(asking()))
        await server.request_count(1)
        call.cancel()
        await server.disconnects(1)
        with pytest.raises(asyncio.CancelledError):
            await call

    with_client(OPENAI, [script], use)


def test_cancelling_a_stream_closes_its_connection() -> None:
    async def use(client: ModelClient, server: ChatServer) -> list[tuple[str, str]]:
        heard = Heard()
        call = asyncio.create_task(client.generate(asking(), heard))
        await heard.something.wait()
        call.cancel()
        await server.disconnects(1)
        return heard.pieces

    begun = replace(events({"choices": [{"delta": {"content": "one"}}]}), then="hang")
    assert with_client(OPENAI, [begun], use) == [("text", "one")]


def test_closing_the_transport_ends_running_calls() -> None:
    async def run() -> None:
        transport = HttpTransport()
        async with ChatServer([Http(then="hang")]) as server:
            client = OpenAIClient(transport, provider(server.base_url), None, "m")
            call = asyncio.create_task(client.generate(asking()))
            await server.request_count(1)
            await transport.close()
            with pytest.raises(ProviderError, match="was lost"):
                await call
            with pytest.raises(LifecycleError, match="the agent is closed"):
                await client.generate(asking())

    asyncio.run(run())


@pytest.mark.parametrize("wire", BOTH_WIRES)
@pytest.mark.parametrize("is_streaming", [False, True])
def test_calls_one_after_another_share_one_connection(wire: Wire, is_streaming: bool) -> None:
    async def use(client: ModelClient, server: ChatServer) -> int:
        for _ in range(5):
            await client.generate(asking(), Heard() if is_streaming else None)
        return server.connections

    assert with_client(wire, (), use) == 1


def test_a_stream_that_never_ends_after_its_last_word_is_a_whole_reply() -> None:
    finished = events({"choices": [{"delta": {"content": "all"}, "finish_reason": "stop"}]}, done=True)

    async def use(client: ModelClient, server: ChatServer) -> str:
        return (await client.generate(asking(), Heard())).text

    assert with_client(OPENAI, [replace(finished, then="hang")], use) == "all"


def test_a_wide_fan_out_is_not_limited_by_the_pool() -> None:
    async def use(client: ModelClient, server: ChatServer) -> None:
        calls = [asyncio.create_task(client.generate(asking())) for _ in range(150)]
        await server.request_count(150)  # None of them is answered.
        for call in calls:
            call.cancel()
        await server.disconnects(150)

    with_client(OPENAI, lambda asked: Http(then="hang"), use)


def test_a_request_of_many_megabytes_arrives_whole() -> None:
    text = "x" * 3_000_000

    async def use(client: ModelClient, server: ChatServer) -> str:
        await client.generate(asking(text))
        content: str = server.requests[0].json["messages"][-1]["content"]
        return content

    assert with_client(OPENAI, (), use) == text


def test_an_unreachable_server_is_named_with_the_fix() -> None:
    async def run() -> None:
        transport = HttpTransport()
        try:
            await OpenAIClient(transport, provider("http://127.0.0.1:9/v1"), None, "m").generate(asking())
        finally:
            await transport.close()

    with pytest.raises(ProviderError) as caught:
        asyncio.run(run())
    assert str(caught.value) == (
        "LLM error: cannot reach http://127.0.0.1:9/v1 (Connection refused); is the server running and base_url right?"
    )
    assert (caught.value.kind, caught.value.retryable) == ("connection", True)


def test_a_host_without_an_address_is_named() -> None:
    async def run() -> None:
        transport = HttpTransport()
        try:
            await OpenAIClient(transport, provider("http://no.such.host.invalid/v1"), None, "m").generate(asking())
        finally:
            await transport.close()

    with pytest.raises(ProviderError, match=r"cannot reach http://no\.such\.host\.invalid/v1 \("):
        asyncio.run(run())


def test_https_to_a_server_that_speaks_http_is_explained_and_not_retried() -> None:
    async def run() -> None:
        transport = HttpTransport()
        async with ChatServer() as server:
            settings = provider(server.base_url.replace("http:", "https:"))
            try:
                await OpenAIClient(transport, settings, None, "m").generate(asking())
            finally:
                await transport.close()

    with pytest.raises(ProviderError, match=r"cannot reach https://127.* \(.*SSL") as caught:
        asyncio.run(run())
    assert (caught.value.kind, caught.value.retryable) == ("connection", False)


@pytest.mark.parametrize("script", [Http(then="hang"), Http((b'{"cho',), then="hang")])
def test_silence_is_a_timeout_that_names_the_setting(script: Http) -> None:
    async def use(client: ModelClient, server: ChatServer) -> None:
        await client.generate(asking())

    with pytest.raises(ProviderError, match=r"acme \(127.*\) was silent for 0.1 s; raise timeout_ms") as caught:
        with_client(ANTHROPIC, [script], use, timeout_ms=100)
    assert (caught.value.kind, caught.value.retryable) == ("timeout", True)


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_connection_lost_in_the_answer_is_a_retryable_error(is_streaming: bool) -> None:
    broken = Http((b"data: {", b"x"), headers={"Content-Type": "text/event-stream"}, then="break")

    async def use(client: ModelClient, server: ChatServer) -> None:
        await client.generate(asking(), Heard() if is_streaming else None)

    with pytest.raises(ProviderError, match=r"connection to acme \(127.* was lost") as caught:
        with_client(OPENAI, [broken], use)
    assert (caught.value.kind, caught.value.retryable) == ("connection", True)
    assert KEY not in str(caught.value)


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> str:
        transport = HttpTransport()
        async with ChatServer([Say("through the proxy")]) as proxy:
            monkeypatch.setenv("http_proxy", proxy.origin)
            monkeypatch.delenv("no_proxy", raising=False)
            client = OpenAIClient(transport, provider("http://model.invalid/v1"), None, "m")
            reply = await client.generate(asking())
            await transport.close()
            assert proxy.requests[0].headers["Host"] == "model.invalid"
            return reply.text

    assert asyncio.run(run()) == "through the proxy"


def unanswered(monkeypatch: pytest.MonkeyPatch, proxy: str, *, scheme: str = "http") -> ProviderError:
    async def run() -> None:
        transport = HttpTransport()
        try:
            await OpenAIClient(transport, provider(f"{scheme}://model.invalid/v1"), None, "m").generate(asking())
        finally:
            await transport.close()

    monkeypatch.setenv(f"{scheme}_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ProviderError) as caught:
        asyncio.run(run())
    return caught.value


@pytest.mark.parametrize(
    "proxy", ["garbage", "http://[bad", "socks5://host:1", "http://me:pw@....", "http://me:pw@host:99999"]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_cannot_be_one_is_named_by_its_variable(
    proxy: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = unanswered(monkeypatch, proxy, scheme=scheme)
    assert str(error).startswith(f"LLM error: {scheme}_proxy of the environment must ")
    assert str(error).endswith(", such as http://proxy:3128; correct or unset it")
    assert (error.kind, error.retryable, "pw" in str(error)) == ("connection", False, False)


@pytest.mark.parametrize("proxy", ["http://me:pw@no.proxy.invalid:3128", "http://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_reached_is_named_by_its_variable(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = unanswered(monkeypatch, proxy)
    assert f" at the proxy {proxy.split('/')[-1].split('@')[-1]} that http_proxy names)" in str(error)
    assert "pw" not in str(error)


def test_a_server_that_is_no_proxy_is_named_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        transport = HttpTransport()
        async with ChatServer() as server:
            monkeypatch.setenv("https_proxy", server.origin)
            monkeypatch.delenv("no_proxy", raising=False)
            try:
                await OpenAIClient(transport, provider("https://model.invalid/v1"), None, "m").generate(asking())
            finally:
                await transport.close()

    with pytest.raises(ProviderError, match=r"\(the proxy that https_proxy names answered 40\d\)") as caught:
        asyncio.run(run())
    assert not caught.value.retryable


def test_hosts_excepted_from_the_proxy_are_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(client: ModelClient, server: ChatServer) -> str:
        return (await client.generate(asking())).text

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert with_client(OPENAI, [Say("directly")], use) == "directly"


def test_a_listener_that_fails_is_not_taken_for_a_lost_connection() -> None:
    class Broken(Heard):
        def text(self, piece: str) -> None:
            raise BrokenPipeError("the terminal is gone")

    async def use(client: ModelClient, server: ChatServer) -> None:
        await client.generate(asking(), Broken())

    with pytest.raises(BrokenPipeError):
        with_client(OPENAI, (), use)
