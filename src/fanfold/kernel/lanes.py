"""Lanes: the kinds of tools by which a confirmation policy lets calls run unasked (notes 9.2)."""

from fanfold.contracts.messages import ASK_USER, ToolSpec
from fanfold.contracts.policy import ConfirmationPolicy, Lane

_GENERATE = ("task",)
_CONTROL = ("update_plan", ASK_USER)


def lane_of(spec: ToolSpec) -> Lane:
    """`generate` for `task`, `control` for what concerns the conversation, `query` for what changes nothing; else
    `execute`, so also for every tool that says nothing of itself."""
    if spec.name in _GENERATE:
        return "generate"
    if spec.name in _CONTROL:
        return "control"
    return "query" if spec.is_read_only else "execute"


def asks_person(policy: ConfirmationPolicy | None, spec: ToolSpec) -> bool:
    """Whether a call that the permissions ask about waits for a person; else it runs. None: it does.

    What the permissions deny is not a matter of lanes.
    """
    return policy is None or (policy.enabled and lane_of(spec) not in policy.yolo_lanes)
