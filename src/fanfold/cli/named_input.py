"""What a command line names to be read: a file, a pipe such as `<(command)`, or stdin. Bounded UTF-8 text."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fanfold.errors import UsageError
from fanfold.regular_file import read_regular, too_large

STDIN = "-"
MAX_BYTES = 256 * 1024 * 1024


def read_text(path: Path, label: str = "") -> str:
    """The text of a file or pipe without a byte order mark; messages call it `label`.

    Raises:
        UsageError: it cannot be read, is too large, or is no UTF-8 text.
    """
    return _text(label or str(path), lambda: read_regular(path, MAX_BYTES, may_be_pipe=True))


def read_stdin(stream: BinaryIO) -> str:
    """Likewise, of stdin."""
    return _text("stdin", lambda: _all_of(stream))


def _text(label: str, read: Callable[[], bytes]) -> str:
    try:
        return read().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {label}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{label}:{line}: not UTF-8 text") from error


def _all_of(stream: BinaryIO) -> bytes:
    raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise too_large(MAX_BYTES, STDIN)
    return raw
