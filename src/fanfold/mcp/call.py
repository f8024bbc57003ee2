"""One call of a tool: its arguments on the way to the server, and what comes back."""

import asyncio
from typing import cast

import mcp_types
import msgspec
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from fanfold.contracts.codec import decode_json, encode_json
from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.record import JsonObject
from fanfold.foreign import described
from fanfold.mcp.answers import output_of

IDEMPOTENCY_KEY = "fanfold/idempotency-key"
"""Where the `_meta` of a call holds the key that is the same for each attempt at it."""

_MAX_FAULTS = 3

_Result = mcp_types.CallToolResult | mcp_types.InputRequiredResult
_result: TypeAdapter[_Result] = TypeAdapter(_Result)


class PendingCall:
    """A call that somebody waits for. Cancelling `answer` gives it up."""

    def __init__(self, tool: str, args: JsonObject, idempotency_key: str) -> None:
        self.tool = tool
        self.args = args
        self.idempotency_key = idempotency_key
        self.answer: asyncio.Future[ToolOutput] = asyncio.get_running_loop().create_future()

    def settle(self, output: ToolOutput) -> None:
        """The first answer counts."""
        if not self.answer.done():
            self.answer.set_result(output)


def plain(args: JsonObject) -> JsonObject:
    """`args` as JSON has them: the SDK would end the whole connection over a lone surrogate or a NaN.

    Raises:
        ValueError: they are no JSON.
    """
    try:
        read: JsonObject = decode_json(encode_json(args), JsonObject)
        return read
    except (TypeError, OverflowError, RecursionError, UnicodeError, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error


async def ask(client: Client, call: PendingCall) -> ToolOutput:
    """What the server answers.

    Not `Client.call_tool`, which has structured content checked against the server's own schema: patterns in that can
    hold up the loop for hours, and a model can read what does not fit.

    Raises:
        MCPError: the server refused, or is gone.
        pydantic.ValidationError: the answer is no result of a tool.
    """
    meta = cast(mcp_types.RequestParamsMeta, {IDEMPOTENCY_KEY: call.idempotency_key})
    params = mcp_types.CallToolRequestParams(name=call.tool, arguments=call.args, _meta=meta)
    request = mcp_types.CallToolRequest(params=params)
    try:
        return output_of(await client.session.send_request(request, _result))
    except MCPError as error:
        if error.code != mcp_types.HEADER_MISMATCH:
            raise
    # Some arguments go into HTTP headers too, which only a new listing says: then it will take the call.
    await client.list_tools()
    return output_of(await client.session.send_request(request, _result))


def faults(error: ValidationError) -> str:
    """The first places at which data are not what the protocol says, without the data."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:_MAX_FAULTS])


def refusal(server: str, tool: str, error: BaseException, last_words: str) -> str:
    """What a model reads about a call that has failed, though the server may be alive."""
    match error:
        case MCPError(code=mcp_types.CONNECTION_CLOSED):
            reason = "the connection was lost before an answer came"
        case MCPError(message=message, code=mcp_types.INTERNAL_ERROR) if last_words:
            reason = f"{message}; {last_words}"
        case MCPError(message=message, code=code):
            reason = f"{message} (code {code})"
        case ValidationError() as invalid:
            reason = f"its answer breaks the protocol: {faults(invalid)}"
        case _:
            reason = described(error)
    return f"MCP server '{server}' failed in '{tool}': {reason}"
