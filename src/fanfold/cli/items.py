"""Where `map` gets its items: files by glob, lines of stdin, records of a JSONL or CSV file."""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from fanfold.cli.globs import is_pattern, matching_files
from fanfold.cli.named_input import STDIN, read_stdin
from fanfold.cli.records import SUFFIXES, FileRecord, read_records
from fanfold.errors import UsageError
from fanfold.kernel.plain_text import is_plain, plain
from fanfold.regular_file import read_regular

MAX_FILE_BYTES = 256 * 1024
"""A larger file is no item: it would not fit into a model's context and costs before it fails."""


@dataclass(frozen=True, slots=True)
class Item:
    key: str
    """Names the item in results: a path, a line's text, a record's `id` or its file:line."""
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """What a prompt may use as `{name}`."""
    problem: str | None = None
    """Why this item cannot be run; it goes straight to the list of failures."""


def load_items(
    sources: Sequence[str], records: Sequence[Path], *, workspace: Path, stdin: BinaryIO | None
) -> list[Item]:
    """All items in the order of the command line.

    `sources` are names of files or globs, both relative to the workspace, `-` for the lines of stdin, or the name of a
    JSONL or CSV file; `records` are files that are JSONL or CSV whatever they are called.

    Raises:
        UsageError: nothing to do, a pattern that matches nothing, a malformed record (names file:line).
    """
    found: list[Item] = []
    # Overlapping globs name a file twice; equal lines or records are meant twice.
    seen_files: set[str] = set()
    for source in sources:
        if source == STDIN:
            found += _lines("" if stdin is None else read_stdin(stdin))
        elif source.endswith(SUFFIXES) and not _is_glob(source, workspace):
            found += map(_of_record, read_records(workspace / source, source))
        else:
            fresh = [item for item in _files(source, workspace) if item.key not in seen_files]
            seen_files.update(item.key for item in fresh)
            found += fresh
    for path in records:
        found += map(_of_record, read_records(path, str(path)))
    if not found:
        raise UsageError("there are no items: name a glob like 'src/**/*.py', '-' for stdin, or --items FILE")
    return found


def read_file(path: Path, key: str, *, max_bytes: int = MAX_FILE_BYTES) -> Item:
    """The file as an item with `{path}` and `{content}`, or the reason why it cannot be one."""
    if not is_plain(key):
        return Item(plain(key), problem="has a name that is not UTF-8 text")
    try:
        raw = read_regular(path, max_bytes)
    except IsADirectoryError:
        return Item(key, problem=f"is a directory; its files are '{key.rstrip('/')}/**'")
    except OSError as error:
        return Item(key, problem=f"cannot be read: {error.strerror}")
    if b"\0" in raw:
        return Item(key, problem="is a binary file")
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Item(key, problem=f"is not UTF-8 text (byte {error.start})")
    return Item(key, {"item": key, "path": key, "content": content})


def _is_glob(source: str, workspace: Path) -> bool:
    """A name of that very spelling is no pattern, as in `notes/[id].txt`."""
    return is_pattern(source) and not os.path.exists(workspace / source)


def _files(source: str, workspace: Path) -> list[Item]:
    if not _is_glob(source, workspace):
        path = workspace / source
        if not os.path.exists(path):
            raise UsageError(f"there is no file {source} in {workspace}")
        return [read_file(path, _key(path, workspace))]
    blocked: list[Item] = []

    def on_blocked(folder: Path, reason: str) -> None:
        blocked.append(Item(_key(folder, workspace), problem=f"cannot be listed: {reason}"))

    paths = matching_files(workspace, source, on_blocked)
    found = [read_file(path, _key(path, workspace)) for path in paths]
    if not found and not blocked:
        raise UsageError(f"'{source}' matches no file in {workspace}")
    return found + blocked


def _key(path: Path, workspace: Path) -> str:
    plain = Path(os.path.normpath(path))
    return (plain.relative_to(workspace) if plain.is_relative_to(workspace) else plain).as_posix()


def _lines(text: str) -> list[Item]:
    lines = (line.strip() for line in io.StringIO(text, newline=None))
    return [Item(line, {"item": line, "content": line}) for line in lines if line]


def _of_record(record: FileRecord) -> Item:
    # The record's own fields win over the two names that every item has.
    fields = {"item": record.whole, "content": record.whole, **record.fields}
    return Item(record.fields.get("id") or record.place, fields)
