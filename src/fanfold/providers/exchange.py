"""One call of a model: send the body, read the reply whole or as server-sent events, name what went wrong."""

from typing import Protocol

import msgspec

from fanfold.contracts.messages import ModelReply
from fanfold.providers.failures import nonsense, refused
from fanfold.providers.http import HttpAnswer, HttpStream, HttpTransport, Patience
from fanfold.providers.reply import ReplyInProgress
from fanfold.providers.route import HttpRoute
from fanfold.providers.sse import LONGEST_LINE_BYTES, LineTooLong, SseReader


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
        if stream.status != 200 or _media_type(stream) != "text/event-stream":
            return _whole(route, await stream.whole(), reader)  # An error, or a server that does not stream.
        await _read_events(route, stream, reader)
        return reader.reply.finished()


def _media_type(answer: HttpAnswer | HttpStream) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


def _whole(route: HttpRoute, answer: HttpAnswer, reader: WireReader) -> ModelReply:
    if answer.status != 200:
        raise refused(route, answer)
    try:
        reader.take_whole(answer.body)
    except msgspec.DecodeError as error:
        reason, media_type = f"200, but not with the JSON of a reply ({error})", _media_type(answer)
        if media_type and "json" not in media_type and not isinstance(error, msgspec.ValidationError):
            reason = f"{media_type} where JSON was expected; is base_url right?"
        raise nonsense(route, reason, answer.body) from error
    return reader.reply.finished()


async def _read_events(route: HttpRoute, stream: HttpStream, reader: WireReader) -> None:
    events, patience = SseReader(), Patience(route)
    data = b""
    try:
        async for chunk in stream:
            for data in events.feed(chunk):
                if data and reader.take_event(data):
                    return
            patience.check(reader.reply.pieces)
        for data in events.end():
            reader.take_event(data)
    except msgspec.DecodeError as error:
        reason = f"200, but its stream contains an event that is no JSON of a reply ({error})"
        raise nonsense(route, reason, data) from error
    except LineTooLong as error:
        reason = f"200, but its stream contains a line of more than {LONGEST_LINE_BYTES >> 20} MiB"
        raise nonsense(route, reason, retryable=False) from error
