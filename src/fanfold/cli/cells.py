"""Terminal cells: how wide a text is when shown, and cutting it to a width."""

import unicodedata

ELLIPSIS = "…"
_WIDE = frozenset("WF")
_NO_WIDTH = frozenset(("Mn", "Me", "Cf"))


def width_of(text: str) -> int:
    """Columns that `text` takes: 2 for East Asian wide characters, 0 for combining marks."""
    if text.isascii():
        return len(text)
    return sum(_width_of_one(char) for char in text)


def _width_of_one(char: str) -> int:
    if unicodedata.category(char) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1


def cut(text: str, width: int) -> str:
    """`text` if it fits into `width` columns, else its beginning and `…`."""
    if width_of(text) <= width:
        return text
    used, kept = 0, list[str]()
    for char in text:
        used += _width_of_one(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + ELLIPSIS if width > 0 else ""


def pad(text: str, width: int, *, to_right: bool = False) -> str:
    """`text` filled up with spaces to `width` columns; `to_right` puts them in front."""
    spaces = " " * (width - width_of(text))
    return spaces + text if to_right else text + spaces


def one_line(text: str) -> str:
    """`text` with every run of white space, line ends included, as one space."""
    return " ".join(text.split())
