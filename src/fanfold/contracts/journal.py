"""Records of a workflow's journal: one JSON object each, to be kept by a `SessionStore` in the log `workflow/<id>`.

`open` comes first; `specs` holds what was asked (for plans and people); `step` is a finished step, success or failure;
`facts` are turns of a step under way, so that it can go on from its last one. Short keys, for there are many.
"""

import msgspec

from fanfold.contracts.messages import Usage

Digest = str
"""128 bits in hex."""


class Opened(msgspec.Struct, frozen=True, tag_field="k", tag="open"):
    workflow: str
    version: int
    at_ms: int


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="k", tag="specs"):
    scope: str = ""
    """Stands before their task ids in the places of these steps."""
    packed: str
    """Base64 of the deflated JSON list of the specs: their prompts are often alike."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="k", tag="step"):
    at: str = ""
    """The place; empty when it is the outcome's task id."""
    id: Digest
    """Identity of the step's meaning."""
    seal: Digest
    """Over workflow, the seal before, and all that stands in this record."""
    ms: int
    """Since the workflow's first record."""
    u: Usage | None = None
    """What of the outcome's usage no earlier record counts; absent: all of it."""
    c: float | None = None
    """Likewise of its cost."""
    o: msgspec.Raw
    """The `StepOutcome`, its session id left out where it follows from the task id."""


class Lived(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="facts"):
    at: str
    id: Digest
    seal: Digest
    facts: tuple[msgspec.Raw, ...]
    """As the fact log writes them; the first has seq 1 when the step begins anew."""


JournalRecord = Opened | Asked | Ended | Lived
