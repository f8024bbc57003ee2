"""Laws of a step's identity: what is recorded under it stays of that step, whatever fields come later."""

from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.kernel.step_identity import step_identity


@pytest.mark.parametrize(
    ("fields", "identity"),
    [
        ({}, "4769d73c47740e7a80357dde658abd6c"),
        ({"max_steps": 3, "model": "a/b", "output_schema": {"b": 1, "a": 2}}, "e47e1a1226626ab515ccee5ca0f57d8f"),
        (
            {"description": "d", "timeout_ms": 1, "retries": 2, "metadata": 1, "parent_session_id": "s"},
            "4769d73c47740e7a80357dde658abd6c",
        ),
    ],
)
def test_the_identities_of_recorded_steps_are_those_of_before(fields: dict[str, Any], identity: str) -> None:
    assert step_identity(AgentStepSpec(task_id="t", agent="explore", prompt="p", **fields)) == identity


def test_isolation_is_part_of_what_a_step_means() -> None:
    here = AgentStepSpec(task_id="t", agent="explore", prompt="p")
    apart = AgentStepSpec(task_id="t", agent="explore", prompt="p", isolation="worktree")
    assert step_identity(here) != step_identity(apart)
