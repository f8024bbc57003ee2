"""SseReader: the data of server-sent events out of chunks that are cut anywhere (WHATWG HTML, 9.2.6)."""

from collections.abc import Iterator

LONGEST_LINE_BYTES = 1 << 20


class LineTooLong(Exception):
    """A line of a stream is longer than `LONGEST_LINE_BYTES`: no model says so much at once."""


class SseReader:
    """Event names, ids and comments are dropped: both model wires say everything in the data.

    Lines end with LF or CRLF; the standard's third way, a lone CR, is not read.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of each event that `chunk` completes.

        Raises:
            LineTooLong: a line, ended or not.
        """
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest + lines[0])
            self._rest.clear()
        self._rest += rest
        for line in (*lines, self._rest):
            if len(line) > LONGEST_LINE_BYTES:
                raise LineTooLong
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield self._take()

    def end(self) -> Iterator[bytes]:
        """The data of a last event that lacks its empty line; half a line is dropped."""
        if self._data:
            yield self._take()

    def _take(self) -> bytes:
        data = b"\n".join(self._data)
        self._data.clear()
        return data
