"""`parallel`, `pipeline`, `phase`: order, bounds, failures (spec-workflow 5.2, 7.19-7.29)."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import WorkflowInputError
from tests.workflow.rig import Rig, Team, failure


def test_a_hundred_items_keep_their_order_and_the_cap_is_reached_and_kept(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(str(each)) for each in range(100)])

    async def main() -> None:
        gates: list[asyncio.Event] = []

        async def answer(spec: AgentStepSpec) -> str:
            gates.append(asyncio.Event())
            if len(gates) % 7 == 0 or len(gates) == 100:
                for gate in reversed(gates):
                    gate.set()
            await gates[int(spec.prompt)].wait()
            return spec.prompt

        team = Team(answer)
        result = await Rig(tmp_path, team, limits=WorkflowLimits(concurrency=7)).run(script)
        assert result.value == [str(each) for each in range(100)]
        assert team.most_in_flight == 7

    asyncio.run(main())


def test_agents_of_nested_splits_share_one_cap(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        def many(name: str) -> Any:
            return lambda: ctx.parallel([lambda each=each: ctx.agent(f"{name}{each}") for each in range(4)])

        return await ctx.parallel([many(name) for name in "abcd"])

    async def main() -> None:
        async def answer(spec: AgentStepSpec) -> str:
            await asyncio.sleep(0.001)
            return spec.prompt

        team = Team(answer)
        result = await Rig(tmp_path, team, limits=WorkflowLimits(concurrency=3)).run(script)
        assert result.value == [[f"{name}{each}" for each in range(4)] for name in "abcd"]
        assert team.most_in_flight == 3

    asyncio.run(main())


def test_a_branch_that_raises_costs_no_sibling(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        async def bad() -> Any:
            raise KeyError("mine")

        return await ctx.parallel([bad, lambda: ctx.agent("slow"), lambda: 7])

    async def main() -> None:
        async def answer(spec: AgentStepSpec) -> str:
            for _ in range(20):
                await asyncio.sleep(0)
            return "there"

        rig = Rig(tmp_path, Team(answer))
        result = await rig.run(script)
        assert result.value == [None, "there", 7]
        assert result.status == "completed_with_failures"
        assert (result.counts.null_results, result.counts.done) == (1, 1)
        (failed,) = result.failures
        assert (failed.where, failed.index, failed.code) == ("/0.0", 0, "KeyError")
        assert failed.line is not None
        assert rig.notification()["counts"]["null_results"] == 1

    asyncio.run(main())


def test_on_request_the_first_failure_in_input_order_is_raised_once_all_have_ended(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        async def late() -> Any:
            await ctx.agent("a")
            raise KeyError("late")

        async def early() -> Any:
            raise ValueError("early")

        return await ctx.parallel([late, early, lambda: ctx.agent("b")], on_error="raise")

    async def main() -> None:
        rig = Rig(tmp_path)
        result = await rig.run(script)
        assert result.status == "failed"
        assert result.error is not None
        assert result.error.code == "KeyError"
        assert sorted(rig.team.prompts) == ["a", "b"]
        again = Rig(tmp_path)
        again.register(script)
        assert (await again.workflows.run_async(resume_from_run_id=result.run_id)).counts.launched == 0

    asyncio.run(main())


def test_a_fleet_in_which_all_fail_has_failed(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("a"), lambda: ctx.agent("b")])

    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec)

    async def main() -> None:
        result = await Rig(tmp_path, Team(answer)).run(script)
        assert (result.status, result.counts.failed, result.counts.null_results) == ("failed", 2, 2)
        assert len(result.failures) == 2

    asyncio.run(main())


def test_a_call_takes_4096_items_and_refuses_4097_before_anything_starts(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        assert await ctx.parallel([lambda: 1] * 4096) == [1] * 4096
        assert len(await ctx.pipeline(range(4096), lambda value: value)) == 4096
        refused = []
        for refusable in (
            ctx.parallel([lambda: ctx.agent("never")] * 4097),
            ctx.pipeline(range(4097), lambda value: ctx.agent("never")),
        ):
            try:
                await refusable
            except WorkflowInputError as error:
                refused.append(error.code)
        return refused

    async def main() -> None:
        rig = Rig(tmp_path)
        assert (await rig.run(script)).value == ["fanout_limit", "fanout_limit"]
        assert rig.team.asked == []

    asyncio.run(main())


def test_generators_empty_lists_and_single_items_are_fine(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return [
            await ctx.parallel(lambda each=each: each for each in range(3)),
            await ctx.parallel([]),
            await ctx.pipeline([], lambda value: value),
            await ctx.pipeline(iter("a"), lambda value: value * 2),
            await ctx.pipeline(["kept"]),
        ]

    async def main() -> None:
        assert (await Rig(tmp_path).run(script)).value == [[0, 1, 2], [], [], ["aa"], ["kept"]]

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 4097])
def test_a_bare_awaitable_is_refused_and_closed(tmp_path: Path, count: int) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("a"), *(ctx.agent("b") for _ in range(count))])

    async def main() -> None:
        rig = Rig(tmp_path)
        result = await rig.run(script)
        assert result.error is not None
        assert result.error.code == "bad_call"
        assert "thunk 1" in result.error.message
        assert rig.team.asked == []

    asyncio.run(main())


def test_stages_get_what_they_take_and_may_be_plain(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        async def third(value: Any, item: Any, index: int) -> Any:
            return [value, item, index]

        return await ctx.pipeline(["a", "b"], str.upper, lambda value, item: value + item, third, lambda *all: all[0])

    async def main() -> None:
        assert (await Rig(tmp_path).run(script)).value == [["Aa", "a", 0], ["Bb", "b", 1]]

    asyncio.run(main())


def test_a_stage_that_returns_none_goes_on_and_one_that_raises_ends_its_item(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        def second(value: Any, item: Any) -> Any:
            if item == 1:
                raise ValueError("one")
            return value

        return await ctx.pipeline(range(3), lambda value: None, second, lambda value, item: [value, item])

    async def main() -> None:
        result = await Rig(tmp_path).run(script)
        assert result.value == [[None, 0], None, [None, 2]]
        (failed,) = result.failures
        assert (failed.where, failed.index, failed.stage) == ("/0.1.1", 1, 1)

    asyncio.run(main())


def test_items_go_through_their_stages_without_a_barrier(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.pipeline(
            ["slow", "quick"], lambda value: ctx.agent(f"1 {value}"), lambda _, item: ctx.agent(f"2 {item}")
        )

    async def main() -> None:
        quick_is_through = asyncio.Event()

        async def answer(spec: AgentStepSpec) -> str:
            if spec.prompt == "1 slow":
                await quick_is_through.wait()
            if spec.prompt == "2 quick":
                quick_is_through.set()
            return spec.prompt

        assert (await Rig(tmp_path, Team(answer)).run(script)).value == ["2 slow", "2 quick"]

    asyncio.run(main())


def test_each_lane_has_its_own_phase_and_each_title_is_told_once(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        async def lane(number: int) -> None:
            ctx.phase(f"P{number % 3}")
            await ctx.agent(f"{number} one")
            await ctx.agent(f"{number} two")
            await ctx.agent(f"{number} told", phase="T")

        await ctx.parallel([lambda number=number: lane(number) for number in range(10)])

    async def main() -> None:
        rig = Rig(tmp_path)
        await rig.run(script)
        titles = [each["title"] for each in rig.progress("workflow_phase")]
        assert titles == ["P0", "P1", "P2"]
        phases = {each["label"]: each["phase"] for each in rig.progress("workflow_agent")}
        for number in range(10):
            assert phases[f"{number} one"] == phases[f"{number} two"] == f"P{number % 3}"
            assert phases[f"{number} told"] == "T"

    asyncio.run(main())


def test_agents_beyond_the_cap_raise_and_never_become_none(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(str(each)) for each in range(6)])

    async def main() -> None:
        rig = Rig(tmp_path, limits=WorkflowLimits(max_agents=4))
        result = await rig.run(script)
        assert result.status == "failed"
        assert result.error is not None
        assert result.error.code == "agent_cap"
        assert len(rig.team.asked) == 4
        again = Rig(tmp_path, limits=WorkflowLimits(max_agents=4))
        again.register(script)
        result = await again.workflows.run_async(resume_from_run_id=result.run_id)
        assert (result.status, result.counts.cached, result.counts.launched) == ("completed", 4, 2)

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["agent", "log", "phase", "parallel", "workflow", "random"])
def test_what_a_script_left_running_can_call_nothing_after_its_end(tmp_path: Path, verb: str) -> None:
    calls = {
        "agent": lambda ctx: ctx.agent("late"),
        "parallel": lambda ctx: ctx.parallel([]),
        "workflow": lambda ctx: ctx.workflow("x"),
        "log": lambda ctx: ctx.log("late"),
        "phase": lambda ctx: ctx.phase("late"),
        "random": lambda ctx: ctx.random(),
    }
    kept: list[Any] = []

    async def late(call: Any, ctx: Any) -> None:
        given = call(ctx)
        if asyncio.iscoroutine(given):
            await given

    async def script(ctx: Any, args: Any) -> Any:
        kept.append(ctx)

    async def main() -> None:
        rig = Rig(tmp_path)
        await rig.run(script)
        told = len(rig.events)
        with pytest.raises(WorkflowInputError, match="after its run had ended") as raised:
            await late(calls[verb], kept[0])
        assert raised.value.code == "wrong_moment"
        assert len(rig.events) == told

    asyncio.run(main())


def test_a_call_from_another_thread_is_refused(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        found: list[str] = []

        def elsewhere() -> None:
            try:
                ctx.log("from a thread")
            except RuntimeError as error:
                found.append(error.code)  # type: ignore[attr-defined]

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
        return found

    async def main() -> None:
        assert (await Rig(tmp_path).run(script)).value == ["wrong_moment"]

    asyncio.run(main())


def test_a_nested_workflow_cannot_nest_and_says_so_where_it_tried(tmp_path: Path) -> None:
    async def inner(ctx: Any, args: Any) -> Any:
        try:
            await ctx.workflow("inner")
        except RuntimeError as error:
            return error.code  # type: ignore[attr-defined]

    async def outer(ctx: Any, args: Any) -> Any:
        return await ctx.workflow("inner", {"a": 1})

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(inner, name="inner")
        assert (await rig.run(outer)).value == "nesting"

    asyncio.run(main())


def test_a_failing_agent_raises_where_it_was_asked_and_counts_once(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        try:
            await ctx.agent("bad")
        except RuntimeError as error:
            return str(error)

    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec, "no luck")

    async def main() -> None:
        result = await Rig(tmp_path, Team(answer)).run(script)
        assert "no luck" in result.value  # type: ignore[operator]
        assert (result.counts.failed, len(result.failures), result.counts.null_results) == (1, 1, 0)

    asyncio.run(main())


def test_chance_and_time_are_the_same_in_each_attempt_and_differ_by_place(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        lanes = await ctx.parallel([lambda: [ctx.random(), ctx.uuid()] for _ in range(3)])
        return [ctx.now(), ctx.random(), ctx.random(), ctx.uuid(), *lanes]

    async def main() -> None:
        first = await Rig(tmp_path).run(script)
        rig = Rig(tmp_path)
        rig.register(script)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert again.value == first.value
        values: Any = first.value
        assert len({values[1], values[2], *(lane[0] for lane in values[4:])}) == 5
        other = Rig(tmp_path)
        assert (await other.run(script)).value[1] != values[1]  # type: ignore[index]

    asyncio.run(main())
