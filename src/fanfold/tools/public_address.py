"""Which addresses belong to the public internet: the ones that `web_fetch` may connect to."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from fanfold.tools.refusal import ToolRefusal

Address = IPv4Address | IPv6Address
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host, for connections to a port of it."""

_CLOSED = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",
            "100.64.0.0/10",  # behind a carrier's translation, and some clouds' metadata
            "127.0.0.0/8",
            "168.63.129.16/32",  # Azure's services for its own machines, in the midst of public addresses
            "169.254.0.0/16",  # link-local: metadata of most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
            "2001::/23",  # protocol assignments, Teredo
            "2001:db8::/32",
            "2002::/16",  # 6to4: an IPv4 address within
            "3fff::/20",
        ),
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
"""All that has been given out; loopback, link-local, unique-local, mapped IPv4 and multicast lie outside of it."""
_NAT64 = IPv6Network("64:ff9b::/96")
"""How a network without IPv4 reaches an IPv4 address, which is in the last 32 bits."""


def is_public(address: Address) -> bool:
    """False for every address that could be this machine, its network, its cloud's services, or nobody."""
    if address in _NAT64:
        address = IPv4Address(int(address) & 0xFFFF_FFFF)
    if isinstance(address, IPv6Address) and (address not in _GLOBAL_V6 or address.scope_id):
        return False
    return not any(address in network for network in _CLOSED)


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """What the system's resolver says; a numeric host, in whatever notation, is itself."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def checked_addresses(
    host: str, port: int, *, lookup: Lookup, is_allowed: Callable[[Address], bool]
) -> Sequence[Address]:
    """The addresses of `host`, all of them allowed.

    Raises:
        ToolRefusal: it has none, or one that is not: whoever connected might be led there.
    """
    try:
        found = [ip_address(text) for text in await lookup(host, port)]
    except (OSError, UnicodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ToolRefusal(f"the host {host} was not found ({reason or error})") from error
    if not found:
        raise ToolRefusal(f"the host {host} was not found")
    for address in found:
        if not is_allowed(address):
            raise ToolRefusal(f"{host} is refused: {address} is not a public address")
    return found
