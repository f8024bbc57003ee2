"""The blocks `mcp_servers "name" { ... }` of a configuration."""

from fanfold.config.reading import TableReader
from fanfold.contracts.settings import McpServerSettings
from fanfold.kernel.mcp_settings import MAX_TIMEOUT_MS, server_faults

_DEFAULT_TIMEOUT_MS = McpServerSettings(name="").timeout_ms


def read_mcp_servers(top: TableReader) -> dict[str, McpServerSettings]:
    """The servers by name; each fault is added to the problems of `top`, none of the values is shown."""
    servers: dict[str, McpServerSettings] = {}
    for name, reader in top.sub_tables("mcp_servers"):
        known = [other for other in servers if other.lower() == name.lower()]
        if known:  # rules of permission compare names without case, and could not tell them apart
            reader.problems.add(reader.table.place, f"{reader.path} differs from {known[0]!r} by case only")
        servers[name] = _server(name, reader)
    return servers


def _server(name: str, reader: TableReader) -> McpServerSettings:
    settings = McpServerSettings(
        name=name,
        command=reader.text("command", None),
        args=reader.texts("args", _any_text),
        env=_environment(reader),
        url=reader.text("url", None),
        headers=reader.headers("headers", {}),
        timeout_ms=reader.integer("timeout_ms", _DEFAULT_TIMEOUT_MS, at_most=MAX_TIMEOUT_MS),
        place=str(reader.table.place),
    )
    is_without = settings.command is None and settings.url is None
    if not (is_without and reader.table.entries.keys() & {"command", "url"}):  # else that has been told already
        for field, fault in server_faults(settings):
            _tell(reader, field, fault)
    reader.finish()
    return settings


def _tell(reader: TableReader, field: str, fault: str) -> None:
    entries, place = reader.table.entries, reader.table.place
    if field == "name":
        reader.problems.add(place, f"{reader.path}: a server's name {fault}")
    elif field in entries:
        reader.problems.add(entries[field].place, f"{reader.path}.{field} {fault}")
    else:
        reader.problems.add(place, f"{reader.path}.{field} {fault}")


def _environment(reader: TableReader) -> dict[str, str]:
    table = reader.sub_table("env")
    if table is None:
        return {}
    values = {name: table.text(name, None) for name in table.table.entries}
    return {name: value for name, value in values.items() if value is not None}


def _any_text(text: str) -> None:
    """All will do; what a program cannot be given is told with the other faults."""
