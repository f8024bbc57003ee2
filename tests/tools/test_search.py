"""search: the same answer from ripgrep and from Python, bounded in size and time."""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.contracts.messages import ToolOutput
from fanfold.protocols import ToolScope
from fanfold.tools.grep import GrepJob, grep
from fanfold.tools.search import SearchTool
from fanfold.tools.walk import walk
from fanfold.tools.workspace import Workspace

Call = Callable[..., ToolOutput]

NO_RG = "no-such-program"
needs_rg = pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")
engines = pytest.mark.parametrize("rg", [NO_RG, pytest.param("rg", marks=needs_rg)], ids=["python", "ripgrep"])


@pytest.fixture
def tree(workspace: Workspace) -> Workspace:
    files = {
        "a.py": b"import os\n\ndef main():\n    return os.name\n",
        "b/long.txt": b"x" * 5_000 + b" needle\n",
        "b/latin.txt": b"caf\xe9 needle\nplain\n",
        "b/crlf.txt": b"one\r\nneedle\r\n",
        "b/deep/c.py": "# größe\ndef main(): pass\n# NEEDLE needle\n".encode(),
        "-dash.py": b"needle\n",
        "empty.py": b"",
        "data.bin": b"needle\0\n",
        "sp ace.txt": b"no end: needle",
        ".hidden/x.txt": b"needle\n",
        ".git/config": b"needle\n",
        ".a3s/log": b"needle\n",
        "node_modules/m.js": b"needle\n",
        "cache/CACHEDIR.TAG": b"",
        "cache/x.txt": b"needle\n",
        "venv/pyvenv.cfg": b"",
        "venv/x.txt": b"needle\n",
    }
    for name, content in files.items():
        path = workspace.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (workspace.root / "way_out").symlink_to(workspace.root.parent / "outside")
    (workspace.root / "link.txt").symlink_to("a.py")
    return workspace


@engines
def test_grep_shows_numbered_lines_by_file_in_path_order(tree: Workspace, call: Call, rg: str) -> None:
    answer = call(SearchTool(tree, rg), mode="grep", query="needle", include="*.{py,txt}")
    lines = answer.output.split("\n")
    assert lines == [
        "-dash.py",
        "1: needle",
        ".hidden/x.txt",
        "1: needle",
        "b/crlf.txt",
        "2: needle",
        "b/deep/c.py",
        "3: # NEEDLE needle",
        "b/latin.txt",
        "1: caf\ufffd needle",
        "b/long.txt",
        "1: " + "x" * 500 + "… [line cut]",
        "sp ace.txt",
        "1: no end: needle",
    ]
    assert answer.exit_code == 0
    assert answer.source_anchors == (
        "-dash.py",
        ".hidden/x.txt",
        "b/crlf.txt",
        "b/deep/c.py",
        "b/latin.txt",
        "b/long.txt",
        "sp ace.txt",
    )


@engines
def test_grep_shows_the_lines_around_a_match(tree: Workspace, call: Call, rg: str) -> None:
    (tree.root / "n.txt").write_text("".join(f"{n}\n" for n in range(1, 21)))
    answer = call(SearchTool(tree, rg), mode="grep", query="^(5|7|15)$", path="n.txt", context=1)
    assert answer.output == "n.txt\n4- 4\n5: 5\n6- 6\n7: 7\n8- 8\n--\n14- 14\n15: 15\n16- 16"


@needs_rg
@pytest.mark.parametrize("output_mode", ["content", "files_with_matches", "count"])
@pytest.mark.parametrize(
    "args",
    [
        {"query": "needle"},
        {"query": "NEEDLE", "case_sensitive": False},
        {"query": "GRÖSSE|größe", "case_sensitive": False},
        {"query": r"^def \w+\("},
        {"query": r"\bos\b", "include": "*.py"},
        {"query": "(?i)Needle"},
        {"query": r"(n)eedle.*\1", "path": "b"},
        {"query": "(?<=plain)|plain"},
        {"query": "^$"},
        {"query": "."},
        {"query": "x{300,}"},
        {"query": "-v"},
        {"query": "needle", "include": "**/*.txt", "limit": 2},
        {"query": "needle", "cursor": 1, "limit": 3},
        {"query": "needle", "cursor": 100},
        {"query": "needle", "path": "node_modules"},
        {"query": "needle", "path": "data.bin"},
        {"query": r"é", "path": "b"},
    ],
)
def test_ripgrep_and_python_agree(tree: Workspace, call: Call, args: dict[str, object], output_mode: str) -> None:
    answers = [call(SearchTool(tree, rg), mode="grep", output_mode=output_mode, **args) for rg in ("rg", NO_RG)]
    assert answers[0] == answers[1]
    assert answers[0].exit_code == 0


