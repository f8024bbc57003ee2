"""Short ways to ask a client in a test, and a listener that remembers what it heard."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fanfold.contracts.messages import (
    Entry,
    Message,
    ModelReply,
    ModelRequest,
    ToolSpec,
    UserMessage,
    append,
)
from fanfold.contracts.settings import ModelSettings, ProviderSettings, Secret
from fanfold.protocols import ModelClient
from fanfold.providers.anthropic import AnthropicClient
from fanfold.providers.http import HttpTransport
from fanfold.providers.openai import OpenAIClient
from tests.support.chat_server import ChatServer, Script

KEY = "sk-very-secret-0123456789"
ADD = ToolSpec(
    name="add",
    description="Add two numbers.",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
)
SCHEMA = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}

OPENAI = OpenAIClient
ANTHROPIC = AnthropicClient
Wire = type[OpenAIClient] | type[AnthropicClient]
BOTH_WIRES: tuple[Wire, Wire] = (OPENAI, ANTHROPIC)


class Heard:
    """A DeltaSink that notes everything in order."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, str]] = []
        self.something = asyncio.Event()

    def text(self, piece: str) -> None:
        self.pieces.append(("text", piece))
        self.something.set()

    def reasoning(self, piece: str) -> None:
        self.pieces.append(("reasoning", piece))

    def restart(self) -> None:
        self.pieces.append(("restart", ""))

    def joined(self, kind: str) -> str:
        return "".join(piece for each, piece in self.pieces if each == kind)


def transcript(*messages: Message) -> Entry:
    newest: Entry | None = None
    for message in messages:
        newest = append(newest, message)
    assert newest is not None
    return newest


def asking(*messages: Message | str, **fields: Any) -> ModelRequest:
    newest = transcript(*(UserMessage(each) if isinstance(each, str) else each for each in messages or ("hello",)))
    return ModelRequest(model="m", **{"system": "Be short.", "transcript": newest, **fields})


def provider(base_url: str, **fields: Any) -> ProviderSettings:
    given = {
        "name": "acme",
        "kind": "openai",
        "api_key": Secret(KEY, "env ACME_KEY"),
        "base_url": base_url,
        **fields,
    }
    return ProviderSettings(**given)


def with_client(
    wire: Wire,
    script: Script,
    use: Callable[[ModelClient, ChatServer], Awaitable[Any]],
    *,
    model: ModelSettings | None = None,
    **fields: Any,
) -> Any:
    """What `use` gives, called with a client of `wire` that is connected to a server with `script`."""

    async def run() -> Any:
        transport = HttpTransport()
        async with ChatServer(script) as server:
            try:
                return await use(wire(transport, provider(server.base_url, **fields), model, "m"), server)
            finally:
                await transport.close()

    return asyncio.run(run())


def reply_to(
    request: ModelRequest, wire: Wire, script: Script, *, heard: Heard | None = None, **fields: Any
) -> ModelReply:
    async def use(client: ModelClient, server: ChatServer) -> ModelReply:
        return await client.generate(request, heard)

    reply: ModelReply = with_client(wire, script, use, **fields)
    return reply


def body_of(request: ModelRequest, wire: Wire, *, heard: Heard | None = None, **fields: Any) -> dict[str, Any]:
    """The JSON that the server received for `request`."""

    async def use(client: ModelClient, server: ChatServer) -> dict[str, Any]:
        await client.generate(request, heard)
        return server.requests[0].json

    body: dict[str, Any] = with_client(wire, (), use, **fields)
    return body
