"""PartialObjects: shows a structured answer while it is being written, as `structured_partial` events."""

import re
from collections.abc import Iterator

from fanfold.contracts.events import event
from fanfold.contracts.record import JsonValue
from fanfold.kernel.partial_json import PartialJson
from fanfold.kernel.schema import OutputSchema
from fanfold.kernel.structured import END_OF_THOUGHT, START_OF_THOUGHT
from fanfold.protocols import EventSink

MIN_NEW_CHARS = 8
"""Of text, before it is looked at again (spec 6.7)."""
STEPS = 128
"""Text longer than `MIN_NEW_CHARS * STEPS` is looked at each time it has grown by one part in so many: whoever shows
or sends a value handles all of it each time, and with a fixed step that would take quadratic time."""
MAX_STARTS = 1_000
"""Brackets tried in one reply: prose with more of them, or JSON of another schema, is not looked at further."""


class PartialObjects:
    """A DeltaSink: finds the JSON of one reply, behind prose or a code fence, and tells `emit` of each change of it.

    The event's `object` is the value as far as it has come, out of its envelope; take it as read-only. Only the whole
    reply is validated, by others: a partial value is for the eyes.
    """

    def __init__(self, emit: EventSink, schema: OutputSchema) -> None:
        self._emit = emit
        self._schema = schema
        # Models asked in words leave out the envelope of an array; an object root can begin with a brace only.
        self._opening = re.compile(r"\{" if schema.envelope is None else r"[{\[]")
        self.restart()

    def restart(self) -> None:
        self._waiting: list[str] = []
        self._new_chars = 0
        self._seen_chars = 0
        self._starts = 0
        self._json: PartialJson | None = None
        self._thought: str | None = None
        """While the model thinks in its text: the end of that."""
        self._is_over = False
        self._last: tuple[JsonValue, ...] = ()

    def reasoning(self, piece: str) -> None:
        """Drafts; nothing to show."""

    def text(self, piece: str) -> None:
        if self._is_over:
            return
        self._waiting.append(piece)
        self._new_chars += len(piece)
        if self._new_chars >= max(MIN_NEW_CHARS, self._seen_chars // STEPS):
            self._look()

    def end(self) -> None:
        """The reply is whole: show what came last."""
        if self._waiting and not self._is_over:
            self._look()

    def _look(self) -> None:
        text = "".join(self._waiting)
        self._waiting.clear()
        if self._seen_chars == 0 and text.lstrip().startswith(START_OF_THOUGHT):
            self._thought = ""
        self._seen_chars += self._new_chars
        self._new_chars = 0
        self._read(self._behind_thought(text))
        shown = () if self._json is None else tuple(self._unwrapped(self._json))
        if shown and shown != self._last:
            self._last = shown
            self._emit(event("structured_partial", object=shown[0]))

    def _behind_thought(self, text: str) -> str:
        if self._thought is None:
            return text
        _, mark, answer = (self._thought + text).partition(END_OF_THOUGHT)
        self._thought = None if mark else text[-len(END_OF_THOUGHT) :]
        return answer

    def _read(self, text: str) -> None:
        at = 0
        while not self._is_over:
            if self._json is None:
                opening = self._opening.search(text, at)
                if opening is None:
                    return
                at, self._json = opening.start(), PartialJson()
                self._starts += 1
            at = self._json.feed(text, at)
            if self._json.state == "open":
                return
            self._is_over = self._starts >= MAX_STARTS or self._is_answer(self._json)
            if not self._is_over:
                self._json = None

    def _is_answer(self, json: PartialJson) -> bool:
        """Nothing behind it counts: the value was found, or it broke off and what follows is a fragment of it."""
        if json.state == "broken":
            return json.is_json
        return any(not self._schema.validate(value) for value in self._unwrapped(json))

    def _unwrapped(self, json: PartialJson) -> Iterator[JsonValue]:
        for value in json.shown() if json.is_json else ():
            if self._schema.envelope is None or value != {}:  # the envelope itself is nothing to show
                yield self._schema.unwrap(value)
