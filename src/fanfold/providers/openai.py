"""OpenAIClient: the chat-completions wire, as OpenAI, vLLM, Ollama, llama-server and gateways speak it."""

from typing import Any

import msgspec

from fanfold.contracts.messages import (
    AssistantMessage,
    Attachment,
    Entry,
    Message,
    ModelReply,
    ModelRequest,
    StopReason,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from fanfold.contracts.settings import ModelSettings, ProviderSettings
from fanfold.protocols import DeltaSink, ModelCapabilities
from fanfold.providers.attached import attached_text, base64_of, is_image
from fanfold.providers.encoded import encoded
from fanfold.providers.exchange import exchange
from fanfold.providers.failures import ErrorObject, reported
from fanfold.providers.frames import Frame, FrameCache
from fanfold.providers.http import HttpTransport
from fanfold.providers.reply import ReplyInProgress
from fanfold.providers.route import HttpRoute, route_to
from fanfold.providers.structured import (
    EMIT_DESCRIPTION,
    EMIT_TOOL,
    SCHEMA_NAME,
    capabilities_of,
    is_forced,
    may_be_thought,
)
from fanfold.providers.tool_calls import arguments_text, json_text, replayed_arguments, replayed_name
from fanfold.providers.usage import Count
from fanfold.providers.wire_json import decoded

DEFAULT_BASE_URL = "https://api.openai.com/v1"
OPENAI_HOST = "api.openai.com"

_STOP_REASONS: dict[str, StopReason] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "tool_calls": "tool_calls",
}
"""Every other finish_reason is a plain stop, by whatever name."""
_FAILED = ("error", "insufficient_system_resource")
"""Finish reasons of gateways and DeepSeek that say: the server gave up."""

_encoder = msgspec.json.Encoder()


class OpenAIClient:
    """`model_id` of the provider, over `transport`, which its owner closes."""

    def __init__(
        self, transport: HttpTransport, provider: ProviderSettings, model: ModelSettings | None, model_id: str
    ) -> None:
        self._transport = transport
        self._route = route_to(
            provider,
            model,
            default_base_url=DEFAULT_BASE_URL,
            path="/chat/completions",
            wire_headers=lambda key: {"Authorization": f"Bearer {key}"} if key else {},
        )
        self._is_openai = self._route.host == OPENAI_HOST
        self._capabilities = capabilities_of(provider, model, automatic="json_schema" if self._is_openai else "prompt")
        self._model = model
        self._model_id = model_id
        self._frames = FrameCache()

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._capabilities

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        is_streaming = deltas is not None
        reply = ReplyInProgress(
            self._route,
            _read_usage,
            is_forced=is_forced(self._capabilities, request),
            may_be_thought=may_be_thought(request),
            deltas=deltas,
        )
        body = self.body(request, is_streaming)
        return await exchange(
            self._transport, self._route, body, _ChatReader(self._route, reply), is_streaming=is_streaming
        )

    async def close(self) -> None:
        """Nothing of its own to close."""

    def body(self, request: ModelRequest, is_streaming: bool) -> bytes:
        """The JSON that `generate` sends; what earlier calls of the session encoded comes from the memo."""
        messages = encoded(request.transcript, request.memo, ChatMessages)
        frame = self._frames.get(request, is_streaming, lambda: self._frame(request, is_streaming))
        return b"".join((frame.head, memoryview(messages.json)[:-1], frame.tail))

    def _frame(self, request: ModelRequest, is_streaming: bool) -> Frame:
        system = [{"role": "system", "content": request.system}] if request.system else []
        head = _encoder.encode({"model": self._model_id, "messages": system})[:-2]
        settings = {**self._structure(request), **self._limits(request)}
        if is_streaming:
            settings |= {"stream": True, "stream_options": {"include_usage": True}}
        return Frame(
            head + b"," if system else head,
            b"]," + _encoder.encode(settings)[1:] if settings else b"]}",
        )

    def _structure(self, request: ModelRequest) -> dict[str, Any]:
        """Tools and the form of the answer."""
        schema, found = request.output_schema, dict[str, Any]()
        if request.tools:
            found["tools"] = [_function(tool.name, tool.description, tool.parameters) for tool in request.tools]
        if schema is not None and is_forced(self._capabilities, request):
            found["tools"] = [_function(EMIT_TOOL, EMIT_DESCRIPTION, schema)]
            found["tool_choice"] = {"type": "function", "function": {"name": EMIT_TOOL}}
        if schema is not None and self._capabilities.structured == "json_schema":
            # strict: false, because OpenAI's strict subset refuses most schemas that people write.
            form = {"name": SCHEMA_NAME, "schema": schema, "strict": False}
            found["response_format"] = {"type": "json_schema", "json_schema": form}
        return found

    def _limits(self, request: ModelRequest) -> dict[str, Any]:
        model = self._model
        most = request.max_output_tokens or (model and model.max_output_tokens)
        temperature = request.temperature
        if temperature is None and model is not None:
            temperature = model.temperature
        name = "max_completion_tokens" if self._is_openai else "max_tokens"
        limits = {name: most or None, "temperature": temperature}
        return {name: value for name, value in limits.items() if value is not None}


