"""HTML as a row of tags and texts, in time linear in the page whatever it holds.

Pages come from strangers: no input may make this look at one place again and again, as it happens to tokenizers that
go back when a quote or a comment has no end. Here, as in browsers, such a thing reaches to the end of the page.
"""

import re
from collections.abc import Iterator

import msgspec

_NAME = re.compile(r"[a-zA-Z][^\s/>]*+")
_BETWEEN = re.compile(r"[\s/]*+")
_ATTRIBUTE = re.compile(r"(=?[^\s/>=]*+)(\s*+=\s*+)?")
_BARE_VALUE = re.compile(r"[^\s>]*+")
_RAW = frozenset({"script", "style", "xmp", "iframe", "noembed", "noframes"})
"""Their content is no text of the page."""
_TEXT_ONLY = frozenset({"title", "textarea"})
"""Their content is text and no tags."""
_UNPARSED = _RAW | _TEXT_ONLY


class Start(msgspec.Struct, frozen=True):
    name: str
    attributes: dict[str, str]


class End(msgspec.Struct, frozen=True):
    name: str


class Text(msgspec.Struct, frozen=True):
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
        if isinstance(token, Start) and token.name in _UNPARSED:
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
    while (at := _end_of(_BETWEEN, source, at)) < len(source):
        if source[at] == ">":
            return Start(name[0].lower(), attributes), at + 1
        found = _ATTRIBUTE.match(source, at)
        if found is None:  # cannot be: it also fits nothing
            break
        value, at = _value(source, found.end()) if found[2] else ("", found.end())
        attributes.setdefault(found[1].lower(), unescaped(value))
    return None, len(source)


def _value(source: str, at: int) -> tuple[str, int]:
    quote = source[at : at + 1]
    if quote not in ('"', "'"):
        end = _end_of(_BARE_VALUE, source, at)
        return source[at:end], end
    end = source.find(quote, at + 1)
    return (source[at + 1 : end], end + 1) if end >= 0 else ("", len(source))


def _end_of(pattern: re.Pattern[str], source: str, at: int) -> int:
    found = pattern.match(source, at)
    return found.end() if found else at


def _closing(source: str, at: int, name: str) -> int:
    found = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(source, at)
    return found.start() if found else len(source)


def _after(source: str, mark: str, at: int) -> int:
    found = source.find(mark, at)
    return len(source) if found < 0 else found + len(mark)
