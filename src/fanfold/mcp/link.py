"""Link: the one way to a server, whatever lies on it."""

from collections.abc import Callable
from typing import Protocol

from mcp.client import Transport

OnLost = Callable[[str], None]
"""Told at the moment at which the connection is gone, and why."""


class Link(Protocol):
    @property
    def is_old(self) -> bool:
        """The server died of our first message, as those do that know only the handshake of 2025."""
        ...

    def last_words(self) -> str:
        """What is known of a failure beside the protocol: the end of stderr, the last HTTP error. Empty: nothing."""
        ...

    def connection(self, on_lost: OnLost) -> Transport:
        """Entering it makes the connection, leaving it ends that with all that was started for it."""
        ...
