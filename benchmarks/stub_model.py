"""A model without network that answers as the fake server does: what remains is the cost of fanfold alone."""

from benchmarks.workload import answer
from fanfold.contracts.messages import ModelReply, ModelRequest, ToolCall, ToolMessage, Usage, UserMessage
from fanfold.protocols import DeltaSink, ModelCapabilities

_USAGE = Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15)


class StubModel:
    """Asks for `add` in the first `rounds` rounds of a conversation, then answers its newest message."""

    capabilities = ModelCapabilities()

    def __init__(self, rounds: int = 0) -> None:
        self._rounds = rounds

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        done = (request.transcript.length - 1) // 2
        if done < self._rounds:
            call = ToolCall(f"call-{done}", "add", {"a": done, "b": 2})
            return ModelReply(calls=(call,), stop_reason="tool_calls", usage=_USAGE)
        newest = request.transcript.message
        assert isinstance(newest, UserMessage | ToolMessage)
        asked = newest.text if isinstance(newest, UserMessage) else newest.output
        return ModelReply(text=answer(asked), usage=_USAGE)

    async def close(self) -> None: ...
