"""Facts: the records of which a session's log consists (decisions 2.1; kinds and keys of the seeds)."""

from typing import Any, ClassVar

import msgspec

from fanfold.contracts.messages import Attachment, ToolCall, Usage
from fanfold.contracts.record import JsonObject


class UserMessaged(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`user.message`: a prompt or a steer."""

    kind: ClassVar[str] = "user.message"
    text: str
    attachments: tuple[Attachment, ...] = ()


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool call inside a `model.turn`; whether it needs approval is decided when it is recorded."""

    id: str
    name: str
    args: JsonObject | str
    needs_confirmation: bool = False

    def as_call(self) -> ToolCall:
        return ToolCall(self.id, self.name, self.args)


class _Turn(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    kind_of_fact: ClassVar[str] = "model.turn"
    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None
    stop_reason: str = "stop"


class TextTurn(_Turn, frozen=True, kw_only=True, tag="text", omit_defaults=True, forbid_unknown_fields=True):
    """The model answered in text; its turn is over."""


class ToolTurn(_Turn, frozen=True, kw_only=True, tag="tool", omit_defaults=True, forbid_unknown_fields=True):
    """The model asked for tools. All calls of one response stand in one fact (decisions 2.2)."""

    call: RecordedCall
    also: tuple[RecordedCall, ...] = ()

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        return (self.call, *self.also)


class QuestionTurn(_Turn, frozen=True, kw_only=True, tag="question", omit_defaults=True, forbid_unknown_fields=True):
    """The model asked a person, and nothing else."""

    question_id: str
    question: str
    allow_free_text: bool = True
    options: tuple[str, ...] = ()


ModelTurn = TextTurn | ToolTurn | QuestionTurn


class ToolResulted(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """`tool.result`: `ok` means executed with exit 0; denials and failures are not ok (decisions 2.6)."""

    kind: ClassVar[str] = "tool.result"
    tool_call_id: str
    ok: bool
    output: str
    artifact: str | None = None


class ConfirmationAnswered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    kind: ClassVar[str] = "confirmation.answered"
    tool_call_id: str
    approved: bool
    reason: str = ""


class QuestionAnswered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    kind: ClassVar[str] = "question.answered"
    question_id: str
    text: str


class Compacted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`compaction.done`: `summary` stands for every message but the newest `kept_messages`; an empty one for none, then
    what came before is forgotten."""

    kind: ClassVar[str] = "compaction.done"
    summary: str
    kept_messages: int = 0
    usage: Usage | None = None


class BudgetDenied(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`budget.denied`: the turn's tool budget was spent when the model asked for `tool_call_id`."""

    kind: ClassVar[str] = "budget.denied"
    tool_call_id: str


class Note(msgspec.Struct, frozen=True):
    """`note.*`: for people; the fold skips it."""

    kind: str
    data: dict[str, Any]


Payload = (
    UserMessaged
    | TextTurn
    | ToolTurn
    | QuestionTurn
    | ToolResulted
    | ConfirmationAnswered
    | QuestionAnswered
    | Compacted
    | BudgetDenied
    | Note
)


class NewFact(msgspec.Struct, frozen=True):
    """A fact before the log gave it its `seq`."""

    key: str
    """Unique in its thread: the idempotency key of the append."""
    cause: str | None
    """Key of the transition that produced it; None for what came from outside."""
    payload: Payload

    def at(self, seq: int) -> "Fact":
        return Fact(seq, self.key, self.cause, self.payload)


class Fact(msgspec.Struct, frozen=True):
    seq: int
    """1-based, rising by one."""
    key: str
    cause: str | None
    payload: Payload
