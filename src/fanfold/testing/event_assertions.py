"""assert_events: what a run told, compared with a pattern of types and parts of payloads."""

from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, cast

import msgspec

from fanfold.contracts.events import AgentEvent
from fanfold.errors import UsageError

EventPattern = Sequence[str | tuple[str, Mapping[str, Any]] | EllipsisType]
"""Types, or types with a part of the payload; `...` for any number of events, also none."""

AROUND = 3
"""Events shown on either side of the one that does not match."""
MAX_PAYLOAD = 120
"""Characters of a neighbour's payload that are shown."""


class _Wanted(msgspec.Struct, frozen=True):
    place: int
    """In the pattern."""
    type: str
    payload: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.type!r} {dict(self.payload)!r}" if self.payload else repr(self.type)


class _Stop(msgspec.Struct, frozen=True):
    """How far a run of wanted events got."""

    event: int
    wanted: _Wanted | None
    """None: the events had to end here."""
    searched_from: int | None = None
    """Set when no event from there on matches; `event` is then one of the wanted type, if there is one."""


def assert_events(events: Iterable[AgentEvent], pattern: EventPattern) -> None:
    """Pass when the whole of `events` is what `pattern` says.

    A payload matches when it has every key of the pattern's with a matching value: objects by part again, lists item
    by item, `...` anything that is there, all else when it is equal.

        assert_events(events, ["agent_start", ..., ("tool_end", {"name": "read", "exit_code": 0}), ..., "agent_end"])

    Raises:
        AssertionError: it shows where they stopped to match, with the events around.
    """
    __tracebackhide__ = True
    told = list(events)
    stop = _stop_of(told, _groups(pattern))
    if stop is not None:
        raise AssertionError(_story(told, stop))


def _groups(pattern: EventPattern) -> list[list[_Wanted]]:
    """The pattern, cut at each `...`."""
    groups: list[list[_Wanted]] = [[]]
    for place, item in enumerate(cast("Sequence[object]", pattern)):
        if item is ...:
            groups.append([])
        elif isinstance(item, str):
            groups[-1].append(_Wanted(place, item, {}))
        else:
            groups[-1].append(_pair(place, item))
    return groups


def _pair(place: int, item: object) -> _Wanted:
    pair: tuple[object, ...] = cast("tuple[object, ...]", item) if isinstance(item, tuple) else ()
    if len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], Mapping):
        return _Wanted(place, pair[0], cast("Mapping[str, Any]", pair[1]))
    raise UsageError(f"item {place} of the pattern is no type, no (type, payload) pair and no '...': {item!r}")


def _stop_of(events: Sequence[AgentEvent], groups: Sequence[list[_Wanted]]) -> _Stop | None:
    """None when all match. The first group stands at the beginning, the last at the end, those between at the first
    place that fits, which leaves the most for what follows."""
    first, *others = groups
    at = len(first)
    if (stop := _mismatch(events, 0, first)) is not None:
        return stop
    if not others:
        return _Stop(at, None) if at < len(events) else None
    *between, last = others
    for group in between:
        found = _search(events, at, group)
        if isinstance(found, _Stop):
            return found
        at = found + len(group)
    if len(events) - len(last) >= at and _mismatch(events, len(events) - len(last), last) is None:
        return None
    found = _search(events, at, last)
    if isinstance(found, _Stop):
        return found
    # All of it is there, but not at the end.
    return _mismatch(events, max(at, len(events) - len(last)), last) or _Stop(found + len(last), None)


def _search(events: Sequence[AgentEvent], start: int, group: Sequence[_Wanted]) -> int | _Stop:
    """Where the group first matches; otherwise where it got furthest."""
    furthest: tuple[int, _Stop] | None = None
    for at in range(start, max(start, len(events)) + 1):
        stop = _mismatch(events, at, group)
        if stop is None:
            return at
        if furthest is None or stop.event - at > furthest[0]:
            furthest = (stop.event - at, stop)
    if furthest is not None and furthest[0] > 0:
        return furthest[1]
    alike = [at for at in range(start, len(events)) if events[at].type == group[0].type]
    return _Stop(alike[0] if alike else start, group[0], start)


def _mismatch(events: Sequence[AgentEvent], start: int, group: Sequence[_Wanted]) -> _Stop | None:
    for at, wanted in enumerate(group, start):
        if at >= len(events) or events[at].type != wanted.type or not _has(events[at].payload, wanted.payload):
            return _Stop(at, wanted)
    return None


def _has(value: object, wanted: object) -> bool:
    if wanted is ...:
        return True
    if isinstance(wanted, Mapping) and isinstance(value, Mapping):
        parts, given = cast("Mapping[str, Any]", wanted), cast("Mapping[str, Any]", value)
        return all(name in given and _has(given[name], part) for name, part in parts.items())
    if isinstance(wanted, list | tuple) and isinstance(value, list | tuple):
        items, found = cast("Sequence[Any]", wanted), cast("Sequence[Any]", value)
        return len(items) == len(found) and all(map(_has, found, items))
    return bool(value == wanted)


def _story(events: Sequence[AgentEvent], stop: _Stop) -> str:
    found = f"event {stop.event} is {events[stop.event].type!r}" if stop.event < len(events) else "the events end here"
    if stop.wanted is None:
        wanted = "the pattern ends before it"
    elif stop.searched_from is not None:
        wanted = f"item {stop.wanted.place} of the pattern is nowhere from event {stop.searched_from} on: {stop.wanted}"
    else:
        wanted = f"item {stop.wanted.place} of the pattern wants {stop.wanted}"
    first, last = max(0, stop.event - AROUND), min(len(events), stop.event + AROUND + 1)
    lines = [_shown(index, events[index], is_stop=index == stop.event) for index in range(first, last)]
    before = [f"     ... {first} before"] if first else []
    after = [f"     ... {len(events) - last} more"] if last < len(events) else []
    end = [">    (no more events)"] if stop.event >= len(events) else []
    return "\n".join([f"{found}; {wanted}", *before, *lines, *end, *after])


def _shown(index: int, event: AgentEvent, *, is_stop: bool) -> str:
    payload = repr(event.payload)
    if len(payload) > MAX_PAYLOAD and not is_stop:
        payload = payload[:MAX_PAYLOAD] + "…"
    return f"{'>' if is_stop else ' '}{index:4} {event.type} {payload}"
