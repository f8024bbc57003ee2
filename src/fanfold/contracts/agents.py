"""AgentDefinition: a role that steps and sessions can name; WorkerAgentSpec: one made from a kind."""

from typing import Literal

import msgspec

from fanfold.contracts.policy import PermissionPolicy

ConfirmationInheritance = Literal["inherit_parent", "auto_approve", "deny_on_ask"]
WorkerKind = Literal["read_only", "planner", "implementer", "verifier", "reviewer", "custom"]


class AgentDefinition(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    prompt: str = ""
    """Appended to the core system prompt."""
    tools: tuple[str, ...] = ()
    """Names of the tools it sees, with `*` and `?`; empty: it answers from its prompt alone."""
    permissions: PermissionPolicy = PermissionPolicy(default_decision="allow")
    """Narrows what the session allows, never widens it."""
    model: str | None = None
    """`provider/model-id`; None: the session's. A step's own `model` wins."""
    max_steps: int = 50
    confirmation_inheritance: ConfirmationInheritance = "inherit_parent"
    """What an "ask" of this agent's own permissions comes to: an approval that its session asks for, allow, or deny.
    An "ask" of the session's permissions always surfaces at the session (notes 5.2)."""
    is_hidden: bool = False


class WorkerAgentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A disposable agent given by value: what it leaves out comes from its kind (notes 7.4)."""

    name: str
    description: str = ""
    kind: WorkerKind = "custom"
    prompt: str | None = None
    permissions: PermissionPolicy | None = None
    tools: tuple[str, ...] | None = None
    model: str | None = None
    max_steps: int | None = None
    confirmation_inheritance: ConfirmationInheritance | None = None
    hidden: bool = False
