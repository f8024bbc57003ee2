"""What a run tells, in which order, and what is kept of it when its disk is slow (seed 004; spec-workflow 5.2, 7.68,
7.70, D18)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import MAX_FAILURES_TOLD, WorkflowLimits
from fanfold.protocols import HeldRun
from fanfold.testing.virtual_loop import run_virtually
from fanfold.workflow.event_file import MAX_WAITING, EventFile
from tests.workflow.rig import META, TOKENS, Rig, Team, failure


class SlowDisk:
    """Of a held run, what an event file needs."""

    run_id = "wf_demo_0123456789abcdef"

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.lines: list[bytes] = []

    async def append_events(self, lines: Sequence[bytes]) -> None:
        await self.goes_on.wait()
        self.lines += lines


def test_whatever_a_slow_disk_has_no_room_for_the_end_is_kept_and_how_much_was_left_out() -> None:
    async def main() -> None:
        disk = SlowDisk()
        events = EventFile(cast("HeldRun", disk))
        events(event("task_started"))
        await asyncio.sleep(1)  # by now that one is on its way
        for number in range(MAX_WAITING + 500):
            events(event("task_progress", number=number))
        events(event("task_notification"))
        disk.goes_on.set()
        await events.close()
        kept = [msgspec.json.decode(line, type=AgentEvent) for line in disk.lines]
        assert [each.payload.get("number") for each in kept[1:-2]] == list(range(MAX_WAITING))
        assert [(each.type, each.payload) for each in kept[-2:]] == [
            ("events_left_out", {"count": 500}),
            ("task_notification", {}),
        ]

    run_virtually(main())


def test_the_notification_tells_what_came_of_it_and_what_it_took(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(each) for each in ("a", "bad", "c")])

    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec) if spec.prompt == "bad" else spec.prompt

    async def main() -> None:
        rig = Rig(tmp_path, Team(answer))
        first = await rig.run(script)
        counts = {
            "launched": 3,
            "done": 2,
            "cached": 0,
            "failed": 1,
            "skipped": 0,
            "null_results": 1,
            "unclaimed": 0,
            "rejected": 0,
        }
        told = rig.notification()
        assert told["counts"] == counts
        assert (told["status"], told["total_tokens"]) == ("completed_with_failures", 3 * TOKENS)
        assert told["usage"]["total_tokens"] == 3 * TOKENS
        assert {"duration_ms", "tool_uses", "cost_usd"} < set(told)
        assert [(each["label"], each["index"]) for each in told["failures"]] == [("bad", 1)]
        written = msgspec.json.decode(Path(told["output_file"]).read_bytes())
        assert written == {"result": ["a", None, "c"]}
        rig.events.clear()
        await rig.run(resume_from_run_id=first.run_id)
        told = rig.notification()
        assert told["counts"] == {**counts, "launched": 1, "done": 0, "cached": 2}
        assert (told["usage"]["total_tokens"], told["total_tokens"]) == (TOKENS, 4 * TOKENS)

    asyncio.run(main())


def test_what_a_run_has_spent_never_falls(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(f"p{each}", retries=1) for each in range(6)])

    async def main() -> None:
        spent: list[int] = []

        async def answer(spec: AgentStepSpec) -> Any:
            if run_ids:
                snapshot = (await rig.workflows.status_async(run_ids[0])).snapshot
                assert snapshot is not None
                spent.append(snapshot.usage.total_tokens)
            return failure(spec) if len(team.asked) % 2 else spec.prompt

        team, run_ids = Team(answer), list[str]()
        rig = Rig(tmp_path, team, limits=WorkflowLimits(concurrency=2))
        rig.register(script)
        for _ in range(3):
            run_id = run_ids[0] if run_ids else None
            launch = await rig.workflows.launch_async(None if run_ids else META["name"], resume_from_run_id=run_id)
            run_ids.append(launch.run_id)
            result = await rig.workflows.wait_async(launch.run_id)
            spent.append(result.total_usage.total_tokens)
        assert spent == sorted(spent)
        assert spent[0] < spent[-1] == TOKENS * len(team.asked)

    asyncio.run(main())


def test_a_phase_that_a_nested_workflow_has_too_is_told_once(tmp_path: Path) -> None:
    async def inner(ctx: Any, args: Any) -> Any:
        await ctx.agent("before")
        ctx.phase("Own" if args["own"] else "Shared")
        await ctx.agent("in it")

    async def outer(ctx: Any, args: Any) -> Any:
        ctx.phase("Shared")
        await ctx.workflow("inner", {"own": True})
        await ctx.workflow("inner", {"own": False})
        await ctx.agent("behind it")

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(inner, name="inner")
        await rig.run(outer)
        assert [each["title"] for each in rig.progress("workflow_phase")] == ["Shared", "Own"]
        agents = [each for each in rig.progress("workflow_agent") if each["status"] == "done"]
        assert [(each["label"], each["phase"]) for each in agents] == [
            ("before", "Shared"),
            ("in it", "Own"),
            ("before", "Shared"),
            ("in it", "Shared"),
            ("behind it", "Shared"),  # what a nested one announced is its own
        ]

    asyncio.run(main())


def test_of_very_many_failures_some_are_told_and_all_are_counted(tmp_path: Path) -> None:
    many = 10 * MAX_FAILURES_TOLD

    async def script(ctx: Any, args: Any) -> Any:
        def bad() -> None:
            raise ValueError("bad")

        await ctx.parallel([*[bad] * many, lambda: 1])
        return await ctx.agent("fine")

    async def main() -> None:
        rig = Rig(tmp_path)
        result = await rig.run(script)
        assert result.status == "completed_with_failures"
        assert (len(result.failures), result.counts.null_results) == (MAX_FAILURES_TOLD, many)
        assert len(rig.notification()["failures"]) == MAX_FAILURES_TOLD
        assert Path(rig.files.directory, f"{result.run_id}.json").stat().st_size < 200 * MAX_FAILURES_TOLD

    asyncio.run(main())


def test_a_branch_is_in_the_phase_that_it_was_begun_in_until_it_has_its_own(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        def own(item: str) -> Any:
            ctx.phase("Own")
            return item

        ctx.phase("Around")
        await ctx.parallel([lambda: ctx.agent("branch"), lambda: ctx.parallel([lambda: ctx.agent("branch of it")])])
        await ctx.pipeline(["x"], lambda item: ctx.agent("stage"), own, lambda item: ctx.agent("later stage"))
        await ctx.agent("behind")

    async def main() -> None:
        rig = Rig(tmp_path)
        await rig.run(script)
        agents = [each for each in rig.progress("workflow_agent") if each["status"] == "done"]
        assert {each["label"]: each["phase"] for each in agents} == {
            "branch": "Around",
            "branch of it": "Around",
            "stage": "Around",
            "later stage": "Own",
            "behind": "Around",
        }

    asyncio.run(main())
