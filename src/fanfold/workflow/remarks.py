"""Remarks: what is told of the script and the journal that a run goes on from (spec-workflow 5.4, 5.5)."""

from fanfold.contracts.workflow_runs import WorkflowSnapshot
from fanfold.kernel.run_view import RunJournalView
from fanfold.workflow.scripts import Script

MAX_LINES_TOLD = 20


def remarks(before: WorkflowSnapshot | None, script: Script, journal: RunJournalView, torn: str | None) -> list[str]:
    """One line each. `torn`: the file that a torn end of the journal is in now."""
    told: list[str] = []
    if before is not None and before.script_sha256 != script.sha256:
        told.append(f"the script has changed: its SHA-256 was {before.script_sha256}, and is {script.sha256} now")
    if torn is not None:
        told.append(f"the journal had a torn end, which is put aside as {torn}")
    if journal.rejected_lines:
        lines = ", ".join(map(str, journal.rejected_lines[:MAX_LINES_TOLD]))
        more = len(journal.rejected_lines) - MAX_LINES_TOLD
        lines += f" and {more} more" if more > 0 else ""
        told.append(f"the journal is damaged: passed over line {lines}; a call that loses its answer runs again")
    return told
