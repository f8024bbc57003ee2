"""Items: what the command line names is there, in order, or the message says where it went wrong."""

import csv
import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.cli.items import MAX_FILE_BYTES, Item, load_items
from fanfold.cli.records import read_records
from fanfold.errors import UsageError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.py", "a.py", "src/z.py", "src/deep/y.py", "src/.hidden/x.py", ".env.py", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return tmp_path


def keys(*sources: str, workspace: Path, stdin: bytes = b"") -> list[str]:
    return [item.key for item in load(*sources, workspace=workspace, stdin=stdin)]


def load(*sources: str, workspace: Path, records: tuple[Path, ...] = (), stdin: bytes = b"") -> list[Item]:
    return load_items(sources, records, workspace=workspace, stdin=io.BytesIO(stdin))


def test_double_star_finds_every_depth_sorted_and_skips_hidden(tree: Path) -> None:
    assert keys("**/*.py", workspace=tree) == ["a.py", "b.py", "src/deep/y.py", "src/z.py"]


def test_double_star_at_the_end_means_all_files_below(tree: Path) -> None:
    assert keys("src/**", workspace=tree) == ["src/deep/y.py", "src/z.py"]


def test_a_dot_in_the_pattern_finds_hidden_names(tree: Path) -> None:
    assert keys(".*.py", "src/.*/*.py", workspace=tree) == [".env.py", "src/.hidden/x.py"]


def test_absolute_patterns_inside_the_workspace_give_relative_keys(tree: Path) -> None:
    assert keys(f"{tree}/src/*.py", "./src/../b.py", workspace=tree) == ["src/z.py", "b.py"]


def test_overlapping_patterns_give_each_file_once_in_the_order_of_the_patterns(tree: Path) -> None:
    assert keys("src/**/*.py", "*.py", "**/*.py", workspace=tree) == [
        "src/deep/y.py",
        "src/z.py",
        "a.py",
        "b.py",
    ]


def test_a_link_back_up_does_not_make_the_search_endless(tree: Path) -> None:
    (tree / "src/up").symlink_to(tree, target_is_directory=True)
    assert keys("**/z.py", workspace=tree) == ["src/z.py"]


def test_a_file_has_its_path_and_content(tree: Path) -> None:
    (tree / "bom.txt").write_bytes(b"\xef\xbb\xbfhi\r\n")
    [item] = load("bom.txt", workspace=tree)
    assert item.fields == {"item": "bom.txt", "path": "bom.txt", "content": "hi\r\n"}


def test_what_cannot_be_read_is_an_item_with_a_problem_and_the_others_stay(tree: Path) -> None:
    (tree / "binary.py").write_bytes(b"a\0b")
    (tree / "latin.py").write_bytes("# é".encode("latin-1"))
    (tree / "huge.py").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tree / "full.py").write_bytes(b"#" * MAX_FILE_BYTES)
    problems = {item.key: item.problem for item in load("*.py", "src", workspace=tree)}
    assert problems == {
        "a.py": None,
        "b.py": None,
        "full.py": None,
        "binary.py": "is a binary file",
        "latin.py": "is not UTF-8 text (byte 2)",
        "huge.py": "cannot be read: it is larger than 262,144 bytes",
        "src": "is a directory; its files are 'src/**'",
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [("nothing/*.py", "'nothing/*.py' matches no file"), ("gone.py", "there is no file gone.py")],
)
def test_a_source_that_names_nothing_is_an_error(tree: Path, source: str, message: str) -> None:
    with pytest.raises(UsageError, match="^" + message.replace("*", r"\*")):
        load("a.py", source, workspace=tree)


def test_no_items_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no items"):
        load("-", workspace=tmp_path, stdin=b"\n  \n")


def test_a_name_with_brackets_that_exists_is_no_pattern(tree: Path) -> None:
    (tree / "src/[ab].py").write_text("x")
    (tree / "[1].jsonl").write_text('{"id": "one"}\n')
    assert keys("src/[ab].py", "[1].jsonl", "[ab].py", workspace=tree) == ["src/[ab].py", "one", "a.py", "b.py"]


def test_a_pipe_or_device_that_is_named_as_an_item_is_a_problem_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    problems = [item.problem for item in load("pipe", "/dev/zero", workspace=tmp_path)]
    assert problems == ["cannot be read: it is not a regular file"] * 2


