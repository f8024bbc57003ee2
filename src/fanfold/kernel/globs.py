"""Globs over paths and commands, matched in time linear in the text whatever the pattern is.

`*` and `?` stop at `/`, `**` crosses it, `**/` at the start of a segment also stands for no directory at all;
every other character means itself. A translation to `re` would be shorter, but a few stars over a long text
make it backtrack for minutes, and the texts come from models.
"""

from functools import lru_cache

import msgspec


class Glob(msgspec.Struct, frozen=True):
    """A pattern as a row of tokens; each set of tokens is a bit mask, each match one walk over the text."""

    literals: dict[str, int]
    """Tokens that stand for exactly this character."""
    singles: int
    """`?`"""
    stars: int
    """`*`"""
    double_stars: int
    """`**`"""
    entries: int
    """Where `**/` begins: goes on to its `**` or past its `/`."""
    end: int
    prefix: str
    suffix: str

    def matches(self, text: str) -> bool:
        if not (text.startswith(self.prefix) and text.endswith(self.suffix)):
            return False
        waiting = self._skipping(1)
        for character in text:
            inside_segment = character != "/"
            moving = self.literals.get(character, 0) | (self.singles if inside_segment else 0)
            staying = self.double_stars | (self.stars if inside_segment else 0)
            waiting = self._skipping(((waiting & moving) << 1) | (waiting & staying))
            if not waiting:
                return False
        return bool(waiting & self.end)

    def _skipping(self, waiting: int) -> int:
        """`waiting` and every token that can be reached from it without reading a character."""
        optional = self.stars | self.double_stars | self.entries
        while True:
            reached = waiting | ((waiting & optional) << 1) | ((waiting & self.entries) << 3)
            if reached == waiting:
                return waiting
            waiting = reached


@lru_cache(maxsize=1024)
def compile_glob(pattern: str) -> Glob:
    tokens = _tokens(pattern)
    wild = [index for index, token in enumerate(tokens) if len(token) != 1 or token in "*?"]
    first = wild[0] if wild else len(tokens)
    # The `/` of a `**/` may be skipped, so it does not belong to what every match ends with.
    last = wild[-1] + (2 if wild[-1] > 0 and tokens[wild[-1] - 1] == _ENTRY else 1) if wild else 0
    return Glob(
        literals={token: _mask(tokens, token) for token in tokens if len(token) == 1 and token not in "*?"},
        singles=_mask(tokens, "?"),
        stars=_mask(tokens, "*"),
        double_stars=_mask(tokens, "**"),
        entries=_mask(tokens, _ENTRY),
        end=1 << len(tokens),
        prefix="".join(tokens[:first]),
        suffix="".join(tokens[last:]),
    )


_ENTRY = "**/"


def _tokens(pattern: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
            tokens += [_ENTRY, "**", "/"]
            at += 3
        elif pattern.startswith("**", at):
            tokens.append("**")
            at += 2
        else:
            tokens.append(pattern[at])
            at += 1
    return tokens


def _mask(tokens: list[str], wanted: str) -> int:
    return sum(1 << index for index, token in enumerate(tokens) if token == wanted)
