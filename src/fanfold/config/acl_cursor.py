"""A place in the tokens of an ACL text that knows its open brackets, and so where to go on after an error."""

from fanfold.config.acl_tokens import Token, tokens
from fanfold.config.tree import MAX_DEPTH

CLOSER = {"{": "}", "[": "]", "(": ")"}
_OPENER = {closer: opener for opener, closer in CLOSER.items()}


class Cursor:
    def __init__(self, text: str) -> None:
        self._tokens = list(tokens(text))
        self._at = 0
        self._open: list[str] = []

    @property
    def level(self) -> int:
        """How many brackets are open."""
        return len(self._open)

    def peek(self) -> Token:
        return self._tokens[self._at]

    def next(self) -> Token:
        token = self._tokens[self._at]
        if token.kind in CLOSER:
            self._open.append(token.kind)
        elif token.kind in _OPENER and self._open:
            self._open.pop()
        if token.kind != "end":
            self._at += 1
        return token

    def skip_newlines(self) -> None:
        while self.peek().kind == "newline":
            self._at += 1

    def recover(self, level: int) -> bool:
        """Skip the rest of an entry that began when `level` brackets were open.

        It ends at a line end, comma or brace of its own level, or where its list was clearly never closed.
        False: it opens so many brackets that the rest of the text makes no sense.
        """
        while (kind := self.peek().kind) != "end":
            if self.level == level and kind in ("newline", ",", "}"):
                return True
            if self.level - level > MAX_DEPTH:
                return False
            if self.level > level and "{" not in self._open[level:] and self.is_at_entry_line():
                break
            if kind not in _OPENER or self._closes(_OPENER[kind], level):
                self.next()
            elif kind == "}":  # of the table around this entry
                break
            else:
                self._at += 1
        del self._open[level:]
        return True

    def is_at_entry_line(self) -> bool:
        """Whether a line starts here with `name =` or `name "label" {`, which no list item does."""
        if self._tokens[self._at - 1].kind != "newline" or self.peek().kind not in ("name", "string"):
            return False
        at = self._at + 1
        while self._tokens[at].kind == "string":
            at += 1
        return self._tokens[at].kind in ("=", "{")

    def _closes(self, opener: str, level: int) -> bool:
        """Whether this entry has an open `opener`; brackets opened after it are taken as closed with it."""
        for at in range(self.level - 1, level - 1, -1):
            if self._open[at] == opener:
                del self._open[at + 1 :]
                return True
        return False
