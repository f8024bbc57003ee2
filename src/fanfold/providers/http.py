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
from fanfold.kernel.url import url_fault
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
MOST_ANSWER_BYTES = 64 << 20
"""Of an answer's body as it is after decompression: far more than any reply, far less than the memory."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Patience:
    """Ends an answer that is alive but no longer grows, which the timeout of the socket never does.

    Belongs to one answer and counts from its head on.
    """

    def __init__(self, route: HttpRoute) -> None:
        self._route = route
        self._now = asyncio.get_running_loop().time
        self._since = self._now()
        self._progress = 0

    def check(self, progress: int) -> None:
        """To be called after each piece; `progress` is any measure of what has come so far.

        Raises:
            ProviderError: `timeout`: it has been the same for the route's `silence_ms`.
        """
        now = self._now()
        if progress != self._progress:
            self._progress, self._since = progress, now
        elif now - self._since > self._route.silence_ms / 1000:
            raise _timed_out(self._route, "only kept the connection alive")


class HttpStream:
    """An answer whose body is still arriving: iterate over its pieces as the socket gives them."""

    def __init__(self, response: aiohttp.ClientResponse, route: HttpRoute) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._content = response.content
        self._route = route
        self._arrived_bytes = 0

    def __aiter__(self) -> HttpStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._content.readany()
        except _failures() as error:
            raise _explained(error, self._route) from error
        if not chunk:
            raise StopAsyncIteration
        self._arrived_bytes += len(chunk)
        if self._arrived_bytes > MOST_ANSWER_BYTES:
            raise _too_long(self._route)
        return chunk

    async def whole(self) -> HttpAnswer:
        """The answer with its whole body."""
        patience, chunks, progress = Patience(self._route), list[bytes](), 0
        async for chunk in self:
            chunks.append(chunk)
            progress += not chunk.isspace()  # Some servers send line ends until the model has finished.
            patience.check(progress)
        return HttpAnswer(self.status, self.headers, b"".join(chunks))

    async def drain(self) -> None:
        """Read on to the end, if it comes soon."""
        if self._content.at_eof():
            return
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
            ProviderError: `connection`, `timeout`, or `protocol`: the answer is too long.
        """
        async with self.stream(route, body) as stream:
            return await stream.whole()

    @asynccontextmanager
    async def stream(self, route: HttpRoute, body: bytes) -> AsyncGenerator[HttpStream]:
        """The answer as soon as its head is there. Leaving the context by an exception closes the connection.

        Raises:
            ProviderError: as of `post`, also while the pieces are read.
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
            proxy=_usable_proxy(route),
        )
        return prepared


def _usable_proxy(route: HttpRoute) -> str | None:
    proxy = _proxy_of(route.url)
    if proxy is not None and (fault := url_fault(proxy)):
        message = f"{_proxy_variable(route)} of the environment {fault}, such as http://proxy:3128; correct or unset it"
        raise ProviderError(message, kind="connection", retryable=False, provider=route.provider)
    return proxy


def _proxy_variable(route: HttpRoute) -> str:
    name = f"{urlsplit(route.url).scheme}_proxy"
    return name if name in os.environ else name.upper()


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
    """`was silent`, `cannot reach` or `was lost`, in the words of the settings that the reader may change."""
    import aiohttp

    if isinstance(error, aiohttp.SocketTimeoutError):
        return _timed_out(route, "was silent")
    is_retryable = True
    if isinstance(error, aiohttp.ClientConnectorError):
        is_retryable = not isinstance(error, aiohttp.ClientSSLError)
        message = _unreachable(route, _reason(error.os_error) + _at_proxy(route, error.host, error.port))
    elif isinstance(error, aiohttp.ConnectionTimeoutError):
        message = _unreachable(route, f"no connection within {CONNECT_TIMEOUT_SECONDS:g} s")
    elif isinstance(error, aiohttp.ClientHttpProxyError):
        is_retryable = False
        message = _unreachable(route, f"the proxy that {_proxy_variable(route)} names answered {error.status}")
    else:
        message = f"connection to {route.provider} ({route.host}) was lost: {_reason(error)}"
    return ProviderError(route.shown(message), kind="connection", retryable=is_retryable, provider=route.provider)


def _timed_out(route: HttpRoute, what: str) -> ProviderError:
    return ProviderError(
        f"{route.provider} ({route.host}) {what} for {route.silence_ms / 1000:g} s; "
        "raise timeout_ms of the provider if its model needs longer",
        kind="timeout",
        retryable=True,
        provider=route.provider,
    )


def _too_long(route: HttpRoute) -> ProviderError:
    return ProviderError(
        f"{route.provider} ({route.host}) sent more than {MOST_ANSWER_BYTES >> 20} MiB in one answer",
        kind="protocol",
        retryable=False,
        provider=route.provider,
    )


def _unreachable(route: HttpRoute, reason: str) -> str:
    return f"cannot reach {route.base_url} ({reason}); is the server running and base_url right?"


def _at_proxy(route: HttpRoute, host: str, port: int | None) -> str:
    proxy = _proxy_of(route.url)
    is_proxy = proxy is not None and host == urlsplit(proxy).hostname
    return f" at the proxy {host}:{port} that {_proxy_variable(route)} names" if is_proxy else ""


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)  # asyncio puts addresses in place of the system's words.
    # What aiohttp found wrong in an answer is told by the error behind the error, after a status that nobody sent.
    found = getattr(error, "message", None) or getattr(error.__cause__, "message", None)
    return found or getattr(error, "strerror", None) or str(error) or type(error).__name__
