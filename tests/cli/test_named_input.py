"""What a command line names is read once, within its limit, and never waited for unless it is a pipe."""

import io
import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fanfold.cli.named_input import read_stdin, read_text
from fanfold.contracts.codec import decode_json
from fanfold.errors import UsageError
from fanfold.regular_file import read_regular
from tests.cli.conftest import COMMAND, Ended, ServerThread, configure

Fanfold = Callable[..., Ended]
Serve = Callable[..., ServerThread]


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_regular(path, 10) == b"x" * 10
    with pytest.raises(OSError, match="it is larger than 9 bytes"):
        read_regular(path, 9)


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "/dev/null"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is not a regular file"):
        read_regular(tmp_path / name)


def test_a_directory_is_told_from_a_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)


def test_a_pipe_that_is_named_is_read_to_its_end_and_within_the_limit(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"\xef\xbb\xbfhello")
    os.close(writer)
    assert read_text(Path(f"/dev/fd/{reader}")) == "hello"
    os.close(reader)

    reader, writer = os.pipe()
    os.write(writer, b"x" * 11)
    with pytest.raises(OSError, match="it is larger than 10 bytes"):
        read_regular(Path(f"/dev/fd/{reader}"), 10, may_be_pipe=True)
    os.close(reader)
    os.close(writer)


def test_a_pipe_whose_writer_is_slow_is_waited_for() -> None:
    reader, writer = os.pipe()

    def write() -> None:
        os.write(writer, b"late")
        os.close(writer)

    threading.Timer(0.1, write).start()
    assert read_text(Path(f"/dev/fd/{reader}")) == "late"
    os.close(reader)


def test_a_pipe_that_nobody_writes_into_is_empty_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_text(tmp_path / "pipe") == ""


def test_text_that_is_none_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"a\n\xe9\n")
    with pytest.raises(UsageError, match="latin:2: not UTF-8 text"):
        read_text(tmp_path / "latin", "latin")
    with pytest.raises(UsageError, match="stdin:1: not UTF-8 text"):
        read_stdin(io.BytesIO(b"\xff"))


def test_json_that_is_nested_too_deeply_is_no_json() -> None:
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        decode_json("[" * 100_000)


def test_pipes_of_the_shell_can_be_named_for_items_schema_and_prompt(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    configure(tmp_path, server)
    script = (
        '"$@" --prompt-file <(echo "Ask {name}") --schema <(echo "{}") --format jsonl '
        """--items <(echo '{"name": "Ann"}')"""
    )
    command = ("bash", "-c", script, "bash", *COMMAND, "map")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert server.prompts == ["Ask Ann\n"]


def test_pipes_of_the_shell_can_be_named_for_steps(serve: Serve, tmp_path: Path) -> None:
    configure(tmp_path, serve())
    specs = json.dumps([{"task_id": "a", "agent": "answer", "prompt": "p"}])
    command = ("bash", "-c", f"\"$@\" <(echo '{specs}')", "bash", *COMMAND, "parallel")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("map", "--items", "pipe", "--prompt", "{item}"),
        ("map", "a.txt", "--prompt-file", "pipe"),
        ("map", "a.txt", "--prompt", "x", "--schema", "pipe"),
        ("map", "a.txt", "--prompt", "x", "--then", "@pipe"),
        ("parallel", "pipe"),
        ("run", "x", "--config", "pipe.acl"),
    ],
)
def test_no_command_hangs_on_a_pipe(fanfold: Fanfold, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    for name in ("pipe", "pipe.acl"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "a.txt").write_text("a")
    assert fanfold(*arguments).code in (2, 3)


def test_no_command_hangs_on_a_log_that_is_a_pipe(fanfold: Fanfold, tmp_path: Path) -> None:
    (tmp_path / ".a3s/effect-log").mkdir(parents=True)
    os.mkfifo(tmp_path / ".a3s/effect-log/s1.jsonl")
    shown = fanfold("sessions", "show", "s1")
    assert (shown.code, shown.err) == (1, "fanfold: .a3s/effect-log/s1.jsonl: it is not a regular file\n")
    assert fanfold("sessions", "list").code == 0
