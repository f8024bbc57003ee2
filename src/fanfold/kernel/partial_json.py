"""The value of a JSON text of which only a part has arrived: to be shown, never to be used as a result.

Every character is read once, whatever the size of the pieces, and what is complete is shared by all values that
are taken. So a long answer costs linear time here; how often a value is worth taking is for the caller to say.
"""

import math
import re
from typing import Any, Literal

from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.kernel.plain_text import plain
from fanfold.kernel.schema import MAX_DEPTH

_TOKEN = re.compile(r'[ \t\r\n]*+([][{}:,"]|[\w.+-]*+)')
_NUMBER = re.compile(r"-?+(?:0|[1-9][0-9]*+)(\.[0-9]++)?+([eE][+-]?+[0-9]++)?+")
_IN_STRING = re.compile(r'[^"\\]++|"|\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?+\Z")
_HALF_OF_A_PAIR = re.compile(r"[\ud800-\udbff]\Z")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LITERALS: dict[str, JsonValue] = {"true": True, "false": False, "null": None}

_MAX_DIGITS = 4_000
"""Of a number: Python refuses to read longer ones."""

_Expected = Literal["value", "element or end", "key", "key or end", "colon", "comma or end"]


class PartialJson:
    """Reads one JSON value piece by piece.

    A string is shown as far as it has come, an object with its members so far, an array with its completed
    elements only. Numbers, literals and keys are not shown before they are complete. Take what `value` gives as
    read-only: later values share parts of it.
    """

    def __init__(self) -> None:
        self.state: Literal["open", "complete", "broken"] = "open"
        self.is_json = False
        """More than a bracket has arrived, and it was JSON: this is no prose."""
        self._expected: _Expected = "value"
        self._held = ""
        """The beginning of a token whose end has not come."""
        self._open: list[JsonObject | list[Any]] = []
        """Containers that are not closed, the outermost first. None is part of another before it is complete."""
        self._keys: list[str] = []
        """For each open container the member that is being read; empty in arrays."""
        self._string: list[str] | None = None
        self._root: JsonValue = None

    def feed(self, text: str, at: int = 0) -> int:
        """Read `text` from `at` on. Returns where reading stopped: at its end, unless the value is now complete or
        broken."""
        first, behind = at, 0
        if self._held:
            behind, text, at = at - len(self._held), self._held + text[at:], 0
        while self.state == "open":
            reached = self._read_token(text, at) if self._string is None else self._read_string(text, at)
            if reached == at:
                break
            at = reached
        if self.state == "open":
            self._held, at = text[at:], len(text)
        return max(first, at + behind)

    def shown(self) -> tuple[JsonValue, ...]:
        """The value as far as it can be shown; empty while there is nothing to show."""
        if self.state == "complete":
            return (self._root,)
        shown: tuple[JsonValue, ...] = self._cut_string()
        for container, key in zip(reversed(self._open), reversed(self._keys), strict=True):
            shown = (_showing(container, key, shown),)
        return shown

    def _cut_string(self) -> tuple[str, ...]:
        if self._string is None or self._expected in ("key", "key or end"):
            return ()
        self._string = ["".join(self._string)]  # else the pieces of a long one would be joined again each time
        return (plain(_HALF_OF_A_PAIR.sub("", self._string[0])),)

    # ---- reading ----

    def _read_string(self, text: str, at: int) -> int:
        assert self._string is not None
        found = _IN_STRING.match(text, at)
        if found is None:
            if at < len(text) and not _ESCAPE_BEGUN.match(text, at):
                self.state = "broken"
            return at
        if found[0] == '"':
            self._end_string(plain("".join(self._string)))
        elif found[1]:
            self._string.append(chr(int(found[1], 16)))
        else:
            self._string.append(_ESCAPED.get(found[2], found[2]) if found[2] else found[0])
        return found.end()

    def _end_string(self, text: str) -> None:
        self._string = None
        if self._expected in ("key", "key or end"):
            self._keys[-1] = text
            self._expected = "colon"
        else:
            self._put(text)

    def _read_token(self, text: str, at: int) -> int:
        token = _TOKEN.match(text, at)
        assert token is not None
        mark, end = token[1], token.end()
        is_word = mark not in '[]{}:,"'
        if end == len(text) and (not mark or (is_word and self._takes_value() and len(mark) <= _MAX_DIGITS)):
            return token.start(1)  # a word may go on
        if not mark or not (self._take_word(mark) if is_word else self._take_mark(mark)):
            self.state = "broken"
            return token.start(1)
        return end

    def _take_mark(self, mark: str) -> bool:
        """False where the mark may not stand."""
        match mark:
            case "{" | "[" if self._takes_value() and len(self._open) < MAX_DEPTH:
                self._open.append({} if mark == "{" else [])
                self._keys.append("")
                self._expected = "key or end" if mark == "{" else "element or end"
            case '"' if self._takes_value() or self._expected in ("key", "key or end"):
                self._string = []
            case ":" if self._expected == "colon":
                self._expected, self.is_json = "value", True
            case "," if self._expected == "comma or end":
                self._expected, self.is_json = "key" if isinstance(self._open[-1], dict) else "value", True
            case "}" if self._expected == "key or end" or self._ends(dict):
                self._close()
            case "]" if self._expected == "element or end" or self._ends(list):
                self._close()
            case _:
                return False
        return True

    def _takes_value(self) -> bool:
        return self._expected in ("value", "element or end")

    def _ends(self, kind: type[JsonObject] | type[list[Any]]) -> bool:
        return self._expected == "comma or end" and isinstance(self._open[-1], kind)

    def _take_word(self, word: str) -> bool:
        if not self._takes_value():
            return False
        if word in _LITERALS:
            self._put(_LITERALS[word])
            return True
        number = _NUMBER.fullmatch(word)
        if number is None or len(word) > _MAX_DIGITS:
            return False
        value = float(word) if number[1] or number[2] else int(word)
        if not math.isfinite(value):
            return False
        self._put(value)
        return True

    def _close(self) -> None:
        self._keys.pop()
        self.is_json = True
        self._put(self._open.pop())

    def _put(self, value: JsonValue) -> None:
        self._expected = "comma or end"
        if not self._open:
            self._root, self.state = value, "complete"
            return
        container = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        else:
            container[self._keys[-1]] = value


def _showing(container: JsonObject | list[Any], key: str, inner: tuple[JsonValue, ...]) -> JsonObject | list[Any]:
    """A copy of `container` with what can be shown of the member that is being read."""
    if isinstance(container, list):
        return container.copy()
    return {**container, key: inner[0]} if inner else container.copy()
