"""Text that cannot steer a terminal: what would move its cursor, retitle its window or reorder a line is taken out."""

_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Unicode's property Bidi_Control: with these a text shows in another order than it has."""
_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0), *_BIDI) if chr(code) not in "\n\t"}
_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROL}


def printable(text: str) -> str:
    """`text` without control characters other than line ends and tabs."""
    return text.translate(_CONTROL)


def escaped(json: str) -> str:
    """The same JSON with those characters as `\\uXXXX`: nothing is lost and all of it can be seen."""
    return json.translate(_ESCAPES)
