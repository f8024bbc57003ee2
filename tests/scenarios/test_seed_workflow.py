"""The example of seed 004, in our own words: audit by dimension, refute each finding, sort by severity."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.contracts.steps import AgentStepSpec
from tests.workflow.rig import Rig, Team

SCRIPT = """
META = {"name": "review-changes-of-the-seed", "description": "reviews a change", "phases": ["Review", "Verify"]}
DIMENSIONS = ["correctness", "security", "speed"]
FINDINGS = {
    "type": "object",
    "required": ["findings"],
    "properties": {
        "findings": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["title", "severity"],
                "properties": {"title": {"type": "string"}, "severity": {"enum": ["high", "medium", "low"]}},
            },
        }
    },
}
VERDICT = {"type": "object", "required": ["isReal"], "properties": {"isReal": {"type": "boolean"}}}


async def sample(ctx, args):
    ctx.phase("Review")

    async def audit(_value, dimension, _index):
        out = await ctx.agent(
            f"Look for {dimension} problems in the change.",
            schema=FINDINGS, label=f"audit:{dimension}", phase="Review",
        )
        return {"dimension": dimension, "findings": out["findings"]}

    async def verify(audited, dimension, _index):
        ctx.phase("Verify")
        verdicts = await ctx.parallel([
            (lambda f=f: ctx.agent(
                f"Try to refute: {f['title']}", schema=VERDICT, label=f"verify:{dimension}:{f['title']}"
            ))
            for f in audited["findings"]
        ])
        return [f for f, v in zip(audited["findings"], verdicts) if v and v["isReal"]]

    results = await ctx.pipeline(DIMENSIONS, audit, verify)
    confirmed = [f for each in results if each for f in each]
    ctx.log(f"{len(confirmed)} real problems")
    order = {"high": 0, "medium": 1, "low": 2}
    return {"confirmed": sorted(confirmed, key=lambda f: (order[f["severity"]], f["title"]))}
"""


async def reviewer(spec: AgentStepSpec) -> Any:
    if spec.prompt.startswith("Try to refute"):
        return {"isReal": "doubtful" not in spec.prompt}
    dimension = spec.prompt.split()[2]
    return {
        "findings": [
            {"title": f"{dimension} slip", "severity": "low"},
            {"title": f"{dimension} doubtful", "severity": "high"},
            {"title": f"{dimension} flaw", "severity": "high" if dimension == "security" else "medium"},
        ]
    }


CONFIRMED = [
    {"title": "security flaw", "severity": "high"},
    {"title": "correctness flaw", "severity": "medium"},
    {"title": "speed flaw", "severity": "medium"},
    {"title": "correctness slip", "severity": "low"},
    {"title": "security slip", "severity": "low"},
    {"title": "speed slip", "severity": "low"},
]


async def run(place: Path, mode: str, **more: Any) -> tuple[Rig, Any]:
    rig = Rig(place, Team(reviewer), takes_inline=True)
    rig.folder.scripts["sample.py"] = SCRIPT
    rig.workflows.approve("review-changes-of-the-seed")
    if not more:
        more = {"script": SCRIPT} if mode == "inline" else {"name": "review-changes-of-the-seed"}
    return rig, await rig.workflows.run_async(events=rig.events.append, **more)


def calls_of(rig: Rig, run_id: str) -> set[tuple[str, str, str]]:
    lines = Path(rig.files.directory, f"{run_id}.journal.jsonl").read_bytes().splitlines()
    records = [msgspec.json.decode(line) for line in lines]
    return {(each["id"], each["path"], each["label"]) for each in records if each["t"] == "started"}


@pytest.mark.parametrize("mode", ["host", "inline"])
def test_it_runs_as_shown_then_resumes_with_no_agent_and_no_token_to_the_same_bytes(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        rig, first = await run(tmp_path, mode)
        assert first.value == {"confirmed": CONFIRMED}
        assert first.status == "completed"
        assert (first.counts.launched, first.counts.done) == (12, 12)
        types = [each.type for each in rig.events]
        assert types[:2] == ["async_launched", "task_started"]
        assert types[-1] == "task_notification"
        assert set(types[2:-1]) == {"task_progress"}
        assert [each["title"] for each in rig.progress("workflow_phase")] == ["Review", "Verify"]
        before = Path(first.output_file).read_bytes()
        again, second = await run(tmp_path, mode, resume_from_run_id=first.run_id)
        assert again.team.asked == []
        assert (second.counts.launched, second.usage.total_tokens, second.counts.cached) == (0, 0, 12)
        assert second.value == first.value
        assert Path(second.output_file).read_bytes() == before

    asyncio.run(main())


def test_the_same_text_writes_the_same_journal_here_and_in_the_sandbox(tmp_path: Path) -> None:
    async def main() -> None:
        here, on_host = await run(tmp_path / "host", "host")
        there, in_sandbox = await run(tmp_path / "inline", "inline")
        assert on_host.value == in_sandbox.value
        assert calls_of(here, on_host.run_id) == calls_of(there, in_sandbox.run_id)
        # and what one of them began, the other one could go on with
        _, resumed = await run(tmp_path / "inline", "host", resume_from_run_id=in_sandbox.run_id, script=None)
        assert resumed.counts.cached == 12

    asyncio.run(main())
