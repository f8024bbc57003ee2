"""One call of a model: send the body, read the reply whole or as server-sent events, name what went wrong."""

from typing import Protocol

import msgspec

from fanfold.contracts.messages import ModelReply
from fanfold.providers.failures import nonsense, refused
from fanfold.providers.http import HttpAnswer, HttpStream, HttpTransport
from fanfold.providers.reply import ReplyInProgress
from fanfold.providers.route import HttpRoute
from fanfold.providers.sse import SseReader


class WireReader(Protocol):
    """Reads one reply in one wire's JSON. Both methods may raise `msgspec.DecodeError`."""

    reply: ReplyInProgress

    def take_whole(self, body: bytes) -> None: ...

    def take_event(self, data: bytes) -> bool:
        """True when it was the last event."""
        ...


async def exchange(
    transport: HttpTransport, route: HttpRoute, body: bytes, reader: WireReader, *, is_streaming: bool
) -> ModelReply:
    """The reply to `body`.

    Raises:
        ProviderError: no usable reply came.
    """
    if not is_streaming:
        return _whole(route, await transport.post(route, body), reader)
    async with transport.stream(route, body) as stream:
        if stream.status != 200 or "json" in stream.headers.get("content-type", ""):
            return _whole(route, await stream.whole(), reader)  # An error, or a server that does not stream.
        await _read_events(route, stream, reader)
        return reader.reply.finished()


def _whole(route: HttpRoute, answer: HttpAnswer, reader: WireReader) -> ModelReply:
    if answer.status != 200:
        raise refused(route, answer)
    try:
        reader.take_whole(answer.body)
    except msgspec.DecodeError as error:
        raise nonsense(route, f"but not with the JSON of a reply ({error})", answer.body) from error
    return reader.reply.finished()


async def _read_events(route: HttpRoute, stream: HttpStream, reader: WireReader) -> None:
    events = SseReader()
    data = b""
    try:
        async for chunk in stream:
            for data in events.feed(chunk):
                if data and reader.take_event(data):
                    return
        for data in events.end():
            reader.take_event(data)
    except msgspec.DecodeError as error:
        raise nonsense(route, f"but its stream contains an event that is no JSON of a reply ({error})", data) from error