def test_names_that_are_too_long_or_lead_in_circles_are_told_so(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="there is no file xxx"):
        load("x" * 5000, workspace=tmp_path)
    [item] = load("loop/*.txt", workspace=tmp_path)
    assert (item.key, item.problem) == ("loop", "cannot be listed: Too many levels of symbolic links")


def test_lines_of_stdin_keep_their_order_and_their_doubles(tmp_path: Path) -> None:
    assert keys("-", workspace=tmp_path, stdin=b"ein\n\nzwei \r\nein\n") == ["ein", "zwei", "ein"]


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stdin:2: not UTF-8"):
        load("-", workspace=tmp_path, stdin=b"fine\n\xff\n")


def test_records_have_their_fields_and_are_called_by_id_or_place(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "x1", "title": "A"}\n\n{"title": null, "n": 1.10, "tags": [1, 2]}\n')
    first, second = load("in.jsonl", workspace=tmp_path)
    assert (first.key, first.fields["title"]) == ("x1", "A")
    assert (second.key, second.fields["title"], second.fields["n"]) == ("in.jsonl:3", "", "1.10")
    assert second.fields["tags"] == "[1, 2]"
    assert second.fields["item"] == '{"title": null, "n": 1.10, "tags": [1, 2]}'


def test_columns_are_known_by_plain_names(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('Unit price,2nd\n"1,50",x\n')
    [item] = load("in.csv", workspace=tmp_path)
    assert item.fields["Unit_price"] == "1,50"
    assert item.fields["_2nd"] == "x"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("in.jsonl", '{"a": 1}\n[1]\n', r"in\.jsonl:2: not a JSON object"),
        ("in.jsonl", '{"a": 1}\n\n{"a": \n', r"in\.jsonl:3: not a JSON object"),
        ("in.csv", "a,b\n1,2\n1\n", r"in\.csv:3: 1 cell, but the header has 2"),
        ("in.csv", "a,a\n1,2\n", r"in\.csv:1: two fields are called 'a'"),
        ("in.csv", "a,\n1,2\n", r"in\.csv:1: a field has no name"),
        ("in.csv", 'a\n"x\n', r"in\.csv:2: unexpected end of data"),
        ("in.csv", "a\n" + "x" * 262_145 + "\n", r"in\.csv:2: field larger than field limit \(262144\)"),
        ("in.jsonl", '{"a": ' + "[" * 5000 + "]" * 5000 + "}", r"in\.jsonl:1: not a JSON object .*nested too deeply"),
        ("gone.csv", None, r"cannot read gone\.csv: No such file"),
    ],
)
def test_a_malformed_record_is_named_by_file_and_line(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        load(name, workspace=tmp_path)


def test_a_cell_may_be_as_large_as_a_file_that_is_an_item(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a\n" + "x" * MAX_FILE_BYTES + "\n")
    [item] = load("in.csv", workspace=tmp_path)
    assert len(item.fields["a"]) == MAX_FILE_BYTES


_names = st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True)
_texts = st.text(st.characters(codec="utf-8"), max_size=30)


@given(rows=st.lists(st.dictionaries(_names, _texts, min_size=1, max_size=4), min_size=1, max_size=5))
def test_jsonl_records_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [record.fields for record in read_records(path, "in.jsonl")] == rows


@given(
    names=st.lists(_names, min_size=2, max_size=4, unique=True),
    cells=st.lists(st.lists(_texts.filter(lambda text: "\0" not in text), min_size=4, max_size=4), max_size=5),
)
def test_csv_records_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], cells: list[list[str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "in.csv"
    rows = [dict(zip(names, row, strict=False)) for row in cells]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    assert [record.fields for record in read_records(path, "in.csv")] == rows


def test_a_file_whose_name_is_no_text_is_a_failed_item(tmp_path: Path) -> None:
    (tmp_path / "ok.txt").write_text("fine")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.txt")).write_text("x")
    bad, ok = load_items(["*.txt"], [], workspace=tmp_path, stdin=None)
    assert (bad.key, bad.problem) == ("bad\ufffd.txt", "has a name that is not UTF-8 text")
    assert ok.problem is None
