"""What `git diff --raw --patch -z` prints, as files and their patches."""

import os
from collections.abc import Iterator

import msgspec

from fanfold.contracts.record import JsonObject
from fanfold.tools.workspace import printable

MAX_PATCH_BYTES = 200_000
"""Of one file."""
TOO_LARGE = f"larger than {MAX_PATCH_BYTES:,} bytes"
_STATUS = {"A": "added", "D": "deleted", "M": "modified", "T": "of another type"}
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\v": "\\v",
    "\f": "\\f",
    "\r": "\\r",
}


class ChangedFile(msgspec.Struct, frozen=True):
    path: str
    """Relative to the workspace, with `/`."""
    status: str
    patch: str = ""
    left_out: str | None = None
    """Why its patch is not there."""

    def sent(self) -> JsonObject:
        status = self.status if self.left_out is None else f"{self.status}; {self.left_out}"
        is_cut = {} if self.left_out is None else {"is_cut": True}
        return {"path": self.path, "status": status, "patch": self.patch, **is_cut}


class Entry(msgspec.Struct, frozen=True):
    status: str
    old: bytes
    path: bytes

    def header(self) -> bytes:
        return b"diff --git %s %s\n" % (_quoted(b"a/" + self.old), _quoted(b"b/" + self.path))


def parted(output: bytes) -> tuple[list[Entry], bytes]:
    """The entries of `--raw -z`, and the patch behind the empty one; nothing where it ends within the entries."""
    entries: list[Entry] = []
    at = 0
    while output.startswith(b":", at):
        fields: list[bytes] = []
        is_pair = False
        while len(fields) < 2 + is_pair:
            end = output.find(b"\0", at)
            if end < 0:
                return [], b""
            fields.append(output[at:end])
            is_pair = fields[0].rpartition(b" ")[2].startswith((b"R", b"C"))
            at = end + 1
        status = fields[0].rpartition(b" ")[2].decode("ascii", "replace")
        entries.append(Entry(status[:1], fields[1], fields[-1]))
    return entries, output[at + 1 :]


def sections_of(entries: list[Entry], patch: bytes) -> dict[int, bytes]:
    """By the number of its entry. A file that became a link has two; one that differs in what git overlooks, none."""
    numbers = {entry.header(): number for number, entry in enumerate(entries)}
    found: dict[int, bytes] = {}
    for section in _split(patch):
        number = numbers.get(section[: section.find(b"\n") + 1])
        if number is not None:
            found[number] = found.get(number, b"") + section
    return found


def changed_file(entry: Entry, section: bytes) -> ChangedFile:
    path, status = printable(os.fsdecode(entry.path)), _STATUS.get(entry.status, "changed")
    if entry.status in ("R", "C"):
        status = f"{'renamed' if entry.status == 'R' else 'copied'} from {printable(os.fsdecode(entry.old))}"
    if not section:
        return ChangedFile(path, status, left_out="git shows no patch of it")
    if len(section) > MAX_PATCH_BYTES:
        return ChangedFile(path, status, left_out=TOO_LARGE)
    if b"\nBinary files " in section:  # at the beginning of a line it is git's own
        return ChangedFile(path, status, left_out="binary")
    return ChangedFile(path, status, text_from(section))


def text_from(content: bytes) -> str:
    """As far as it is UTF-8."""
    return content.decode("utf-8", "replace")


def _split(patch: bytes) -> Iterator[bytes]:
    """At the headers: within a patch no line begins so."""
    mark = b"diff --git "
    start = 0 if patch.startswith(mark) else patch.find(b"\n" + mark) + 1
    while patch.startswith(mark, start):
        end = patch.find(b"\n" + mark, start) + 1
        yield patch[start : end or len(patch)]
        if not end:
            return
        start = end


def _quoted(name: bytes) -> bytes:
    """A path as git writes it where it holds what would break a line."""
    text = name.decode("latin-1")
    if not any(char < " " or char in '"\\\x7f' for char in text):
        return name
    return f'"{"".join(map(_escaped, text))}"'.encode("latin-1")


def _escaped(char: str) -> str:
    return _ESCAPES.get(char) or (f"\\{ord(char):03o}" if char < " " or char == "\x7f" else char)
