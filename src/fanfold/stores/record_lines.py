"""Records as lines of a file, such that a torn or flipped line is never taken for one.

`<8 hex digits> <record>\\n`, where the digits are the CRC-32 of the record, begun with the number of the byte before
it. That byte is a space; in each record of a batch but the last it is `+`, so a batch of which the end is missing is
seen to be torn as a whole. 10 bytes a record.
"""

from collections.abc import Iterable, Sequence
from zlib import crc32

import msgspec

_MORE = ord("+")
_LAST = ord(" ")


class Decoded(msgspec.Struct, frozen=True):
    records: list[bytes]
    size: int
    """Bytes up to the end of the last whole batch; what follows is torn."""
    bad_line: int
    """1-based; of a line that is no record and not the torn end of the file. 0: there is none."""


def encode_batch(records: Sequence[bytes]) -> bytes:
    lines = [b"%08x+%b\n" % (crc32(record, _MORE), record) for record in records[:-1]]
    lines += [b"%08x %b\n" % (crc32(record, _LAST), record) for record in records[-1:]]
    return b"".join(lines)


def decode_batches(data: bytes) -> Decoded:
    lines = data.split(b"\n")
    half_line = lines.pop()
    records: list[bytes] = []
    whole = 0
    bad_line = 0
    for line in lines:
        record = line[9:]
        if len(line) < 9 or line[:8] != b"%08x" % crc32(record, line[8]):  # _is_good, whose call costs a third more
            bad_line = len(records) + 1
            break
        records.append(record)
        if line[8] == _LAST:
            whole = len(records)
    if bad_line:
        # What was being written has no end, or a power failure left NULs in it. Whole lines are damaged ones.
        is_half = bool(half_line) or any(b"\0" in line for line in lines[bad_line - 1 :])
        if is_half and not any(map(_is_good, lines[bad_line:])):
            bad_line = 0
    return Decoded(records[:whole], sum(map(len, lines[:whole])) + whole, bad_line)


def begin_with_batch(lines: Iterable[bytes]) -> bool:
    """True when the first batch of `lines` is whole; none behind it is looked at."""
    for line in lines:
        if not line.endswith(b"\n") or not _is_good(line[:-1]):
            return False
        if line[8] == _LAST:
            return True
    return False


def _is_good(line: bytes) -> bool:
    return len(line) > 8 and line[:8] == b"%08x" % crc32(line[9:], line[8])
