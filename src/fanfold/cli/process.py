"""The process as a command needs it: text for arguments, and three standard streams that are there and hold.

A closed stream is replaced by the null device, or a file of ours would get its number and what is printed. A character
that a stream cannot show becomes a `?`. What stderr does not take is lost: no result depends on who reads the progress.
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from fanfold.errors import UsageError
from fanfold.kernel.plain_text import is_plain, plain

STDOUT = "stdout"
"""What an OSError of stdout names as its file."""

_UTF8_MODE = "PYTHONUTF8"


def use_utf8() -> None:
    """Begin this process anew in Python's UTF-8 mode where file names are ASCII: a C locale without that mode.

    To decode the arguments would not be enough, for no file whose name is not ASCII could be opened.
    """
    if sys.getfilesystemencoding() == "ascii" and os.environ.get(_UTF8_MODE) != "1":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _UTF8_MODE: "1"})


def require_text(arguments: Sequence[str]) -> None:
    """Raises:
    UsageError: an argument is no text.
    """
    for each in arguments:
        if not is_plain(each):
            raise UsageError(f"the argument '{plain(each)}' is not UTF-8 text")


def open_streams() -> None:
    """Make stdin, stdout and stderr fit for use, whatever the process was started with."""
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(free)
    sys.stdin = _or_null(sys.stdin, 0, "r")
    sys.stdout = _writer(_Stdout(1, "w", closefd=False), _or_null(sys.stdout, 1, "w"))
    sys.stderr = _writer(_Stderr(2, "w", closefd=False), _or_null(sys.stderr, 2, "w"))


def forget_stdout() -> None:
    """Nothing more goes to stdout: the interpreter must not fail over it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Stdout(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STDOUT
            raise


class _Stderr(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _or_null(stream: TextIO | None, descriptor: int, mode: str) -> TextIO:
    if stream is not None:
        return stream
    raw = io.FileIO(descriptor, mode, closefd=False)
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding="utf-8")


def _writer(raw: io.FileIO, like: TextIO) -> TextIO:
    line_buffering = bool(like.line_buffering)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=like.encoding, errors="replace", line_buffering=line_buffering
    )
