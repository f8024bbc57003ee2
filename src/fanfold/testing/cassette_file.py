"""A cassette's file: one JSON document for people to read, and for version control to compare.

    {
      "fanfold_cassette": 1,
      "capabilities": {...},
      "systems": {"system-1": ["line", "line"]},
      "tools": {"read": {...}},
      "recordings": [
        {"id": "5f0c...", "request": {...}, "reply": {...}, "streamed": [...]}
      ]
    }

A text of several lines is a list of them. Prompts and tools stand once and are named by the requests. A request whose
messages begin with those of an earlier one names it (`after`) and has only what is newer. Ids are labels: a recording
is found by its content, so a file may be edited by hand.
"""

import json
import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec

from fanfold.contracts.messages import ModelReply
from fanfold.contracts.record import JsonObject
from fanfold.errors import CorruptLogError
from fanfold.protocols import ModelCapabilities
from fanfold.stores.durable_file import read_file, replace_file
from fanfold.testing.recorded_call import Piece, RecordedError, RecordedRequest, Recording

VERSION = 1
LINE_WIDTH = 110
"""What fits is written on one line."""
_MULTILINE = ("text", "output", "reasoning", "description")
_decoder = json.JSONDecoder()
_space = re.compile(r"[ \t\r\n]*")


class Taken(msgspec.Struct, frozen=True):
    recording: Recording
    line: int
    """Where it begins in the file."""


class CassetteContent(msgspec.Struct, frozen=True):
    capabilities: ModelCapabilities | None
    taken: tuple[Taken, ...]


class _Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    fanfold_cassette: int
    capabilities: ModelCapabilities | None = None
    systems: dict[str, str | list[str]] = {}
    tools: dict[str, JsonObject] = {}


class _WrittenRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    model: str
    system: str | None = None
    after: str | None = None
    messages: tuple[JsonObject, ...] = ()
    tools: tuple[str, ...] = ()
    output_schema: JsonObject | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None


class _Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    id: str
    request: _WrittenRequest
    reply: JsonObject | None = None
    error: RecordedError | None = None
    streamed: tuple[str | Piece, ...] = ()


def corrupt(path: Path, line: int, reason: str) -> CorruptLogError:
    error = CorruptLogError(thread=str(path), line=line, reason=reason, what="cassette")
    error.hint = f"mend {path} by hand or take it from version control; or remove it and record anew"
    return error


