"""The ACL text of `agent.acl` as a tree, with every syntax error of the file found in one pass.

    entries := (entry ((newline | ",") entry)*)?
    entry   := key "=" value
             | key string* "{" entries "}"         a block; its labels are keys of nested tables
    key     := name | string
    value   := string | number | true | false | null
             | "[" values "]" | "{" entries "}" | name "(" values ")"

After an error the parser goes on at the next line, comma or brace of the entry that failed.
"""

import re

from fanfold.config.acl_cursor import CLOSER, Cursor
from fanfold.config.acl_tokens import Token
from fanfold.config.problems import Problems
from fanfold.config.tree import (
    MAX_DEPTH,
    MAX_DOCUMENT_BYTES,
    MAX_ITEMS,
    Call,
    Entry,
    Place,
    Plain,
    Sequence,
    Table,
    Value,
    child_path,
)

_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_SPELLED = {
    "newline": "the end of the line",
    "end": "the end of the text",
    "name": "a name",
    "string": "a string",
    "number": "a number",
}
_JSON_START = re.compile(r"\s*[\[{]")


def parse_acl(text: str, file: str, problems: Problems) -> Table | None:
    """The tree of `text`, without the entries that have errors; these are added to `problems`.

    None: nothing can be said about the meaning (not ACL at all, or braces that do not match).
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        problems.add(Place(file), "this is larger than 1 MiB")
        return None
    if _JSON_START.match(text):
        problems.add(
            Place(file, 1, 1),
            'this is not ACL: write `name = value` and `block "label" { ... }`; JSON is not accepted, '
            "and TOML goes into a file named .toml",
        )
        return None
    return _Parser(text, file, problems).document()


class _UnexpectedToken(Exception):
    def __init__(self, token: Token, text: str) -> None:
        super().__init__(text)
        self.token = token


class _HopelessText(Exception):
    """What is wrong has been reported, and nothing can be said about the rest."""


class _Parser:
    def __init__(self, text: str, file: str, problems: Problems) -> None:
        self._cursor = Cursor(text)
        self._depth = 0
        self._file = file
        self._problems = problems
        self._structure_is_lost = False

    def document(self) -> Table | None:
        root = Table(Place(self._file, 1, 1))
        try:
            self._entries(root)
        except _UnexpectedToken as error:
            self._report(error)
            return None
        except _HopelessText:
            return None
        return None if self._structure_is_lost else root

    # ---- entries --------------------------------------------------------------------------------

    def _entries(self, table: Table, opener: Token | None = None) -> None:
        """Fill `table` up to its closing brace, or to the end of the text for the root."""
        may_take_comma = False
        while True:
            self._cursor.skip_newlines()
            token = self._cursor.peek()
            if token.kind == "end" or (token.kind == "}" and opener is not None):
                break
            if token.kind == "," and may_take_comma:
                self._cursor.next()
                may_take_comma = False
                continue
            if len(table.entries) >= MAX_ITEMS:
                raise _UnexpectedToken(token, f"more than {MAX_ITEMS:,} entries in one table")
            self._entry_or_recovery(table)
            may_take_comma = True
        if token.kind == "end" and opener is not None:
            self._lose_structure(opener, "this '{' is never closed")
        else:
            self._cursor.next()

    def _entry_or_recovery(self, table: Table) -> None:
        depth, level = self._depth, self._cursor.level
        token = self._cursor.peek()
        if token.kind == "}":
            self._lose_structure(self._cursor.next(), "this '}' closes nothing")
            return
        try:
            self._entry(table)
            after = self._cursor.peek()
            if after.kind not in ("newline", "end", ",", "}"):
                raise _UnexpectedToken(after, f"expected a new line or ',' after the entry, found {_found(after)}")
        except _UnexpectedToken as error:
            self._report(error)
            self._depth = depth
            if not self._cursor.recover(level):
                raise _HopelessText from error

    def _entry(self, table: Table) -> None:
        key = self._cursor.peek()
        if key.kind not in ("name", "string"):
            raise _UnexpectedToken(key, f"expected a name, found {_found(key)}")
        self._cursor.next()
        name = str(key.value)
        if self._cursor.peek().kind == "=":
            self._cursor.next()
            value = self._value(f"after '{child_path('', name)} ='")
            self._put(table, name, Entry(value, self._place(key)), "")
        else:
            self._block(table, name, key)

    def _block(self, table: Table, name: str, key: Token) -> None:
        labels: list[Token] = []
        while self._cursor.peek().kind in ("string", "name", "bad"):
            labels.append(self._cursor.next())
        if self._cursor.peek().kind != "{":
            found = labels[0] if labels else self._cursor.peek()
            # Without the name: a line that is one word may be a key that was pasted there.
            raise _UnexpectedToken(found, f"expected '=' or '{{' after this name, found {_found(found)}")
        for label in labels:
            if label.kind == "bad":
                self._lose_structure(label, str(label.value))
            elif label.kind == "name":
                self._problems.add(self._place(label), f'labels take double quotes: "{label.value}"')
        body = self._table(levels=1 + len(labels))
        path = ""
        for label in labels:
            table = self._joined(table, name, key, path)
            path, name = child_path(path, name), str(label.value)
        self._put(table, name, Entry(body, self._place(key)), path)

    def _joined(self, table: Table, name: str, key: Token, path: str) -> Table:
        """The table that all blocks of this type share."""
        entry = table.entries.get(name)
        if entry is not None and isinstance(entry.value, Table) and entry.value.from_labels:
            return entry.value
        shared = Table(self._place(key), from_labels=True)
        self._put(table, name, Entry(shared, self._place(key)), path)
        return shared

    def _put(self, table: Table, name: str, entry: Entry, path: str) -> None:
        earlier = table.entries.get(name)
        if earlier is not None:
            text = f"'{child_path(path, name)}' is set twice; first at line {earlier.place.line}"
            self._problems.add(entry.place, text)
        elif len(table.entries) >= MAX_ITEMS:
            self._problems.add(entry.place, f"more than {MAX_ITEMS:,} entries in one table")
        else:
            table.entries[name] = entry

    # ---- values --------------------------------------------------------------------------------

    def _value(self, where: str) -> Value:
        token = self._cursor.peek()
        match token.kind:
            case "string" | "number":
                self._cursor.next()
                return Plain(token.value, self._place(token))
            case "name":
                return self._word()
            case "[":
                return Sequence(self._values(), self._place(token))
            case "{":
                return self._table(levels=1)
            case _:
                raise _UnexpectedToken(token, f"expected a value {where}, found {_found(token)}")

    def _word(self) -> Plain | Call:
        token = self._cursor.next()
        word = str(token.value)
        if self._cursor.peek().kind == "(":
            return Call(word, self._values(), self._place(token))
        if word in _WORDS:
            return Plain(_WORDS[word], self._place(token))
        lower = word.lower()
        fix = f"write {lower} in lower case" if lower in _WORDS else "put strings in double quotes"
        raise _UnexpectedToken(token, f"this bare word is not a value; {fix}")

    def _values(self) -> tuple[Value, ...]:
        """The items of a list or call, with both brackets."""
        opener = self._enter(levels=1)
        closer = CLOSER[opener.kind]
        items: list[Value] = []
        self._cursor.skip_newlines()
        while self._cursor.peek().kind != closer:
            if len(items) >= MAX_ITEMS:
                raise _UnexpectedToken(self._cursor.peek(), f"more than {MAX_ITEMS:,} items in one list")
            if self._cursor.is_at_entry_line():
                text = f"expected '{closer}' to end the list of line {opener.line}, found the next entry"
                raise _UnexpectedToken(self._cursor.peek(), text)
            items.append(self._value(f"or '{closer}' in the list of line {opener.line}"))
            self._cursor.skip_newlines()
            token = self._cursor.peek()
            if token.kind == ",":
                self._cursor.next()
                self._cursor.skip_newlines()
            elif token.kind != closer:
                text = f"expected ',' or '{closer}' in the list of line {opener.line}, found {_found(token)}"
                raise _UnexpectedToken(token, text)
        self._cursor.next()
        self._depth -= 1
        return tuple(items)

    def _table(self, levels: int) -> Table:
        opener = self._enter(levels)
        table = Table(self._place(opener))
        self._entries(table, opener)
        self._depth -= levels
        return table

    def _enter(self, levels: int) -> Token:
        opener = self._cursor.peek()
        if self._depth + levels > MAX_DEPTH:
            raise _UnexpectedToken(opener, f"nested more than {MAX_DEPTH} deep")
        self._depth += levels
        return self._cursor.next()

    # ---- problems --------------------------------------------------------------------------------

    def _place(self, token: Token) -> Place:
        return Place(self._file, token.line, token.column)

    def _report(self, error: _UnexpectedToken) -> None:
        token = error.token
        self._problems.add(self._place(token), str(token.value) if token.kind == "bad" else str(error))

    def _lose_structure(self, token: Token, text: str) -> None:
        self._problems.add(self._place(token), text)
        self._structure_is_lost = True


def _found(token: Token) -> str:
    """Never the text of a word: it may be a key whose quotes were forgotten."""
    return _SPELLED.get(token.kind, f"'{token.kind}'")
