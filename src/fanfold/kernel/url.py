"""Whether a URL can be called at all, found out before the first call."""

import re
from urllib.parse import urlsplit

_NO_URL = "must be a URL such as http://localhost:8000/v1"
_HOST = re.compile(rb"[\w.-]{1,253}|[\da-f.]*:[\da-f:.]*(%[\w.-]+)?")
"""A name or an IPv4 address as it is looked up (RFC 1035, 2.3.4), or an IPv6 address with or without its zone."""


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
