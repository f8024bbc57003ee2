"""ScriptedModel: a ModelClient that answers from a list, a function or patterns, without any network."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fanfold.contracts.messages import (
    AssistantMessage,
    ModelReply,
    ModelRequest,
    StopReason,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from fanfold.protocols import DeltaSink, ModelCapabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One scripted answer."""

    text: str = ""
    calls: Sequence[ToolCall] = ()
    usage: Usage | None = field(default_factory=lambda: Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15))
    """None: the provider sent no usage."""
    delay: float = 0.0
    """Seconds before the answer."""
    error: Exception | None = None
    """Raised instead of an answer, after `delay`."""
    stop_reason: StopReason | None = None
    pieces: Sequence[str] | None = None
    """How `text` arrives when the call is streamed; None: word by word."""


def calls(*names_and_args: tuple[str, Mapping[str, Any]], text: str = "") -> Reply:
    """A reply that asks for tools: `calls(("read", {"file_path": "a.py"}))`. Ids are `call-1`, `call-2`, ..."""
    made = [ToolCall(f"call-{number}", name, dict(args)) for number, (name, args) in enumerate(names_and_args, start=1)]
    return Reply(text=text, calls=made)


Answer = Reply | str | Exception
Script = (
    Sequence[Answer]
    | Mapping[str, Answer]
    | Callable[[ModelRequest], Answer]
    | Callable[[ModelRequest], Awaitable[Answer]]
)


class ScriptedModel:
    """Answers each request from its script and keeps the requests for the test to look at.

    Args:
        script: a list, used up in order (an `AssertionError` names the request that came too many); a mapping of
            regular expressions to answers, the first that matches the newest message wins; or a function, plain or
            async, of the request.
    """

    def __init__(self, script: Script, *, capabilities: ModelCapabilities | None = None) -> None:
        self._script = script
        self._capabilities = capabilities or ModelCapabilities(structured="prompt")
        self._used = 0
        self.requests: list[ModelRequest] = []
        self.running = 0
        self.most_running = 0
        """The largest number of calls that were under way together."""

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._capabilities

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        # Without what leads back to the session, which would live as long as this list.
        self.requests.append(msgspec.structs.replace(request, before_retry=None, memo={}))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            reply = await self._answer(request)
            if reply.delay:
                await asyncio.sleep(reply.delay)
            if reply.error is not None:
                raise reply.error
            if deltas is not None:
                for piece in reply.pieces if reply.pieces is not None else re.findall(r"\S+\s*|\s+", reply.text):
                    deltas.text(piece)
            stop: StopReason = "tool_calls" if reply.calls else "stop"
            return ModelReply(
                text=reply.text, calls=tuple(reply.calls), usage=reply.usage, stop_reason=reply.stop_reason or stop
            )
        finally:
            self.running -= 1

    async def _answer(self, request: ModelRequest) -> Reply:
        answer = self._pick(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Exception):
            return Reply(error=answer)
        return Reply(text=answer) if isinstance(answer, str) else answer

    def _pick(self, request: ModelRequest) -> Any:
        script = self._script
        if callable(script):
            return script(request)
        newest = newest_text(request)
        if isinstance(script, Mapping):
            for pattern, answer in script.items():
                if re.search(pattern, newest):
                    return answer
            raise AssertionError(f"no pattern of the script matches: {newest!r}")
        if self._used >= len(script):
            raise AssertionError(f"the script has only {len(script)} answers; one too many was asked: {newest!r}")
        self._used += 1
        return script[self._used - 1]

    async def close(self) -> None:
        return None


def newest_text(request: ModelRequest) -> str:
    """Text of the newest message of the request."""
    message = request.transcript.message
    match message:
        case UserMessage() | AssistantMessage():
            return message.text
        case ToolMessage():
            return message.output


def echo(request: ModelRequest) -> str:
    """A script that answers with what it was asked."""
    return newest_text(request)


def as_json(value: Any) -> str:
    """An answer that is the JSON of `value`."""
    return msgspec.json.encode(value).decode()
