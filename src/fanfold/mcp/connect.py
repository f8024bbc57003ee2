"""connect: a running MCP server and its tools."""

import asyncio
import importlib
from pathlib import Path

from fanfold.contracts.settings import McpServerSettings
from fanfold.errors import ConfigError, MissingExtraError
from fanfold.kernel.mcp_settings import server_faults
from fanfold.protocols import ToolServer

_SDK = ("mcp", "mcp_types", "anyio", "httpx2", "pydantic")
"""Top-level packages, one of which is missing when the extra is."""


async def connect(settings: McpServerSettings, *, workspace: Path | None = None) -> ToolServer:
    """The server, ready: started or reached, and its tools listed. Whoever connects must `close` it.

    A command runs in `workspace`, or in the current folder. The calling task needs not be the one that closes.

    Raises:
        McpError: it could not be started or reached, or was not ready within `timeout_ms`. Nothing is left of it.
        ConfigError: settings that no server can have.
        MissingExtraError: the extra `mcp` is not installed.
    """
    faults = [f"MCP server {settings.name[:60]!r}: {field} {fault}" for field, fault in server_faults(settings)]
    if faults:
        raise ConfigError(faults)
    await asyncio.to_thread(_load)  # it takes a second the first time, and the loop has other work
    from fanfold.mcp.server import McpServer, link_to

    server = McpServer(settings, link_to(settings, workspace))
    await server.start()
    return server


def _load() -> None:
    try:
        importlib.import_module("fanfold.mcp.server")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _SDK:
            raise
        # One that is there but lacks something is of another version.
        reason = "" if isinstance(error, ModuleNotFoundError) else str(error)
        raise MissingExtraError(
            feature="the MCP client", install="pip install '.[mcp]' in the checkout", reason=reason
        ) from error
