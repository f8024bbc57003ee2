"""RetryingClient: tries again what may work later, and never again what cannot.

failure                                   this call                        its siblings on the same key
rate_limit, overloaded with Retry-After   waits that long plus jitter      wait as well
server, connection, timeout, overloaded   waits: full-jitter backoff       go on
protocol (an empty turn, broken JSON)     tries at most twice more         go on
auth, quota                               fails                            fail unsent: the circuit is open,
                                                                           until the moment that the server named
anything else                             fails                            go on
"""

from fanfold.contracts.messages import ModelReply, ModelRequest
from fanfold.env import HostEnv
from fanfold.errors import ProviderError
from fanfold.kernel.counted import counted
from fanfold.protocols import DeltaSink, ModelCapabilities, ModelClient

LONGEST_RETRY_AFTER_MS = 60_000
"""What a server may ask for; a longer wait is the caller's decision."""
FIRST_BACKOFF_MS = 500
LONGEST_BACKOFF_MS = 20_000
MOST_PROTOCOL_ATTEMPTS = 3

_TERMINAL = ("auth", "quota")
_SHARED = ("rate_limit", "overloaded")


class Endpoint:
    """What all clients of one provider and key know of it: when it may be asked again, and whether at all."""

    def __init__(self) -> None:
        self.not_before_ms = 0
        """On the host's monotonic clock."""
        self.terminal: ProviderError | None = None
        """What every later call is told, once the key was refused."""
        self.throttle: ProviderError | None = None
        """Who named that moment."""

    def learn(self, failure: ProviderError, now_ms: int) -> None:
        if failure.kind in _TERMINAL and self.terminal is None:
            self.terminal = _restated(failure, f"not sent, because an earlier call failed for good: {_text(failure)}")
            self.terminal.kind = "circuit_open"
        elif failure.kind in _SHARED and failure.retry_after_ms is not None:
            until_ms = now_ms + failure.retry_after_ms
            if until_ms > self.not_before_ms:
                self.not_before_ms, self.throttle = until_ms, _restated(failure, "")

    def close_if_over(self, now_ms: int) -> None:
        """Close the circuit where its end was named and is past, on the wall clock."""
        if self.terminal is not None and self.terminal.reset_ms is not None and self.terminal.reset_ms <= now_ms:
            self.terminal = None


class RetryingClient:
    """`inner`, tried up to `max_attempts` times. Time and chance are `env`'s; a cancel ends any wait."""

    def __init__(self, inner: ModelClient, env: HostEnv, endpoint: Endpoint, max_attempts: int = 5) -> None:
        self._inner = inner
        self._env = env
        self._endpoint = endpoint
        self._max_attempts = max_attempts

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._inner.capabilities

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        endpoint, attempt = self._endpoint, 0
        while True:
            if endpoint.not_before_ms or endpoint.terminal is not None:
                await self._admission()
            try:
                return await self._inner.generate(request, deltas)
            except ProviderError as failure:
                attempt += 1
                asked_ms = failure.retry_after_ms or 0
                if failure.blocked_by and failure.reset_ms is None and asked_ms > LONGEST_RETRY_AFTER_MS:
                    failure.reset_ms = self._env.clock.now_ms() + asked_ms  # an answer without a date
                endpoint.learn(failure, self._env.clock.monotonic_ms())
                await self._pause(failure, attempt)
            if request.before_retry is not None:
                await request.before_retry()
            if deltas is not None:
                deltas.restart()

    async def close(self) -> None:
        await self._inner.close()

    async def _admission(self) -> None:
        """Return when the endpoint may be asked, which the failures of siblings may put off again meanwhile.

        Raises:
            ProviderError: `circuit_open`, or `rate_limit` when that moment is too far away; nothing was sent.
        """
        endpoint, clock = self._endpoint, self._env.clock
        endpoint.close_if_over(clock.now_ms())
        while endpoint.terminal is None:
            wait_ms = endpoint.not_before_ms - clock.monotonic_ms()
            if wait_ms <= 0:
                return
            if wait_ms > LONGEST_RETRY_AFTER_MS and (throttle := endpoint.throttle) is not None:
                raise ProviderError(
                    f"not sent, because {throttle.provider} asked to wait another {wait_ms / 1000:g} s",
                    kind="rate_limit",
                    retryable=True,
                    provider=throttle.provider,
                    retry_after_ms=wait_ms,
                    blocked_by=throttle.blocked_by,
                    reset_ms=throttle.reset_ms,
                )
            await clock.sleep((wait_ms + self._jitter_ms(1)) / 1000)
        raise _restated(endpoint.terminal, _text(endpoint.terminal))

    async def _pause(self, failure: ProviderError, attempt: int) -> None:
        """Wait before the next attempt; raise `failure` when there is none, with the reason if it is ours."""
        if not failure.retryable or failure.kind in _TERMINAL:
            raise failure
        asked_ms = failure.retry_after_ms or 0
        if asked_ms > LONGEST_RETRY_AFTER_MS:
            most_seconds = LONGEST_RETRY_AFTER_MS // 1000
            reason = f"it asks to wait {asked_ms / 1000:g} s, of which {most_seconds} s would be waited"
            raise _restated(failure, f"{_text(failure)} ({reason})") from failure
        most = self._max_attempts
        if failure.kind == "protocol":
            most = min(most, MOST_PROTOCOL_ATTEMPTS)
        if attempt >= most:
            raise _restated(failure, f"{_text(failure)} (gave up after {counted(attempt, 'attempt')})") from failure
        await self._env.clock.sleep((asked_ms + self._jitter_ms(attempt)) / 1000)

    def _jitter_ms(self, attempt: int) -> float:
        """Full jitter, so that siblings that failed together do not come back together."""
        return self._env.random.random() * min(LONGEST_BACKOFF_MS, FIRST_BACKOFF_MS * 2.0 ** (attempt - 1))


def _text(error: ProviderError) -> str:
    return str(error).removeprefix("LLM error: ")


def _restated(error: ProviderError, message: str) -> ProviderError:
    """`error` in other words, and without the traceback that would keep its request alive."""
    restated = ProviderError(
        message,
        kind=error.kind,
        retryable=error.retryable,
        provider=error.provider,
        status=error.status,
        retry_after_ms=error.retry_after_ms,
        blocked_by=error.blocked_by,
        reset_ms=error.reset_ms,
    )
    restated.hint = error.hint
    return restated
