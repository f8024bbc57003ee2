"""What a cassette keeps of one model call: the request as the model sees it, and what came back."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, cast

import msgspec

from fanfold.contracts.codec import decode_json
from fanfold.contracts.messages import Attachment, Message, ModelReply, ModelRequest, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.errors import ProviderError, UsageError
from fanfold.kernel.plain_text import plain

Scrub = Callable[[str], str]
"""Makes a text fit to be kept: takes secrets out, and what differs from run to run. Doing it twice changes nothing."""

_ID_DIGITS = 12
_LLM_PREFIX = "LLM error: "


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request without what the model does not see: the session's id, scratch, callbacks."""

    model: str
    system: str = ""
    messages: tuple[JsonObject, ...] = ()
    """An attachment is its media type, its size and its SHA-256."""
    tools: tuple[JsonObject, ...] = ()
    """Name, description and parameters of each."""
    output_schema: JsonObject | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None

    def key(self) -> bytes:
        """The same for equal requests, whatever the order in their objects."""
        return msgspec.json.encode(self, order="sorted")

    def id(self) -> str:
        """A name for people and files."""
        return sha256(self.key()).hexdigest()[:_ID_DIGITS]


class Piece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A streamed piece that is no text of the reply."""

    reasoning: str = ""
    restart: bool = False


class RecordedError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A ProviderError."""

    message: str
    kind: str
    retryable: bool
    provider: str = ""
    status: int | None = None
    retry_after_ms: int | None = None
    blocked_by: Literal["auth", "quota"] | None = None
    reset_ms: int | None = None
    hint: str | None = None

    def as_error(self) -> ProviderError:
        error = ProviderError(
            self.message,
            kind=self.kind,
            retryable=self.retryable,
            provider=self.provider,
            status=self.status,
            retry_after_ms=self.retry_after_ms,
            blocked_by=self.blocked_by,
            reset_ms=self.reset_ms,
        )
        return error if self.hint is None else error.with_hint(self.hint)


class Recording(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One call: either `reply` or `error` is set."""

    request: RecordedRequest
    reply: ModelReply | None = None
    error: RecordedError | None = None
    streamed: tuple[str | Piece, ...] = ()
    """What a listener heard, in order; a text is a piece of the reply's text. Empty when nobody listened."""

    def __post_init__(self) -> None:
        if (self.reply is None) == (self.error is None):
            raise ValueError("a recording has a reply or an error, and not both")


def recorded_request(request: ModelRequest, scrub: Scrub | None = None) -> RecordedRequest:
    """`request` as a cassette compares and keeps it.

    Raises:
        UsageError: a tool's parameters, a call's arguments or the output schema are no JSON.
    """
    raw: dict[str, Any] = {
        "model": request.model,
        "system": request.system,
        "messages": [_message(message) for message in request.transcript],
        "tools": [_tool(spec) for spec in request.tools],
        "output_schema": request.output_schema,
        "max_output_tokens": request.max_output_tokens,
        "temperature": request.temperature,
    }
    try:
        # There and back, for what is read from the file has lists where there were tuples, and texts for keys.
        made = decode_json(msgspec.json.encode(scrubbed(raw, scrub)))
        return msgspec.convert(made, RecordedRequest)
    except TypeError as error:
        raise UsageError(f"a request with values that are no JSON cannot be recorded: {error}") from error


def recorded_error(error: ProviderError, scrub: Scrub | None = None) -> RecordedError:
    return RecordedError(
        message=scrubbed(str(error).removeprefix(_LLM_PREFIX), scrub),
        kind=error.kind,
        retryable=error.retryable,
        provider=error.provider,
        status=error.status,
        retry_after_ms=error.retry_after_ms,
        blocked_by=error.blocked_by,
        reset_ms=error.reset_ms,
        hint=scrubbed(error.hint, scrub),
    )


def scrubbed_reply(reply: ModelReply, scrub: Scrub) -> ModelReply:
    return msgspec.convert(scrubbed(msgspec.to_builtins(reply), scrub), ModelReply)


def scrubbed_pieces(pieces: Sequence[str | Piece], scrub: Scrub) -> tuple[str | Piece, ...]:
    """The pieces as they are when nothing in them is to be scrubbed. Otherwise those between two restarts are joined
    first, for what is to be scrubbed may be spread over several."""
    kept: list[str | Piece] = []
    attempt: list[str | Piece] = []
    for piece in pieces:
        if isinstance(piece, Piece) and piece.restart:
            kept += [*_scrubbed_attempt(attempt, scrub), piece]
            attempt = []
        else:
            attempt.append(piece)
    return (*kept, *_scrubbed_attempt(attempt, scrub))


def _scrubbed_attempt(pieces: list[str | Piece], scrub: Scrub) -> list[str | Piece]:
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    reasoning = "".join(piece.reasoning for piece in pieces if isinstance(piece, Piece))
    clean, clean_reasoning = scrub(text), scrub(reasoning)
    if (clean, clean_reasoning) == (text, reasoning):
        return pieces
    joined: list[str | Piece] = [Piece(reasoning=clean_reasoning)] if clean_reasoning else []
    return [*joined, clean] if clean else joined


def scrubbed(value: Any, scrub: Scrub | None) -> Any:
    """Plain data with every text in it scrubbed, and free of what no file can hold."""
    if isinstance(value, str):
        return plain(value if scrub is None else scrub(value))
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: scrubbed(each, scrub) for name, each in items}
    if isinstance(value, list | tuple):
        return [scrubbed(each, scrub) for each in cast("Sequence[Any]", value)]
    return value


def _message(message: Message) -> JsonObject:
    made: JsonObject = msgspec.to_builtins(message)
    attachments: Sequence[Attachment] = getattr(message, "attachments", ())
    if attachments:
        made["attachments"] = [_attachment(each) for each in attachments]
    return {name: value for name, value in made.items() if value not in ((), None)}


def _attachment(attachment: Attachment) -> JsonObject:
    data = attachment.data
    return {"media_type": attachment.media_type, "bytes": len(data), "sha256": sha256(data).hexdigest()}


def _tool(spec: ToolSpec) -> JsonObject:
    return {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
