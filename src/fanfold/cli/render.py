"""Results as a table, Markdown, CSV, JSONL or one JSON document."""

from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec

from fanfold.cli.cells import cut, one_line, pad, width_of
from fanfold.cli.results import Row
from fanfold.cli.safe_text import printable
from fanfold.contracts.record import JsonValue

Format = Literal["table", "markdown", "csv", "jsonl", "json"]

_GAP = "  "
_NARROWEST = 8
"""A column is not cut below this many cells."""


def render(rows: Sequence[Row], format: Format, *, width: int | None = None) -> str:
    """The rows as whole lines; only a table is cut to `width` columns and leaves the failures out."""
    match format:
        case "table":
            return _results_table([row for row in rows if row.success], width)
        case "markdown":
            return _markdown(rows)
        case "csv":
            return _csv(rows)
        case "jsonl":
            return "".join(_json(row.record()) + "\n" for row in rows)
        case "json":
            return _json([row.record() for row in rows]) + "\n"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# ---- columns -----------------------------------------------------------------------------------------------


def _columns(rows: Sequence[Row]) -> list[str]:
    """The fields of all structured results as they first appear, `output` where there are none."""
    names: dict[str, None] = {}
    for row in rows:
        if row.success:
            names.update(dict.fromkeys(_values(row)))
    return list(names) or ["output"]


def _values(row: Row) -> dict[str, JsonValue]:
    if isinstance(row.structured, dict):
        return row.structured
    return {"output": row.output if row.structured is None else row.structured}


def _exact(value: JsonValue) -> str:
    """The value for a program: text as it is, anything else as JSON."""
    return "" if value is None else value if isinstance(value, str) else _json(value)


def _readable(value: JsonValue) -> str:
    """The value for a person, on one line."""
    match value:
        case True:
            return "yes"
        case False:
            return "no"
        case list() if all(isinstance(each, str | int | float) for each in value):
            return ", ".join(_readable(each) for each in value)
        case _:
            return printable(one_line(_exact(value)))


# ---- table -------------------------------------------------------------------------------------------------


def _results_table(rows: Sequence[Row], width: int | None) -> str:
    if not rows:
        return ""
    columns = _columns(rows)
    values = [_values(row) for row in rows]
    cells = [[row.item, *(found.get(name) for name in columns)] for row, found in zip(rows, values, strict=True)]
    numbers = [name for name in columns if _all_numbers([found.get(name) for found in values])]
    return table(["item", *columns], cells, width=width, to_right=numbers)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[JsonValue]],
    *,
    width: int | None,
    to_right: Collection[str] = (),
    whole: Collection[str] = (),
) -> str:
    """Rows under their head, each cell on one line, cut to `width` columns in all; those of `whole` are not cut."""
    grid = [list(head), *([_readable(value) for value in row] for row in rows)]
    natural = [max(map(width_of, column)) for column in zip(*grid, strict=True)]
    widths = _fit(natural, width, [name in whole for name in head])
    sides = [name in to_right for name in head]
    lines = [_table_line(cells, widths, sides) for cells in grid]
    rule = _GAP.join("─" * each for each in widths)
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def _all_numbers(values: Sequence[JsonValue]) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _table_line(cells: Sequence[str], widths: Sequence[int], sides: Sequence[bool]) -> str:
    shown = [
        pad(cut(cell, width), width, to_right=right) for cell, width, right in zip(cells, widths, sides, strict=True)
    ]
    return _GAP.join(shown).rstrip()


def _fit(natural: Sequence[int], width: int | None, is_whole: Sequence[bool]) -> list[int]:
    """The columns' widths, the widest of those that may be cut lowered to one level at which all fit into `width`."""
    if width is None:
        return list(natural)
    room = width - len(_GAP) * (len(natural) - 1)

    def widths(level: int) -> list[int]:
        return [each if stays else min(each, level) for each, stays in zip(natural, is_whole, strict=True)]

    level = min(max(natural), max(room, _NARROWEST))
    while level > _NARROWEST and sum(widths(level)) > room:
        level -= 1
    return widths(level)


# ---- other formats -----------------------------------------------------------------------------------------


def _markdown(rows: Sequence[Row]) -> str:
    columns = _columns(rows)
    has_failures = not all(row.success for row in rows)
    heads = ["item", *columns, *(["error"] if has_failures else [])]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        found = _values(row) if row.success else {}
        error = [] if not has_failures else [row.output if not row.success else ""]
        lines.append([row.item, *(_readable(found.get(name)) for name in columns), *error])
    return "".join(f"| {' | '.join(map(_markdown_cell, cells))} |\n" for cells in lines)


def _markdown_cell(text: str) -> str:
    # Only what would end the cell or start HTML; emphasis and links in an answer are wanted.
    return printable(one_line(text)).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _csv(rows: Sequence[Row]) -> str:
    """Columns: item, success, the fields, error. A field named like one of ours is called `result.<name>`."""
    columns = _columns(rows)
    own = ("item", "success", "error")
    lines = [["item", "success", *(f"result.{name}" if name in own else name for name in columns), "error"]]
    for row in rows:
        found = _values(row) if row.success else {}
        cells = [_exact(found.get(name)) for name in columns]
        lines.append([row.item, _json(row.success), *cells, "" if row.success else row.output])
    return "".join(",".join(map(_csv_cell, cells)) + "\n" for cells in lines)


def _csv_cell(text: str) -> str:
    # RFC 4180, 2.6 and 2.7. Not csv.writer: with "\n" as line end it leaves a lone "\r" bare.
    return '"' + text.replace('"', '""') + '"' if any(char in text for char in ',"\r\n') else text
