"""Text that every store and every wire can carry: no lone surrogates, which are no characters."""


def is_plain(text: str) -> bool:
    """False for a lone surrogate, as in a file name that is no UTF-8 or a careless `\\ud800` in JSON."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain(text: str) -> str:
    """`text`, with each lone surrogate shown as U+FFFD."""
    return text if is_plain(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
