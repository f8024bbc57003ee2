"""What a person reads of a failure says each thing once."""

import pytest

from fanfold.kernel.reason_text import reason_text


@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        ("LLM_ERROR", "LLM error: no answer", "LLM error: no answer"),
        ("LLM_ERROR", "all 2 agents failed; the first: LLM error: no", "all 2 agents failed; the first: LLM error: no"),
        ("BUDGET_EXHAUSTED", "Budget exhausted on 'x': spent", "Budget exhausted on 'x': spent"),
        ("STEP_LIMIT", "StepLimit: it took 3 steps", "StepLimit: it took 3 steps"),
        ("AGENT_FAILED", "agent 'one' failed: why", "agent 'one' failed: why"),
        ("KeyError", "KeyError: 'k'", "KeyError: 'k'"),
        ("TIMEOUT", "it did not end within 5 ms", "TIMEOUT: it did not end within 5 ms"),
        ("AGENT_FAILED", "it failed, the agent", "AGENT_FAILED: it failed, the agent"),
        ("KeyError", "", "KeyError"),
    ],
)
def test_the_code_is_told_where_the_message_does_not_say_it(code: str, message: str, told: str) -> None:
    assert reason_text(code, message) == told
