"""One document on disk: `<8 hex digits> <revision>\\n` and the data; the digits are the CRC-32 of all behind them."""

from pathlib import Path
from zlib import crc32

from fanfold.errors import CorruptLogError
from fanfold.protocols import Document
from fanfold.stores.durable_file import read_file, replace_file


def read_document(name: str, path: Path) -> Document | None:
    """The document at `path`; None when there is none.

    Raises:
        CorruptLogError: the file is not as it was written.
        LogWriteError: the file system refuses, or it is a symbolic link.
    """
    content = read_file(path)
    if content is None:
        return None
    checksum, body = content[:8], content[8:]
    revision, newline, data = body.partition(b"\n")
    if checksum != b"%08x" % crc32(body) or not newline:
        reason = "it does not have the checksum that it begins with"
        error = CorruptLogError(thread=name, line=1, reason=reason, what="document")
        error.hint = f"move {path} aside to begin anew, or put a good copy of it there"
        raise error
    return Document(int(revision), data)


def write_document(path: Path, document: Document) -> None:
    """Durable when it returns. Raises LogWriteError."""
    body = b" %d\n%b" % (document.revision, document.data)
    replace_file(path, b"%08x%b" % (crc32(body), body))
