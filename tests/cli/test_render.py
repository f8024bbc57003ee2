"""Rendering: every format holds every result, a table fits its terminal, a file is whole or untouched."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.cli.cells import cut, width_of
from fanfold.cli.out_file import open_out
from fanfold.cli.render import render, table
from fanfold.cli.results import Row
from fanfold.errors import LogWriteError, UsageError


def ok(item: str, structured: Any = None, output: str = "") -> Row:
    return Row(item=item, success=True, output=output, structured=structured, total_tokens=7)


FAILED = Row(item="bad.py", success=False, output="Task failed: no answer")


def test_structured_fields_become_columns_in_the_order_of_first_appearance() -> None:
    rows = [ok("a", {"kind": "test", "ok": True}), FAILED, ok("b", {"kind": "lib", "tags": ["x", "y"]})]
    assert render(rows, "table").splitlines() == [
        "item  kind  ok   tags",
        "────  ────  ───  ────",
        "a     test  yes",
        "b     lib        x, y",
    ]


def test_a_column_that_stays_whole_takes_its_room_from_the_others() -> None:
    head, rows = ["id", "text", "more"], [["0123456789abcdef", "b" * 30, "c" * 30]]
    assert table(head, rows, width=40, whole=("id",)).splitlines()[2] == "0123456789abcdef  bbbbbbbbb…  ccccccccc…"
    assert table(head, rows, width=20, whole=("id",)).splitlines()[2] == "0123456789abcdef  bbbbbbb…  ccccccc…"
    assert table(head, rows, width=40).splitlines()[2] == "0123456789a…  bbbbbbbbbbb…  ccccccccccc…"


def test_numbers_stand_to_the_right() -> None:
    assert render([ok("a", {"n": 5}), ok("b", {"n": 1200})], "table").splitlines()[2:] == [
        "a        5",
        "b     1200",
    ]


def test_wide_characters_take_two_cells() -> None:
    lines = render([ok("日本", output="x"), ok("abc", output="é")], "table").splitlines()
    assert lines[2:] == ["日本  x", "abc   é"]


def test_the_widest_column_gives_up_space_first() -> None:
    lines = render([ok("a.py", output="word " * 40)], "table", width=40).splitlines()
    assert max(map(width_of, lines)) == 40
    assert lines[2].startswith("a.py  word word")
    assert lines[2].endswith("…")


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=60), st.text(max_size=200)), min_size=1, max_size=6),
    st.integers(20, 120),
)
def test_a_table_never_gets_wider_than_the_terminal(cells: list[tuple[str, str]], width: int) -> None:
    table = render([ok(item, output=output) for item, output in cells], "table", width=width)
    lines = table.split("\n")
    assert len(lines) == len(cells) + 3
    assert all(width_of(line) <= width for line in lines)


@given(st.text(max_size=80), st.integers(0, 40))
def test_cut_text_fits_and_is_a_beginning(text: str, width: int) -> None:
    short = cut(text, width)
    assert width_of(short) <= width
    assert short == text or text.startswith(short.removesuffix("…"))


def test_a_model_cannot_steer_the_terminal_through_a_table() -> None:
    assert "\x1b" not in render([ok("a", output="\x1b[2J\x1b]0;title\x07gone")], "table")


def test_jsonl_holds_successes_and_failures() -> None:
    lines = render([ok("a", {"n": 1}), ok("b", output="text"), FAILED], "jsonl").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"item": "a", "success": True, "structured": {"n": 1}, "total_tokens": 7},
        {"item": "b", "success": True, "output": "text", "total_tokens": 7},
        {"item": "bad.py", "success": False, "error": "Task failed: no answer", "total_tokens": 0},
    ]


def test_json_is_one_document_with_the_records_of_jsonl() -> None:
    rows = [ok("a", {"n": 1}), FAILED]
    assert json.loads(render(rows, "json")) == [json.loads(line) for line in render(rows, "jsonl").splitlines()]


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3),
)


@given(
    st.lists(
        st.dictionaries(st.text(min_size=1, max_size=9), _json, min_size=1, max_size=4),
        min_size=1,
        max_size=5,
    )
)
def test_csv_gives_back_every_field(results: list[dict[str, Any]]) -> None:
    text = render([ok(str(index), result) for index, result in enumerate(results)], "csv")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(rows) == len(results)
    for row, result in zip(rows, results, strict=True):
        for name, value in result.items():
            column = f"result.{name}" if name in ("item", "success", "error") else name
            expected = "" if value is None else value
            assert row[column] == (
                expected
                if isinstance(expected, str)
                else json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
            )


def test_markdown_cells_cannot_break_the_table() -> None:
    text = render([ok("a|b", {"why": "x | y\nz <b>"}), FAILED], "markdown")
    assert text.splitlines() == [
        "| item | why | error |",
        "| --- | --- | --- |",
        "| a\\|b | x \\| y z &lt;b> |  |",
        "| bad.py |  | Task failed: no answer |",
    ]


def test_a_structured_answer_that_is_no_object_is_one_column() -> None:
    assert render([ok("a", ["x", "y"])], "csv") == 'item,success,output,error\na,true,"[""x"",""y""]",\n'


def test_the_results_file_is_replaced_as_a_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    target.chmod(0o640)
    open_out(target).write_whole("new\n")
    assert target.read_text() == "new\n"
    assert target.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_to_the_results_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    open_out(tmp_path / "link.csv").write_whole("x")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "x"


def test_a_results_file_that_cannot_be_written_in_the_end_changes_nothing(tmp_path: Path) -> None:
    out = open_out(tmp_path / "taken.csv")
    (tmp_path / "taken.csv").mkdir()
    with pytest.raises(LogWriteError, match="cannot write"):
        out.write_whole("x")
    assert list(tmp_path.iterdir()) == [tmp_path / "taken.csv"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.xlsx", "must be one of .jsonl, .csv, .md, .json"),
        ("gone/out.csv", "cannot be written there: .*gone: No such file"),
        ("directory.csv", "it is not a regular file"),
        ("pipe.csv", "it is not a regular file"),
        ("loop.csv", "symbolic links"),
        ("dangling.csv", "cannot be written there: .*nowhere: No such file"),
        (f"{'x' * 300}.csv", "File name too long"),
        ("/proc/out.csv", "cannot be written there"),
    ],
)
def test_a_results_file_that_cannot_be_is_refused_before_any_work(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "directory.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "nowhere" / "out.csv")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=message):
        open_out(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_of_the_greatest_length_is_fine(tmp_path: Path) -> None:
    name = f"{'x' * 251}.csv"
    open_out(tmp_path / name).write_whole("x")
    assert (tmp_path / name).read_text() == "x"
