"""Stop, pause, and what ends with its host (spec-workflow 5.7, 7.48, 7.63-7.70)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import WorkflowInputError
from fanfold.workflow.agents import QUEUED_SECONDS
from tests.workflow.rig import Rig, Team, reached


class Gate:
    """Lets the first `free` agents through, and holds the others."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.held = 0

    async def __call__(self, spec: AgentStepSpec) -> str:
        if self.free:
            self.free -= 1
            return spec.prompt
        self.held += 1
        await asyncio.Event().wait()
        raise AssertionError


async def six(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([lambda each=each: ctx.agent(f"p{each}") for each in range(6)])


@pytest.mark.parametrize(("verb", "status"), [("stop", "stopped"), ("pause", "paused")])
@pytest.mark.parametrize("by", ["itself", "another"])
def test_a_run_that_is_ended_keeps_what_it_finished(tmp_path: Path, verb: str, status: str, by: str) -> None:
    async def main() -> None:
        gate = Gate(2)
        rig = Rig(tmp_path, Team(gate), limits=WorkflowLimits(concurrency=3))
        rig.register(six)
        launch = await rig.workflows.launch_async("demo", events=rig.events.append)
        await reached(lambda: gate.held == 3)
        other = rig if by == "itself" else Rig(tmp_path)
        end = other.workflows.stop_async if verb == "stop" else other.workflows.pause_async
        assert (await end(launch.run_id)).status == status
        assert (await end(launch.run_id)).status == status  # once more changes nothing
        result = await rig.workflows.wait_async(launch.run_id)
        assert (result.status, result.reason, result.counts.done) == (status, "requested", 2)
        assert len([each for each in rig.events if each.type == "task_notification"]) == 1
        again = Rig(tmp_path)
        again.register(six)
        whole = await again.workflows.run_async(resume_from_run_id=launch.run_id)
        assert (whole.status, whole.counts.cached, whole.counts.launched) == ("completed", 2, 4)

    asyncio.run(main())


def test_agents_that_wait_for_a_place_are_not_launched_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate(0)
        rig = Rig(tmp_path, Team(gate), limits=WorkflowLimits(concurrency=1))
        rig.register(six)
        launch = await rig.workflows.launch_async("demo")
        await reached(lambda: gate.held == 1)
        await rig.workflows.stop_async(launch.run_id)
        assert len(rig.team.asked) == 1

    asyncio.run(main())


@pytest.mark.parametrize("waits", ["run", "wait"])
def test_a_caller_that_goes_away_does_not_end_the_run(tmp_path: Path, waits: str) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def answer(spec: AgentStepSpec) -> str:
            await release.wait()
            return "x"

        rig = Rig(tmp_path, Team(answer))
        rig.register(six)
        if waits == "run":
            waiting = asyncio.create_task(rig.workflows.run_async("demo"))
        else:
            launch = await rig.workflows.launch_async("demo")
            waiting = asyncio.create_task(rig.workflows.wait_async(launch.run_id))
        await reached(lambda: rig.team.in_flight == 6)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        release.set()
        (task,) = rig.tasks
        assert (await task).status == "completed"

    asyncio.run(main())


def test_a_host_that_closes_stops_its_runs_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate(2)
        rig = Rig(tmp_path, Team(gate), limits=WorkflowLimits(concurrency=3))
        rig.register(six)
        launch = await rig.workflows.launch_async("demo", events=rig.events.append)
        await reached(lambda: gate.held == 3)
        (task,) = rig.tasks
        task.cancel()
        await asyncio.wait({task})
        assert rig.notification()["status"] == "stopped"
        summary = await Rig(tmp_path).workflows.status_async(launch.run_id)
        assert (summary.status, summary.is_alive) == ("stopped", False)
        again = Rig(tmp_path)
        again.register(six)
        assert (await again.workflows.run_async(resume_from_run_id=launch.run_id)).counts.cached == 2

    asyncio.run(main())


def test_a_script_that_swallows_everything_is_stopped_all_the_same(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        while True:
            try:
                await ctx.agent("again")
            except Exception:  # noqa: BLE001
                continue

    async def main() -> None:
        gate = Gate(3)
        rig = Rig(tmp_path, Team(gate))
        rig.register(script)
        launch = await rig.workflows.launch_async("demo")
        await reached(lambda: gate.held == 1)
        assert (await rig.workflows.stop_async(launch.run_id)).status == "stopped"

    asyncio.run(main())


def test_one_agent_may_be_skipped_and_stays_skipped(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("a"), lambda: ctx.agent("b")])

    async def main() -> None:
        gate = Gate(1)
        rig = Rig(tmp_path, Team(gate))
        rig.register(script)
        launch = await rig.workflows.launch_async("demo")
        await reached(lambda: gate.held == 1)
        assert not await rig.workflows.skip_async(launch.run_id, "/0.0#0")
        assert await rig.workflows.skip_async(launch.run_id, "/0.1#0")
        result = await rig.workflows.wait_async(launch.run_id)
        assert (result.value, result.status, result.counts.skipped) == (["a", None], "completed", 1)
        again = Rig(tmp_path)
        again.register(script)
        whole = await again.workflows.run_async(resume_from_run_id=launch.run_id)
        assert (whole.value, again.team.asked) == (["a", None], [])

    asyncio.run(main())


def test_stopping_what_does_not_run_marks_it_or_leaves_it_as_it_ended(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        done = await rig.run(six)
        assert (await rig.workflows.stop_async(done.run_id)).status == "completed"
        with pytest.raises(WorkflowInputError) as raised:
            await rig.workflows.stop_async("wf_demo_0123456789abcdef")
        assert raised.value.code == "run_not_found"

    asyncio.run(main())


def test_an_agent_starts_before_it_ends_and_the_output_is_there_with_the_notification(tmp_path: Path) -> None:
    async def answer(spec: AgentStepSpec) -> str:
        await asyncio.sleep(2 * QUEUED_SECONDS)
        return spec.prompt

    async def main() -> None:
        rig = Rig(tmp_path, Team(answer))
        there: list[bool] = []

        def hear(item: AgentEvent) -> None:
            rig.events.append(item)
            if item.type == "task_notification":
                there.append(Path(item.payload["output_file"]).exists())

        async def two_threes(ctx: Any, args: Any) -> Any:
            def three(side: str) -> Any:
                return ctx.parallel([lambda each=each: ctx.agent(f"{side}{each}") for each in range(3)])

            return await ctx.parallel([lambda: three("a"), lambda: three("b")])

        rig.register(two_threes)
        await rig.workflows.run_async("demo", events=hear, limits=WorkflowLimits(concurrency=4))
        assert there == [True]
        assert [each.type for each in rig.events[:2]] == ["async_launched", "task_started"]
        assert rig.events[-1].type == "task_notification"
        seen: dict[str, list[str]] = {}
        for each in rig.progress("workflow_agent"):
            seen.setdefault(each["where"], []).append(each["status"])
        assert sorted(map(tuple, seen.values())) == [("queued", "started", "done")] * 2 + [("started", "done")] * 4

    asyncio.run(main())


def test_a_listener_that_raises_costs_the_run_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(six)

        def broken(item: AgentEvent) -> None:
            raise ValueError("mine")

        assert (await rig.workflows.run_async("demo", events=broken)).status == "completed"

    asyncio.run(main())
