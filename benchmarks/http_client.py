"""What one model call costs in CPU: our client on aiohttp and on httpx2, and a bare aiohttp loop.

    python -m benchmarks.http_client [--calls 2000] [--repeats 7]

The server is another process on loopback, so the times are the client's alone. Repeats of all variants are
interleaved; the table shows medians. httpx2 is left out where it is not installed.
"""

import argparse
import asyncio
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, cast

import aiohttp
import msgspec

from fanfold.contracts.messages import (
    AssistantMessage,
    Entry,
    ModelRequest,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
    append,
)
from fanfold.contracts.settings import ProviderSettings, Secret
from fanfold.env import HostEnv
from fanfold.providers.anthropic import AnthropicClient
from fanfold.providers.http import HttpAnswer, HttpTransport
from fanfold.providers.openai import OpenAIClient
from fanfold.providers.retry import Endpoint, RetryingClient
from fanfold.providers.route import HttpRoute
from tests.support.chat_server import ChatServer, Http, Say, events

CONCURRENCY = 64
CHUNKS = 200
SYSTEM = "You are a helper. Answer in one line."
Call = Callable[[int], Awaitable[object]]


# ---- the server -------------------------------------------------------------------------------------------


def scripted(asked: dict[str, Any]) -> Say | Http:
    return STREAM if asked.get("stream") else Say("one line of an answer")


STREAM = events(
    *({"id": "c1", "choices": [{"index": 0, "delta": {"content": "word "}}]} for _ in range(CHUNKS)),
    {"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    done=True,
)


async def serve() -> None:
    async with ChatServer(scripted) as server:
        print(server.base_url, flush=True)
        await asyncio.Event().wait()


@contextmanager
def server_process() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.http_client", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


# ---- the variants -----------------------------------------------------------------------------------------


class Silent:
    def text(self, piece: str) -> None: ...

    def reasoning(self, piece: str) -> None: ...

    def restart(self) -> None: ...


class Httpx2Stream:
    def __init__(self, response: Any) -> None:
        self.status: int = response.status_code
        self.headers = response.headers
        self._chunks = response.aiter_raw()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return cast("AsyncIterator[bytes]", self._chunks)

    async def drain(self) -> None: ...


class Httpx2Transport:
    """`HttpTransport` on httpx2, as thin as ours."""

    def __init__(self, httpx2: Any) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx2.AsyncClient(timeout=httpx2.Timeout(600.0, pool=None), limits=limits)

    async def post(self, route: HttpRoute, body: bytes) -> HttpAnswer:
        response = await self._client.post(route.url, content=body, headers=route.headers)
        return HttpAnswer(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def stream(self, route: HttpRoute, body: bytes) -> AsyncIterator[Httpx2Stream]:
        async with self._client.stream("POST", route.url, content=body, headers=route.headers) as response:
            yield Httpx2Stream(response)

    async def close(self) -> None:
        await self._client.aclose()


def request(number: int) -> ModelRequest:
    return ModelRequest(model="fake", system=SYSTEM, transcript=Entry(UserMessage(f"topic {number}")))


def settings(base_url: str) -> ProviderSettings:
    return ProviderSettings(name="bench", kind="openai", base_url=base_url, api_key=Secret("x" * 12))


async def bare(stack: AsyncExitStack, base_url: str, *, streams: bool) -> Call:
    """The floor: a typed decode and nothing else, of bytes that were encoded before."""
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "topic 1000"}]
    body = json.dumps({"model": "fake", "messages": messages, **({"stream": True} if streams else {})}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + "x" * 12}
    url = f"{base_url}/chat/completions"

    async def call(number: int) -> object:
        async with session.post(url, data=body, headers=headers) as response:
            if not streams:
                return msgspec.json.decode(await response.read())
            return [msgspec.json.decode(line[6:]) async for line in response.content if line[6:7] == b"{"]

    return call


