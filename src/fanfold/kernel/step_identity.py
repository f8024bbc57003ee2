"""What makes a step the same step: a digest of its meaning (decisions 3.6)."""

import hashlib
from operator import attrgetter

import msgspec

from fanfold.contracts.steps import AgentStepSpec

DIGEST_CHARS = 32
"""128 bits in hex: SHA-256 cut as RFC 6920 does for its suite sha-256-128."""
MEANING = ("agent", "prompt", "max_steps", "output_schema", "model", "isolation")
"""The fields that count. Where it stands (`task_id`), what it is called, and how long to try do not."""
_ALWAYS = 5
"""So many of them are in each digest; what came later is only in those of steps that have it, or no digest that is
recorded would be of any step any more."""

_meaning = attrgetter(*MEANING)
_encode = msgspec.json.Encoder(order="sorted").encode  # a schema means the same whatever the order of its keys


def step_identity(spec: AgentStepSpec) -> str:
    meaning = _meaning(spec)
    return digest(_encode(meaning if spec.isolation is not None else meaning[:_ALWAYS]))


def digest(data: bytes) -> str:
    """32 hex digits."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]
