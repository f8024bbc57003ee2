"""Records of a JSONL or CSV file, every value as text, every fault with its file:line."""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fanfold.cli.named_input import read_text
from fanfold.contracts.codec import decode_json
from fanfold.errors import UsageError
from fanfold.kernel.counted import counted

SUFFIXES = (".jsonl", ".ndjson", ".csv")

_NOT_IN_NAMES = re.compile(r"\W+")
_MOST_CELL_CHARACTERS = 256 * 1024
"""As large as a file that is an item; the csv module allows half of it by itself."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    place: str
    """`file:line`"""
    whole: str
    """All of it as one line of JSON."""
    fields: dict[str, str]
    """By plain names: a column `Unit price` is `Unit_price`."""


def read_records(path: Path, label: str) -> list[FileRecord]:
    """All records: CSV rows under their header, or the lines of a file of JSON objects.

    `label` is what messages and places call the file.

    Raises:
        UsageError: the file cannot be read, or a record is malformed (names file:line).
    """
    text = read_text(path, label)
    return list(_from_csv(label, text) if path.suffix == ".csv" else _from_jsonl(label, text))


def _from_jsonl(label: str, text: str) -> Iterator[FileRecord]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{label}:{number}"
        try:
            values = {name: _as_text(raw) for name, raw in decode_json(line, dict[str, msgspec.Raw]).items()}
        except msgspec.DecodeError as error:  # also for valid JSON that is no object
            raise UsageError(f'{place}: not a JSON object like {{"field": "value"}}: {error}') from error
        yield FileRecord(place, line.strip(), dict(zip(_names(values, place), values.values(), strict=True)))


def _as_text(raw: msgspec.Raw) -> str:
    # Strings without quotes, everything else as it is written in the file (1.10 stays 1.10).
    text = bytes(raw).decode()
    if text.startswith('"'):
        return msgspec.json.decode(raw, type=str)
    return "" if text == "null" else text


def _from_csv(label: str, text: str) -> Iterator[FileRecord]:
    csv.field_size_limit(_MOST_CELL_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, list[str]())
        names = _names(header, f"{label}:1")
        for row in filter(None, reader):
            place = f"{label}:{reader.line_num}"
            if len(row) != len(header):
                raise UsageError(f"{place}: {counted(len(row), 'cell')}, but the header has {len(header)}")
            whole = msgspec.json.encode(dict(zip(header, row, strict=True))).decode()
            yield FileRecord(place, whole, dict(zip(names, row, strict=True)))
    except csv.Error as error:
        raise UsageError(f"{label}:{reader.line_num}: {error}") from error


def _names(written: Iterable[str], place: str) -> list[str]:
    """The names by which a prompt can use the fields: none empty, none twice."""
    names: list[str] = []
    for each in written:
        name = _NOT_IN_NAMES.sub("_", each.strip())
        name = f"_{name}" if name[:1].isdigit() else name
        if not name:
            raise UsageError(f"{place}: a field has no name")
        if name in names:
            raise UsageError(f"{place}: two fields are called '{name}'")
        names.append(name)
    return names