async def ours(stack: AsyncExitStack, base_url: str, *, streams: bool, retries: bool, transport: Any) -> Call:
    stack.push_async_callback(transport.close)
    client: Any = OpenAIClient(transport, settings(base_url), None, "fake")
    if retries:
        client = RetryingClient(client, HostEnv(), Endpoint())
    deltas = Silent() if streams else None
    return lambda number: cast("Awaitable[object]", client.generate(request(number), deltas))


async def variants(stack: AsyncExitStack, base_url: str, *, streams: bool) -> dict[str, Call]:
    async def client(transport: Any, *, retries: bool = False) -> Call:
        return await ours(stack, base_url, streams=streams, retries=retries, transport=transport)

    found = {
        "bare aiohttp": await bare(stack, base_url, streams=streams),
        "OpenAIClient on aiohttp (ours)": await client(HttpTransport()),
        "the same + RetryingClient": await client(HttpTransport(), retries=True),
    }
    try:
        found["OpenAIClient on httpx2"] = await client(Httpx2Transport(importlib.import_module("httpx2")))
    except ModuleNotFoundError:
        print("httpx2 is not installed: left out")
    return found


# ---- measuring --------------------------------------------------------------------------------------------


async def cpu_ms_per_call(call: Call, count: int) -> float:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await call(number)

    started = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker())
    return 1000 * (time.process_time() - started) / count


async def calls_table(base_url: str, calls: int, repeats: int, *, streams: bool) -> None:
    async with AsyncExitStack() as stack:
        named = await variants(stack, base_url, streams=streams)
        costs: dict[str, list[float]] = {name: [] for name in named}
        for repeat in range(repeats + 1):
            for name, call in named.items():
                cost = await cpu_ms_per_call(call, calls)
                if repeat:  # The first round opens connections.
                    costs[name].append(cost)
        table(f"{'stream of 200 chunks' if streams else 'plain call'}, {CONCURRENCY} at once", costs)


def encoding_table(repeats: int) -> None:
    """CPU of the request's bytes alone, per round of a tool loop: grown from the memo."""
    tool = ToolSpec(name="add", description="Add.", parameters={"type": "object"})
    for wire in (OpenAIClient, AnthropicClient):
        client = wire(HttpTransport(), settings("http://host"), None, "fake")
        costs: dict[str, list[float]] = {"20 rounds": [], "200 rounds": []}
        for _ in range(repeats):
            for rounds in (20, 200):
                loops = 2000 // rounds
                started = time.process_time()
                for _ in range(loops):
                    tool_loop(client, rounds, tool)
                costs[f"{rounds} rounds"].append(1000 * (time.process_time() - started) / loops / rounds)
        table(f"encoding per round, {wire.__name__}", costs)


def tool_loop(client: OpenAIClient | AnthropicClient, rounds: int, tool: ToolSpec) -> None:
    memo: dict[str, Any] = {}
    newest, tools = Entry(UserMessage("add numbers " * 10)), (tool,)
    for number in range(rounds):
        asked = ModelRequest(model="fake", system=SYSTEM, transcript=newest, tools=tools, memo=memo)
        client.body(asked, False)
        newest = append(newest, AssistantMessage("", (ToolCall(f"c{number}", "add", {"a": number, "b": 2}),)))
        newest = append(newest, ToolMessage(f"c{number}", "add", True, "a result of some length " * 4))


def table(title: str, costs: dict[str, list[float]]) -> None:
    first = statistics.median(next(iter(costs.values())))
    print(f"\n{title:<44}{'CPU ms':>9}{'ratio':>8}   range")
    for name, found in costs.items():
        middle = statistics.median(found)
        print(f"  {name:<42}{middle:>9.4f}{middle / first:>8.2f}   {min(found):.4f} - {max(found):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return asyncio.run(serve())
    with server_process() as base_url:
        asyncio.run(calls_table(base_url, options.calls, options.repeats, streams=False))
        asyncio.run(calls_table(base_url, max(64, options.calls // 20), options.repeats, streams=True))
    encoding_table(options.repeats)


if __name__ == "__main__":
    main()
