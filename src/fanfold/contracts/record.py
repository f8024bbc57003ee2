"""Record: a frozen typed struct that also reads as a mapping, for everything that users receive."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard, cast

import msgspec

JsonValue = None | bool | int | float | str | list[Any] | dict[str, Any]
"""Plain JSON data; nested values are JSON again (msgspec cannot check a recursive alias, callers must)."""

JsonObject = dict[str, Any]


Nested = dict[Any, Any] | list[Any]
_PLAIN = frozenset({str, int, float, bool})


def own_copy(value: Any) -> Any:
    """JSON data that its receiver may change, however deeply they are nested."""
    if not _is_nested(value):
        return value
    whole = value.copy()
    fresh: list[Nested] = [whole]
    while fresh:
        each = fresh.pop()
        for key, inner in each.items() if isinstance(each, dict) else enumerate(each):
            if type(inner) not in _PLAIN and _is_nested(inner):
                each[key] = copied = inner.copy()  # a key that it has
                fresh.append(copied)
    return whole


def _is_nested(value: object) -> TypeGuard[Nested]:
    return isinstance(value, dict | list)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes for code (`o.success`), keys for scripts (`o["success"]`, `o.get("structured")`, `dict(o)`).

    A field that is `None` is absent as a key (decisions 1.3).
    """

    def __getitem__(self, key: str) -> Any:
        value = getattr(self, key, None) if key in self.__struct_fields__ else None
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        value = getattr(self, key, None) if key in self.__struct_fields__ else None
        return default if value is None else value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def keys(self) -> list[str]:
        return [name for name in self.__struct_fields__ if getattr(self, name) is not None]

    def values(self) -> list[Any]:
        return [self[name] for name in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self[name]) for name in self.keys()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return True  # a record is something that was received, not a container that may be empty

    def to_dict(self) -> JsonObject:
        """Plain JSON-ready data, absent values left out."""
        return {
            name: value if type(value) in _PLAIN else _plain(value)
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast("Sequence[Any]", value)]
    return msgspec.to_builtins(value)
