"""Best-effort line numbers for the keys of a TOML text, which `tomllib` does not give."""

import re
import tomllib
from typing import TypeAlias

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEYS = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_LINE = re.compile(rf"[ \t]*(?:\[{{1,2}}[ \t]*(?P<header>{_KEYS})[ \t]*\]|(?P<keys>{_KEYS})[ \t]*=)")

KeyPath = tuple[str, ...]
KeyTree: TypeAlias = "int | dict[str, KeyTree]"


class KeyLines:
    def __init__(self, text: str) -> None:
        """`text` must be valid TOML."""
        self._lines: dict[KeyPath, int] = {}
        header: KeyPath = ()
        string_end = ""
        for number, line in enumerate(text.split("\n"), 1):
            was_in_string = bool(string_end)
            string_end = _string_end(line, string_end)
            match = None if was_in_string else _LINE.match(line)
            if match is None:
                continue
            if match["header"]:
                header = _key_path(match["header"])
                self._note(header, number)
            else:
                self._note(header + _key_path(match["keys"]), number)

    def of(self, path: KeyPath) -> int:
        """The line of the key, else of the nearest table or value around it that was found, else 0."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 0)

    def _note(self, path: KeyPath, number: int) -> None:
        for length in range(len(path), 0, -1):
            self._lines.setdefault(path[:length], number)


def _key_path(keys: str) -> KeyPath:
    if '"' not in keys and "'" not in keys:
        return tuple(key.strip() for key in keys.split("."))
    try:
        table: KeyTree = tomllib.loads(f"{keys} = 0")
    except tomllib.TOMLDecodeError:  # not a key after all: the line belongs to some value
        return ()
    path: list[str] = []
    while isinstance(table, dict):
        ((key, table),) = table.items()
        path.append(key)
    return tuple(path)


def _string_end(line: str, string_end: str) -> str:
    """The delimiter that the multi-line string still open after `line` waits for."""
    at = 0
    while True:
        if string_end:
            at = line.find(string_end, at)
            if at < 0:
                return string_end
            at, string_end = at + 3, ""
        else:
            starts = [(line.find(mark, at), mark) for mark in ('"""', "'''") if line.find(mark, at) >= 0]
            if not starts:
                return ""
            at, string_end = min(starts)[0] + 3, min(starts)[1]
