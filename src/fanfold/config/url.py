"""Whether a URL can be called at all, found out when the configuration is read and not by the first request."""

from urllib.parse import urlsplit

_NO_URL = "must be a URL such as http://localhost:8000/v1"
_LONGEST_HOST = 253
"""Of a host name, and 63 of each of its labels (RFC 1035, 2.3.4), in the form in which it is looked up."""


def url_fault(url: str) -> str | None:
    """What is wrong with it, to follow its name; None when it will do. Never shows the URL: it may carry a password."""
    if not url.isprintable() or " " in url:
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
    if not _is_host(parts.hostname):
        return "must name a host whose parts have 1 to 63 characters"
    return None


def _is_host(host: str) -> bool:
    try:
        return len(host.encode("idna")) <= _LONGEST_HOST
    except UnicodeError:
        return False
