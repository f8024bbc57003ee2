"""What goes to a model and what comes back, free of any provider's wire form."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

import msgspec

from fanfold.contracts.record import JsonObject, JsonValue, Record

ASK_USER = "ask_user"
"""The one tool that the loop itself answers: a call of it parks the run until a person replies."""

TASK = "task"
WORKFLOW = "Workflow"
"""The tool by which a model hands work to other agents; children never see it."""

StopReason = Literal["stop", "tool_calls", "length", "content_filter", "incomplete"]
"""`incomplete`: the stream ended without a stop. Its text is kept, its result is never called finished."""


class Usage(Record, frozen=True, kw_only=True):
    """Tokens of one or several model calls. `prompt_tokens` includes the cached ones."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimated: bool = False
    """True when at least one call came without usage and was counted as bytes / 4, or was cut off uncounted."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            is_estimated=self.is_estimated or other.is_estimated,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        """What of this came after `other`, which is a part of it."""
        return Usage(
            prompt_tokens=self.prompt_tokens - other.prompt_tokens,
            completion_tokens=self.completion_tokens - other.completion_tokens,
            total_tokens=self.total_tokens - other.total_tokens,
            cache_read_tokens=self.cache_read_tokens - other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens - other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens - other.reasoning_tokens,
            is_estimated=self.is_estimated,
        )


NO_USAGE = Usage()


class UsageSum(msgspec.Struct):
    """A running sum: adding to it costs a third of what `+` does, which makes a record each time."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimated: bool = False

    def add(self, usage: Usage) -> None:
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.total_tokens += usage.total_tokens
        if usage.cache_read_tokens or usage.cache_write_tokens or usage.reasoning_tokens:
            self.cache_read_tokens += usage.cache_read_tokens
            self.cache_write_tokens += usage.cache_write_tokens
            self.reasoning_tokens += usage.reasoning_tokens
        if usage.is_estimated:
            self.is_estimated = True

    def usage(self) -> Usage:
        return Usage(**msgspec.structs.asdict(self))


class ToolCall(msgspec.Struct, frozen=True):
    """One call that the model asked for.

    `args` is the parsed JSON object, or, when the model's text was no JSON object, that text itself: such a
    call is recorded and answered with an error result, never executed.
    """

    id: str
    name: str
    args: JsonObject | str


class Attachment(msgspec.Struct, frozen=True):
    """What a prompt carries beside its text; in a log its bytes are base64."""

    media_type: str
    """`image/png`, `image/jpeg`, `image/gif` or `image/webp`; `text/...` for text."""
    data: bytes

    def __repr__(self) -> str:
        return f"Attachment({self.media_type!r}, <{len(self.data)} bytes>)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("media_type", self.media_type), ("size", len(self.data))]


class UserMessage(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="role", tag="user"):
    text: str
    attachments: tuple[Attachment, ...] = ()


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    text: str
    calls: tuple[ToolCall, ...] = ()


class ToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    call_id: str
    name: str
    ok: bool
    output: str


Message = UserMessage | AssistantMessage | ToolMessage


class Entry(msgspec.Struct, frozen=True, eq=False):
    """The newest message of a transcript and, through `before`, all earlier ones.

    A linked list that is shared, never copied: appending costs O(1), an earlier state keeps its own end, and an
    encoder that remembers an entry can stop there and encode only what is newer.
    """

    message: Message
    before: "Entry | None" = None
    length: int = 1

    def newer_than(self, known: "Entry | None") -> list[Message]:
        """Messages after `known`, oldest first; all of them when `known` is None or not an ancestor."""
        found: list[Message] = []
        at: Entry | None = self
        while at is not None and at is not known:
            found.append(at.message)
            at = at.before
        found.reverse()
        return found

    def has_ancestor(self, known: "Entry") -> bool:
        at: Entry | None = self
        while at is not None and at.length > known.length:
            at = at.before
        return at is known

    def __iter__(self) -> Iterator[Message]:
        return iter(self.newer_than(None))

    def __repr__(self) -> str:
        return f"Entry({self.message!r}, length={self.length})"


def append(transcript: Entry | None, message: Message) -> Entry:
    return Entry(message, transcript, 1 if transcript is None else transcript.length + 1)


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is told about a tool, and what the loop may assume of it."""

    name: str
    description: str
    parameters: JsonObject
    """JSON Schema (draft 2020-12) of the arguments; its root is an object."""
    is_read_only: bool = False
    """Changes nothing: allowed by the default permission policy."""
    is_parallel_safe: bool = False
    """May run together with the neighbouring parallel-safe calls of one response."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    """The provider's own model id, without the `provider/` prefix."""
    system: str
    transcript: Entry
    tools: tuple[ToolSpec, ...] = ()
    output_schema: JsonObject | None = None
    """Answer with JSON of this schema (its root is an object), in the way that the client's capability names."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    session_id: str = ""
    before_retry: Callable[[], Awaitable[None]] | None = None
    """Awaited before each attempt but the first; what it raises ends the call."""
    memo: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Scratch of one session: an adapter keeps here what it derived from earlier entries of the transcript."""


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop_reason: StopReason = "stop"
    usage: Usage | None = None
    """None when the provider sent none."""


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool gives back. `exit_code` 0 means that it did what was asked."""

    output: str
    exit_code: int = 0
    artifact: str | None = None
    """URI of the whole output when `output` is only a part of it."""
    source_anchors: tuple[str, ...] = ()
    """Workspace-relative paths (or URLs) that were read."""
    metadata: dict[str, JsonValue] = {}


class ToolResult(Record, frozen=True, kw_only=True):
    """What a host gets of a tool that it called itself. `str(result)` is its output."""

    name: str
    output: str
    exit_code: int
    artifact: str | None = None
    metadata: dict[str, JsonValue] | None = None

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def __str__(self) -> str:
        return self.output
