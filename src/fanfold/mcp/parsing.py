"""A server as a host names it in a call: `{"name": ..., "transport": {"type": "stdio", "command": ...}}`."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from fanfold.contracts.settings import McpServerSettings
from fanfold.errors import ConfigError
from fanfold.kernel.mcp_settings import server_faults

_DEFAULT_TIMEOUT_MS = McpServerSettings(name="").timeout_ms


class _Transport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["stdio", "http", "streamable-http"]
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str | None = None
    headers: dict[str, str] = {}


class _Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    transport: _Transport
    env: dict[str, str] = {}
    timeout_ms: int = _DEFAULT_TIMEOUT_MS


def parse_server(mapping: Mapping[str, Any]) -> McpServerSettings:
    """The settings that `mapping` means.

    Keys: `name`; `transport` with `type` ("stdio", "http" or "streamable-http") and then `command`, `args`, `env`, or
    `url`, `headers`; `env` (also here; the transport's own comes first); `timeout_ms`.

    Raises:
        ConfigError: `problems` lists what is wrong. No value of `env`, `headers` or `url` is shown.
    """
    try:
        form = msgspec.convert(mapping, _Server)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        place = path.replace("`", "").removeprefix("$").removeprefix(".")  # of a key: "key in $"
        raise ConfigError(f"MCP server: {place + ': ' if place else ''}{reason}") from error
    transport = form.transport
    settings = McpServerSettings(
        name=form.name,
        command=transport.command,
        args=transport.args,
        env={**form.env, **transport.env},
        url=transport.url,
        headers=transport.headers,
        timeout_ms=form.timeout_ms,
    )
    faults = [f"{field} {fault}" for field, fault in server_faults(settings)]
    needed = "command" if transport.type == "stdio" else "url"
    if not faults and getattr(settings, needed) is None:
        faults.append(f"a {transport.type} server needs {needed} in transport")
    if faults:
        raise ConfigError([f"MCP server {form.name[:60]!r}: {fault}" for fault in faults])
    return settings
