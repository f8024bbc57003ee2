"""What came over the wire as text: by its type, in its charset, and where it sends its readers."""

import codecs
import re

import msgspec

from fanfold.tools.controls import without_controls
from fanfold.tools.html_tokens import Start, tokens

SNIFFED_BYTES = 8_192
_HEAD_CHARACTERS = 100_000
"""In which charset declarations and redirections are looked for."""
_MOST_DELAY_SECONDS = 10
"""Of a redirection by the page; one that comes later is there to be read first."""

_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_TEXT_TYPE = (
    r"text/.+|.+\+(json|xml)"
    r"|application/(json|x-ndjson|jsonl|ld\+json|xml|javascript|x-javascript|ecmascript|yaml|x-yaml|toml|sql|graphql"
    r"|rtf|x-sh|x-httpd-php|x-tex|x-www-form-urlencoded|x-subrip)"
)
_UNTOLD = frozenset({"", "application/octet-stream", "binary/octet-stream", "application/unknown"})
"""They say nothing: what begins without a NUL is taken for text."""
_CHARSET = (
    r"utf-?8|utf-?16(le|be)?|us-ascii|ascii|iso-?8859-?\d{1,2}|latin-?\d{1,2}|windows-?(125\d|874)|cp(125\d|437|850|866)"
    r"|koi8-?[ru]|gb-?(k|2312|18030)|big5(-?hkscs)?|euc-?(jp|kr)|shift[-_]?jis|sjis|iso-?2022-?jp|tis-?620|macintosh"
)
"""Those in use. Python knows more under such names, such as compressions."""
_AS_BROWSERS_DO = {
    "us-ascii": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "macintosh": "mac_roman",
}
_PARAMETER = r"""(?i)charset\s*=\s*["']?\s*([\w:-]{1,40})"""
_LATIN = r"iso-?8859-?1|latin-?1"
_DECLARED = rb"""(?i)(?:<meta\s[^>]{0,500}?charset|<\?xml\s[^>]{0,200}?encoding)\s*=\s*["']?\s*([\w:-]{1,40})"""
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_REFRESH = r"(?is)\s*(\d{1,9})(?:\.\d*)?\s*[;,\s]\s*(?:url\s*=\s*)?(.*)"
# Patterns are compiled with the first page, not with the start of every agent.


class ContentType(msgspec.Struct, frozen=True):
    name: str
    """In lower case, `` where none was sent."""
    charset: str = ""

    @property
    def is_html(self) -> bool:
        return self.name in _HTML_TYPES

    def binary_fault(self, beginning: bytes | bytearray = b"") -> str | None:
        """What it is, where it is no text; as far as the type alone tells, if there is no beginning yet."""
        if not (self.name in _UNTOLD or self.is_html or re.fullmatch(_TEXT_TYPE, self.name)):
            return self.name
        is_binary = b"\0" in beginning[:SNIFFED_BYTES] and not self._is_wide(beginning)
        return "binary data" if is_binary else None

    def _is_wide(self, beginning: bytes | bytearray) -> bool:
        return self.charset.startswith("utf-16") or beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def content_type(header: str) -> ContentType:
    name, _, parameters = header.partition(";")
    charset = re.search(_PARAMETER, parameters)
    return ContentType(name.strip().lower(), charset[1].lower() if charset else "")


def decoded(body: bytes, kind: ContentType) -> str:
    """`body` as text: by its mark, else by what was sent with it, else by its own declaration, else as UTF-8."""
    for mark, name in _MARKS:
        if body.startswith(mark):
            return _text(body[len(mark) :], name)
    declared = re.search(_DECLARED, body[:1_024]) if kind.is_html or kind.name.endswith("xml") else None
    named = kind.charset or (declared[1].decode("ascii", "replace").lower() if declared else "")
    if named and re.fullmatch(_CHARSET, named):
        named = "cp1252" if re.fullmatch(_LATIN, named) else _AS_BROWSERS_DO.get(named, named)
        try:
            return _text(body, named)
        except LookupError:  # a number that no such charset has
            pass
    try:
        return _text(body, "utf-8", "strict")
    except UnicodeDecodeError as error:
        # An incomplete last character only tells that the page was cut there.
        is_cut = error.reason == "unexpected end of data" and error.end == len(body)
        return _text(body, "utf-8" if is_cut else "cp1252")


def refresh_target(source: str) -> str | None:
    """Where the page sends its readers by itself, None when it does not."""
    head = source[:_HEAD_CHARACTERS]
    if "http-equiv" not in head.lower():
        return None
    for tag in tokens(head):
        if isinstance(tag, Start) and tag.name == "meta" and tag.attributes.get("http-equiv", "").lower() == "refresh":
            found = re.fullmatch(_REFRESH, tag.attributes.get("content", ""))
            target = found[2].strip().strip("\"'").strip() if found else ""
            if found and target and int(found[1]) <= _MOST_DELAY_SECONDS:
                return target
    return None


def _text(body: bytes, charset: str, errors: str = "replace") -> str:
    return without_controls(body.decode(charset, errors).replace("\r\n", "\n").replace("\r", "\n"))
