"""What git prints for programs, as lines for a model."""

import os
import re
from collections.abc import Iterator

from fanfold.tools.controls import without_controls
from fanfold.tools.workspace import printable

_REMOTE = re.compile(r"(?s)remote\.(.+)\.(url|pushurl)\n(.*)")
_CREDENTIALS = re.compile(r"//[^/\s]*@")


def text_of(output: bytes) -> str:
    """Printed text without what would steer a terminal; bytes that are not UTF-8 are shown as `?`."""
    return without_controls(output.decode("utf-8", "replace").replace("\ufffd", "?"))


def commit_line(line: str) -> str:
    """Fields that were parted by NULs."""
    return printable("  ".join(filter(None, line.split("\0"))))


def status_lines(output: bytes, place: str) -> Iterator[str]:
    """`## branch...upstream`, then `XY path` or `XY old -> new` with paths relative to `place`."""
    entries = iter(output.split(b"\0"))
    yield printable(os.fsdecode(next(entries)))
    for entry in filter(None, entries):
        code, path = entry[:2].decode("ascii", "replace"), _relative(entry[3:], place)
        if code[0] in "RC" or code[1] in "RC":
            path = f"{_relative(next(entries, b''), place)} -> {path}"
        yield f"{code} {path}"


def remote_lines(output: bytes) -> list[str]:
    """From `git config --list -z`: `name  url`, without passwords and tokens."""
    found = (_REMOTE.fullmatch(entry) for entry in output.decode("utf-8", "replace").split("\0"))
    return [
        printable(f"{match[1]}  {_CREDENTIALS.sub('//***@', match[3])}{' (push)' if match[2] == 'pushurl' else ''}")
        for match in found
        if match
    ]


def _relative(path: bytes, place: str) -> str:
    name = os.fsdecode(path)
    return printable(name.removeprefix(f"{place}/") if place else name)
