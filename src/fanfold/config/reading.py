"""Typed reading of one table: each question names a key, what it must be, and the answer without it."""

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from fanfold.config.calls import text_of
from fanfold.config.problems import Problems
from fanfold.config.tree import Call, Entry, Plain, Sequence, Table, Value, child_path, kind_of
from fanfold.contracts.settings import Secret
from fanfold.errors import ConfigError
from fanfold.nearest import did_you_mean

D = TypeVar("D")

_MAX_INTEGER = 2**63 - 1
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class TableReader:
    """A wrong value is added to `problems` and read as the default; `null` as if the key were not there."""

    def __init__(self, table: Table, path: str, environ: Mapping[str, str], problems: Problems) -> None:
        """`path` names the table in messages."""
        self.table = table
        self.path = path
        self.problems = problems
        self._environ = environ
        self._asked: set[str] = set()

    def text(self, key: str, default: D) -> str | D:
        entry = self._take(key)
        text = None if entry is None else self._text(entry.value, child_path(self.path, key))
        return default if text is None else text

    def secret(self, key: str, default: Secret | None) -> Secret | None:
        """`null`: no key. A missing variable gives an empty `Secret`: only who uses the key may complain."""
        entry = self._take(key)
        if entry is None:
            return None if key in self.table.entries else default
        path = child_path(self.path, key)
        text = text_of(entry.value, self._environ, self.problems)
        if text is None:
            if not isinstance(entry.value, Call):
                self._wrong(entry.value, path, 'a string or env("NAME")')
            return default
        value = text.value.strip()  # keys come out of files and vaults with a line end
        if text.missing:
            return Secret("", f"env {text.missing} ({entry.place})")
        if not value:
            self.problems.add(entry.place, f"{path} is empty; leave it out if the endpoint needs no key")
        return Secret(value, f"env {text.variables[0]} ({entry.place})" if text.variables else str(entry.place))

    def integer(self, key: str, default: D, *, at_most: int = _MAX_INTEGER) -> int | D:
        """From 1 on."""
        entry = self._take(key)
        if entry is None:
            return default
        match entry.value:
            case Plain(value=int() as number) if not isinstance(number, bool):
                if 1 <= number <= at_most:
                    return number
                self._must(entry.value, key, "be at least 1" if number < 1 else f"be at most {at_most:,}")
            case value:
                self._wrong(value, child_path(self.path, key), "a whole number")
        return default

    def number(self, key: str, default: D) -> float | D:
        """Not negative, finite."""
        entry = self._take(key)
        if entry is None:
            return default
        match entry.value:
            case Plain(value=int() | float() as number) if not isinstance(number, bool):
                if 0 <= number <= _MAX_INTEGER and math.isfinite(number):
                    return float(number)
                self._must(entry.value, key, "be 0 or more, and finite")
            case value:
                self._wrong(value, child_path(self.path, key), "a number")
        return default

    def flag(self, key: str, default: bool) -> bool:
        entry = self._take(key)
        match entry:
            case None:
                return default
            case Entry(value=Plain(value=bool() as flag)):
                return flag
            case _:
                self._wrong(entry.value, child_path(self.path, key), "true or false")
                return default

    def choice(self, key: str, default: D, options: tuple[D, ...]) -> D:
        text = self.text(key, None)
        if text is None or text in options:
            return next((option for option in options if option == text), default)
        names = ", ".join(f'"{option}"' for option in options)
        self._must(self.table.entries[key].value, key, f"be one of {names}")
        return default

    def texts(self, key: str, check: Callable[[str], object]) -> tuple[str, ...]:
        """The strings of a list; `check` raises ConfigError for one that will not do."""
        entry = self._take(key)
        if entry is None:
            return ()
        path = child_path(self.path, key)
        if not isinstance(entry.value, Sequence):
            self._wrong(entry.value, path, "a list of strings")
            return ()
        found: list[str] = []
        for at, item in enumerate(entry.value.items):
            text = self._text(item, f"{path}[{at}]")
            if text is None:
                continue
            try:
                check(text)
            except ConfigError as error:
                self.problems.add(item.place, error.problems[0])
            else:
                found.append(text)
        return tuple(found)

    def headers(self, key: str, default: dict[str, str]) -> dict[str, str]:
        """A table of strings that may stand in an HTTP request."""
        reader = self.sub_table(key)
        if reader is None:
            return default
        found: dict[str, str] = {}
        for name, entry in reader.table.entries.items():
            path = child_path(reader.path, name)
            text = self._text(entry.value, path, may_be_empty=True)
            if not _HEADER_NAME.match(name):
                self.problems.add(entry.place, f"{path} is not the name of an HTTP header")
            elif text is not None and _CONTROL.search(text):
                self.problems.add(entry.value.place, f"{path} must not contain line ends or control characters")
            elif text is not None:
                found[name] = text
        return found

    def sub_table(self, key: str) -> "TableReader | None":
        entry = self._take(key)
        return None if entry is None else self._reader(entry, child_path(self.path, key))

    def sub_tables(self, key: str) -> "list[tuple[str, TableReader]]":
        """The labelled tables under `key`, in the order of the file."""
        parent = self.sub_table(key)
        if parent is None:
            return []
        readers = (
            (label, self._reader(entry, child_path(parent.path, label)))
            for label, entry in parent.table.entries.items()
        )
        return [(label, reader) for label, reader in readers if reader is not None]

    def finish(self) -> None:
        """Every key that nobody asked for is an error."""
        for key, entry in self.table.entries.items():
            if key not in self._asked:
                where = f" in {self.path}" if self.path else ""
                near = did_you_mean(key, self._asked)
                self.problems.add(entry.place, f"unknown key '{child_path('', key)}'{where}{near}")

    def _take(self, key: str) -> Entry | None:
        self._asked.add(key)
        entry = self.table.entries.get(key)
        is_null = entry is not None and isinstance(entry.value, Plain) and entry.value.value is None
        return None if is_null else entry

    def _reader(self, entry: Entry, path: str) -> "TableReader | None":
        if isinstance(entry.value, Table):
            return TableReader(entry.value, path, self._environ, self.problems)
        self._wrong(entry.value, path, "a table { ... }")
        return None

    def _text(self, value: Value, path: str, *, may_be_empty: bool = False) -> str | None:
        text = text_of(value, self._environ, self.problems)
        if text is None:
            if not isinstance(value, Call):
                self._wrong(value, path, "a string")
        elif text.missing:
            self.problems.add(value.place, f"{path} needs the environment variable {text.missing}, which is not set")
        elif text.value or may_be_empty:
            return text.value
        else:
            self.problems.add(value.place, f"{path} must not be empty")
        return None

    def _must(self, value: Value, key: str, rule: str) -> None:
        self.problems.add(value.place, f"{child_path(self.path, key)} must {rule}")

    def _wrong(self, value: Value, path: str, expected: str) -> None:
        self.problems.add(value.place, f"{path} must be {expected}, found {kind_of(value)}")
