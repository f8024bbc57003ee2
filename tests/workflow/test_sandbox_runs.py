"""Inline scripts as runs: recorded, resumed, planned and stopped like any other."""

import asyncio
from pathlib import Path
from typing import Any

from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowResult
from fanfold.workflow.scripts import text_sha
from tests.workflow.rig import Rig, Team, failure, reached

SCRIPT = """META = {"name": "demo", "description": "a demo"}

async def main(ctx, args):
    ctx.phase("Look")
    async def look(value, item):
        ctx.phase(f"Item {item}")
        seen = await ctx.agent(f"look at {item}", label=f"look:{item}")
        again = await ctx.parallel([lambda n=n: ctx.agent(f"check {item}") for n in range(2)])
        return [seen, *again]
    found = await ctx.pipeline(args["items"], look, lambda each: each)
    return {"found": found, "chance": ctx.random(), "at": ctx.now(), "id": ctx.uuid()}
"""
ARGS = {"items": list("abcdefghijkl")}


async def run(given: Rig, script: str = SCRIPT) -> WorkflowResult:
    return await given.workflows.run_async(args=ARGS, script=script, events=given.events.append)


def rig(place: Path, team: Team | None = None, **more: Any) -> Rig:
    return Rig(place, team, takes_inline=True, **more)


def test_a_resumed_run_gets_all_that_is_recorded_and_draws_the_same_chance(tmp_path: Path) -> None:
    async def main() -> None:
        first = await run(rig(tmp_path))
        assert (first.status, first.counts.launched) == ("completed", 36)
        again = rig(tmp_path)
        second = await again.run(resume_from_run_id=first.run_id)
        assert (second.counts.launched, second.counts.cached) == (0, 36)
        assert second.value == first.value
        assert again.team.asked == []

    asyncio.run(main())


def test_what_an_inline_script_recorded_answers_the_same_text_as_a_project_file(tmp_path: Path) -> None:
    async def main() -> None:
        inline, trusted = rig(tmp_path / "inline"), rig(tmp_path / "trusted")
        trusted.folder.scripts["demo.py"] = SCRIPT
        trusted.folder.approve("demo.py", text_sha(SCRIPT))
        results = [await run(inline), await trusted.run(None, ARGS)]
        places = [
            sorted(told["where"] for told in each.progress("workflow_agent") if told["status"] == "done")
            for each in (inline, trusted)
        ]
        assert [each.status for each in results] == ["completed"] * 2
        assert places[0] == places[1]
        assert len(places[0]) == 36

    asyncio.run(main())


def test_a_failed_slot_tells_which_agent_and_the_line_of_the_script(tmp_path: Path) -> None:
    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec) if spec.prompt == "look at c" else "fine"

    async def main() -> None:
        result = await run(rig(tmp_path, Team(answer)))
        assert result.status == "completed_with_failures"
        (failed,) = result.failures
        assert failed.where.startswith("/0.2.0")
        assert (failed.index, failed.stage, failed.label, failed.line) == (2, 0, "look:c", 7)

    asyncio.run(main())


def test_an_error_of_the_script_is_the_fault_of_its_run(tmp_path: Path) -> None:
    script = SCRIPT.replace("return {", "1 / 0\n    return {")

    async def main() -> None:
        first = await run(rig(tmp_path), script)
        assert first.status == "failed"
        assert first.error is not None
        assert (first.error.code, first.error.line) == ("ZeroDivisionError", 11)
        assert (await rig(tmp_path).run(resume_from_run_id=first.run_id)).counts.launched == 0

    asyncio.run(main())


def test_a_stopped_run_leaves_no_process_and_goes_on_later(tmp_path: Path) -> None:
    async def main() -> None:
        async def answer(spec: AgentStepSpec) -> str:
            if spec.prompt == "look at f":
                await asyncio.Event().wait()
            return spec.prompt

        first = rig(tmp_path, Team(answer), limits=WorkflowLimits(concurrency=2))
        launch = await first.workflows.launch_async(None, ARGS, script=SCRIPT)
        await reached(lambda: "look at f" in first.team.prompts and first.team.in_flight == 1)
        await first.workflows.stop_async(launch.run_id)
        await asyncio.wait(first.tasks)
        second = await rig(tmp_path).run(resume_from_run_id=launch.run_id)
        assert second.status == "completed"
        assert second.counts.cached >= 5
        assert second.counts.launched + second.counts.cached == 36

    asyncio.run(main())


def test_a_plan_sees_past_the_branches_that_would_have_to_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async def answer(spec: AgentStepSpec) -> Any:
            return failure(spec) if spec.prompt.startswith("look") else "fine"

        limits = WorkflowLimits(concurrency=2)
        first = await run(rig(tmp_path, Team(answer), limits=limits))
        assert first.status == "failed"
        plan = await rig(tmp_path, limits=limits).workflows.plan_async(first.run_id)
        assert sorted(call.where for call in plan.calls) == sorted(f"/0.{n}.0#0" for n in range(12))
        assert plan.count("re-run") == 12

    asyncio.run(main())
