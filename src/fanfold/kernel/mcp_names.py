"""The names under which models know the tools of an MCP server: `mcp__<server>__<tool>`."""

import hashlib
import re
from collections.abc import Iterable
from itertools import count

MAX_SERVER_NAME_CHARS = 32
MAX_TOOL_NAME_CHARS = 64
"""What the providers take; and of letters, digits, `_` and `-` only."""
_DIGEST_CHARS = 8
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_SERVER_NAME = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")


def server_name_fault(name: str) -> str | None:
    """What is wrong with the name of a server, None when it will do.

    With a `_` at an end, or two together, `mcp__a___b` would be a tool of two servers, and a rule for the one
    (`mcp__a`) would cover the other.
    """
    if len(name) > MAX_SERVER_NAME_CHARS:
        return f"must have at most {MAX_SERVER_NAME_CHARS} characters"
    if _SERVER_NAME.fullmatch(name) is None:
        return "must be of letters, digits, '-' and '_', with no two '_' together and none at an end"
    return None


def tool_names(server: str, own_names: Iterable[str]) -> dict[str, str]:
    """Each tool's own name with the name for models: different ones for different tools, and valid ones.

    A name that fits stands as it is. In any other, `_` stands for what is not allowed, and a digest of the own name
    ends it, so that it depends on nothing else that the server lists.
    """
    prefix = f"mcp__{server}__"
    room = MAX_TOOL_NAME_CHARS - len(prefix)
    names = {own: own if _fits(own, room) else "" for own in own_names}
    taken = {name for name in names.values() if name}
    for own, name in names.items():
        if not name:
            names[own] = _short(own, room, taken)
            taken.add(names[own])
    return {own: prefix + name for own, name in names.items()}


def _fits(name: str, room: int) -> bool:
    return 0 < len(name) <= room and _OTHER.search(name) is None


def _short(own: str, room: int, taken: set[str]) -> str:
    stem = _OTHER.sub("_", own[: room - _DIGEST_CHARS - 1])
    for attempt in count():
        text = own if attempt == 0 else f"{own}\0{attempt}"  # only a server that means to collide gets so far
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
        name = f"{stem}_{digest}"
        if name not in taken:
            return name
    raise AssertionError("count() never ends")
