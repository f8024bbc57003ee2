"""Why a step failed, as whoever is told of it reads it."""

import pytest

from fanfold.contracts.steps import SCHEMA_MISMATCH, StepOutcome, failure_reason


@pytest.mark.parametrize(
    ("output", "code", "reason"),
    [
        ("Task failed: it broke off", "NO_ANSWER", "it broke off"),
        ("Task failed: it broke off\n\nhalf an\n answer", "NO_ANSWER", "it broke off; it said: half an answer"),
        ("Task failed: it broke off\n\n" + "x" * 300, "NO_ANSWER", f"it broke off; it said: {'x' * 200}…"),
        ("no\n\n[structured output failed: $: [1] is no object]", SCHEMA_MISMATCH, "$: [1] is no object; it said: no"),
        ("\n\n[structured output failed: nothing was found]", SCHEMA_MISMATCH, "nothing was found"),
        ("no\n\n[structured output failed: by itself]", None, "no\n\n[structured output failed: by itself]"),
        ("a host's\n\nown words", "THEIRS", "a host's\n\nown words"),
    ],
)
def test_a_reason_comes_before_what_was_said(output: str, code: str | None, reason: str) -> None:
    outcome = StepOutcome(task_id="t", agent="a", output=output, success=False, error_code=code)
    assert failure_reason(outcome) == reason
