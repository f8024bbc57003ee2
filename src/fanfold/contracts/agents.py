"""AgentDefinition: a role that steps and sessions can name."""

import msgspec

from fanfold.contracts.policy import PermissionPolicy


class AgentDefinition(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    prompt: str = ""
    """Appended to the core system prompt."""
    tools: tuple[str, ...] = ()
    """Names of the tools it sees; empty: it answers from its prompt alone."""
    permissions: PermissionPolicy = PermissionPolicy(default_decision="allow")
    """Narrows what the session allows, never widens it."""
    max_steps: int = 50
    is_hidden: bool = False
