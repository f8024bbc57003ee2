"""Whether a URL can be called at all, found out before the first call; and its one spelling, for rules about URLs."""

import re
from urllib.parse import SplitResult, quote, urlsplit

_NO_URL = "must be a URL such as http://localhost:8000/v1"
_HOST = re.compile(rb"[\w.-]{1,253}|[\da-f.]*:[\da-f:.]*(%[\w.-]+)?")
"""A name or an IPv4 address as it is looked up (RFC 1035, 2.3.4), or an IPv6 address with or without its zone."""

MAX_URL_CHARACTERS = 4_096
_DEFAULT_PORTS = {"http": 80, "https": 443}
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})|%")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_SAFE = "%/:@!$&'()*+,;=~?"
_WHOLE_HOST = re.compile(r"([A-Za-z*]+://[^/?]+?)(?::\*)?")


def url_fault(url: str) -> str | None:
    """What is wrong with it, to follow its name; None when it will do. Never shows the URL: it may carry a password."""
    if not url.isprintable() or " " in url:  # urlsplit drops line ends in silence.
        return "must not contain spaces or control characters"
    try:
        parts = urlsplit(url)
    except ValueError:
        return _NO_URL
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return _NO_URL
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        return "must have a port from 1 to 65535, or none"
    return None if _is_host(parts.hostname) else "must name a host whose parts have 1 to 63 characters"


def _is_host(host: str) -> bool:
    try:
        return _HOST.fullmatch(host.encode("idna")) is not None
    except UnicodeError:  # A part between dots is empty or too long, or no name at all.
        return False


def normal_url(url: str) -> str:
    """The one spelling of an http(s) URL: what is judged is then also what is fetched.

    Scheme and host are in lower case and ASCII, the port is left out where it is the scheme's own, escapes that stand
    for plain characters are resolved, so are `.` and `..`, and there is no fragment. What is no such URL is given back.
    """
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in _DEFAULT_PORTS and parts.hostname and len(url) <= MAX_URL_CHARACTERS
        return _spelled(parts) if is_one else url
    except ValueError:  # a bad port, half of a surrogate pair
        return url


def url_pattern(pattern: str) -> str:
    """The pattern of a rule about URLs as `normal_url` spells them; of a mere `https://host` it is the whole host.

    So is `https://host:*`: as the beginning of a text it would fit `https://host.somewhere.else` too.
    """
    if found := _WHOLE_HOST.fullmatch(pattern):
        return f"{found[1].lower()}/**"
    scheme, slashes, rest = pattern.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}{slashes}{host.lower()}{slash}{path}" if slashes else pattern


def _spelled(parts: SplitResult) -> str:
    host, port = _plain_host(parts.hostname or ""), parts.port
    shown_port = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    query = f"?{_escaped(parts.query)}" if parts.query else ""
    return f"{parts.scheme}://{_userinfo(parts)}{host}{shown_port}{_path(parts.path)}{query}"


def _plain_host(host: str) -> str:
    if ":" in host:
        return f"[{host}]"
    try:
        return (host.rstrip(".") or host).encode("idna").decode("ascii").lower()
    except UnicodeError:
        return host


def _userinfo(parts: SplitResult) -> str:
    """Kept, so that no rule for the host fits; its slashes must not look like the end of one."""
    userinfo, at, _ = parts.netloc.rpartition("@")
    return f"{quote(userinfo, safe='%:')}{at}"


def _path(path: str) -> str:
    kept: list[str] = []
    segments = _escaped(path).split("/")[1:] or [""]
    for segment in segments:
        if segment == "..":
            kept = kept[:-1]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _escaped(text: str) -> str:
    return quote(_ESCAPE.sub(_unescaped, text), safe=_SAFE)


def _unescaped(found: re.Match[str]) -> str:
    if found[1] is None:
        return "%25"  # a percent sign of its own
    character = chr(int(found[1], 16))
    return character if _UNRESERVED.fullmatch(character) else found[0].upper()
