"""The report of a review: what it tells in each format, and that what agents wrote cannot pretend to be the report."""

import json
from typing import Any

import pytest

from fanfold.cli.review_report import Review, read_found, render_review
from fanfold.contracts.messages import Usage
from fanfold.errors import RunError

USAGE = Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15)
LEAK = {
    "title": "Leak of a token",
    "file": "src/a.py",
    "line": 21,
    "severity": "critical",
    "detail": "It is logged.\nSee line 21.",
    "suggestion": "Do not log it.",
    "dimensions": ["security", "errors"],
    "reason": "seen",
}
SLOW = {**LEAK, "title": "Slow", "line": 0, "severity": "low", "dimensions": ["performance"]}
VALUE: dict[str, Any] = {
    "confirmed": [LEAK, SLOW],
    "rejected": [{**SLOW, "title": "Guess", "reason": "guarded"}],
    "unverified": [{**SLOW, "title": "Maybe", "reason": "no answer"}],
    "dimensions": [
        {"name": "security", "found": 1, "confirmed": 1, "not_audited": ["b.py", "c.py"]},
        {"name": "docs", "found": 0, "confirmed": 0, "not_audited": None},
        {"name": "tests", "found": 0, "confirmed": 0, "not_audited": []},
    ],
    "left_out": 3,
}
FILES: list[dict[str, Any]] = [
    {"path": "src/a.py", "status": "modified", "patch": "+x"},
    {"path": "b.png", "status": "added; binary", "patch": "", "is_cut": True},
]


def review(**changed: Any) -> Review:
    return Review(
        run_id="wf_review-changes_0123456789abcdef",
        status="completed",
        what="uncommitted changes",
        base="abc",
        files=FILES,
        found=read_found({**VALUE, **changed}),
        usage=USAGE,
    )


def test_the_table_has_what_is_confirmed_and_what_nobody_verified() -> None:
    assert render_review(review(), "table").splitlines() == [
        "severity  place        problem          found by",
        "────────  ───────────  ───────────────  ────────────────",
        "critical  src/a.py:21  Leak of a token  security, errors",
        "low       src/a.py     Slow             performance",
        "",
        "severity  place     problem, not verified  found by",
        "────────  ────────  ─────────────────────  ───────────",
        "low       src/a.py  Maybe                  performance",
    ]
    assert render_review(review(confirmed=[], unverified=[]), "table") == ""


def test_a_table_fits_the_terminal() -> None:
    wide = review(confirmed=[{**LEAK, "title": "x" * 500}])
    assert max(map(len, render_review(wide, "table", width=60).splitlines())) <= 60


def test_markdown_has_all_of_it() -> None:
    assert render_review(review(), "markdown") == (
        "# Review of uncommitted changes\n"
        "\n"
        "2 confirmed (1 critical, 1 low), 1 rejected, 1 not verified, 3 less severe.\n"
        "\n"
        "Run: `wf_review-changes_0123456789abcdef`\n"
        "\n"
        "## 1. critical: Leak of a token\n"
        "\n"
        "`src/a.py:21`\n"
        "\n"
        "> It is logged.\n"
        "> See line 21.\n"
        "\n"
        "> Fix: Do not log it.\n"
        "\n"
        "> Verified, found by security, errors: seen\n"
        "\n"
        "## 2. low: Slow\n"
        "\n"
        "`src/a.py`\n"
        "\n"
        "> It is logged.\n"
        "> See line 21.\n"
        "\n"
        "> Fix: Do not log it.\n"
        "\n"
        "> Verified, found by performance: seen\n"
        "\n"
        "## Not verified\n"
        "\n"
        "- low: Maybe (`src/a.py`): no answer\n"
        "\n"
        "## Rejected\n"
        "\n"
        "- Guess (`src/a.py`): guarded\n"
        "\n"
        "## Not audited\n"
        "\n"
        "- security: b.py, c.py\n"
        "- docs: all of it\n"
        "\n"
        "## Not sent\n"
        "\n"
        "- b.png (added; binary)\n"
    )


def test_json_is_one_document_without_the_patches() -> None:
    assert json.loads(render_review(review(), "json")) == {
        "schema": "fanfold/review/v1",
        "run_id": "wf_review-changes_0123456789abcdef",
        "status": "completed",
        "what": "uncommitted changes",
        "base": "abc",
        "files": [
            {"path": "src/a.py", "status": "modified"},
            {"path": "b.png", "status": "added; binary", "is_cut": True},
        ],
        **VALUE,
        "usage": USAGE.to_dict(),
        "cost_usd": None,
    }


EVIL = "x\n## 9. critical: forged\n\n- forged\n<script>forged()</script>\r> \x1b[2J\u2028# forged\u202e"


@pytest.mark.parametrize("field", ["title", "file", "detail", "suggestion", "reason", "dimensions"])
@pytest.mark.parametrize("group", ["confirmed", "rejected", "unverified"])
def test_what_agents_wrote_cannot_forge_a_part_of_the_report(field: str, group: str) -> None:
    evil = {**LEAK, field: [EVIL] if field == "dimensions" else EVIL}
    text = render_review(review(**{group: [evil]}), "markdown")
    plain = render_review(review(**{group: [LEAK]}), "markdown")
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headings) == len([line for line in plain.splitlines() if line.startswith("#")])
    assert len([line for line in text.splitlines() if line.startswith("-")]) == plain.count("\n- ")
    assert "<" not in text.replace(f"`{text.split('`')[1]}`", "") or field == "file"
    assert not any(char in text for char in "\x1b\r\u202e")
    assert "\u2028" not in text


def test_json_shows_what_would_steer_a_terminal() -> None:
    text = render_review(review(confirmed=[{**LEAK, "detail": EVIL}]), "json")
    assert not any(char in text for char in "\x1b\u202e")
    assert json.loads(text)["confirmed"][0]["detail"] == EVIL


def test_a_name_cannot_leave_its_code_span() -> None:
    text = render_review(review(confirmed=[{**LEAK, "file": "a`<b>`.py"}]), "markdown")
    assert "\n`a'<b>'.py:21`\n" in text


@pytest.mark.parametrize(
    "value",
    [None, "text", [], {}, {"confirmed": None}, {"confirmed": [{"title": "x"}]}, {**VALUE, "left_out": "many"}],
)
def test_what_is_no_result_of_a_review_is_refused(value: Any) -> None:
    with pytest.raises(RunError, match="gave no result that can be shown"):
        read_found(value)


def test_severities_are_counted_from_the_worst() -> None:
    found = read_found(VALUE)
    assert [found.at_least(each) for each in ("critical", "high", "medium", "low")] == [1, 1, 1, 2]
    assert read_found({"confirmed": []}).summary() == "0 confirmed"
