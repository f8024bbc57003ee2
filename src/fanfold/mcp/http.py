"""HttpLink: messages over streamable HTTP, with the limits that the SDK leaves to its user."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from fanfold.contracts.settings import McpServerSettings
from fanfold.foreign import described
from fanfold.mcp.link import OnLost
from fanfold.mcp.process import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # public in what it does, and in nothing else

_SESSION_HEADER = "mcp-session-id"
_NEEDS_KEY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class HttpLink:
    def __init__(self, settings: McpServerSettings, url: str) -> None:
        self._settings = settings
        self._url = url
        self._last_error = ""

    @property
    def is_old(self) -> bool:
        return False  # no message can end such a server: the SDK asks again by itself

    def last_words(self) -> str:
        return self._last_error

    @asynccontextmanager
    async def connection(self, on_lost: OnLost) -> AsyncGenerator["TransportStreams"]:
        # Of the SDK's and its library's own limits in time none is of use: to pass one breaks the whole connection.
        timeout = httpx2.Timeout(None, connect=self._settings.timeout_ms / 1000)
        headers = {**self._settings.headers, "accept-encoding": "identity"}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        async with (
            _Client(self._heard, on_lost, timeout=timeout, headers=headers, limits=limits) as client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
        ):
            yield streams

    def _heard(self, error: str) -> None:
        self._last_error = error


class _Client(httpx2.AsyncClient):
    """Tells of errors that the SDK does not pass on, and reads no answer without end."""

    def __init__(self, hear: OnLost, on_lost: OnLost, **options: Any) -> None:
        super().__init__(**options)
        self._hear = hear
        self._on_lost = on_lost

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            # A stream for notifications that breaks (GET) may be opened again; one that cannot be opened may not.
            if request.method == "POST" or isinstance(error, httpx2.ConnectError):
                self._hear(_told(error))
                self._on_lost(_told(error))
            raise
        if request.method == "POST":
            self._judge(request, response)
        _limit(response)
        return response

    def _judge(self, request: httpx2.Request, response: httpx2.Response) -> None:
        code = response.status_code
        self._hear("" if code < HTTPStatus.BAD_REQUEST else _status(code))
        if code == HTTPStatus.NOT_FOUND and _SESSION_HEADER in request.headers:
            self._on_lost("it does not know the session any more (HTTP 404); it was restarted, or has waited too long")


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE_BYTES
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                # The one error that the SDK takes for a failure of this answer alone.
                raise httpx2.StreamError(f"more than {MAX_MESSAGE_BYTES // 1024**2} MiB")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _limit(response: httpx2.Response) -> None:
    """No answer that unpacks to gigabytes, and none of gigabytes. Streams of events are limited event by event."""
    response.headers.pop("content-encoding", None)  # it was asked for none: what is packed is no JSON
    is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    if not is_stream and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Limited(response.stream)


def _told(error: httpx2.TransportError) -> str:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"no connection: {error or type(error).__name__}"
    return f"the connection broke: {described(error)}"


def _status(code: int) -> str:
    phrase = HTTPStatus(code).phrase if code in HTTPStatus.__members__.values() else ""
    needs_key = "; give it in headers what it asks for" if code in _NEEDS_KEY else ""
    return f"HTTP {code} {phrase}".rstrip() + needs_key
