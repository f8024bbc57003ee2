"""What models and tools give back, made sound before it becomes a fact: right types, plain text, unique ids."""

from typing import Any

import msgspec

from fanfold.contracts.codec import encode_readable
from fanfold.contracts.messages import ModelReply, ToolCall, ToolOutput
from fanfold.errors import ProviderError
from fanfold.foreign import described, logger
from fanfold.kernel.call_ids import unique_ids
from fanfold.kernel.plain_text import plain

_any_json = msgspec.json.Decoder(Any)


def sound_output(output: object) -> ToolOutput:
    """A tool's output whose fields are what they claim to be; a fault is a failed output."""
    try:
        checked = msgspec.convert(msgspec.to_builtins(output, builtin_types=(bytes, bytearray)), ToolOutput)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        return ToolOutput(output=f"the tool gave no valid output: {error}", exit_code=1)
    anchors = tuple(map(plain, checked.source_anchors))
    artifact = None if checked.artifact is None else plain(checked.artifact)
    return msgspec.structs.replace(checked, output=plain(checked.output), source_anchors=anchors, artifact=artifact)


def sound_reply(reply: object) -> ModelReply:
    """A model's reply likewise.

    Raises:
        ProviderError: it is no valid reply.
    """
    try:
        checked = msgspec.convert(msgspec.to_builtins(reply, builtin_types=(bytes, bytearray)), ModelReply)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise no_reply(error) from error
    usage = checked.usage
    if usage is not None and min(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) < 0:
        usage = None  # a negative count would refill a budget: it counts as not reported
    calls = checked.calls and tuple(map(_sound_call, unique_ids([call.id for call in checked.calls]), checked.calls))
    return msgspec.structs.replace(
        checked, text=plain(checked.text), reasoning=plain(checked.reasoning), calls=calls, usage=usage
    )


def _sound_call(id: str, call: ToolCall) -> ToolCall:
    args: Any = call.args
    try:
        encode_readable(args, _any_json)
    except (TypeError, ValueError):
        args = plain(str(args))  # no JSON: kept as text, answered with an error, never executed
    return ToolCall(id, plain(call.name), args)


def no_reply(error: BaseException) -> ProviderError:
    logger.debug("the model client gave no valid reply", exc_info=error)
    return ProviderError(f"the model client gave no valid reply: {described(error)}", kind="protocol", retryable=False)
