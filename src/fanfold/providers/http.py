"""HttpTransport: one pool of connections for all model calls of an agent, on aiohttp.

Chosen by the CPU that a call costs in a wide fan-out (`benchmarks/http_client.py`). Nothing connects before
the first call; aiohttp itself is loaded then.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fanfold.errors import LifecycleError, ProviderError
from fanfold.providers.route import HttpRoute

if TYPE_CHECKING:
    import aiohttp
    from multidict import CIMultiDict
    from yarl import URL

CONNECT_TIMEOUT_SECONDS = 30.0
DNS_CACHE_SECONDS = 300
DRAIN_SECONDS = 0.25
"""How long a stream that said its last word may take to end, so that its connection can be used again."""
WHOLE_WRITE_BYTES = 1 << 20
"""Larger bodies go out in pieces, so that one of them does not hold up the loop."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpStream:
    """An answer whose body is still arriving: iterate over its pieces as the socket gives them."""

    def __init__(self, response: aiohttp.ClientResponse, route: HttpRoute) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._content = response.content
        self._route = route

    def __aiter__(self) -> HttpStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._content.readany()
        except _failures() as error:
            raise _explained(error, self._route) from error
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def whole(self) -> HttpAnswer:
        return HttpAnswer(self.status, self.headers, b"".join([chunk async for chunk in self]))

    async def drain(self) -> None:
        """Read on to the end, if it comes soon."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self._content.at_eof():
                    await self._content.readany()
        except _failures():
            pass  # The reply is complete; only the reuse of the connection is lost.


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What aiohttp would otherwise derive anew for each call."""

    url: URL
    headers: CIMultiDict[str]
    timeout: aiohttp.ClientTimeout
    proxy: str | None


class HttpTransport:
    """Belongs to the loop of its first call. Cancelling a call closes its connection: the model may stop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._prepared: dict[HttpRoute, _Prepared] = {}
        self._is_closed = False

    async def post(self, route: HttpRoute, body: bytes) -> HttpAnswer:
        """The whole answer, whatever its status.

        Raises:
            ProviderError: `connection` or `timeout`.
        """
        try:
            async with await self._send(route, body) as response:
                return HttpAnswer(response.status, response.headers, await response.read())
        except _failures() as error:
            raise _explained(error, route) from error

    @asynccontextmanager
    async def stream(self, route: HttpRoute, body: bytes) -> AsyncGenerator[HttpStream]:
        """The answer as soon as its head is there. Leaving the context by an exception closes the connection.

        Raises:
            ProviderError: `connection` or `timeout`, also while the pieces are read.
        """
        try:
            response = await self._send(route, body)
        except _failures() as error:
            raise _explained(error, route) from error
        try:
            stream = HttpStream(response, route)
            yield stream
            await stream.drain()
        finally:
            response.close()  # Does nothing to a connection whose answer was read to its end.

    async def close(self) -> None:
        """Close all connections; further calls are refused."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send(self, route: HttpRoute, body: bytes) -> aiohttp.ClientResponse:
        session = self._session or self._open()
        to = self._prepared.get(route) or self._prepare(route)
        return await session.post(
            to.url,
            data=body if len(body) <= WHOLE_WRITE_BYTES else io.BytesIO(body),
            headers=to.headers,
            timeout=to.timeout,
            proxy=to.proxy,
            allow_redirects=False,
        )

    def _open(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise LifecycleError("the agent is closed: its connections to models are gone")
        import aiohttp

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=DNS_CACHE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "fanfold"},
        )
        return self._session

    def _prepare(self, route: HttpRoute) -> _Prepared:
        import aiohttp
        from multidict import CIMultiDict
        from yarl import URL

        prepared = self._prepared[route] = _Prepared(
            url=URL(route.url),
            headers=CIMultiDict(route.headers),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_SECONDS, sock_read=route.silence_ms / 1000
            ),
            proxy=_proxy_of(route.url),
        )
        return prepared


def _proxy_of(url: str) -> str | None:
    """The proxy that the environment names for `url`.

    Not left to aiohttp's `trust_env`: that looks again for each call, in two worker threads, and lets a
    `.netrc` entry collide with our key.
    """
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def _failures() -> tuple[type[Exception], ...]:
    import aiohttp

    return (aiohttp.ClientError, OSError)


def _explained(error: Exception, route: HttpRoute) -> ProviderError:
    """`cannot reach`, `was silent` or `was lost`, in the words of the settings that the reader may change."""
    import aiohttp

    is_retryable = True
    if isinstance(error, aiohttp.SocketTimeoutError):
        kind, message = (
            "timeout",
            (
                f"{route.provider} ({route.host}) was silent for {route.silence_ms / 1000:g} s; "
                "raise timeout_ms of the provider if its model needs longer"
            ),
        )
    elif isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        is_retryable = not isinstance(error, aiohttp.ClientSSLError)
        reason = f"no connection within {CONNECT_TIMEOUT_SECONDS:g} s"
        if isinstance(error, aiohttp.ClientConnectorError):
            reason = _reason(error.os_error)
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            reason += f" at the proxy {error.host}:{error.port} that the environment names"
        kind, message = (
            "connection",
            (f"cannot reach {route.base_url} ({reason}); is the server running and base_url right?"),
        )
    else:
        kind, message = (
            "connection",
            f"connection to {route.provider} ({route.host}) was lost: {_reason(error)}",
        )
    return ProviderError(route.redact(message), kind=kind, retryable=is_retryable, provider=route.provider)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)  # asyncio puts addresses in place of the system's words.
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
