"""Reading a transcript: where to cut it for compaction, how to show it to a summariser and to people."""

from fanfold.contracts.messages import AssistantMessage, Entry, Message, ToolMessage, UserMessage
from fanfold.contracts.record import JsonObject, own_copy
from fanfold.kernel.fold import estimated_tokens

SUMMARY_EXCERPT = 8_000
"""Characters kept at each end when the plain transcript has to stand in for a summary."""


def messages_to_keep(transcript: Entry, budget_tokens: int) -> int:
    """How many of the newest messages fit `budget_tokens` without parting a call from its results. The newest message,
    and the newest call with its results up to twice the budget, are kept in any case: the model has just asked for it.
    """
    kept = tokens = safe = 0
    at: Entry | None = transcript
    while at is not None:
        tokens += estimated_tokens(at.message)
        if tokens > (budget_tokens if safe else 2 * budget_tokens) and kept > 0:
            break
        kept += 1
        if not isinstance(at.message, ToolMessage):
            safe = kept
        at = at.before
    return safe


def as_plain_text(messages: list[Message]) -> str:
    """The messages as one text, for a summariser."""
    return "\n\n".join(_plain(message) for message in messages)


def _plain(message: Message) -> str:
    match message:
        case UserMessage():
            shown = "".join(f"\n[attachment {each.media_type}, {len(each.data)} bytes]" for each in message.attachments)
            return f"user: {message.text}{shown}"
        case AssistantMessage():
            calls = "".join(f"\n[called {call.name} {call.args}]" for call in message.calls)
            return f"assistant: {message.text}{calls}"
        case ToolMessage():
            return f"{message.name} {'answered' if message.ok else 'failed'}: {message.output}"


def excerpt(text: str, end: int = SUMMARY_EXCERPT) -> str:
    """`text` itself, or its two ends, of `end` characters each, when it is four times as long: the summary of last
    resort (notes 4.12)."""
    if len(text) <= 4 * end:
        return text
    return f"{text[:end]}\n[earlier transcript compacted]\n{text[-end:]}"


def as_history(transcript: Entry | None) -> list[JsonObject]:
    """`[{"role", "content": [{"type": "text", "text": ...}, ...]}, ...]`, oldest first (notes 3.1)."""
    return [] if transcript is None else [_history_item(message) for message in transcript]


def _history_item(message: Message) -> JsonObject:
    match message:
        case UserMessage():
            attached = [
                {"type": "attachment", "media_type": each.media_type, "size": len(each.data)}
                for each in message.attachments
            ]
            return {"role": "user", "content": [{"type": "text", "text": message.text}, *attached]}
        case AssistantMessage():
            text = [{"type": "text", "text": message.text}] if message.text else []
            calls = [
                {"type": "tool_use", "id": call.id, "name": call.name, "input": own_copy(call.args)}
                for call in message.calls
            ]
            return {"role": "assistant", "content": [*text, *calls]}
        case ToolMessage():
            result = {
                "type": "tool_result",
                "tool_use_id": message.call_id,
                "content": message.output,
                "is_error": not message.ok,
            }
            return {"role": "user", "content": [result]}
