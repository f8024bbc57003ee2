"""Which file a thread's facts lie in, and back: one id, one file, never a path (spec 4.1).

An id of 1-128 ASCII letters, digits and `_ . : -` is its own file name. Any other id becomes `s-` and the hex of its
UTF-8 bytes; where that is longer than 128 characters it is cut and closed by a digest of the whole id. An id that
looks like somebody else's encoded name is encoded too, so no two ids share a file. One alias is meant: the name of a
cut id, given as an id, is that same file, for `threads()` cannot give back what was cut.
"""

import hashlib
import os
import re

from fanfold.errors import UsageError

SUFFIX = ".jsonl"

_MAX_CHARS = 128
_DIGEST_CHARS = 64
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_HEX = re.compile(r"s-((?:[0-9a-f]{2})+)")
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def file_name(thread: str, *, is_windows: bool = os.name == "nt") -> str:
    """`<thread>.jsonl`, safe to join to a directory.

    Raises:
        UsageError: the id is empty, consists of dots, or is no Unicode text.
    """
    if not thread.strip("."):
        raise UsageError(f"invalid session id {thread!r}: it must have a character other than '.'")
    if _is_own_name(thread, is_windows):
        return thread + SUFFIX
    try:
        raw = thread.encode()
    except UnicodeEncodeError:
        raise UsageError(f"invalid session id {thread!r}: it is not valid Unicode") from None
    return _encoded(raw) + SUFFIX


def thread_of(name: str, *, is_windows: bool = os.name == "nt") -> str | None:
    """The id whose file is called `name`; None for a file that no thread has."""
    stem = name.removesuffix(SUFFIX)
    if stem == name:
        return None
    decoded = _decoded(stem)
    thread = stem if decoded is None else decoded
    try:
        # Files that were put there by hand may have any name: a thread's is one that leads back to itself.
        return thread if name == file_name(thread, is_windows=is_windows) else None
    except UsageError:
        return None


def _is_own_name(thread: str, is_windows: bool) -> bool:
    if not _PLAIN.fullmatch(thread):
        return False
    if is_windows and (":" in thread or _WINDOWS_DEVICE.fullmatch(thread)):
        return False
    return _decoded(thread) is None


def _encoded(raw: bytes) -> str:
    whole = raw.hex()
    room = _MAX_CHARS - len("s-")
    if len(whole) <= room:
        return f"s-{whole}"
    return f"s-{whole[: room - _DIGEST_CHARS - 1]}-{hashlib.sha256(raw).hexdigest()}"


def _decoded(stem: str) -> str | None:
    """The id that `stem` is the encoding of; None when it is no encoding that `file_name` would make."""
    found = _HEX.fullmatch(stem)
    if found is None or len(stem) > _MAX_CHARS:
        return None
    try:
        thread = bytes.fromhex(found[1]).decode()
    except UnicodeDecodeError:
        return None
    # "s-42" is the hex of "B", which needs no encoding: then it is just a session called "s-42".
    return None if _is_own_name(thread, is_windows=True) or not thread.strip(".") else thread
