"""AnthropicClient: the Messages wire, with prompt caching."""

from typing import Any, Literal

import msgspec

from fanfold.contracts.messages import (
    AssistantMessage,
    Attachment,
    Entry,
    Message,
    ModelReply,
    ModelRequest,
    StopReason,
    ToolMessage,
    Usage,
    UserMessage,
)
from fanfold.contracts.settings import ModelSettings, ProviderSettings
from fanfold.errors import ConfigError
from fanfold.protocols import DeltaSink, ModelCapabilities
from fanfold.providers.attached import attached_text, base64_of, is_image
from fanfold.providers.encoded import encoded
from fanfold.providers.exchange import exchange
from fanfold.providers.failures import ErrorObject, reported
from fanfold.providers.frames import Frame, FrameCache
from fanfold.providers.http import HttpTransport
from fanfold.providers.reply import ReplyInProgress
from fanfold.providers.route import HttpRoute, route_to
from fanfold.providers.structured import EMIT_DESCRIPTION, EMIT_TOOL, capabilities_of, is_forced, may_be_thought
from fanfold.providers.tool_calls import arguments_text, replayed_arguments, replayed_name
from fanfold.providers.usage import Count
from fanfold.providers.wire_json import decoded

DEFAULT_BASE_URL = "https://api.anthropic.com"
WIRE_VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 8192
"""The wire demands a limit; this one holds where neither the request nor the model's settings give one."""

_STOP_REASONS: dict[str, StopReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "pause_turn": "incomplete",
}
"""Every other stop_reason is a plain stop."""
_CACHE_HERE = {"type": "ephemeral"}
_NOTHING = "(no text)"
"""The wire refuses blank text blocks."""

_encoder = msgspec.json.Encoder()


class AnthropicClient:
    """`model_id` of the provider, over `transport`, which its owner closes.

    Cached are the tools with the system prompt, which all children of an agent share, and everything up to
    the newest message, which the session's next call repeats.
    """

    def __init__(
        self, transport: HttpTransport, provider: ProviderSettings, model: ModelSettings | None, model_id: str
    ) -> None:
        self._transport = transport
        self._route = route_to(
            provider,
            model,
            default_base_url=DEFAULT_BASE_URL,
            path="/v1/messages",
            wire_headers=lambda key: {
                "anthropic-version": WIRE_VERSION,
                **({"x-api-key": key} if key else {}),
            },
        )
        self._capabilities = capabilities_of(provider, model, automatic="forced_tool")
        if self._capabilities.structured == "json_schema":
            raise ConfigError(
                f"{provider.place}: provider '{provider.name}' speaks the Messages wire, which has no "
                'json_schema mode; set structured_output to "forced_tool" or "prompt"'
            )
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
            self._transport, self._route, body, _MessagesReader(self._route, reply), is_streaming=is_streaming
        )

    async def close(self) -> None:
        """Nothing of its own to close."""

    def body(self, request: ModelRequest, is_streaming: bool) -> bytes:
        """The JSON that `generate` sends; what earlier calls of the session encoded comes from the memo."""
        messages = encoded(request.transcript, request.memo, MessagesTranscript)
        called = () if request.tools else tuple(messages.called)
        frame = self._frames.get(request, (is_streaming, called), lambda: self._frame(request, is_streaming, called))
        return b"".join((frame.head, messages.closed, messages.open_message(), frame.tail))

    def _frame(self, request: ModelRequest, is_streaming: bool, called: tuple[str, ...]) -> Frame:
        model = self._model
        temperature = request.temperature
        if temperature is None and model is not None:
            temperature = model.temperature
        settings: dict[str, Any] = {
            "model": self._model_id,
            "max_tokens": request.max_output_tokens or (model and model.max_output_tokens) or DEFAULT_MAX_TOKENS,
            **self._tools(request, called),
        }
        if request.system:
            # Tools stand before the system prompt in the cache's order, so one mark covers both.
            settings["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHE_HERE}]
        elif "tools" in settings:
            settings["tools"][-1]["cache_control"] = _CACHE_HERE
        if temperature is not None:
            settings["temperature"] = temperature
        if is_streaming:
            settings["stream"] = True
        return Frame(_encoder.encode(settings)[:-1] + b',"messages":[', b"]}")

    def _tools(self, request: ModelRequest, called: tuple[str, ...]) -> dict[str, Any]:
        if request.tools:
            return {"tools": [_tool(tool.name, tool.description, tool.parameters) for tool in request.tools]}
        if request.output_schema is not None and is_forced(self._capabilities, request):
            return {
                "tools": [_tool(EMIT_TOOL, EMIT_DESCRIPTION, request.output_schema)],
                "tool_choice": {"type": "tool", "name": EMIT_TOOL},
            }
        if called:
            # The wire refuses a history with tool calls without defined tools, as after the last tool round.
            gone = [_tool(name, "No longer available.", {"type": "object"}) for name in called]
            return {"tools": gone, "tool_choice": {"type": "none"}}
        return {}


def _tool(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "description": description, "input_schema": schema}


# ---- messages ----------------------------------------------------------------------------------------------

Role = Literal["user", "assistant"]


class MessagesTranscript:
    """Messages of alternating roles: neighbours of one role share a message; the newest one is kept open."""

    def __init__(self) -> None:
        self.newest: Entry | None = None
        self.closed = bytearray()
        """Whole messages, each followed by a comma."""
        self.called: dict[str, None] = {}
        """Names of the tools that were called, in order."""
        self._role: Role = "user"
        self._blocks: list[bytes] = []

    def add(self, message: Message) -> None:
        match message:
            case UserMessage():
                for attachment in message.attachments:  # before the words about them, as the wire's makers advise
                    self._put("user", _attached_block(attachment))
                if message.text.strip() or not message.attachments:
                    self._put("user", _text_block(message.text))
            case ToolMessage():
                self._put("user", _result_block(message))
            case AssistantMessage():
                if message.text.strip() or not message.calls:
                    self._put("assistant", _text_block(message.text))
                for call in message.calls:
                    name = replayed_name(call.name)
                    self.called[name] = None
                    input = replayed_arguments(call.args)
                    self._put("assistant", {"type": "tool_use", "id": call.id, "name": name, "input": input})

    def open_message(self) -> bytes:
        """The newest message, with the mark up to which the provider should cache."""
        mark = b',"cache_control":' + _encoder.encode(_CACHE_HERE) + b"}"
        return self._message([*self._blocks[:-1], self._blocks[-1][:-1] + mark])

    def _put(self, role: Role, block: dict[str, Any]) -> None:
        if self._blocks and role != self._role:
            self.closed += self._message(self._blocks)
            self.closed += b","
            self._blocks.clear()
        self._role = role
        self._blocks.append(_encoder.encode(block))

    def _message(self, blocks: list[bytes]) -> bytes:
        return b'{"role":"%s","content":[%s]}' % (self._role.encode(), b",".join(blocks))


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text if text.strip() else _NOTHING}


