"""Which URLs can be called at all, found before the first call."""

import re
from urllib.parse import urlsplit

_HOST = re.compile(rb"[\w.-]+|[\da-f.]*:[\da-f:.]*(%[\w.-]+)?")
"""A name or IPv4 address, or an IPv6 address with or without its zone."""


def url_fault(url: str) -> str:
    """Why no call can go to `url`, in words that go on after its name; empty when one can.

    The words never contain a part of the URL, which may carry a password.
    """
    if not url.isprintable() or " " in url:  # urlsplit drops line ends in silence.
        return "contains a space, a line end or a control character"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return "is no http(s) URL"
    if parts.scheme not in ("http", "https") or not host:
        return "is no http(s) URL"
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        return "has a port that is not between 1 and 65535"
    try:
        is_name = _HOST.fullmatch(host.encode("idna")) is not None
    except UnicodeError:  # A label between the dots that is empty or longer than 63 (RFC 1035, 2.3.4).
        is_name = False
    return "" if is_name else "has a host name that cannot exist"
