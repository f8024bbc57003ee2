"""The words of an ACL text with line and column; a malformed word is a token that says what is wrong."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from fanfold.config.tree import MAX_TOKEN_BYTES


class Token(NamedTuple):
    kind: str
    """`name`, `string`, `number`, `newline`, `end`, `bad`, or the punctuation itself."""
    value: str | int | float
    """The name, the string or number meant, or what is wrong with a `bad` one."""
    line: int
    column: int


_WORD = re.compile(
    r"""
      (?P<blank>   [ \t\r]+ | (?:\#|//)[^\n]* )
    | (?P<newline> \n )
    | (?P<name>    [A-Za-z_][A-Za-z0-9_-]* )
    | (?P<number>  [+-]?[0-9][A-Za-z0-9_.+-]* )
    | (?P<string>  "[^"\\\n]*(?:\\[^\n][^"\\\n]*)*" )
    | (?P<mark>    [{}\[\](),=] )
    | (?P<torn>    "[^\n]* )
    | (?P<odd>     '[^'\n]*'? | /\* | . )
    """,
    re.VERBOSE,
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\Z")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_SIMPLE_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_ODD = {
    "'": "strings take double quotes",
    "/": "comments start with # or //",
    ":": "write '=' between a name and its value",
    ";": "a line end or ',' ends an entry",
}


class _BadWord(Exception):
    pass


def tokens(text: str) -> Iterator[Token]:
    """Yields every token but blanks and comments, `end` last."""
    line, line_start, at = 1, 0, 0
    while match := _WORD.match(text, at):
        group, word = match.lastgroup or "", match.group()
        if group == "torn" and word.rstrip().endswith("{"):
            # A label without its closing quote: the block is there all the same.
            word = word[: word.rindex("{")]
        if group != "blank":
            yield _token(group, word, line, at - line_start + 1)
        at += len(word)
        if group == "newline":
            line, line_start = line + 1, at
    yield Token("end", "", line, at - line_start + 1)


def _token(group: str, word: str, line: int, column: int) -> Token:
    try:
        _check_length(word)
        match group:
            case "mark" | "newline":
                return Token(word if group == "mark" else group, word, line, column)
            case "name":
                return Token("name", word, line, column)
            case "number":
                return Token("number", _number(word), line, column)
            case "string":
                return Token("string", _ESCAPE.sub(_unescaped, word[1:-1]), line, column)
            case "torn":
                raise _BadWord("this string has no closing quote on its line")
            case _:
                raise _BadWord(_ODD.get(word[0], f"unexpected character {word[0]!r}"))
    except _BadWord as error:
        return Token("bad", str(error), line, column)


def _check_length(word: str) -> None:
    # A character takes at most four bytes, so short words need no encoding to be known as short.
    if len(word) * 4 > MAX_TOKEN_BYTES and len(word.encode("utf-8", "surrogatepass")) > MAX_TOKEN_BYTES:
        raise _BadWord("this is longer than 256 KiB")


def _number(word: str) -> int | float:
    match = _NUMBER.match(word)
    if match is None:
        raise _BadWord("this is not a number; put strings in double quotes")
    try:
        number = float(word) if match["fraction"] else int(word)
    except ValueError:  # int() refuses thousands of digits
        number = math.inf
    if number in (math.inf, -math.inf):
        raise _BadWord("this number is too large")
    return number


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    if code:
        point = int(code, 16)
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            raise _BadWord(f"{match.group()} is not a character")
        return chr(point)
    if match[3] not in _SIMPLE_ESCAPES:
        shown = ascii(match[3])[1:-1]
        raise _BadWord(f'unknown escape \\{shown}; known: \\n \\t \\r \\" \\\\ \\uXXXX \\UXXXXXXXX')
    return _SIMPLE_ESCAPES[match[3]]
