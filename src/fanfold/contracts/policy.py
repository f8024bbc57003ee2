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


Lane = Literal["query", "execute", "generate", "control"]
LANES: tuple[Lane, ...] = ("query", "execute", "generate", "control")


class ConfirmationPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How calls that need an approval are answered; deny rules stand above it (notes 9.2).

    Raises:
        ConfigError: a field that cannot be meant so.
    """

    enabled: bool = True
    """False: nobody is asked, such calls run."""
    yolo_lanes: tuple[Lane, ...] = ()
    """Kinds of tools whose calls run unasked: `query` changes nothing, `generate` is model work (`task`), `control`
    concerns the conversation (`update_plan`), `execute` is all else."""
    timeout_ms: int | None = None
    """Longest wait for an approval. None: a parked call waits for ever, here and after a restart (seed 002)."""
    timeout_action: Literal["reject", "auto_approve"] = "reject"

    def __post_init__(self) -> None:
        if self.timeout_action not in ("reject", "auto_approve"):
            raise ConfigError(f"timeout_action must be 'reject' or 'auto_approve', got {self.timeout_action!r}")
        if self.timeout_ms is not None and (type(self.timeout_ms) is not int or not 1 <= self.timeout_ms <= 2**53):
            raise ConfigError(f"timeout_ms must be a whole number, 1 or more, or None, got {self.timeout_ms!r}")
        if self.enabled not in (True, False):
            raise ConfigError(f"enabled must be True or False, got {self.enabled!r}")
        if not isinstance(self.yolo_lanes, list | tuple | set | frozenset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"yolo_lanes must be a list of lanes, got {self.yolo_lanes!r}")
        msgspec.structs.force_setattr(self, "yolo_lanes", tuple(self.yolo_lanes))
        for lane in self.yolo_lanes:
            if lane not in LANES:
                raise ConfigError(f"yolo_lanes knows {', '.join(LANES)}, not {lane!r}")


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
