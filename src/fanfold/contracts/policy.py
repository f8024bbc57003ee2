"""Who may do what: the permission policy and the grammar of its rules."""

import re
from collections.abc import Sequence
from typing import Literal, cast

import msgspec

from fanfold.errors import ConfigError

Decision = Literal["allow", "ask", "deny"]
_DECISIONS = ("allow", "deny", "ask")
_RULE = re.compile(r"(?s)([^()\s]+)(?:\((.+)\))?")


def split_rule(text: str) -> tuple[str, str | None]:
    """The tool and the pattern of a rule, None where it has no pattern.

    Raises:
        ConfigError: `text` is no rule. A deny rule that is silently dropped would be an open door.
    """
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"permission rule {text!r} is neither `tool` nor `tool(pattern)`")
    return found[1], found[2]


class PermissionPolicy(msgspec.Struct, frozen=True):
    """Rules `tool` or `tool(pattern)`; deny wins over allow, allow over ask, ask over the default (decisions 5.2).

    Lists of rules are taken too, and kept as tuples.

    Raises:
        ConfigError: a field that cannot be meant so, or a text that is no rule.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    default_decision: Decision = "ask"
    enabled: bool = True

    def __post_init__(self) -> None:
        for field in ("allow", "deny", "ask"):
            msgspec.structs.force_setattr(self, field, _rules(field, getattr(self, field)))
        if self.default_decision not in _DECISIONS:
            raise ConfigError(f"default_decision must be 'allow', 'deny', or 'ask', got {self.default_decision!r}")
        if self.enabled not in (True, False):
            raise ConfigError(f"enabled must be True or False, got {self.enabled!r}")


def _rules(field: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        raise ConfigError(f"{field} must be a list of rules, got the text {given!r}; write {field}=[{given!r}]")
    if not isinstance(given, list | tuple):
        raise ConfigError(f"{field} must be a list of rules, got {given!r}")
    rules = tuple(cast("Sequence[object]", given))
    for rule in rules:
        if not isinstance(rule, str):
            raise ConfigError(f"{field} must be a list of rules like 'bash(git:*)', got {rule!r} in it")
        split_rule(rule)
    return cast("tuple[str, ...]", rules)
