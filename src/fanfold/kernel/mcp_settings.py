"""What the settings of an MCP server must be, whether a file or the host gave them."""

import re
from collections.abc import Iterator, Mapping

from fanfold.contracts.settings import McpServerSettings
from fanfold.kernel.mcp_names import server_name_fault
from fanfold.kernel.url import url_fault

MAX_TIMEOUT_MS = 24 * 60 * 60 * 1000
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def server_faults(settings: McpServerSettings) -> Iterator[tuple[str, str]]:
    """Each fault: the field that it is about, and what follows the field's name in a message.

    Never shows a value of `env`, `headers` or `url`: it may be a secret.
    """
    name_fault = server_name_fault(settings.name)
    if name_fault is not None:
        yield "name", name_fault
    if settings.command is None and settings.url is None:
        yield "command", "or url is needed: the program to start, or the address to call"
    elif settings.command is not None and settings.url is not None:
        yield "url", "and command exclude each other: a server is started here or called at its address"
    elif settings.command is not None:
        yield from _command_faults(settings.command, settings)
    elif settings.url is not None:
        yield from _url_faults(settings.url, settings)
    if not 1 <= settings.timeout_ms <= MAX_TIMEOUT_MS:
        yield "timeout_ms", f"must be from 1 to {MAX_TIMEOUT_MS:,}"


def _command_faults(command: str, settings: McpServerSettings) -> Iterator[tuple[str, str]]:
    if not command.strip():
        yield "command", "must not be empty"
    if "\0" in command:
        yield "command", "must not hold a NUL character"
    if any("\0" in each for each in settings.args):
        yield "args", "must not hold a NUL character"
    for name, value in settings.env.items():
        if not name or "=" in name or "\0" in name + value:
            yield "env", "must name variables without '=', and hold no NUL character"
            break
    if settings.headers:
        yield "headers", "have no meaning for a command; give it what it needs in env"


def _url_faults(url: str, settings: McpServerSettings) -> Iterator[tuple[str, str]]:
    fault = url_fault(url)
    if fault is not None:
        yield "url", fault
    if settings.args:
        yield "args", "have no meaning for a url"
    if settings.env:
        yield "env", "has no meaning for a url; give it what it needs in headers"
    yield from _header_faults(settings.headers)


def _header_faults(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        if _HEADER_NAME.fullmatch(name) is None:
            yield "headers", f"must not name {name[:60]!r}, which is no name of an HTTP header"
        elif _CONTROL.search(value) or not value.isascii():
            yield "headers", f"must not give {name} line ends, control characters or characters beyond ASCII"
