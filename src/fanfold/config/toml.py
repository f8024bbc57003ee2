"""The TOML text of `agent.toml` as the same tree that `agent.acl` gives.

TOML has no calls: `{ env = "NAME" }` stands for `env("NAME")` and `{ concat = [a, b] }` for `concat(a, b)`.
TOML has no null either, and `tomllib` stops at the first syntax error.
"""

import re
import tomllib
from datetime import date, time
from typing import TypeAlias

from fanfold.config.problems import Problems
from fanfold.config.toml_lines import KeyLines, KeyPath
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

TomlValue: TypeAlias = "str | int | float | bool | date | time | list[TomlValue] | dict[str, TomlValue]"

_ERROR_PLACE = re.compile(r" \((?:at line (\d+), column (\d+)|at end of document)\)\Z")


def parse_toml(text: str, file: str, problems: Problems) -> Table | None:
    """The tree of `text`; None when it is not TOML. What is wrong is added to `problems`."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        problems.add(Place(file), "this is larger than 1 MiB")
        return None
    try:
        document: dict[str, TomlValue] = tomllib.loads(text)
    except ValueError as error:  # also of int(), for thousands of digits
        problems.add(*_syntax_error(str(error), text, file))
        return None
    except RecursionError:
        problems.add(Place(file), f"nested more than {MAX_DEPTH} deep")
        return None
    return _Converter(file, KeyLines(text.replace("\r\n", "\n")), problems).table(document, ())


def _syntax_error(message: str, text: str, file: str) -> tuple[Place, str]:
    match = _ERROR_PLACE.search(message)
    if match is None:
        return Place(file), message
    if match[1]:
        return Place(file, int(match[1]), int(match[2])), message[: match.start()]
    return Place(file, text.count("\n") + 1), f"{message[: match.start()]} at the end of the text"


class _Converter:
    def __init__(self, file: str, lines: KeyLines, problems: Problems) -> None:
        self._file = file
        self._lines = lines
        self._problems = problems

    def table(self, found: dict[str, TomlValue], path: KeyPath) -> Table:
        table = Table(self._place(path))
        if len(found) > MAX_ITEMS:
            self._problems.add(table.place, f"more than {MAX_ITEMS:,} entries in one table")
            return table
        for key, child in found.items():
            value = self._value(child, (*path, key))
            if value is not None:
                table.entries[key] = Entry(value, self._place((*path, key)))
        return table

    def _value(self, found: TomlValue, path: KeyPath) -> Value | None:
        place = self._place(path)
        if len(path) > MAX_DEPTH:
            self._problems.add(place, f"nested more than {MAX_DEPTH} deep")
            return None
        match found:
            case str() | bool() | int() | float():
                return Plain(found, place)
            case {"env": str() as name, **others} if not others:
                return Call("env", (Plain(name, place),), place)
            case {"concat": list() as parts, **others} if not others:
                return Call("concat", self._items(parts, path), place)
            case dict():
                return self.table(found, path)
            case list():
                return Sequence(self._items(found, path), place)
            case _:
                shown = ".".join(child_path("", key) for key in path)
                self._problems.add(place, f"{shown}: dates and times are not used here; put strings in quotes")
                return None

    def _items(self, found: list[TomlValue], path: KeyPath) -> tuple[Value, ...]:
        if len(found) > MAX_ITEMS:
            self._problems.add(self._place(path), f"more than {MAX_ITEMS:,} items in one list")
            return ()
        items = (self._value(item, (*path, str(at))) for at, item in enumerate(found))
        return tuple(item for item in items if item is not None)

    def _place(self, path: KeyPath) -> Place:
        return Place(self._file, self._lines.of(path))
