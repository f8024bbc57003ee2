"""The tools of a server, in the form in which sessions use them."""

import logging
from collections.abc import Awaitable, Callable, Iterable

import mcp_types
import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.errors import InvalidSpecError
from fanfold.kernel.mcp_names import tool_names
from fanfold.kernel.schema import compile_schema
from fanfold.protocols import Tool, ToolScope

MAX_DESCRIPTION_CHARS = 4000
"""Each request to a model repeats it."""
MAX_SCHEMA_BYTES = 64 * 1024
logger = logging.getLogger("fanfold.mcp")

Call = Callable[[str, JsonObject, ToolScope], Awaitable[ToolOutput]]
"""By the tool's own name."""


class McpTool(msgspec.Struct, frozen=True):
    spec: ToolSpec
    own_name: str
    """As the server knows it."""
    call: Call

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        return await self.call(self.own_name, args, scope)


def tools_of(server: str, listed: Iterable[mcp_types.Tool], call: Call) -> dict[str, Tool]:
    """The tools by their names for models, in the server's order; of two with one name the first."""
    by_name: dict[str, mcp_types.Tool] = {}
    for each in listed:
        by_name.setdefault(each.name, each)
    names = tool_names(server, by_name)
    return {names[own]: McpTool(_spec(names[own], tool), own, call) for own, tool in by_name.items()}


def _spec(name: str, tool: mcp_types.Tool) -> ToolSpec:
    hints = tool.annotations
    is_harmless = hints is not None and hints.read_only_hint is True and hints.destructive_hint is not True
    return ToolSpec(
        name=name,
        description=_description(tool),
        parameters=_parameters(name, tool.input_schema),
        # Its hint is the server's word only: a call of it is asked about until a rule of the user's allows it.
        is_parallel_safe=is_harmless,
    )


def _description(tool: mcp_types.Tool) -> str:
    title = tool.title or (tool.annotations.title if tool.annotations is not None else None)
    text = (tool.description or title or tool.name).encode("utf-8", "replace").decode().replace("\0", "?").strip()
    return text if len(text) <= MAX_DESCRIPTION_CHARS else text[: MAX_DESCRIPTION_CHARS - 1] + "…"


def _parameters(name: str, given: JsonObject) -> JsonObject:
    """`given` with an object as its root; where nobody could use it, one that lets everything through to the server."""
    schema: JsonObject = {key: value for key, value in given.items() if key != "$schema"}
    # Written for an older draft as it may be, it is read as one of 2020-12, the only one that models are told of.
    schema["type"] = "object"
    schema.setdefault("properties", {})
    fault = _fault(schema)
    if fault:
        logger.warning("the schema of %s is left out: %s", name, fault)
        return {"type": "object", "properties": {}}
    return schema


def _fault(schema: JsonObject) -> str:
    try:
        if len(encode_json(schema)) > MAX_SCHEMA_BYTES:
            return f"it is larger than {MAX_SCHEMA_BYTES // 1024} KiB"
        compile_schema(schema)
    except InvalidSpecError as error:
        return error.reason
    except (ValueError, TypeError, RecursionError) as error:
        return str(error)
    return ""