def text_of(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise corrupt(path, data.count(b"\n", 0, error.start) + 1, "it is no UTF-8 text") from None


# ---- reading --------------------------------------------------------------------------------------------------------


def read_cassette(path: Path) -> CassetteContent | None:
    """What the file holds; None when there is none.

    Raises:
        CorruptLogError: it is no cassette, with the line.
        LogWriteError: it cannot be read.
    """
    data = read_file(path)
    if data is None:
        return None
    text = text_of(path, data)
    try:
        members, written = _scanned(text)
    except json.JSONDecodeError as error:
        raise corrupt(path, error.lineno, error.msg) from None
    except RecursionError:
        raise corrupt(path, 1, "nested too deeply") from None
    try:
        head = msgspec.convert(members, _Head)
        if head.fanfold_cassette != VERSION:
            raise ValueError(f"version {head.fanfold_cassette} of the format is not known here")
        tables = _Tables(head)
    except (ValueError, TypeError) as error:
        raise corrupt(path, 1, str(error)) from None
    taken: list[Taken] = []
    for offset, value in written:
        line = text.count("\n", 0, offset) + 1
        try:
            taken.append(Taken(tables.recording(value), line))
        except (ValueError, TypeError) as error:
            raise corrupt(path, line, str(error)) from None
    return CassetteContent(head.capabilities, tuple(taken))


class _Tables:
    """What recordings of one file refer to by name."""

    def __init__(self, head: _Head) -> None:
        self._systems = {name: _joined(text) for name, text in head.systems.items()}
        self._tools = {name: _with_texts(tool) for name, tool in head.tools.items()}
        self._messages: dict[str, tuple[JsonObject, ...]] = {}

    def recording(self, value: object) -> Recording:
        """Raises ValueError or TypeError when it is none."""
        written = msgspec.convert(value, _Written)
        asked = written.request
        before = () if asked.after is None else _named(asked.after, self._messages, "recording")
        messages = (*before, *map(_with_texts, asked.messages))
        self._messages.setdefault(written.id, messages)
        request = RecordedRequest(
            model=asked.model,
            system="" if asked.system is None else _named(asked.system, self._systems, "system prompt"),
            messages=messages,
            tools=tuple(_named(name, self._tools, "tool") for name in asked.tools),
            output_schema=asked.output_schema,
            max_output_tokens=asked.max_output_tokens,
            temperature=asked.temperature,
        )
        reply = None if written.reply is None else msgspec.convert(_with_texts(written.reply), ModelReply)
        return Recording(request=request, reply=reply, error=written.error, streamed=written.streamed)


def _named(name: str, known: dict[str, Any], what: str) -> Any:
    if name not in known:
        raise ValueError(f"there is no {what} '{name}' before it")
    return known[name]


def _scanned(text: str) -> tuple[JsonObject, list[tuple[int, object]]]:
    """The document without its recordings, and each of those with its place in the text.

    Raises:
        json.JSONDecodeError
    """
    members: JsonObject = {}
    recordings: list[tuple[int, object]] = []

    def recording(at: int) -> int:
        value, end = _decoder.raw_decode(text, at)
        recordings.append((at, value))
        return end

    def member(at: int) -> int:
        name, end = _decoder.raw_decode(text, at)
        at = _skip(text, _past(text, end, ":"))
        if name == "recordings":
            return _each(text, _past(text, at, "["), "]", recording)
        members[str(name)], end = _decoder.raw_decode(text, at)
        return end

    end = _skip(text, _each(text, _past(text, 0, "{"), "}", member))
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return members, recordings


def _each(text: str, at: int, close: str, read: Callable[[int], int]) -> int:
    """Have each item read, from where it begins to where it ends; returns the place behind `close`."""
    at = _skip(text, at)
    if text.startswith(close, at):
        return at + 1
    while True:
        at = _skip(text, read(at))
        if text.startswith(close, at):
            return at + 1
        at = _skip(text, _past(text, at, ","))


def _past(text: str, at: int, sign: str) -> int:
    at = _skip(text, at)
    if not text.startswith(sign, at):
        raise json.JSONDecodeError(f"Expecting '{sign}'", text, at)
    return at + 1


def _skip(text: str, at: int) -> int:
    found = _space.match(text, at)
    return at if found is None else found.end()


def _joined(text: str | list[str]) -> str:
    return "\n".join(text) if isinstance(text, list) else text


def _with_texts(written: JsonObject) -> JsonObject:
    return {name: _joined(each) if name in _MULTILINE else each for name, each in written.items()}


# ---- writing --------------------------------------------------------------------------------------------------------


def write_cassette(path: Path, capabilities: ModelCapabilities, recordings: Sequence[Recording]) -> None:
    """Replace the file, whole or not at all. Raises LogWriteError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, _document(capabilities, recordings).encode())


def _document(capabilities: ModelCapabilities, recordings: Sequence[Recording]) -> str:
    systems, tools, past = _Names("system-"), _Names(""), _Past()
    written = [_written(recording, systems, tools, past) for recording in recordings]
    head = {
        "fanfold_cassette": VERSION,
        "capabilities": msgspec.to_builtins(capabilities),
        "systems": {name: _lines(text) for name, text in systems.named()},
        "tools": {name: _with_lines(tool) for name, tool in tools.named()},
    }
    members = ["  " + readable(value, 2, json.dumps(name) + ": ") for name, value in head.items() if value != {}]
    items = ",\n".join(f"    {readable(item, 4)}" for item in written)
    return "{\n" + ",\n".join(members) + ',\n  "recordings": [\n' + items + "\n  ]\n}\n"


def _written(recording: Recording, systems: "_Names", tools: "_Names", past: "_Past") -> JsonObject:
    request = recording.request
    after, known = past.longest(request)
    asked = _WrittenRequest(
        model=request.model,
        system=systems.of(request.system) if request.system else None,
        after=after,
        messages=tuple(map(_with_lines, request.messages[known:])),
        tools=tuple(tools.of(tool, str(tool["name"])) for tool in request.tools),
        output_schema=request.output_schema,
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
    )
    reply = None if recording.reply is None else _written_reply(recording.reply)
    made = _Written(id=request.id(), request=asked, reply=reply, error=recording.error, streamed=recording.streamed)
    return cast(JsonObject, msgspec.to_builtins(made))


def _written_reply(reply: ModelReply) -> JsonObject:
    made = _with_lines(msgspec.to_builtins(reply))
    if reply.usage is not None:
        made["usage"] = {name: count for name, count in made["usage"].items() if count}
    return {name: value for name, value in made.items() if value not in ("", (), None)}


class _Names:
    """Gives each value a name of its own, the same to equal ones."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[bytes, str] = {}
        self._values: dict[str, Any] = {}

    def of(self, value: Any, wanted: str | None = None) -> str:
        key = msgspec.json.encode(value, order="sorted")
        if key not in self._names:
            name = wanted or f"{self._prefix}{len(self._values) + 1}"
            while name in self._values:
                name = f"{wanted} ({len(self._values) + 1})"
            self._names[key] = name
            self._values[name] = value
        return self._names[key]

    def named(self) -> list[tuple[str, Any]]:
        return list(self._values.items())


class _Past:
    """The requests that stand further up in the file, by the messages that they have."""

    def __init__(self) -> None:
        self._ids: dict[bytes, str] = {}

    def longest(self, request: RecordedRequest) -> tuple[str | None, int]:
        """The earlier request whose messages are the longest beginning of these, and their number; adds `request`."""
        chain: list[bytes] = []
        digest = b""
        for message in request.messages:
            digest = sha256(digest + msgspec.json.encode(message, order="sorted")).digest()
            chain.append(digest)
        known = next((count for count in range(len(chain), 0, -1) if chain[count - 1] in self._ids), 0)
        found = self._ids[chain[known - 1]] if known else None
        if chain:
            self._ids.setdefault(chain[-1], request.id())
        return found, known


def _lines(text: str) -> str | list[str]:
    return text.split("\n") if "\n" in text else text


def _with_lines(value: JsonObject) -> JsonObject:
    return {name: _lines(each) if name in _MULTILINE else each for name, each in value.items()}


def readable(value: Any, indent: int, lead: str = "") -> str:
    """JSON whose objects and lists stand on one line behind `lead` where they fit; otherwise each item has its own."""
    line = lead + json.dumps(value, ensure_ascii=False)
    if indent + len(line) < LINE_WIDTH or not isinstance(value, dict | list | tuple) or not value:
        return line
    deeper = " " * (indent + 2)
    if isinstance(value, dict):
        start, end = "{}"
        named = cast("dict[str, Any]", value).items()
        items = [readable(each, indent + 2, json.dumps(name, ensure_ascii=False) + ": ") for name, each in named]
    else:
        start, end = "[]"
        items = [readable(each, indent + 2) for each in cast("Sequence[Any]", value)]
    inside = ",\n".join(deeper + item for item in items)
    return f"{lead}{start}\n{inside}\n{' ' * indent}{end}"
