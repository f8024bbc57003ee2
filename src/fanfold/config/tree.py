"""The one tree of a configuration, whatever its syntax: tables of values that know where they were written.

A block `type "label" { ... }` of ACL and a header `[type.label]` of TOML both are nested tables, so both
files say the same thing by having the same tree.
"""

import re

import msgspec

MAX_DOCUMENT_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_ITEMS = 10_000
MAX_TOKEN_BYTES = 256 * 1024

_SHOWN_KEY_LENGTH = 60
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


class Place(msgspec.Struct, frozen=True):
    """Where something is written. 1-based; 0 means that the line or column is not known."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def exact(self) -> str:
        return f"{self}:{self.column}" if self.column else str(self)


class Plain(msgspec.Struct, frozen=True):
    value: str | int | float | bool | None
    place: Place


class Sequence(msgspec.Struct, frozen=True):
    items: "tuple[Value, ...]"
    place: Place


class Call(msgspec.Struct, frozen=True):
    """`env("NAME")` or `concat(a, b)`, not yet evaluated."""

    function: str
    arguments: "tuple[Value, ...]"
    place: Place


class Table(msgspec.Struct, frozen=True):
    place: Place
    entries: "dict[str, Entry]" = {}
    from_labels: bool = False
    """Made by the labels of blocks (`providers` of `providers "a" {}`), so that further blocks may join."""


Value = Plain | Sequence | Call | Table


class Entry(msgspec.Struct, frozen=True):
    value: Value
    place: Place
    """Of the key."""


def child_path(path: str, key: str) -> str:
    """`models` and `gpt-5.1` give `models."gpt-5.1"`: safe to print, and each part of bounded length."""
    shown = key if len(key) <= _SHOWN_KEY_LENGTH else key[:_SHOWN_KEY_LENGTH] + "…"
    if not _BARE_KEY.match(key):
        shown = f'"{repr(shown)[1:-1]}"'
    return f"{path}.{shown}" if path else shown


def kind_of(value: Value) -> str:
    """What a message calls the value; never its text, which may be a key."""
    match value:
        case Call(function=function):
            return f"{function}(...)"
        case Sequence():
            return "a list"
        case Table():
            return "a table"
        case Plain(value=None):
            return "null"
        case Plain(value=bool()):
            return "true or false"
        case Plain(value=str()):
            return "a string"
        case Plain(value=int()):
            return "a whole number"
        case Plain():
            return "a decimal number"
