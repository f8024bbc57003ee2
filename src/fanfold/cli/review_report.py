"""What a review found, as a table, Markdown or JSON. Agents wrote it: in Markdown it stays within its quotes."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from fanfold.cli.cells import one_line
from fanfold.cli.render import table
from fanfold.cli.safe_text import escaped, printable
from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import Usage
from fanfold.contracts.record import JsonObject, JsonValue
from fanfold.contracts.workflow_runs import RunStatus
from fanfold.errors import RunError

ReportFormat = Literal["table", "markdown", "json"]
Severity = Literal["critical", "high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = ("critical", "high", "medium", "low")
"""Worst first."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    file: str
    line: int = 0
    """In the new file; 0: it has none."""
    severity: Severity
    detail: str = ""
    suggestion: str = ""
    dimensions: tuple[str, ...] = ()
    reason: str = ""
    """What decided whether it is real."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    found: int
    confirmed: int
    not_audited: tuple[str, ...] | None = ()
    """Files whose audit failed; None: all of it did."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the workflow `review-changes` returns."""

    confirmed: tuple[Finding, ...]
    rejected: tuple[Finding, ...] = ()
    unverified: tuple[Finding, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    left_out: int = 0
    """Findings below the least severity that was asked for."""

    def at_least(self, severity: Severity) -> int:
        """How many confirmed findings are of that severity or worse."""
        return sum(SEVERITIES.index(each.severity) <= SEVERITIES.index(severity) for each in self.confirmed)

    def summary(self) -> str:
        """`2 confirmed (1 critical, 1 low), 3 rejected, 1 not verified`."""
        by_severity = [(sum(each.severity == name for each in self.confirmed), name) for name in SEVERITIES]
        told = ", ".join(f"{count} {name}" for count, name in by_severity if count)
        parts = [f"{len(self.confirmed)} confirmed" + (f" ({told})" if told else "")]
        for count, word in ((len(self.rejected), "rejected"), (len(self.unverified), "not verified")):
            parts += [f"{count} {word}"] if count else []
        return ", ".join([*parts, f"{self.left_out} less severe"] if self.left_out else parts)

    def not_audited(self) -> list[str]:
        """`docs: b.py, c.py`, for each dimension that did not see all."""
        return [
            f"{each.name}: {'all of it' if each.not_audited is None else ', '.join(each.not_audited)}"
            for each in self.dimensions
            if each.not_audited is None or each.not_audited
        ]


class Review(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str | None
    """None: there was nothing to review."""
    status: RunStatus
    what: str
    """That was reviewed."""
    base: str | None
    files: Sequence[JsonObject]
    """As they were sent, with or without their patches."""
    found: Found
    usage: Usage
    cost_usd: float | None = None

    def not_sent(self) -> list[str]:
        return [f"{each['path']} ({each.get('status', '')})" for each in self.files if each.get("is_cut")]


def read_found(value: JsonValue) -> Found:
    """Raises RunError: that is no result of a review."""
    try:
        return msgspec.convert(value, Found)
    except msgspec.ValidationError as error:
        raise RunError(
            f"the workflow 'review-changes' gave no result that can be shown: {error}; is it one of this project's own?"
        ) from error


def render_review(review: Review, format: ReportFormat, *, width: int | None = None) -> str:
    """The report as whole lines; only a table is cut to `width` columns."""
    match format:
        case "table":
            return _tables(review.found, width)
        case "markdown":
            return "\n".join(_markdown(review)) + "\n"
        case "json":
            return escaped(encode_json(_document(review)).decode()) + "\n"


def _document(review: Review) -> JsonObject:
    found: JsonObject = msgspec.to_builtins(review.found)
    return {
        "schema": "fanfold/review/v1",
        "run_id": review.run_id,
        "status": review.status,
        "what": review.what,
        "base": review.base,
        "files": [{key: value for key, value in file.items() if key != "patch"} for file in review.files],
        **found,
        "usage": review.usage.to_dict(),
        "cost_usd": review.cost_usd,
    }


def _tables(found: Found, width: int | None) -> str:
    tables = [
        table(
            ["severity", "place", head, "found by"],
            [[each.severity, each.place, each.title, ", ".join(each.dimensions)] for each in findings],
            width=width,
        )
        for head, findings in (("problem", found.confirmed), ("problem, not verified", found.unverified))
        if findings
    ]
    return "\n".join(tables)


# ---- Markdown -------------------------------------------------------------------------------------------------------


def _markdown(review: Review) -> list[str]:
    found = review.found
    summary = found.summary() if review.run_id else "nothing has changed"
    lines = [f"# Review of {_line(review.what)}", "", f"{summary[0].upper()}{summary[1:]}."]
    lines += ["", f"Run: {_code(review.run_id)}"] if review.run_id else []
    for number, each in enumerate(found.confirmed, 1):
        lines += ["", f"## {number}. {each.severity}: {_line(each.title)}", "", _code(each.place)]
        lines += _quoted(each.detail, "")
        lines += _quoted(each.suggestion, "Fix: ")
        lines += _quoted(each.reason, f"Verified, found by {', '.join(each.dimensions)}: ")
    lines += _listed("Not verified", [f"{each.severity}: {_one(each)}" for each in found.unverified])
    lines += _listed("Rejected", [_one(each) for each in found.rejected])
    lines += _listed("Not audited", [_line(each) for each in found.not_audited()])
    return lines + _listed("Not sent", [_line(each) for each in review.not_sent()])


def _one(finding: Finding) -> str:
    return f"{_line(finding.title)} ({_code(finding.place)}): {_line(finding.reason)}"


def _listed(title: str, entries: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {entry}" for entry in entries)] if entries else []


def _quoted(text: str, lead: str) -> list[str]:
    """A block quote: a heading or a list in it is its own, and no part of the report."""
    return ["", *(f"> {line}".rstrip() for line in _safe(lead + text).splitlines())] if text.strip() else []


def _line(text: str) -> str:
    return one_line(_safe(text))


def _code(text: str) -> str:
    quoted = one_line(printable(text)).replace("`", "'")
    return f"`{quoted}`"


def _safe(text: str) -> str:
    return printable(text).replace("<", "&lt;")  # no HTML: who shows the report may run it
