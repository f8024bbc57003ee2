"""Progress: what lists tell of a run while it goes on."""

from fanfold.contracts.events import AgentEvent
from fanfold.workflow.calls import AgentCall
from fanfold.workflow.progress import Progress


def test_the_phase_of_a_run_is_that_of_what_began_last() -> None:
    heard: list[AgentEvent] = []
    progress = Progress("wf_a_0123456789abcdef", "t", heard.append, lambda: 0)
    call = AgentCall(prompt="x")

    def phase_after(where: str, phase: str | None, *, status: str = "started") -> str | None:
        progress.agent(where, "x", phase, call, status)  # type: ignore[arg-type]
        return progress.phase

    assert phase_after("#0", None) is None
    assert phase_after("#1", "Find") == "Find"
    progress.phase_is("Check")
    assert phase_after("#2", None) == "Check"
    assert phase_after("#1", "Find", status="done") == "Check"
    assert phase_after("#3", "Find") == "Find"
    assert [each.payload["title"] for each in heard if each.payload["type"] == "workflow_phase"] == ["Check"]
