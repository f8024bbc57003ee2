"""A chat-completions server that costs next to nothing and answers by rule, on loopback, in a process of its own.

It answers `answer(newest message)`; while fewer `add` results follow the prompt than `loop_prompt` asked for, it calls
`add` instead. Each answer may be held back for some milliseconds, as a model's is. Only what HTTP clients of a
benchmark send is understood: POST with a content length.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from benchmarks.workload import answer, rounds_of


class Asked(msgspec.Struct):
    role: str
    content: str | None = None


class Request(msgspec.Struct):
    messages: list[Asked]


_decoder = msgspec.json.Decoder(Request)
_encoder = msgspec.json.Encoder()


def reply_to(body: bytes) -> bytes:
    """The whole HTTP answer to a request's body."""
    message = _message(_decoder.decode(body).messages)
    tokens = len(body) // 4
    completion = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "fake",
        "choices": [
            {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        ],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 8, "total_tokens": tokens + 8},
    }
    data = _encoder.encode(completion)
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)


def _message(asked: list[Asked]) -> dict[str, Any]:
    results = 0
    while asked[-1 - results].role == "tool" or asked[-1 - results].role == "assistant":
        results += 1
    done = results // 2
    if done < rounds_of(asked[-1 - results].content or ""):
        arguments = f'{{"a":{done},"b":2}}'
        call = {"id": f"call-{done}", "type": "function", "function": {"name": "add", "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"role": "assistant", "content": answer(asked[-1].content or "")}


class Connection(asyncio.Protocol):
    def __init__(self, latency_ms: int) -> None:
        self._latency_s = latency_ms / 1000
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while (end := received.find(b"\r\n\r\n")) >= 0:
            head = bytes(received[:end]).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            start, stop = end + 4, end + 4 + length
            if len(received) < stop:
                return
            body = bytes(received[start:stop])
            del received[:stop]
            assert self._transport is not None
            if self._latency_s:
                asyncio.get_running_loop().call_later(self._latency_s, self._transport.write, reply_to(body))
            else:
                self._transport.write(reply_to(body))


async def serve(latency_ms: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(Connection, latency_ms), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


@contextmanager
def fake_server(latency_ms: int = 0) -> Iterator[str]:
    """The base URL of a server that runs until the context is left."""
    command = [sys.executable, "-m", "benchmarks.fake_server", str(latency_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
