"""However a process was started, the command works or says in one line why not."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, ServerThread, configure

Serve = Callable[..., ServerThread]
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(redirections: str, *arguments: str | bytes, cwd: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    """The command with the redirections of a shell."""
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirections}', "bash", *COMMAND, *arguments],
        cwd=cwd,
        env={**os.environ, "HOME": str(cwd / "home"), **environ},
        capture_output=True,
        encoding="utf-8",
        timeout=20,
        check=False,
    )


@pytest.fixture
def workspace(serve: Serve, tmp_path: Path) -> Path:
    configure(tmp_path, serve())
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(str(number))
    return tmp_path


MAP = ("map", "*.txt", "--prompt", "{content}", "--out", "out.jsonl")


@pytest.mark.parametrize(
    ("closed", "arguments"),
    [
        (">&-", MAP),
        ("2>&-", MAP),
        ("<&- >&- 2>&-", MAP),
        (">&-", ("doctor",)),
        ("<&- >&- 2>&-", ("run", "hi")),
        (">&-", ("version",)),
    ],
)
def test_closed_streams_are_no_fault(workspace: Path, closed: str, arguments: tuple[str, ...]) -> None:
    done = shell(closed, *arguments, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if arguments == MAP:
        assert len((workspace / "out.jsonl").read_text().splitlines()) == 4
    logs = b"".join(path.read_bytes() for path in workspace.glob(".a3s/*/*.jsonl"))
    assert b"tokens," not in logs  # what is printed has not gone into a file that got the closed stream's number


@pytest.mark.parametrize("command", [("run", "-"), ("map", "-", "--prompt", "{item}"), ("parallel", "-")])
def test_a_closed_stdin_is_empty(workspace: Path, command: tuple[str, ...]) -> None:
    done = shell("<&-", *command, cwd=workspace)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("broken", ["2>/dev/full", "2> >(head -1 >/dev/null)"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_results_do_not_depend_on_stderr(workspace: Path, broken: str, more: tuple[str, ...]) -> None:
    done = shell(broken, *MAP, *more, cwd=workspace)
    assert done.returncode == 0
    assert done.stdout.count(".txt") == 4
    assert len((workspace / "out.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("arguments", [MAP, (*MAP, "--jsonl"), ("doctor",), ("version",)])
def test_a_full_stdout_is_one_line_that_names_it(workspace: Path, arguments: tuple[str, ...]) -> None:
    done = shell(">/dev/full", *arguments, cwd=workspace)
    assert done.returncode == 1
    assert "stdout: No space left on device" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_events_that_stdout_does_not_take_stop_the_work(workspace: Path) -> None:
    (workspace / "many.jsonl").write_text("".join(f'{{"n": {number}}}\n' for number in range(200)))
    arguments = ("map", "many.jsonl", "--prompt", "{n}", "--concurrency", "1", "--jsonl")
    assert shell(">/dev/full", *arguments, cwd=workspace).returncode == 1
    again = shell("", *arguments[:-1], cwd=workspace)
    assert again.stderr.count("] ok ") > 150


def test_text_and_names_are_utf8_in_a_c_locale_too(workspace: Path) -> None:
    (workspace / "é漢.txt").write_text("ö", encoding="utf-8")
    done = shell("", "map", "é*.txt", "--prompt", "ü {content}", "--out", "ñ.jsonl", cwd=workspace, **C_LOCALE)
    assert done.returncode == 0, done.stderr
    assert "é漢.txt" in (workspace / "ñ.jsonl").read_text(encoding="utf-8")
    assert shell("<<< 'é'", "run", "-", cwd=workspace, **C_LOCALE).returncode == 0


def test_an_argument_that_is_no_text_is_refused(workspace: Path) -> None:
    done = shell("", "run", b"\xff", cwd=workspace)
    assert (done.returncode, done.stderr) == (2, "fanfold: the argument '\ufffd' is not UTF-8 text\n")


def test_stdin_that_is_no_text_is_refused(workspace: Path) -> None:
    done = shell(r"<<< $'a\n\xff'", "run", "-", cwd=workspace)
    assert (done.returncode, done.stderr) == (2, "fanfold: stdin:2: not UTF-8 text\n")


@pytest.mark.parametrize("command", [("run", "x"), ("map", "*", "--prompt", "x"), ("doctor",), ("init",)])
def test_a_removed_directory_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "gone").mkdir()
    script = 'cd gone; rmdir ../gone; "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *COMMAND, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("fanfold: the current directory was removed")
