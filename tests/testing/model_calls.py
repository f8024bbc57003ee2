"""Requests of a conversation, and a listener that writes down what it hears."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fanfold.contracts.messages import Entry, Message, ModelReply, ModelRequest, ToolSpec, UserMessage, append
from fanfold.protocols import ModelClient

READ = ToolSpec(
    name="read",
    description="Read a file.\nIt is not changed.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}},
)


def transcript(*messages: Message) -> Entry:
    entry: Entry | None = None
    for message in messages:
        entry = append(entry, message)
    assert entry is not None
    return entry


def request(*said: str | Message, **fields: Any) -> ModelRequest:
    messages = [UserMessage(each) if isinstance(each, str) else each for each in said]
    return ModelRequest(**{"model": "m", "system": "Be brief.", "transcript": transcript(*messages), **fields})


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def text(self, piece: str) -> None:
        self.heard.append(("text", piece))

    def reasoning(self, piece: str) -> None:
        self.heard.append(("reasoning", piece))

    def restart(self) -> None:
        self.heard.append(("restart", ""))


def ask(model: ModelClient, *requests: ModelRequest) -> list[ModelReply]:
    """The replies to requests that are made one after the other, and the model closed."""

    async def main() -> list[ModelReply]:
        try:
            return [await model.generate(each) for each in requests]
        finally:
            await model.close()

    return asyncio.run(main())


def texts(replies: Sequence[ModelReply]) -> list[str]:
    return [reply.text for reply in replies]