def _function(name: str, description: str, parameters: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


# ---- messages ----------------------------------------------------------------------------------------------


class ChatMessages:
    """`json`: the encoded messages, each followed by a comma."""

    def __init__(self) -> None:
        self.newest: Entry | None = None
        self.json = bytearray()

    def add(self, message: Message) -> None:
        self.json += _encoder.encode(_chat_message(message))
        self.json += b","


def _chat_message(message: Message) -> dict[str, Any]:
    match message:
        case UserMessage(attachments=()):
            return {"role": "user", "content": message.text}
        case UserMessage():
            text = [_text_part(message.text)] if message.text.strip() else []
            return {"role": "user", "content": [*text, *map(_attached_part, message.attachments)]}
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.call_id, "content": message.output}
        case AssistantMessage(calls=()):
            return {"role": "assistant", "content": message.text}
        case AssistantMessage():
            calls = [_chat_call(call) for call in message.calls]
            return {"role": "assistant", "content": message.text or None, "tool_calls": calls}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _attached_part(attachment: Attachment) -> dict[str, Any]:
    if not is_image(attachment):
        return _text_part(attached_text(attachment))
    url = f"data:{attachment.media_type};base64,{base64_of(attachment)}"
    return {"type": "image_url", "image_url": {"url": url}}


def _chat_call(call: ToolCall) -> dict[str, Any]:
    arguments = json_text(replayed_arguments(call.args))
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": replayed_name(call.name), "arguments": arguments},
    }


# ---- replies -----------------------------------------------------------------------------------------------
# Types are as wide as what servers really send; everything unknown is skipped.


class _Part(msgspec.Struct, frozen=True):
    text: Any = None


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()


class _Call(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | int | None = None
    function: _Function = _Function()


class _Message(msgspec.Struct, frozen=True):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int | None = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: Count | None = None


class _CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: Count | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count = 0
    prompt_tokens_details: _PromptDetails = _PromptDetails()
    completion_tokens_details: _CompletionDetails = _CompletionDetails()
    prompt_cache_hit_tokens: Count = 0
    """DeepSeek's name for cached tokens."""

    def as_usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            # Some count in it what they name nowhere else; less than its parts it cannot be.
            total_tokens=max(self.total_tokens, self.prompt_tokens + self.completion_tokens),
            cache_read_tokens=self.prompt_tokens_details.cached_tokens or self.prompt_cache_hit_tokens,
            reasoning_tokens=self.completion_tokens_details.reasoning_tokens or 0,
        )


class _Chunk(msgspec.Struct, frozen=True):
    """A whole answer or one event of a stream."""

    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: ErrorObject | str | None = None


_chunk = msgspec.json.Decoder(_Chunk)
_read_usage = msgspec.json.Decoder(_Usage).decode


class _ChatReader:
    def __init__(self, route: HttpRoute, reply: ReplyInProgress) -> None:
        self.reply = reply
        self._route = route

    def take_whole(self, body: bytes) -> None:
        chunk = decoded(_chunk, body)
        if not chunk.choices and not chunk.error:
            raise msgspec.ValidationError("it has no choices")
        self._take(chunk, is_whole=True)
        self.reply.stop = self.reply.stop or "stop"

    def take_event(self, data: bytes) -> bool:
        if data.strip() == b"[DONE]":
            return True
        self._take(decoded(_chunk, data), is_whole=False)
        return False

    def _take(self, chunk: _Chunk, *, is_whole: bool) -> None:
        if chunk.error:
            raise reported(self._route, chunk.error)
        self.reply.usage.take(chunk.usage)
        for choice in chunk.choices or ():
            message = choice.message or choice.delta
            if message is not None and not choice.index:
                self._take_message(message, is_whole=is_whole)
            if choice.finish_reason in _FAILED:
                raise reported(self._route, ErrorObject(f"finish_reason {choice.finish_reason}", "server_error"))
            if choice.finish_reason:
                self.reply.stop = self.reply.stop or _STOP_REASONS.get(choice.finish_reason, "stop")

    def _take_message(self, message: _Message, *, is_whole: bool) -> None:
        reasoning = message.reasoning_content or message.reasoning
        if isinstance(reasoning, str) and reasoning:
            self.reply.add_reasoning(reasoning)
        if text := _text(message.content):
            self.reply.add_text(text)
        if message.refusal:
            self.reply.add_text(message.refusal)
            self.reply.stop = "content_filter"
        for position, call in enumerate(message.tool_calls or ()):
            self.reply.add_call(
                position if is_whole else call.index,
                "" if call.id is None else str(call.id),
                call.function.name or "",
                arguments_text(call.function.arguments),
            )


def _text(content: str | list[_Part] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text for part in content if isinstance(part.text, str))
    return content or ""
