"""Worker agents: what a `WorkerAgentSpec` leaves out comes from the built-in agent of its kind (notes 7.4)."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from fanfold.contracts.agents import AgentDefinition, WorkerAgentSpec, WorkerKind
from fanfold.contracts.policy import PermissionPolicy
from fanfold.delegation.builtin_agents import BUILTIN_AGENTS
from fanfold.errors import ConfigError
from fanfold.kernel.worker_kinds import parse_kind
from fanfold.nearest import did_you_mean

WorkerLike = WorkerAgentSpec | Mapping[str, Any]

_CUSTOM = AgentDefinition(
    name="custom",
    description="",
    tools=("*",),
    permissions=PermissionPolicy(ask=("*",)),
    max_steps=30,
)
"""Of a worker that nothing is known of: it may have every tool, and asks before each call."""
_BASES: Mapping[WorkerKind, AgentDefinition] = {
    "read_only": BUILTIN_AGENTS["explore"],
    "planner": BUILTIN_AGENTS["plan"],
    "implementer": BUILTIN_AGENTS["general"],
    "verifier": BUILTIN_AGENTS["verification"],
    "reviewer": BUILTIN_AGENTS["review"],
    "custom": _CUSTOM,
}
_FIELDS = WorkerAgentSpec.__struct_fields__
_FROM_KIND = ("prompt", "permissions", "tools", "max_steps", "confirmation_inheritance")


def worker_definition(spec: WorkerAgentSpec) -> AgentDefinition:
    """The agent that `spec` stands for."""
    base = _BASES[spec.kind]
    given = {field: value for field in _FROM_KIND if (value := getattr(spec, field)) is not None}
    description = spec.description or base.description
    return replace(base, name=spec.name, description=description, model=spec.model, is_hidden=spec.hidden, **given)


def as_definition(agent: AgentDefinition | WorkerAgentSpec) -> AgentDefinition:
    """`agent` itself, or what the worker stands for: for what `read_agents` gives."""
    return worker_definition(agent) if isinstance(agent, WorkerAgentSpec) else agent


def parse_worker(source: WorkerLike) -> WorkerAgentSpec:
    """A worker as a caller wrote it, checked; in a mapping its kind may be an alias such as `scanner`.

    Raises:
        ConfigError: `worker agent: ...`, naming the field.
    """
    if isinstance(source, WorkerAgentSpec):
        source = msgspec.structs.asdict(source)
    if not isinstance(source, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"worker agent: it must be a WorkerAgentSpec or a mapping, got {type(source).__name__}")
    for key in source:
        if key not in _FIELDS:
            raise ConfigError(f"worker agent: unknown key {key!r}{did_you_mean(str(key), _FIELDS)}")
    given = {key: value for key, value in source.items() if value is not None}
    if isinstance(kind := given.get("kind"), str):
        given["kind"] = parse_kind(kind)
    try:
        spec = msgspec.convert(given, WorkerAgentSpec)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        field = place.strip("`").removeprefix("$.").removeprefix("$")
        raise ConfigError(f"worker agent: {field + ': ' if field else ''}{reason}") from None
    if not spec.name.strip():
        raise ConfigError("worker agent: name: it must not be blank")
    return spec
