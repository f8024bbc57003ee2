"""HttpRoute: where a model's calls go, what is sent with each of them, and how it may be shown."""

from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from fanfold.contracts.settings import ModelSettings, ProviderSettings, Secret
from fanfold.errors import ConfigError
from fanfold.kernel.url import url_fault

_SHORTEST_SECRET = 8


@dataclass(frozen=True, slots=True, eq=False)
class HttpRoute:
    provider: str
    base_url: str
    """As configured, without its query: for messages."""
    host: str
    """Host and port, for messages."""
    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    silence_ms: int
    """Longest wait for an answer, or for more of it. What only keeps the connection alive (comments and pings of a
    stream, blank space around a body) does not end the wait, but a reply that grows may take as long as it likes."""
    key_source: str = ""
    """Where the key comes from (`env OPENAI_API_KEY`), for messages."""

    def shown(self, text: str) -> str:
        """`text` from outside in one line fit for a message: without the key and the values of configured headers and
        queries, which servers like to echo, and with its control characters escaped."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        line = " ".join(text.split())
        return line if line.isprintable() else "".join(map(_visible, line))


def route_to(
    provider: ProviderSettings,
    model: ModelSettings | None,
    *,
    default_base_url: str,
    path: str,
    wire_headers: Callable[[str], dict[str, str]],
) -> HttpRoute:
    """The route of one model; what `model` sets wins over `provider`.

    A base URL that already ends with `path`, or with a leading part of it, is not joined twice.
    `wire_headers` gives the wire's own headers for a key, which may be empty.

    Raises:
        ConfigError: no call can go to the base URL, or the key was looked up and is not there or cannot be sent.
    """
    base_url = (model and model.base_url) or provider.base_url or default_base_url
    _check_base_url(base_url, provider)
    parts = urlsplit(base_url)
    secret = (model and model.api_key) or provider.api_key
    key = "" if secret is None else _usable_key(secret, provider)
    configured = {**provider.headers, **(model.headers if model else {})}
    headers = {"Content-Type": "application/json", **wire_headers(key), **configured}
    return HttpRoute(
        provider=provider.name,
        url=parts._replace(path=_joined(parts.path, path), fragment="").geturl(),
        base_url=parts._replace(query="", fragment="").geturl(),
        host=parts.netloc,
        headers=headers,
        secrets=_secrets(key, configured, parts.query),
        silence_ms=provider.timeout_ms,
        key_source="" if secret is None else secret.source,
    )


def _check_base_url(base_url: str, provider: ProviderSettings) -> None:
    fault = url_fault(base_url)
    if fault is None and urlsplit(base_url).username is not None:
        fault = "contains credentials; move them to api_key or headers"
    elif fault is not None and "@" not in base_url:
        fault += f": {base_url.partition('?')[0]!r}"  # Behind the question mark may be a key.
    if fault is not None:
        raise ConfigError(f"{provider.place}: base_url of provider '{provider.name}' {fault}")


def _usable_key(secret: Secret, provider: ProviderSettings) -> str:
    key, source = secret.value.strip(), secret.source or "api_key"
    if not key:
        raise ConfigError(f"{provider.place}: no key for provider '{provider.name}': {source} is not set or empty")
    if not key.isprintable():
        raise ConfigError(
            f"{provider.place}: the key of provider '{provider.name}' ({source}) contains a line end or a control "
            "character; is it one key?"
        )
    return key


def _joined(base_path: str, path: str) -> str:
    """`/v1` + `/v1/messages` -> `/v1/messages`: the longest overlap counts once."""
    base_path = base_path.rstrip("/")
    steps = path.split("/")[1:]
    for overlap in range(len(steps), 0, -1):
        if base_path.endswith("/" + "/".join(steps[:overlap])):
            return "/".join((base_path, *steps[overlap:]))
    return base_path + path


def _secrets(key: str, headers: dict[str, str], query: str) -> tuple[str, ...]:
    """Longest first, so that no secret is cut by the redaction of a shorter one inside it."""
    words = {key, *" ".join(headers.values()).split(), *(value for _, value in parse_qsl(query))}
    return tuple(sorted((word for word in words if len(word) >= _SHORTEST_SECRET), key=len, reverse=True))


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
