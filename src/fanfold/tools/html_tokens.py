"""HTML as a row of tags and texts, in time linear in the page whatever it holds.

Pages come from strangers: no input may make this look at one place again and again, as it happens to tokenizers that
go back when a quote or a comment has no end. Here, as in browsers, such a thing reaches to the end of the page.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_NAME = re.compile(r"[a-zA-Z][^\s/>]*+")
_ATTRIBUTE = re.compile(r"[\s/]*+([^\s/>=][^\s/>=]*+)(?:\s*+=\s*+)?")
_EQUALS = re.compile(r"=\s*+$")
_TAG_END = re.compile(r"[\s/]*+(=[^\s/>]*+)?(>?)")
_BARE_VALUE = re.compile(r"[^\s>]*+")
_RAW = frozenset({"script", "style", "xmp", "iframe", "noembed", "noframes"})
"""Their content is no text of the page."""
_TEXT_ONLY = frozenset({"title", "textarea"})
"""Their content is text and no tags."""


class Start(NamedTuple):
    name: str
    attributes: dict[str, str]


class End(NamedTuple):
    name: str


class Text(NamedTuple):
    text: str


Token = Start | End | Text


def tokens(source: str) -> Iterator[Token]:
    at = 0
    while at < len(source):
        start = source.find("<", at)
        if start != at:
            yield Text(unescaped(source[at:] if start < 0 else source[at:start]))
        if start < 0:
            return
        token, at = _markup(source, start)
        if token is not None:
            yield token
        if isinstance(token, Start) and token.name in _RAW | _TEXT_ONLY:
            end = _closing(source, at, token.name)
            if token.name in _TEXT_ONLY:
                yield Text(unescaped(source[at:end]))
            at = end


def unescaped(text: str) -> str:
    """`text` with its character references resolved."""
    if "&" not in text:
        return text
    import html  # a millisecond that only a page has to pay

    try:
        return html.unescape(text)
    except ValueError:  # a number of thousands of digits
        return text


def _markup(source: str, start: int) -> tuple[Token | None, int]:
    """The tag at `start`, where there is one, and where to go on."""
    if name := _NAME.match(source, start + 1):
        return _start_tag(source, name)
    if source.startswith("</", start):
        if name := _NAME.match(source, start + 2):
            return End(name[0].lower()), _after(source, ">", name.end())
        return None, _after(source, ">", start)
    if source.startswith("<!--", start):
        is_empty = source.startswith((">", "->"), start + 4)
        return None, _after(source, ">" if is_empty else "-->", start + 4)
    if source.startswith(("<!", "<?"), start):
        return None, _after(source, ">", start)
    return Text("<"), start + 1


def _start_tag(source: str, name: re.Match[str]) -> tuple[Token | None, int]:
    attributes: dict[str, str] = {}
    at = name.end()
    while found := _ATTRIBUTE.match(source, at):
        value, at = "", found.end()
        if _EQUALS.search(found[0]):
            quote = source[at : at + 1]
            if quote in ('"', "'") and quote:
                end = source.find(quote, at + 1)
                if end < 0:
                    return None, len(source)
                value, at = source[at + 1 : end], end + 1
            else:
                bare = _BARE_VALUE.match(source, at)
                value, at = (bare[0], bare.end()) if bare else ("", at)
        attributes.setdefault(found[1].lower(), unescaped(value))
    closed = _TAG_END.match(source, at)
    while closed and not closed[2] and closed.end() > at:  # a stray `=`: no name, no end
        at = closed.end()
        closed = _TAG_END.match(source, at)
    if closed is None or not closed[2]:
        return None, len(source)
    return Start(name[0].lower(), attributes), closed.end()


def _closing(source: str, at: int, name: str) -> int:
    found = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(source, at)
    return found.start() if found else len(source)


def _after(source: str, mark: str, at: int) -> int:
    found = source.find(mark, at)
    return len(source) if found < 0 else found + len(mark)
