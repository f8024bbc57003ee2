"""YAML text as the same tree that a configuration has, by PyYAML's safe loader.

What makes YAML dangerous is refused with its place: aliases, which may unfold without end, and every tag but those of
plain data. What makes it surprising too: keys that are no text, and keys that occur twice.
"""

from collections.abc import Iterator
from typing import Any, cast

import yaml

from fanfold.config.problems import Problems
from fanfold.config.tree import MAX_ITEMS, Entry, Place, Plain, Sequence, Table, Value, child_path
from fanfold.kernel.plain_text import is_plain

MAX_DEPTH = 16
"""Levels in a definition, which needs three; the loader recurses."""
MAX_VALUES = 2_000
"""In a definition, keys and items each; the loader needs a second for forty thousand."""
MAX_NUMBER_CHARACTERS = 100

_TAG = "tag:yaml.org,2002:"
_MAP = _TAG + "map"
_TEXTS = frozenset(_TAG + kind for kind in ("str", "timestamp", "value", "merge"))
"""Plain text, and what YAML takes for something else although nothing here is one."""
_NO_TEXT = "holds a NUL character or a lone surrogate, which are no text"
_SCALARS = frozenset(_TAG + kind for kind in ("null", "bool", "int", "float"))


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise self._refusal("aliases are not used here")
        if self._depth > MAX_DEPTH:
            raise self._refusal(f"nested more than {MAX_DEPTH} deep")
        self._values += 1
        if self._values > MAX_VALUES:
            raise self._refusal(f"more than {MAX_VALUES:,} keys and values")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def _refusal(self, why: str) -> yaml.MarkedYAMLError:
        here: Any = cast("Any", self).peek_event().start_mark
        return yaml.MarkedYAMLError(None, None, why, here)


def parse_yaml(text: str, file: str, problems: Problems, *, first_line: int = 1, what: str = "YAML") -> Table | None:
    """The table that `text` is; None when it is none. What is wrong is added to `problems`.

    Args:
        first_line: of `text` in its file.
        what: names the text in the message of a syntax error.
    """
    try:
        loader = _Loader(text)
        try:
            node: yaml.Node | None = loader.get_single_node()
            converter = _Converter(loader, file, first_line, problems)
            if node is None:
                return Table(Place(file, first_line))
            if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
                return converter.table(node, "")
            problems.add(converter.place(node), f"{what} must be a mapping, such as `name: reviewer`")
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, first_line + mark.line, mark.column + 1) if mark else Place(file)
        problems.add(place, f"{what}: {_fault(error)}")
    except yaml.reader.ReaderError as error:
        line = first_line + text.count("\n", 0, int(error.position))
        problems.add(Place(file, line), f"{what}: {error.reason}")
    return None


def _fault(error: yaml.MarkedYAMLError) -> str:
    if error.problem == "mapping values are not allowed here":
        return f"{error.problem}; a text that holds `: ` needs quotes, or `|` and the text below"
    if error.context == "while scanning an alias":
        return "a text that begins with `*` needs quotes"
    if error.problem and error.context and error.problem.startswith("but "):
        return f"{error.context}, {error.problem}"
    return error.problem or error.context or "it cannot be read"


class _Converter:
    def __init__(self, loader: _Loader, file: str, first_line: int, problems: Problems) -> None:
        self._loader = loader
        self._file = file
        self._first_line = first_line
        self._problems = problems

    def place(self, node: yaml.Node) -> Place:
        return Place(self._file, self._first_line + node.start_mark.line, node.start_mark.column + 1)

    def table(self, node: yaml.MappingNode, path: str) -> Table:
        table = Table(self.place(node))
        for key_node, value_node in _pairs(node):
            place = self.place(key_node)
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in _TEXTS:
                self._problems.add(place, "a key must be text; put it in quotes")
                continue
            key = str(key_node.value)
            if not _is_text(key):
                self._problems.add(place, f"a key {_NO_TEXT}")
                continue
            if key in table.entries:
                self._problems.add(place, f"{child_path(path, key)} is given twice")
                continue
            value = self._value(value_node, child_path(path, key))
            if value is not None:
                table.entries[key] = Entry(value, place)
        return table

    def _value(self, node: yaml.Node, path: str) -> Value | None:
        place = self.place(node)
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            return self.table(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return self._sequence(node, path)
        if isinstance(node, yaml.ScalarNode) and node.tag in _TEXTS:
            if _is_text(str(node.value)):
                return Plain(str(node.value), place)
            self._problems.add(place, f"{path} {_NO_TEXT}")
            return None
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self._scalar(node, path)
        self._problems.add(place, f"{path}: the tag {str(node.tag)[:80]!r} is not used here")
        return None

    def _scalar(self, node: yaml.ScalarNode, path: str) -> Value | None:
        try:
            if len(node.value) > MAX_NUMBER_CHARACTERS:
                raise ValueError
            return Plain(cast("Any", self._loader).construct_object(node), self.place(node))
        except ValueError:  # `!!int x`, or hundreds of digits
            self._problems.add(self.place(node), f"{path}: this is no {str(node.tag).removeprefix(_TAG)}")
        except KeyError:  # `!!bool x`
            self._problems.add(self.place(node), f"{path}: this is neither true nor false")
        return None

    def _sequence(self, node: yaml.SequenceNode, path: str) -> Sequence:
        items: list[yaml.Node] = node.value
        if len(items) > MAX_ITEMS:
            self._problems.add(self.place(node), f"{path}: more than {MAX_ITEMS:,} items in one list")
            items = []
        values = (self._value(item, f"{path}[{at}]") for at, item in enumerate(items))
        return Sequence(tuple(value for value in values if value is not None), self.place(node))


def _is_text(value: str) -> bool:
    """Escapes can spell what no model can be sent."""
    return is_plain(value) and "\0" not in value


def _pairs(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
    yield from pairs
