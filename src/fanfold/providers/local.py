"""LocalClient: any GGUF model in this process, through llama.cpp; `local/default` is the embedded one.

Requests and chunks have the chat-completions form, so their messages are encoded as for a server of that wire.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from fanfold.contracts.messages import (
    Message,
    ModelReply,
    ModelRequest,
    StopReason,
    ToolSpec,
    Usage,
    UserMessage,
)
from fanfold.contracts.record import JsonObject
from fanfold.contracts.settings import ModelSettings, ProviderSettings
from fanfold.errors import FanfoldError, LifecycleError, ProviderError
from fanfold.protocols import DeltaSink, ModelCapabilities
from fanfold.providers.attached import attached_text, is_image
from fanfold.providers.encoded import encoded
from fanfold.providers.gguf import DEFAULT_MODEL_ID, find_model
from fanfold.providers.llama import Job, Shape, acquire, default_threads, load_runtime, release
from fanfold.providers.openai import ChatMessages
from fanfold.providers.structured import may_be_thought
from fanfold.providers.tool_calls import CallAssembly, finished_calls

DEFAULT_CONTEXT_TOKENS = 4096
"""Of one slot, which takes 90 MB of memory for them with the embedded model."""
DEFAULT_OUTPUT_TOKENS = 2048
SMALL_OUTPUT_TOKENS = 256
"""Of the embedded model, which after some sentences only repeats itself."""
SMALL_REPEAT_PENALTY = 1.1
"""Of the embedded model, which without one falls into loops; more, and it avoids the words that it should repeat."""
SEED = 0
"""Fixed, so that a temperature above 0 varies with the prompt only."""

ONE_LINE_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
"""The grammar's layout of JSON. Free layout lets small models indent for ever; without any space they answer worse
than in the form they have read most. `lenient`: keywords it does not know are left to the caller's validation, else
one of them would silently lift the whole constraint."""

JSON_IN_WORDS = "Your last message is one JSON object that matches this JSON Schema, and nothing else:\n"

_PLAIN_OBJECT = frozenset(
    {"type", "properties", "required", "title", "description", "$schema", "$id", "$comment", "$defs", "definitions"}
)

_encoder = msgspec.json.Encoder()


class LocalClient:
    """`model_id`: `default`, `/abs/path.gguf` or `./rel.gguf`. The model loads with the first call."""

    def __init__(self, provider: ProviderSettings, model: ModelSettings | None, model_id: str) -> None:
        runtime = load_runtime()
        is_default = model_id == DEFAULT_MODEL_ID
        context_tokens = (model and model.context_tokens) or DEFAULT_CONTEXT_TOKENS
        asked = model.structured_output if model and model.structured_output != "auto" else provider.structured_output
        self._name = f"{provider.name}/{model_id}"
        self._temperature = 0.0 if model is None or model.temperature is None else model.temperature
        self._most_output = (model and model.max_output_tokens) or (
            SMALL_OUTPUT_TOKENS if is_default else DEFAULT_OUTPUT_TOKENS
        )
        self._sampling = {"repeat_penalty": SMALL_REPEAT_PENALTY} if is_default else {}
        self._capabilities = ModelCapabilities(
            structured="prompt" if asked == "prompt" else "json_schema",
            tools=not is_default and (model is None or model.tool_call),
            context_tokens=context_tokens,
        )
        self._grammar = runtime.json_schema_to_grammar
        shape = Shape(find_model(model_id), provider.slots, context_tokens, provider.threads or default_threads())
        self._server = acquire(runtime, shape)
        self._is_closed = False

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._capabilities

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        """Ask; beyond the provider's `slots` requests wait in order. Cancelling frees the slot within one step."""
        if self._is_closed:
            raise LifecycleError(f"the client of {self._name} is closed")
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        answer = _Answer(self._name, may_be_thought(request), _forwarder(loop, finished, deltas))

        def settle(error: Exception | None) -> None:
            if finished.done():
                return
            if error is None:
                finished.set_result(None)
            else:
                finished.set_exception(error)

        job = Job(self._body(request), answer.hear, lambda error: _call_on(loop, settle, error))
        self._server.submit(job)
        try:
            await finished
        except FanfoldError:
            raise
        except (ValueError, RuntimeError, msgspec.MsgspecError) as error:  # how llama.cpp refuses a request
            raise ProviderError(
                f"{self._name} refused the request: {error}", kind="bad_request", retryable=False, provider=self._name
            ) from error
        finally:
            job.is_cancelled = True
        return answer.reply()

    async def close(self) -> None:
        """Free the model when this was its last client in the process; what still runs on it is cancelled."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(release, self._server)

    def _body(self, request: ModelRequest) -> bytes:
        schema, system = request.output_schema, request.system
        body: dict[str, Any] = {
            "max_tokens": request.max_output_tokens or self._most_output,
            "temperature": self._temperature if request.temperature is None else request.temperature,
            "seed": SEED,
            "stream": True,  # also when nobody listens: only a stream can be stopped
            "stream_options": {"include_usage": True},
            "return_progress": True,  # chunks while the prompt is read, so that it can be stopped then too
            **self._sampling,
        }
        is_constrained = schema is not None and self._capabilities.structured == "json_schema"
        if request.tools and self._capabilities.tools:
            body["tools"] = [_function(tool) for tool in request.tools]
            if is_constrained:  # llama.cpp takes tools or a grammar, not both
                system = f"{system}\n\n{JSON_IN_WORDS}{_encoder.encode(schema).decode()}"
        elif schema is not None and is_constrained:
            body["grammar"] = self._grammar({**_closed(schema), "x-guidance": ONE_LINE_JSON})
        body["messages"] = plain_messages(self._name, system, request)
        return _encoder.encode(body)


def plain_messages(name: str, system: str, request: ModelRequest) -> msgspec.Raw:
    """The system prompt and the transcript as a JSON array of chat messages; ProviderError for what has pictures."""
    messages = encoded(request.transcript, request.memo, PlainMessages)
    if messages.has_images:
        raise ProviderError(
            f"{name} has no eyes: it reads text only, and the conversation holds an image; ask a model that sees, or "
            "leave the image out",
            kind="bad_request",
            retryable=False,
            provider=name,
        )
    first = [_encoder.encode({"role": "system", "content": system})] if system else []
    return msgspec.Raw(b"[" + b",".join([*first, memoryview(messages.json)[:-1]]) + b"]")


class PlainMessages(ChatMessages):
    """Chat messages of nothing but text, for the templates of most local models know no parts."""

    def __init__(self) -> None:
        super().__init__()
        self.has_images = False

    def add(self, message: Message) -> None:
        if isinstance(message, UserMessage) and message.attachments:
            self.has_images |= any(map(is_image, message.attachments))
            pieces = [message.text, *(attached_text(each) for each in message.attachments if not is_image(each))]
            message = UserMessage("\n\n".join(piece for piece in pieces if piece.strip()))
        super().add(message)


def _function(tool: ToolSpec) -> JsonObject:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _closed(schema: JsonObject) -> JsonObject:
    """`schema` without further properties where it only lists some: a small model would go on inventing them."""
    is_plain = schema.keys() <= _PLAIN_OBJECT and set(schema.get("required", ())) <= schema.get("properties", {}).keys()
    return {**schema, "additionalProperties": False} if is_plain else schema


# ---- from the worker's thread to the loop --------------------------------------------------------------------


def _call_on(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        pass  # The loop was closed while the request ran: nobody waits any more.


def _forwarder(
    loop: asyncio.AbstractEventLoop, finished: asyncio.Future[None], deltas: DeltaSink | None
) -> Callable[[str, str], None] | None:
    """Passes (text, reasoning) pieces on to `deltas` on its loop, until the call has ended there."""
    if deltas is None:
        return None

    def tell(text: str, reasoning: str) -> None:
        if not finished.done():
            if reasoning:
                deltas.reasoning(reasoning)
            if text:
                deltas.text(text)

    return lambda text, reasoning: _call_on(loop, tell, text, reasoning)


# ---- replies -------------------------------------------------------------------------------------------------


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _Function = _Function()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[_Call, ...] = ()


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details = _Details()


class _Failure(msgspec.Struct, frozen=True):
    message: str
    code: int = 500
    type: str = ""
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: _Failure | None = None


_chunk = msgspec.json.Decoder(_Chunk)
_STOPS: dict[str, StopReason] = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}


class _Answer:
    """Collects chunks on the worker's thread; read on the loop after the last one."""

    def __init__(self, name: str, may_be_thought: bool, tell: Callable[[str, str], None] | None) -> None:
        self._name = name
        self._may_be_thought = may_be_thought
        self._tell = tell
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = CallAssembly()
        self._stop: StopReason = "incomplete"
        self._usage: Usage | None = None

    def hear(self, data: bytes) -> None:
        chunk = _chunk.decode(data)
        if chunk.error is not None:
            raise self._failed(chunk.error)
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        for choice in chunk.choices:
            self._take(choice.delta)
            if choice.finish_reason:
                self._stop = _STOPS.get(choice.finish_reason, "stop")

    def _take(self, delta: _Delta) -> None:
        text, reasoning = delta.content or "", delta.reasoning_content or ""
        self._text.append(text)
        self._reasoning.append(reasoning)
        if self._tell is not None and (text or reasoning):
            self._tell(text, reasoning)
        for call in delta.tool_calls:
            self._calls.take(call.index, call.id or "", call.function.name or "", call.function.arguments or "")

    def reply(self) -> ModelReply:
        text, calls = "".join(self._text), finished_calls(self._calls.calls)
        reasoning = "".join(self._reasoning)
        is_said = calls or text.strip() or (self._may_be_thought and reasoning.strip())
        if not is_said and self._stop != "length":
            # Asking again would give the same: the model is deterministic.
            raise self._error("the model said nothing", kind="protocol")
        return ModelReply(
            text=text,
            reasoning=reasoning,
            calls=calls,
            stop_reason=self._stop,
            usage=self._usage,
        )

    def _failed(self, failure: _Failure) -> ProviderError:
        if failure.type == "exceed_context_size_error":
            return self._error(
                f"the prompt has {failure.n_prompt_tokens} tokens, the model's context holds {failure.n_ctx}; "
                "shorten the prompt or raise limit.context of the model",
                kind="bad_request",
            )
        return self._error(failure.message, kind="server" if failure.code >= 500 else "bad_request")

    def _error(self, message: str, *, kind: str) -> ProviderError:
        return ProviderError(f"{self._name}: {message}", kind=kind, retryable=False, provider=self._name)


def _usage(usage: _Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        cache_read_tokens=usage.prompt_tokens_details.cached_tokens,
    )
