"""SseReader: the data of server-sent events out of chunks that are cut anywhere (WHATWG HTML, 9.2.6)."""

from collections.abc import Iterator


class SseReader:
    """Event names, ids and comments are dropped: both model wires say everything in the data.

    Lines end with LF or CRLF; the standard's third way, a lone CR, is not read.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of each event that `chunk` completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
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