@engines
def test_grep_counts_and_lists_files(tree: Workspace, call: Call, rg: str) -> None:
    tool = SearchTool(tree, rg)
    assert call(tool, mode="grep", query="e", path="b/deep", output_mode="count").output == "b/deep/c.py: 3"
    assert call(tool, mode="grep", query="main", output_mode="files_with_matches").output == "a.py\nb/deep/c.py"
    assert call(tool, mode="grep", query="not there").output == "[no match]"


@engines
@pytest.mark.parametrize("output_mode", ["content", "files_with_matches", "count"])
@pytest.mark.parametrize(
    ("path", "found", "left_out"), [(".", ["a", "sub/a"], 2), ("sub", ["sub/a"], 1), (".env", [], 1), ("a", ["a"], 0)]
)
def test_grep_shows_nothing_of_files_that_must_not_be_read(
    workspace: Workspace, rg: str, output_mode: str, path: str, found: list[str], left_out: int
) -> None:
    (workspace.root / "sub").mkdir()
    for name in ("a", ".env", "sub/a", "sub/.env"):
        (workspace.root / name).write_text("hunter2\n")
    scope = ToolScope(
        session_id="s",
        call_id="c",
        idempotency_key="k",
        emit=lambda _: None,
        may_read=lambda place: place not in (".env", "sub/.env"),
    )
    args = {"mode": "grep", "query": "hunter", "path": path, "output_mode": output_mode}
    answer = asyncio.run(SearchTool(workspace, rg).run(args, scope))
    assert answer.source_anchors == tuple(found)
    assert answer.output.count("env") == 0
    assert (f"[{left_out} file(s) left out" in answer.output) == (left_out > 0)
    names = asyncio.run(SearchTool(workspace).run({"mode": "glob", "query": "*"}, scope))
    assert names.output == ".env\na\nsub/.env\nsub/a"


@needs_rg
def test_a_file_that_turns_into_a_pipe_stops_no_search(workspace: Workspace) -> None:
    job = GrepJob(base=workspace.root, files=["a"], query="x", case_sensitive=True, counts=False, per_file=1, enough=1)
    (workspace.root / "a").write_text("x\n")
    swapping = workspace.root.parent / "rg"  # finds, and then the file is no longer one
    swapping.write_text('#!/bin/sh\nprintf "./a\\0001:x\\n"; rm a; mkfifo a\n')
    swapping.chmod(0o755)
    assert asyncio.run(grep(job, seconds=5.0, rg=str(swapping))) == [(0, 1)]


@engines
def test_grep_pages_join_to_the_whole(tree: Workspace, call: Call, rg: str) -> None:
    for number in range(30):
        (tree.root / f"p{number:02}.log").write_text("hit\nmiss\nhit\nhit\n")
    tool = SearchTool(tree, rg)
    whole = call(tool, mode="grep", query="hit", output_mode="files_with_matches").output.split("\n")
    pages: list[str] = []
    cursor = 0
    while True:
        lines = call(
            tool, mode="grep", query="hit", output_mode="files_with_matches", limit=7, cursor=cursor
        ).output.split("\n")
        if not lines[-1].startswith("["):
            break
        cursor += 7
        assert lines.pop() == f"[more matches follow; continue with cursor={cursor}]"
        pages += lines
    assert pages + lines == whole
    assert len(whole) == 30


