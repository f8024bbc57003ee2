"""The script of seed 004, line by line as it stands there, where that is beside this checkout.

The page has lost its indentation, so each line is given here how deep it stands, and nothing else.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from tests.workflow.rig import Rig, Team

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"

pytestmark = [
    pytest.mark.spec,
    pytest.mark.skipif(not SEEDS.is_dir(), reason="the specification is not beside this checkout"),
]

META_LINE = "SAMPLE_META = "
SCRIPT_LINE = "async def sample_workflow(ctx, args):"
DEPTHS = (0, 1, 1, 2, 3, 2, 1, 2, 2, 3, 4, 3, 2, 3, 1)
"""Of the lines of the longer script, to its pipeline."""
END_DEPTHS = (1, 1, 1)
"""Of the lines behind the pipeline, which the shorter one has."""
BEFORE = """
DIMENSIONS = ["正确性", "安全", "性能"]
FINDINGS_SCHEMA = {"type": "object", "required": ["findings"], "properties": {"findings": {"type": "array"}}}
VERDICT_SCHEMA = {"type": "object", "required": ["isReal"], "properties": {"isReal": {"type": "boolean"}}}
"""


def indented(lines: list[str], depths: tuple[int, ...]) -> str:
    return "".join(f"{'    ' * depth}{line}\n" for depth, line in zip(depths, lines, strict=True))


def script() -> str:
    [seed] = SEEDS.glob("004_*.txt")
    lines = seed.read_text(encoding="utf-8").splitlines()
    (meta,) = [line for line in lines if line.startswith(META_LINE)]
    short, long = [number for number, line in enumerate(lines) if line == SCRIPT_LINE]
    pipeline = lines[long + len(DEPTHS) - 1]
    assert pipeline in lines[short + 2]  # there with a remark behind it
    end = lines[short + 3 : short + 3 + len(END_DEPTHS)]
    text = BEFORE + indented(lines[long : long + len(DEPTHS)], DEPTHS) + indented(end, END_DEPTHS)
    return meta.replace(META_LINE, "META = ", 1) + "\n" + text


async def answer(spec: AgentStepSpec) -> Any:
    if spec.prompt.startswith("请对抗性验证"):
        return {"isReal": "假" not in spec.prompt}
    return {"findings": [{"title": f"{spec.description} 真"}, {"title": f"{spec.description} 假"}]}


def test_the_page_is_read_to_its_end() -> None:
    text = script()
    assert text.count("await ctx.") == 3
    assert text.rstrip().endswith('return {"confirmed": confirmed}')


@pytest.mark.parametrize("mode", ["host", "inline"])
def test_it_runs_and_a_resume_asks_nobody(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, Team(answer), takes_inline=True)
        rig.folder.scripts["sample.py"] = script()
        more: Any = {"script": script()} if mode == "inline" else {"name": "review-changes"}
        rig.workflows.approve("review-changes")
        first = await rig.workflows.run_async(**more, events=rig.events.append)
        assert first.value == {"confirmed": [{"title": f"audit:{each} 真"} for each in ("正确性", "安全", "性能")]}
        assert (first.status, first.counts.launched) == ("completed", 9)
        assert [each["title"] for each in rig.progress("workflow_phase")] == ["Review", "Verify"]
        assert [each["message"] for each in rig.progress("workflow_log")] == ["确认了 3 个真实问题"]
        types = [each.type for each in rig.events]
        assert (types[:2], types[-1]) == (["async_launched", "task_started"], "task_notification")
        assert set(types[2:-1]) == {"task_progress"}
        (started,) = [each.payload for each in rig.events if each.type == "task_started"]
        assert started["phases"] == ["Review", "Verify"]
        asked = len(rig.team.asked)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert (again.value, again.counts.launched, again.usage.total_tokens) == (first.value, 0, 0)
        assert len(rig.team.asked) == asked

    asyncio.run(main())
