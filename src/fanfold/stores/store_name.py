"""Names of a store's logs, documents and leases, `<kind>/<id>`, and the file name that stands for an id.

In a file name `a-z`, digits, `_`, `-` and `.` stand for themselves, every other byte of the id is `%` and two hex
digits. A long one is cut and closed by `%-` and the digest of the whole id. (Not `thread_name`: two ids that differ
only by case have names there that some file systems take for one.)
"""

import hashlib
import re

from fanfold.errors import UsageError
from fanfold.kernel.plain_text import is_plain

_KIND = re.compile(r"[a-z-]{1,64}")
_TO_ESCAPE = re.compile(rb"[^a-z0-9_.-]")
_ESCAPED = re.compile(rb"%([0-9a-f]{2})")
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_MAX_CHARS = 180
_CUT = "%-"
_DIGEST_CHARS = 64


def split_name(name: str) -> tuple[str, str]:
    """Kind and id of `name`.

    Raises:
        UsageError: it is not of the form `<kind>/<id>`.
    """
    kind, _, known_as = name.partition("/")
    if not _KIND.fullmatch(kind) or not known_as or not is_plain(known_as):
        raise UsageError(f"invalid name {name!r}: it must be <kind>/<id>, with a kind of a-z and '-' and an id of text")
    return kind, known_as


def require_kind(kind: str) -> None:
    """Raises UsageError when `kind` is none."""
    if not _KIND.fullmatch(kind):
        raise UsageError(f"invalid kind {kind!r}: it must be of a-z and '-'")


def file_stem(known_as: str) -> str:
    """What the names of an id's files begin with; no two ids share it."""
    raw = known_as.encode()
    stem = _TO_ESCAPE.sub(lambda found: b"%%%02x" % found[0][0], raw).decode()
    if _WINDOWS_DEVICE.fullmatch(stem):
        stem = f"%{ord(stem[0]):02x}{stem[1:]}"
    if len(stem) <= _MAX_CHARS:
        return stem
    return stem[: _MAX_CHARS - len(_CUT) - _DIGEST_CHARS] + _CUT + hashlib.sha256(raw).hexdigest()


def is_cut(stem: str) -> bool:
    """True when the id cannot be told from `stem`."""
    return _CUT in stem


def id_of(stem: str) -> str | None:
    """The id that has this stem; None for a cut one, and for what no id has."""
    try:
        known_as = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), stem.encode()).decode()
    except UnicodeError:
        return None
    return known_as if known_as and file_stem(known_as) == stem else None