@engines
def test_grep_reads_more_files_than_one_command_line_holds(workspace: Workspace, call: Call, rg: str) -> None:
    folder = workspace.root / ("d" * 200)
    folder.mkdir()
    for number in range(1_500):
        (folder / f"{number:04}").write_text("hit\n")
    answer = call(SearchTool(workspace, rg), mode="grep", query="hit", output_mode="count", limit=300, cursor=1_300)
    lines = answer.output.split("\n")
    assert len(lines) == 200
    assert lines[-1].endswith("1499: 1")
    assert len(answer.source_anchors) == 64


@engines
@pytest.mark.parametrize("query", ["(", "[a", "*x", "a{2,1}"])
def test_a_wrong_pattern_is_explained(tree: Workspace, call: Call, rg: str, query: str) -> None:
    answer = call(SearchTool(tree, rg), mode="grep", query=query)
    assert answer.exit_code == 1
    assert answer.output.startswith("query is not a valid regular expression: ")


def test_a_pattern_that_backtracks_forever_is_stopped(
    workspace: Workspace, call: Call, processes_with: Callable[[str], list[int]]
) -> None:
    (workspace.root / "a").write_text("a" * 60 + "!\n")
    began = time.monotonic()
    answer = call(SearchTool(workspace, NO_RG, seconds=1.0), mode="grep", query="(a+)+$")
    assert answer.exit_code == 1
    assert answer.output.startswith("search gave up after 1 s")
    assert time.monotonic() - began < 10
    assert processes_with("grep_worker") == []


def test_a_cancelled_search_leaves_no_process(
    workspace: Workspace, scope: ToolScope, processes_with: Callable[[str], list[int]]
) -> None:
    (workspace.root / "a").write_text("a" * 60 + "!\n")

    async def cancelled() -> None:
        tool = SearchTool(workspace, NO_RG)
        task = asyncio.create_task(tool.run({"mode": "grep", "query": "(a+)+$"}, scope))
        while not processes_with("grep_worker"):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert processes_with("grep_worker") == []


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("*.py", ["-dash.py", "a.py", "b/deep/c.py", "empty.py"]),
        ("**/*.py", ["-dash.py", "a.py", "b/deep/c.py", "empty.py"]),
        ("b/*.txt", ["b/crlf.txt", "b/latin.txt", "b/long.txt"]),
        ("./b/**/*.{py,txt}", ["b/crlf.txt", "b/deep/c.py", "b/latin.txt", "b/long.txt"]),
        ("b/**", ["b/crlf.txt", "b/deep/c.py", "b/latin.txt", "b/long.txt"]),
        ("?.py", ["a.py", "b/deep/c.py"]),
        ("nothing*", ["[no file matches]"]),
    ],
)
def test_glob_finds_names_in_path_order(tree: Workspace, call: Call, query: str, found: list[str]) -> None:
    assert call(SearchTool(tree), mode="glob", query=query).output.split("\n") == found


def test_glob_is_relative_to_path_and_shows_paths_of_the_workspace(tree: Workspace, call: Call) -> None:
    assert call(SearchTool(tree), mode="glob", query="deep/*", path="b").output == "b/deep/c.py"
    first = call(SearchTool(tree), mode="glob", query="*", path="b", limit=3).output.split("\n")
    assert first[-1] == "[1 more; continue with cursor=3]"


def test_a_glob_with_too_many_alternatives_is_refused(tree: Workspace, call: Call) -> None:
    answer = call(SearchTool(tree), mode="glob", query="{a,b}" * 12)
    assert answer.exit_code == 1
    assert "more than 64 alternatives" in answer.output


@pytest.mark.parametrize("path", ["..", "way_out", "missing"])
def test_search_outside_or_nowhere_is_refused(tree: Workspace, call: Call, path: str) -> None:
    answer = call(SearchTool(tree), mode="grep", query="secret", path=path)
    assert answer.exit_code == 1
    assert "escapes workspace" in answer.output or "is no file or folder" in answer.output


def test_a_walk_is_sorted_and_skips_links_caches_and_control_folders(tree: Workspace) -> None:
    files, is_partial = walk(Path(tree.root))
    assert files == sorted(files)
    assert not is_partial
    assert {name.split("/")[0] for name in files} == {
        "-dash.py", ".hidden", "a.py", "b", "data.bin", "empty.py", "sp ace.txt",
    }  # fmt: skip
