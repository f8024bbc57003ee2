"""Who may do what: the permission policy and the policy for asking a person."""

from typing import Literal

import msgspec

from fanfold.errors import ConfigError

Decision = Literal["allow", "ask", "deny"]
_DECISIONS = ("allow", "deny", "ask")


class PermissionPolicy(msgspec.Struct, frozen=True):
    """Rules `tool` or `tool(pattern)`; deny wins over allow, allow over ask, ask over the default (decisions 5.2)."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    default_decision: Decision = "ask"
    enabled: bool = True

    def __post_init__(self) -> None:
        if self.default_decision not in _DECISIONS:
            raise ConfigError(f"default_decision must be 'allow', 'deny', or 'ask', got {self.default_decision!r}")
