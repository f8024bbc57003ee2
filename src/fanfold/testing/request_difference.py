"""How a request differs from the recorded one that is most like it, in words for a failed test."""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from fanfold.contracts.record import JsonObject
from fanfold.testing.recorded_call import RecordedRequest

MAX_DIFF_LINES = 40
"""Of one text."""
MAX_LINE = 160
"""Characters of a line that are shown, from a little before the first that differs."""
_LEAD = 40
_COMPARED = 4_000
"""Characters of the newest message by which requests are ranked."""
_TEXTS = ("text", "output")


def nearest(asked: RecordedRequest, recorded: Sequence[RecordedRequest]) -> int | None:
    """Index of the request that is most like `asked`, the first of equal ones; None when there are none."""
    if not recorded:
        return None
    return max(range(len(recorded)), key=lambda index: (_likeness(asked, recorded[index]), -index))


def _likeness(asked: RecordedRequest, other: RecordedRequest) -> float:
    fields = ("model", "system", "tools", "output_schema", "max_output_tokens", "temperature")
    same = [name for name in fields if getattr(asked, name) == getattr(other, name)]
    longest = max(len(asked.messages), len(other.messages), 1)
    same_messages = sum(one == two for one, two in zip(asked.messages, other.messages, strict=False)) / longest
    one, two = _newest(asked), _newest(other)
    same_letters = difflib.SequenceMatcher(None, one, two, autojunk=False).quick_ratio()
    same_start = _first_difference(one, two) / max(len(one), len(two), 1)
    return len(same) / len(fields) + 2 * same_messages + same_letters + same_start


def _newest(request: RecordedRequest) -> str:
    if not request.messages:
        return ""
    message = request.messages[-1]
    return f"{message.get('role')} {next((message[name] for name in _TEXTS if name in message), '')}"[:_COMPARED]


def difference(recorded: RecordedRequest, asked: RecordedRequest) -> str:
    """Each field that differs, texts as a unified diff; nothing when they are equal."""
    return "\n".join(
        [
            *_plain_field("model", recorded.model, asked.model),
            *_text("system", recorded.system, asked.system),
            *_messages(recorded.messages, asked.messages),
            *_tools(recorded.tools, asked.tools),
            *_json("output_schema", recorded.output_schema, asked.output_schema),
            *_plain_field("max_output_tokens", recorded.max_output_tokens, asked.max_output_tokens),
            *_plain_field("temperature", recorded.temperature, asked.temperature),
        ]
    )


def _messages(recorded: Sequence[JsonObject], asked: Sequence[JsonObject]) -> Iterator[str]:
    for index, (old, new) in enumerate(zip(recorded, asked, strict=False)):
        yield from _message(f"messages[{index}]", old, new)
    both = min(len(recorded), len(asked))
    for what, rest in (("only recorded", recorded[both:]), ("only asked", asked[both:])):
        for index, message in enumerate(rest, both):
            yield f"messages[{index}]: {what}: {_clipped(_shown(message))}"


def _message(place: str, old: JsonObject, new: JsonObject) -> Iterator[str]:
    if old == new:
        return
    if old.get("role") != new.get("role"):
        yield f"{place}: recorded {_clipped(_shown(old))}"
        yield f"{place}: asked    {_clipped(_shown(new))}"
        return
    for name in dict.fromkeys((*old, *new)):
        where = f"{place}.{name} ({old.get('role')})"
        before, after = old.get(name), new.get(name)
        if isinstance(before, str) and isinstance(after, str):
            yield from _text(where, before, after)
        else:
            yield from _json(where, before, after)


def _tools(recorded: Sequence[JsonObject], asked: Sequence[JsonObject]) -> Iterator[str]:
    old, new = ({tool["name"]: tool for tool in tools} for tools in (recorded, asked))
    gone, added = [name for name in old if name not in new], [name for name in new if name not in old]
    if gone:
        yield f"tools: only recorded: {', '.join(gone)}"
    if added:
        yield f"tools: only asked: {', '.join(added)}"
    for name in [name for name in old if name in new]:
        yield from _text(f"tools.{name}.description", old[name]["description"], new[name]["description"])
        yield from _json(f"tools.{name}.parameters", old[name]["parameters"], new[name]["parameters"])
    if not gone and not added and list(old) != list(new):
        yield f"tools: recorded in the order {', '.join(old)}; asked in the order {', '.join(new)}"


def _plain_field(name: str, recorded: object, asked: object) -> Iterator[str]:
    if recorded != asked:
        yield f"{name}: recorded {recorded!r}, asked {asked!r}"


def _json(name: str, recorded: Any, asked: Any) -> Iterator[str]:
    if recorded is None or asked is None:
        yield from _plain_field(name, recorded, asked)
    else:
        yield from _text(name, _pretty(recorded), _pretty(asked))


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2).decode()


def _shown(message: JsonObject) -> str:
    return msgspec.json.encode(message).decode()


def _text(name: str, recorded: str, asked: str) -> Iterator[str]:
    if recorded == asked:
        return
    yield f"{name}:  (- recorded, + asked)"
    shown = list(_changes(recorded.split("\n"), asked.split("\n")))
    yield from (f"  {line}" for line in shown[:MAX_DIFF_LINES])
    if len(shown) > MAX_DIFF_LINES:
        yield f"  ... {len(shown) - MAX_DIFF_LINES} more lines of this difference"


def _changes(recorded: list[str], asked: list[str]) -> Iterator[str]:
    """A unified diff."""
    for group in difflib.SequenceMatcher(None, recorded, asked).get_grouped_opcodes(2):
        if len(recorded) > 1 or len(asked) > 1:
            yield f"@@ line {group[0][3] + 1} @@"
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                yield from (f" {_clipped(line)}" for line in recorded[old_start:old_end])
            else:
                yield from _replaced(recorded[old_start:old_end], asked[new_start:new_end])


def _replaced(old: list[str], new: list[str]) -> Iterator[str]:
    """Each line cut to what differs from its counterpart, where it has one."""
    starts = [_first_difference(one, two) for one, two in zip(old, new, strict=False)]
    for sign, lines in (("-", old), ("+", new)):
        for index, line in enumerate(lines):
            yield sign + _clipped(line, starts[index] if index < len(starts) else 0, ends_visibly=True)


def _first_difference(old: str, new: str) -> int:
    shorter = min(len(old), len(new))
    return next((at for at in range(shorter) if old[at] != new[at]), shorter)


def _clipped(line: str, differs_at: int = 0, *, ends_visibly: bool = False) -> str:
    """At most MAX_LINE characters of it, no control characters; blanks at its end as dots where they may matter."""
    start = max(0, differs_at - _LEAD) if len(line) > MAX_LINE else 0
    cut = line[start : start + MAX_LINE]
    shown = "".join(sign if sign.isprintable() or sign == "\t" else repr(sign)[1:-1] for sign in cut)
    if ends_visibly:
        text = shown.rstrip(" ")
        shown = text + "·" * (len(shown) - len(text))
    return ("…" if start else "") + shown + ("…" if start + MAX_LINE < len(line) else "")
