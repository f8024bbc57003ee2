"""A plan as people read it: a table of what would happen, the changed lines below their step, and one line of sum."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fanfold.cli.cells import cut
from fanfold.cli.render import table
from fanfold.cli.tally import rough_tokens

_ACTIONS = ("cached", "kept", "continue", "re-run", "new", "not run", "skip", "ask", "unreadable")
"""In the order in which the sum names them."""
_INDENT = "    "
_MOST_LINES = 20
"""Of one step's changes on a terminal; elsewhere all are shown."""


@dataclass(frozen=True, slots=True)
class PlanLine:
    name: str
    action: str
    reason: str
    tokens: int = 0
    changes: Sequence[str] = ()


def plan_text(noun: str, lines: Sequence[PlanLine], *, spent_tokens: int, width: int | None) -> str:
    """Whole lines, cut to `width` columns where there is one; `noun` stands above the names."""
    head = [noun, "action", "reason", "tokens"]
    cells = [[line.name, line.action, line.reason, rough_tokens(line.tokens)] for line in lines]
    shown = table(head, cells, width=width, to_right=("tokens",)).splitlines()
    text = shown[:2]
    for row, line in zip(shown[2:], lines, strict=True):
        text += [row, *_changes(line.changes, width)]
    return "\n".join([*text, _sum(lines, spent_tokens)]) + "\n"


def _changes(changes: Sequence[str], width: int | None) -> list[str]:
    most = len(changes) if width is None else _MOST_LINES
    shown = [_INDENT + change for change in changes[:most]]
    if len(changes) > most:
        shown.append(f"{_INDENT}… and {len(changes) - most} more changed lines")
    return shown if width is None else [cut(line, width) for line in shown]


def _sum(lines: Sequence[PlanLine], spent_tokens: int) -> str:
    counts = Counter(line.action for line in lines)
    named = ", ".join(f"{counts[action]} {action}" for action in _ACTIONS if counts[action])
    estimated = rough_tokens(sum(line.tokens for line in lines))
    return f"{named}: about {estimated} tokens ({rough_tokens(spent_tokens)} already spent)"
