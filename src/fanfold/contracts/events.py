"""Events: what a session tells its watchers, in the envelope of the seeds (version 1, open types)."""

from typing import Any, Literal

from fanfold.contracts.messages import Usage
from fanfold.contracts.record import JsonObject, Record

EVENT_VERSION = 1


class AgentEvent(Record, frozen=True, kw_only=True):
    """`EventEnvelopeV1`. Keep a default branch for types that you do not know, and store `payload` as it is."""

    version: int = EVENT_VERSION
    type: str
    payload: JsonObject
    metadata: JsonObject | None = None

    @property
    def text(self) -> str | None:
        return self.payload.get("text")

    @property
    def tool_name(self) -> str | None:
        return self.payload.get("tool_name") or (self.payload.get("name") if self.type.startswith("tool_") else None)

    @property
    def tool_id(self) -> str | None:
        return self.payload.get("tool_id") or (self.payload.get("id") if self.type.startswith("tool_") else None)

    @property
    def tool_output(self) -> str | None:
        return self.payload.get("output") if self.type == "tool_end" else None

    @property
    def exit_code(self) -> int | None:
        return self.payload.get("exit_code")

    @property
    def turn(self) -> int | None:
        return self.payload.get("turn")

    @property
    def prompt(self) -> str | None:
        return self.payload.get("prompt")

    @property
    def error(self) -> str | None:
        return self.payload.get("message") if self.type == "error" else None

    @property
    def total_tokens(self) -> int | None:
        usage: dict[str, Any] | None = self.payload.get("usage")
        return None if usage is None else usage.get("total_tokens")


def event(type: str, /, **payload: Any) -> AgentEvent:
    return AgentEvent(type=type, payload=payload)


VerificationStatus = Literal["passed", "failed", "needs_review", "skipped"]


class VerificationReport(Record, frozen=True, kw_only=True):
    """One judgement of what a run came to; with `goal_tracking` its goal is judged (notes 9.5)."""

    what: str
    status: VerificationStatus
    """`needs_review`: the judge gave no verdict."""
    reason: str = ""


class VerificationSummary(Record, frozen=True, kw_only=True):
    status: VerificationStatus
    """The worst of the reports'; `skipped` without any."""
    report_count: int
    failed_count: int
    pending_count: int


class AgentResult(Record, frozen=True, kw_only=True):
    """What a finished run gives. `str(result)` is its text."""

    text: str
    usage: Usage
    tool_calls_count: int
    stop_reason: str
    """`stop`, `length`, `content_filter`, `incomplete`, `tool_budget`, `denied`; `command` for a slash command's."""
    run_id: str
    verification: tuple[VerificationReport, ...] | None = None
    """None: nothing was judged."""

    @property
    def total_tokens(self) -> int:
        return self.usage.total_tokens

    def verification_summary(self) -> VerificationSummary:
        reports = self.verification or ()
        statuses = [report.status for report in reports]
        status: VerificationStatus = "skipped"
        for worse in ("passed", "needs_review", "failed"):
            status = worse if worse in statuses else status
        return VerificationSummary(
            status=status,
            report_count=len(reports),
            failed_count=statuses.count("failed"),
            pending_count=statuses.count("needs_review"),
        )

    def __str__(self) -> str:
        return self.text