def _attached_block(attachment: Attachment) -> dict[str, Any]:
    if not is_image(attachment):
        return _text_block(attached_text(attachment))
    source = {"type": "base64", "media_type": attachment.media_type, "data": base64_of(attachment)}
    return {"type": "image", "source": source}


def _result_block(message: ToolMessage) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.output}
    return block if message.ok else {**block, "is_error": True}


# ---- replies -----------------------------------------------------------------------------------------------


class _Usage(msgspec.Struct, frozen=True):
    """A stream counts the input at its start and the output at its end."""

    input_tokens: Count
    output_tokens: Count
    cache_read_input_tokens: Count = 0
    cache_creation_input_tokens: Count = 0

    def as_usage(self) -> Usage:
        prompt = self.input_tokens + self.cache_read_input_tokens + self.cache_creation_input_tokens
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=self.output_tokens,
            total_tokens=prompt + self.output_tokens,
            cache_read_tokens=self.cache_read_input_tokens,
            cache_write_tokens=self.cache_creation_input_tokens,
        )


class _Block(msgspec.Struct, frozen=True):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class _Delta(msgspec.Struct, frozen=True):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Reply(msgspec.Struct, frozen=True):
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: ErrorObject | str | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    index: int | None = None
    message: _Reply | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: ErrorObject | str | None = None


_reply = msgspec.json.Decoder(_Reply)
_event = msgspec.json.Decoder(_Event)
_read_usage = msgspec.json.Decoder(_Usage).decode


class _MessagesReader:
    def __init__(self, route: HttpRoute, reply: ReplyInProgress) -> None:
        self.reply = reply
        self._route = route

    def take_whole(self, body: bytes) -> None:
        whole = decoded(_reply, body)
        if whole.error:
            raise reported(self._route, whole.error)
        if whole.content is None:
            raise msgspec.ValidationError("it has no content")
        for index, block in enumerate(whole.content):
            self._take_block(index, block)
        self.reply.usage.take(whole.usage)
        self._take_stop(whole.stop_reason or "end_turn")

    def take_event(self, data: bytes) -> bool:
        event = decoded(_event, data)
        if event.error:
            raise reported(self._route, event.error)
        if event.message is not None:
            self.reply.usage.take(event.message.usage)
        if event.content_block is not None:
            self._take_block(event.index, event.content_block)
        if event.delta is not None:
            self._take_delta(event.index, event.delta)
        self.reply.usage.take(event.usage)
        return event.type == "message_stop"

    def _take_block(self, index: int | None, block: _Block) -> None:
        if block.type == "tool_use":
            self.reply.add_call(index, block.id or "", block.name or "", arguments_text(block.input))
        if block.text:
            self.reply.add_text(block.text)
        if block.thinking:
            self.reply.add_reasoning(block.thinking)

    def _take_delta(self, index: int | None, delta: _Delta) -> None:
        if delta.text:
            self.reply.add_text(delta.text)
        if delta.thinking:
            self.reply.add_reasoning(delta.thinking)
        if delta.partial_json:
            self.reply.add_call(index, "", "", delta.partial_json)
        self._take_stop(delta.stop_reason)

    def _take_stop(self, reason: str | None) -> None:
        if reason is not None:
            self.reply.stop = _STOP_REASONS.get(reason, "stop")
