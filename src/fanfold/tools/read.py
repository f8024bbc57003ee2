"""`read`: numbered lines of text files and of kept outputs."""

import codecs
from collections.abc import Iterator
from typing import BinaryIO

from fanfold.contracts.messages import ToolOutput, ToolSpec
from fanfold.contracts.record import JsonObject
from fanfold.kernel.counted import counted
from fanfold.tools.artifacts import artifact_path
from fanfold.tools.grep_worker import SNIFFED_BYTES
from fanfold.tools.refusal import ToolRefusal, failed_output
from fanfold.tools.workspace import Workspace

MAX_LINES = 2_000
MAX_LINE_BYTES = 2_000
MAX_FILES = 32
BATCH_BYTES = 65_536
MAX_BYTES = 98_304
_LEAST_BYTES = 512
"""With less than this left of its budget, a batch does not begin another file."""
_PIECE = 65_536

_OFFSET: JsonObject = {"type": "integer", "minimum": 0}
_LIMIT: JsonObject = {"type": "integer", "minimum": 1, "maximum": MAX_LINES}

SPEC = ToolSpec(
    name="read",
    description="Read text files, lines numbered. Give file_path or files, not both. Takes a3s:// URIs too.",
    parameters={
        "type": "object",
        "properties": {
            "file_path": {"type": "string"},
            "files": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_FILES,
                "items": {
                    "type": "object",
                    "properties": {"path": {"type": "string"}, "offset": _OFFSET, "limit": _LIMIT},
                    "required": ["path"],
                    "additionalProperties": False,
                },
            },
            "offset": {**_OFFSET, "description": "lines to skip"},
            "limit": _LIMIT,
            "max_output_bytes": {"type": "integer", "minimum": 1_024, "maximum": MAX_BYTES},
        },
        "additionalProperties": False,
    },
    is_read_only=True,
    is_parallel_safe=True,
)


def read(workspace: Workspace, args: JsonObject) -> ToolOutput:
    files = args.get("files")
    if files is not None:
        if "file_path" in args:
            raise ToolRefusal("file_path and files are mutually exclusive; provide exactly one")
        return _read_batch(workspace, files, args.get("max_output_bytes", BATCH_BYTES))
    if not args.get("file_path"):
        raise ToolRefusal("file_path parameter is required")
    item = {"path": args["file_path"], "offset": args.get("offset", 0), "limit": args.get("limit", MAX_LINES)}
    text, anchors = _read_one(workspace, item, args.get("max_output_bytes", MAX_BYTES))
    return ToolOutput(output=text, source_anchors=anchors)


def _read_batch(workspace: Workspace, items: list[JsonObject], budget: int) -> ToolOutput:
    """Each file under its own head line, in the order asked, until `budget` bytes are spent.

    A file that cannot be read does not stop the others; the call failed only if all of them did.
    """
    sections: list[str] = []
    anchors: dict[str, None] = {}
    failures = 0
    for item in items:
        head = f"==> {item['path']} <==\n"
        left = budget - sum(len(section.encode()) + 1 for section in sections) - len(head.encode())
        if left < _LEAST_BYTES:
            sections.append(
                f"[output budget spent; not read: {len(items) - len(sections)} file(s), from {item['path']}]"
            )
            break
        try:
            text, found = _read_one(workspace, item, left)
            anchors.update(dict.fromkeys(found))
        except (ToolRefusal, OSError) as error:
            text = failed_output(f"read {item['path']}", error).output
            failures += 1
        sections.append(head + text)
    exit_code = 1 if failures == len(items) else 0
    return ToolOutput(output="\n".join(sections), exit_code=exit_code, source_anchors=tuple(anchors))


def _read_one(workspace: Workspace, item: JsonObject, budget: int) -> tuple[str, tuple[str, ...]]:
    artifact = artifact_path(workspace, item["path"])
    place = workspace.records if artifact else workspace
    path = artifact or workspace.resolve(item["path"])
    with place.open_file(path) as file:
        refuse_binary(file, place.shown(path))
        text = _numbered(file, item.get("offset", 0), item.get("limit", MAX_LINES), budget)
    return text, () if artifact else (workspace.shown(path),)


def refuse_binary(file: BinaryIO, shown: str) -> None:
    """Refuse a file with a NUL in its first 8 KiB, leave any other one at its start."""
    if b"\0" in file.read(SNIFFED_BYTES):
        size = file.seek(0, 2)
        raise ToolRefusal(f"{shown} is a binary file ({size} bytes); only text can be shown or edited")
    file.seek(0)


def _numbered(file: BinaryIO, offset: int, limit: int, budget: int) -> str:
    shown: list[str] = []
    count = used = 0
    is_broken = has_more = False
    for count, (start, length) in enumerate(_lines(file), 1):
        if count <= offset:
            continue
        text, broken = _decoded(start, length, min(MAX_LINE_BYTES, budget - _LEAST_BYTES // 2))
        line = f"{count:6}\t{text}"
        used += len(line.encode()) + 1
        if len(shown) == limit or (shown and used > budget - _LEAST_BYTES // 2):
            has_more = True
            break
        shown.append(line)
        is_broken |= broken
    if not shown and offset:
        raise ToolRefusal(f"Offset {offset} exceeds file length ({counted(count, 'line')})")
    if has_more:
        shown.append(f"[more lines follow; continue with offset={offset + len(shown)}]")
    if is_broken:
        shown.append("[bytes that are not UTF-8 are shown as \ufffd]")
    return "\n".join(shown) or "[the file is empty]"


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Of each line its beginning, at least what may be shown of it, and its whole length."""
    while piece := file.readline(_PIECE):
        start, length = piece, len(piece)
        while not piece.endswith(b"\n") and (piece := file.readline(_PIECE)):
            length += len(piece)
        yield start.rstrip(b"\r\n") if length == len(start) else start, length


def _decoded(start: bytes, length: int, limit: int) -> tuple[str, bool]:
    """The line as text, cut to `limit` bytes with a mark; and whether it holds bytes that are not UTF-8."""
    is_whole = len(start) <= limit
    if is_whole and start.isascii():
        return start.decode("ascii"), False
    # `final=False` drops a character that the cut went through, instead of calling it broken.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(start[:limit], final=is_whole)
    broken = "\ufffd" in text and "\ufffd".encode() not in start
    shown = text.encode()[:limit].decode("utf-8", "ignore")  # again, for a broken byte became three
    return (text if is_whole and shown == text else f"{shown}… [line cut: {length} bytes]"), broken
