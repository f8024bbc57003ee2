"""Text from elsewhere without what would steer a terminal."""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")


def without_controls(text: str) -> str:
    """`text` with each control character but tabs and line ends shown as `?`."""
    return _CONTROL.sub("?", text)
