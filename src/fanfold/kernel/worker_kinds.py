"""The kinds of worker agents, and the other words by which they are called (notes 7.4)."""

from collections.abc import Mapping
from typing import get_args

from fanfold.contracts.agents import WorkerKind
from fanfold.errors import ConfigError
from fanfold.nearest import did_you_mean

_ALIASES: Mapping[WorkerKind, tuple[str, ...]] = {
    "read_only": ("readonly", "explore", "scanner"),
    "planner": ("plan",),
    "implementer": ("implementation", "general", "executor"),
    "verifier": ("verification", "verify", "tester"),
    "reviewer": ("review", "code_review", "code_reviewer"),
}
_KINDS: Mapping[str, WorkerKind] = {
    **{kind: kind for kind in get_args(WorkerKind)},
    **{alias: kind for kind, aliases in _ALIASES.items() for alias in aliases},
}


def parse_kind(text: str) -> WorkerKind:
    """The kind of that name or alias; case does not count, and `-` is as good as `_`.

    Raises:
        ConfigError: `unknown worker agent kind '...'`, with the nearest that exists.
    """
    kind = _KINDS.get(text.strip().lower().replace("-", "_"))
    if kind is None:
        raise ConfigError(f"unknown worker agent kind {text!r}{did_you_mean(text.lower(), _KINDS)}")
    return kind
