"""Toolbox: the tools of one session, which may change while it lives."""

import operator
from collections.abc import Callable, Mapping

from fanfold.protocols import Tool, ToolServer


class Toolbox:
    """Tools of the workspace and of the host, the session's own, and those of the MCP servers that it can reach.

    A session's own server shadows an inherited one of its name, as long as it is there.
    """

    def __init__(self, tools: Mapping[str, Tool], inherited: Mapping[str, ToolServer]) -> None:
        self._tools = tools
        self._inherited = inherited
        self._own: dict[str, ToolServer] = {}
        self._directing: dict[str, Tool] = {}
        self._seen: list[Mapping[str, Tool]] = []
        self.on_change: Callable[[], None] | None = None

    def has_changed(self) -> bool:
        """A server has other tools than when this was last asked."""
        if not (self._inherited or self._own or self._seen):
            return False
        now = [server.tools for server in self.servers.values()]
        is_same = len(now) == len(self._seen) and all(map(operator.is_, now, self._seen))
        self._seen = now
        return not is_same

    @property
    def servers(self) -> dict[str, ToolServer]:
        """By name."""
        return {**self._inherited, **self._own}

    @property
    def own_servers(self) -> list[ToolServer]:
        return list(self._own.values())

    def all(self) -> dict[str, Tool]:
        """What the session's own agent may call, by name."""
        return {**self.for_children(), **self._directing}

    def for_children(self) -> dict[str, Tool]:
        """Likewise a child: delegation is one level deep."""
        tools = dict(self._tools)
        if self._inherited or self._own:
            for server in self.servers.values():
                tools.update(server.tools)
        return tools

    def offer(self, name: str, tool: Tool) -> None:
        """A tool that starts children, and that they do not have."""
        self._directing[name] = tool

    def add_server(self, server: ToolServer) -> None:
        self._own[server.name] = server
        self._changed()

    def remove_server(self, name: str) -> ToolServer | None:
        """The session's own server of that name, which is the caller's to close; None where there is none."""
        server = self._own.pop(name, None)
        if server is not None:
            self._changed()
        return server

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()
