"""read, write, edit and ls: what a model gets back, and what is on disk afterwards."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.contracts.messages import ToolOutput
from fanfold.protocols import Tool
from fanfold.tools.toolset import builtin_tools
from fanfold.tools.workspace import MAX_FILE_BYTES, Workspace

Call = Callable[..., ToolOutput]


@pytest.fixture
def tools(workspace: Workspace) -> dict[str, Tool]:
    return builtin_tools(workspace, allow_unsandboxed_bash=False)


@pytest.fixture
def root(workspace: Workspace) -> Path:
    return workspace.root


# ---- read --------------------------------------------------------------------------------------------------


def test_read_numbers_lines_from_one(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a.py").write_text("first\nsecond\r\nlast without end")
    answer = call(tools["read"], file_path="a.py")
    assert answer.output == "     1\tfirst\n     2\tsecond\n     3\tlast without end"
    assert (answer.exit_code, answer.source_anchors) == (0, ("a.py",))


def test_read_pages_join_to_the_whole(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_text("".join(f"line {n}\n" for n in range(1, 26)))
    whole = call(tools["read"], file_path="a").output.split("\n")
    pages: list[str] = []
    for offset in (0, 10, 20):
        lines = call(tools["read"], file_path="a", offset=offset, limit=10).output.split("\n")
        if offset < 20:
            assert lines.pop() == f"[more lines follow; continue with offset={offset + 10}]"
        pages += lines
    assert pages == whole


def test_read_beyond_the_end_names_the_length(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_text("1\n2\n3\n")
    answer = call(tools["read"], file_path="a", offset=3)
    assert (answer.exit_code, answer.output) == (1, "Offset 3 exceeds file length (3 lines)")


def test_read_cuts_long_lines_between_characters(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_text("x" + "é" * 100_000 + "\nshort\n")
    first, second = call(tools["read"], file_path="a").output.split("\n")
    assert first == "     1\tx" + "é" * 999 + "… [line cut: 200002 bytes]"
    assert second == "     2\tshort"


@pytest.mark.parametrize("size", [1_024, 5_000, 98_304])
@pytest.mark.parametrize("filler", [b"word ", b"\xff", "é".encode(), b"x\n", b"y" * 700 + b"\n"])
def test_read_stays_within_its_budget_and_says_where_to_go_on(
    tools: dict[str, Tool], root: Path, call: Call, size: int, filler: bytes
) -> None:
    (root / "a").write_bytes(filler * (400_000 // len(filler)))
    answer = call(tools["read"], file_path="a", max_output_bytes=size)
    assert answer.artifact is None
    assert 0 < len(answer.output.encode()) <= size
    if b"\n" in filler:
        assert "continue with offset=" in answer.output


def test_read_of_an_empty_file_says_so(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").touch()
    assert call(tools["read"], file_path="a").output == "[the file is empty]"


def test_read_shows_what_is_not_utf8_and_says_so(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_bytes(b"caf\xe9\nok\n")
    assert call(tools["read"], file_path="a").output == (
        "     1\tcaf\ufffd\n     2\tok\n[bytes that are not UTF-8 are shown as \ufffd]"
    )
    (root / "b").write_text("a true \ufffd\n")
    assert call(tools["read"], file_path="b").output == "     1\ta true \ufffd"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("image.png", "image.png is a binary file (9 bytes)"),
        ("folder", "folder is a directory; use ls"),
        ("none.txt", "Failed to read none.txt: No such file"),
        ("../outside/secret.txt", "escapes workspace"),
        ("a3s://tool-output/bash/" + "0" * 64, "No such file"),
        ("a3s://tool-output/../../../outside/secret.txt", "escapes workspace"),
    ],
)
def test_read_says_why_it_cannot(tools: dict[str, Tool], root: Path, call: Call, path: str, reason: str) -> None:
    (root / "image.png").write_bytes(b"\x89PNG\0\0\0\0\1")
    (root / "folder").mkdir()
    answer = call(tools["read"], file_path=path)
    assert answer.exit_code == 1
    assert reason in answer.output
    assert answer.source_anchors == ()


def test_read_wants_exactly_one_of_file_path_and_files(tools: dict[str, Tool], call: Call) -> None:
    assert call(tools["read"]).output == "file_path parameter is required"
    both = call(tools["read"], file_path="a", files=[{"path": "b"}])
    assert both.output == "file_path and files are mutually exclusive; provide exactly one"


def test_read_of_several_files_goes_on_after_a_bad_one(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_text("A\n")
    (root / "c").write_text("C1\nC2\n")
    files = [{"path": "a"}, {"path": "b"}, {"path": "c", "offset": 1}]
    answer = call(tools["read"], files=files)
    assert answer.exit_code == 0
    assert answer.source_anchors == ("a", "c")
    assert answer.output == (
        "==> a <==\n     1\tA\n==> b <==\nFailed to read b: No such file or directory\n==> c <==\n     2\tC2"
    )
    assert call(tools["read"], files=[{"path": "b"}]).exit_code == 1


def test_read_of_several_files_shares_one_budget(tools: dict[str, Tool], root: Path, call: Call) -> None:
    for name in "abcd":
        (root / name).write_text("some text\n" * 100)
    answer = call(tools["read"], files=[{"path": name} for name in "abcd"], max_output_bytes=3_000)
    assert len(answer.output.encode()) <= 3_000
    assert answer.output.endswith("[output budget spent; not read: 2 file(s), from c]")
    assert answer.source_anchors == ("a", "b")


# ---- write -------------------------------------------------------------------------------------------------


def test_write_makes_folders_and_reports_bytes(tools: dict[str, Tool], root: Path, call: Call) -> None:
    answer = call(tools["write"], file_path="new/deep/a.txt", content="grün\n")
    assert answer.output == "Wrote 6 bytes to new/deep/a.txt"
    assert (root / "new/deep/a.txt").read_bytes() == "grün\n".encode()


def test_write_through_a_link_inside_changes_its_target(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "real").write_text("old")
    (root / "link").symlink_to("real")
    call(tools["write"], file_path="link", content="new")
    assert (root / "link").is_symlink()
    assert (root / "real").read_text() == "new"


@pytest.mark.parametrize(
    "path", ["way_out/secret.txt", "way_out/new.txt", ".git/config", "sub/agent.acl", "folder", "file/child"]
)
def test_write_refuses_and_changes_nothing(
    tools: dict[str, Tool], root: Path, call: Call, link_out: Path, path: str
) -> None:
    (root / "folder").mkdir()
    (root / "file").write_text("x")
    answer = call(tools["write"], file_path=path, content="bad")
    assert answer.exit_code == 1
    assert [p.name for p in link_out.iterdir()] == ["secret.txt"]
    assert (link_out / "secret.txt").read_text() == "secret\n"
    assert sorted(p.name for p in root.iterdir()) == ["file", "folder", "way_out"]


def test_write_takes_files_up_to_its_limit(tools: dict[str, Tool], root: Path, call: Call) -> None:
    assert call(tools["write"], file_path="a", content="x" * MAX_FILE_BYTES).exit_code == 0
    answer = call(tools["write"], file_path="new/b", content="é" * (MAX_FILE_BYTES // 2) + "x")
    assert (answer.exit_code, answer.output) == (1, "new/b would have 16777217 bytes; the limit is 16777216")
    assert [p.name for p in root.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("read", {"file_path": "pipe"}),
        ("read", {"files": [{"path": "pipe"}]}),
        ("write", {"file_path": "pipe", "content": "x"}),
        ("edit", {"file_path": "pipe", "old_string": "x", "new_string": "y"}),
        ("search", {"mode": "grep", "query": "x", "path": "pipe"}),
        ("search", {"mode": "glob", "query": "*", "path": "pipe"}),
        ("ls", {"path": "pipe"}),
    ],
)
def test_a_pipe_is_refused_at_once_and_left_alone(
    tools: dict[str, Tool], root: Path, call: Call, tool: str, args: dict[str, object]
) -> None:
    os.mkfifo(root / "pipe")
    assert call(tools[tool], **args).exit_code == 1
    assert [p.name for p in root.iterdir()] == ["pipe"]
    assert (root / "pipe").is_fifo()


# ---- edit --------------------------------------------------------------------------------------------------


def edit(call: Call, tools: dict[str, Tool], old: str, new: str, **more: object) -> ToolOutput:
    return call(tools["edit"], file_path="a", old_string=old, new_string=new, **more)


def test_edit_replaces_the_one_occurrence(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_bytes(b"one\ntwo \xff\nthree\n")
    assert edit(call, tools, "two", "2").output == "Replaced 1 occurrence(s) in a"
    assert (root / "a").read_bytes() == b"one\n2 \xff\nthree\n"


@pytest.mark.parametrize(
    ("old", "new", "more", "reason"),
    [
        ("", "x", {}, "old_string must not be empty"),
        ("x", "x", {}, "nothing to change"),
        ("absent", "x", {}, "old_string not found in a"),
        ("x", "y", {}, "old_string found 3 times in a"),
        ("x", "y", {"expected_replacements": 3}, "old_string found 3 times in a"),
        (
            "x",
            "y",
            {"expected_replacements": 2, "replace_all": True},
            "Replacement count mismatch in a: expected 2",
        ),
        (
            "x",
            "y",
            {"max_replacements": 2, "replace_all": True},
            "3 occurrence(s) in a, which exceeds max_replacements=2.",
        ),
    ],
)
def test_edit_refuses_what_is_not_exact(
    tools: dict[str, Tool], root: Path, call: Call, old: str, new: str, more: dict[str, object], reason: str
) -> None:
    (root / "a").write_text("x\nx x\n")
    answer = edit(call, tools, old, new, **more)
    assert answer.exit_code == 1
    assert reason in answer.output
    assert (root / "a").read_text() == "x\nx x\n"


def test_edit_replaces_all_when_told(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_text("x\nx x\n")
    answer = edit(call, tools, "x", "yy", replace_all=True, expected_replacements=3, max_replacements=3)
    assert answer.output == "Replaced 3 occurrence(s) in a"
    assert (root / "a").read_text() == "yy\nyy yy\n"


def test_edit_dry_run_names_lines_and_changes_nothing(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_text("x\n\nx x\n")
    answer = edit(call, tools, "x", "y", replace_all=True, dry_run=True)
    assert answer.output == "Would replace 3 occurrence(s) in a (line 1, 3, 3)"
    assert (root / "a").read_text() == "x\n\nx x\n"


def test_edit_dry_run_names_the_first_lines_of_very_many(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_bytes(b"\n" * MAX_FILE_BYTES)
    tracemalloc.start()
    answer = edit(call, tools, "\n", "x", replace_all=True, dry_run=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    first = ", ".join(map(str, range(1, 21)))
    assert answer.output == f"Would replace {MAX_FILE_BYTES} occurrence(s) in a (line {first}, ...)"
    assert peak < 5 * MAX_FILE_BYTES


def test_edit_refuses_a_result_that_is_too_large_before_it_makes_it(
    tools: dict[str, Tool], root: Path, call: Call
) -> None:
    content = b"a" * (MAX_FILE_BYTES - 1)
    (root / "a").write_bytes(content)
    tracemalloc.start()
    answer = edit(call, tools, "a", "b" * 400, replace_all=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (answer.exit_code, answer.output) == (1, "a would have 6710886000 bytes; the limit is 16777216")
    assert peak < 5 * MAX_FILE_BYTES
    assert (root / "a").read_bytes() == content


def test_edit_takes_no_file_above_the_limit(tools: dict[str, Tool], root: Path, call: Call) -> None:
    with (root / "a").open("wb") as file:
        file.write(b"text\n" * 2_000)
        file.truncate(10 * 2**30)  # sparse: reading it all would take 10 GiB of memory
    assert "larger than 16777216 bytes" in edit(call, tools, "text", "x").output


def test_edit_keeps_the_line_ends_of_a_crlf_file(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    assert edit(call, tools, "one\ntwo", "1\n2\n2b").exit_code == 0
    assert (root / "a").read_bytes() == b"1\r\n2\r\n2b\r\nthree\r\n"


def test_edit_refuses_binary_and_protected_files(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").write_bytes(b"x\0")
    assert "binary file" in edit(call, tools, "x", "y").output
    (root / "agent.acl").write_text("x")
    assert "protected" in call(tools["edit"], file_path="agent.acl", old_string="x", new_string="y").output
    assert (root / "agent.acl").read_text() == "x"


# ---- ls ----------------------------------------------------------------------------------------------------


def test_ls_marks_folders_links_and_sizes(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "b").mkdir()
    (root / ".hidden").write_text("12345")
    (root / "link").symlink_to("b")
    (root / "odd\nname").touch()
    assert call(tools["ls"]).output == ".hidden  5\nb/\nlink -> b\nodd?name  0"
    assert call(tools["ls"], path="b").output == "[nothing here]"


def test_ls_pages_join_to_the_whole(tools: dict[str, Tool], root: Path, call: Call) -> None:
    for number in range(7):
        (root / f"f{number}").touch()
    first = call(tools["ls"], limit=5).output.split("\n")
    assert first.pop() == "[2 more; continue with cursor=5]"
    second = call(tools["ls"], limit=5, cursor=5).output.split("\n")
    assert first + second == call(tools["ls"]).output.split("\n")


def test_ls_refuses_files_and_places_outside(tools: dict[str, Tool], root: Path, call: Call) -> None:
    (root / "a").touch()
    assert call(tools["ls"], path="a").output == "a is a file; use read"
    assert "escapes workspace" in call(tools["ls"], path="..").output
    assert call(tools["ls"], path="none").output == "Failed to ls none: No such file or directory"
