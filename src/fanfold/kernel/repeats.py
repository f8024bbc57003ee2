"""Repeated calls: how often a turn has made the same call and got the same answer."""

from fanfold.contracts.facts import RecordedCall
from fanfold.contracts.messages import Entry, ToolMessage, UserMessage


def times_repeated(transcript: Entry | None, call: RecordedCall) -> int:
    """How many calls of this turn in a row, up to now, were `call` with one and the same result."""
    results: dict[str, ToolMessage] = {}
    found = 0
    answer: str | None = None
    at = transcript
    while at is not None and not isinstance(at.message, UserMessage):
        message = at.message
        if isinstance(message, ToolMessage):
            results[message.call_id] = message
        else:
            for made in reversed(message.calls):
                result = results.get(made.id)
                if result is None:
                    continue  # of the calls that are to run now
                is_same = (made.name, made.args) == (call.name, call.args) and answer in (None, result.output)
                if not is_same:
                    return found
                answer = result.output
                found += 1
            results = {}
        at = at.before
    return found
