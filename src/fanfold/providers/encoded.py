"""Each message of a session is encoded once: what a wire keeps of a transcript from one call to the next."""

from typing import Any, Protocol, TypeVar

from fanfold.contracts.messages import Entry, Message


class EncodedMessages(Protocol):
    """A transcript in one wire's JSON, growing at its end."""

    newest: Entry | None

    def __init__(self) -> None: ...

    def add(self, message: Message) -> None: ...


E = TypeVar("E", bound=EncodedMessages)


def encoded(transcript: Entry, memo: dict[str, Any], wire: type[E]) -> E:
    """`transcript` in the form of `wire`, kept in the session's `memo`.

    Only the messages since the last call are encoded; all of them when the last call's are no longer what the
    transcript begins with, as after a compaction.
    """
    key = wire.__qualname__
    held: E | None = memo.pop(key, None)  # An error below must not leave half a message for the next call.
    known: Entry | None = None if held is None else held.newest
    newer = transcript.newer_than(known)
    # When `newer_than` does not find `known` it gives all messages, which are more than the lengths say.
    if held is None or known is None or len(newer) != transcript.length - known.length:
        held = wire()
    for message in newer:
        held.add(message)
    held.newest = transcript
    memo[key] = held
    return held
