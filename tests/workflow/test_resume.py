"""The resume table (spec-workflow 5.5; 7.39-7.52)."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.errors import WorkflowInputError
from tests.workflow.rig import Rig, Team, failure, reached
from tests.workflow.test_launch import SCRIPT, files_of, refused


async def three(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([lambda each=each: ctx.agent(each) for each in ("a", "b", "c")])


async def once_failing(spec: AgentStepSpec) -> Any:
    return failure(spec) if spec.prompt == "b" else f"re: {spec.prompt}"


def test_a_completed_run_replays_to_the_same_bytes_for_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        first = await Rig(tmp_path).run(three, {"x": 1})
        before = Path(first.output_file).read_bytes()
        rig = Rig(tmp_path)
        rig.register(three)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id, events=rig.events.append)
        assert rig.team.asked == []
        assert Path(first.output_file).read_bytes() == before
        assert (again.counts.launched, again.counts.cached, again.usage.total_tokens) == (0, 3, 0)
        assert again.total_usage == first.usage
        assert {each["status"] for each in rig.progress("workflow_agent")} == {"cached"}

    asyncio.run(main())


def test_what_failed_runs_again_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        first = await Rig(tmp_path, Team(once_failing)).run(three)
        rig = Rig(tmp_path)
        rig.register(three)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert rig.team.prompts == ["b"]
        assert (again.status, again.value) == ("completed", ["re: a", "re: b", "re: c"])
        assert again.total_usage.total_tokens == 40  # the failed one was paid for too
        summary = await rig.workflows.status_async(first.run_id)
        assert summary.snapshot is not None
        assert summary.snapshot.attempt == 2

    asyncio.run(main())


def test_a_call_keeps_its_idempotency_key_over_its_attempts(tmp_path: Path) -> None:
    async def main() -> None:
        first = await Rig(tmp_path, Team(once_failing)).run(three)
        rig = Rig(tmp_path)
        rig.register(three)
        await rig.workflows.run_async(resume_from_run_id=first.run_id)
        lines = Path(rig.files.directory, f"{first.run_id}.journal.jsonl").read_bytes().splitlines()
        started = [each for line in lines if (each := msgspec.json.decode(line))["t"] == "started"]
        keys = [each["key"] for each in started if each["call"]["prompt"] == "b"]
        assert len(keys) == 2
        assert len(set(keys)) == 1
        assert len({each["key"] for each in started}) == 3

    asyncio.run(main())


def test_arguments_that_differ_are_refused_with_their_names_and_may_be_forked(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return [await ctx.agent("always"), await ctx.agent(f"about {args['what']}")]

    async def main() -> None:
        first = await Rig(tmp_path).run(script, {"what": "a", "same": 1})
        rig = Rig(tmp_path)
        rig.register(script)
        error = await refused(rig, "args_mismatch", None, {"what": "b", "more": 1}, resume_from_run_id=first.run_id)
        assert "more, same, what" in str(error)
        before = files_of(tmp_path)
        forked = await rig.workflows.run_async(
            None, {"what": "b", "same": 1}, resume_from_run_id=first.run_id, fork=True
        )
        assert forked.run_id != first.run_id
        assert rig.team.prompts == ["about b"]
        assert {name: data for name, data in files_of(tmp_path).items() if name in before} == before
        summary = await rig.workflows.status_async(forked.run_id)
        assert summary.snapshot is not None
        assert summary.snapshot.parent_run_id == first.run_id
        assert forked.total_usage.total_tokens == 10  # what was copied cost this run nothing

    asyncio.run(main())


def test_equal_arguments_are_fine_and_the_saved_ones_are_used_where_none_are_given(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return args

    async def main() -> None:
        first = await Rig(tmp_path).run(script, {"b": 1, "a": [2]})
        rig = Rig(tmp_path)
        rig.register(script)
        for args in (None, {"a": [2], "b": 1}):
            again = await rig.workflows.run_async(None, args, resume_from_run_id=first.run_id)
            assert again.value == {"a": [2], "b": 1}

    asyncio.run(main())


def test_a_run_of_another_workflow_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        first = await Rig(tmp_path).run(three)
        rig = Rig(tmp_path)
        rig.register(three)
        rig.register(three, name="other")
        await refused(rig, "wrong_workflow", "other", resume_from_run_id=first.run_id)

    asyncio.run(main())


def test_a_run_that_is_active_is_refused_here_and_elsewhere(tmp_path: Path) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def answer(spec: AgentStepSpec) -> str:
            await release.wait()
            return "x"

        rig = Rig(tmp_path, Team(answer))
        rig.register(three)
        launch = await rig.workflows.launch_async("demo")
        await reached(lambda: rig.team.in_flight == 3)
        for other in (rig, Rig(tmp_path)):
            if other is not rig:
                other.register(three)
            with pytest.raises(WorkflowInputError) as raised:
                await other.workflows.launch_async(resume_from_run_id=launch.run_id)
            assert raised.value.code == "already_active"
        release.set()
        assert (await rig.workflows.wait_async(launch.run_id)).status == "completed"

    asyncio.run(main())


def test_a_journal_that_is_gone_is_never_taken_for_an_empty_one(tmp_path: Path) -> None:
    async def main() -> None:
        first = await Rig(tmp_path).run(three)
        rig = Rig(tmp_path)
        rig.register(three)
        journal = Path(rig.files.directory, f"{first.run_id}.journal.jsonl")
        kept = journal.read_bytes()
        journal.unlink()
        await refused(rig, "journal_missing", None, resume_from_run_id=first.run_id)
        journal.write_bytes(b"")
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert (again.counts.cached, again.counts.launched) == (0, 3)
        other = await rig.workflows.run_async("demo")
        Path(rig.files.directory, f"{other.run_id}.journal.jsonl").write_bytes(kept)
        await refused(rig, "journal_refused", None, resume_from_run_id=other.run_id)

    asyncio.run(main())


def test_a_script_may_be_edited_unless_it_is_strict(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.folder.scripts["a.py"] = SCRIPT
        rig.workflows.approve("filed")
        first = await rig.workflows.run_async("filed")
        rig.folder.scripts["a.py"] = SCRIPT + "\n# edited\n"
        rig.workflows.approve("filed")
        await refused(rig, "script_changed", None, resume_from_run_id=first.run_id, strict=True)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert again.counts.cached == 1

    asyncio.run(main())


def test_a_damaged_value_is_not_used_and_its_call_runs_again(tmp_path: Path) -> None:
    async def main() -> None:
        first = await Rig(tmp_path).run(three)
        rig = Rig(tmp_path)
        rig.register(three)
        journal = Path(rig.files.directory, f"{first.run_id}.journal.jsonl")
        journal.write_bytes(journal.read_bytes().replace(b're: b"', b're: x"', 1))
        await refused(rig, "journal_refused", None, resume_from_run_id=first.run_id, strict=True)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert (again.value, rig.team.prompts) == (first.value, ["b"])

    asyncio.run(main())


def test_a_recorded_value_against_its_schema_runs_again_and_is_reported(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("one", schema={"type": "object", "required": ["a"]})

    async def wrong(spec: AgentStepSpec) -> Any:
        return {"b": 1}  # an executor that does not keep the schema

    async def right(spec: AgentStepSpec) -> Any:
        return {"a": 1}

    async def main() -> None:
        first = await Rig(tmp_path, Team(wrong)).run(script)
        rig = Rig(tmp_path, Team(right))
        rig.register(script)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert (again.value, again.counts.rejected, again.counts.launched) == ({"a": 1}, 1, 1)

    asyncio.run(main())


def test_a_long_value_lies_in_a_blob_and_a_lost_blob_costs_only_its_call(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return [len(await ctx.agent("long")), await ctx.agent("short")]

    async def answer(spec: AgentStepSpec) -> str:
        return "x" * 300_000 if spec.prompt == "long" else "s"

    async def main() -> None:
        first = await Rig(tmp_path, Team(answer)).run(script)
        directory = Path(Rig(tmp_path).files.directory)
        assert (directory / f"{first.run_id}.journal.jsonl").stat().st_size < 10_000
        rig = Rig(tmp_path, Team(answer))
        rig.register(script)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert (again.value, rig.team.asked) == ([300_000, "s"], [])
        for blob in (directory / "blobs").iterdir():
            blob.write_bytes(b"damaged")
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert (again.value, rig.team.prompts, again.counts.rejected) == ([300_000, "s"], ["long"], 1)

    asyncio.run(main())


def test_only_what_failed_runs_though_the_script_has_changed(tmp_path: Path) -> None:
    def made(word: str) -> Any:
        async def script(ctx: Any, args: Any) -> Any:
            found = await ctx.pipeline(
                ["a", "b", "c"], lambda each: ctx.agent(f"{word} {each}"), lambda got: ctx.agent(f"sum {got}")
            )
            return [*found, await ctx.agent(f"all {found}")]

        return script

    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec) if spec.prompt == "look b" else f"re: {spec.prompt}"

    async def main() -> None:
        first = await Rig(tmp_path, Team(answer)).run(made("look"))
        rig = Rig(tmp_path)
        rig.register(made("see"))
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id, only_failed=True)
        assert rig.team.prompts[:2] == ["see b", "sum re: see b"]
        assert len(rig.team.prompts) == 3  # and what stands behind all of them
        values: Any = again.value
        assert values[:3] == ["re: sum re: look a", "re: sum re: see b", "re: sum re: look c"]

    asyncio.run(main())


def test_the_plan_of_a_resume_says_what_would_run_and_why_and_changes_nothing(tmp_path: Path) -> None:
    def made(changed: str) -> Any:
        async def script(ctx: Any, args: Any) -> Any:
            found = await ctx.parallel([lambda each=each: ctx.agent(each) for each in ("a", "b", changed)])
            return [found, await ctx.agent(f"sum {found}")]

        return script

    async def main() -> None:
        first = await Rig(tmp_path, Team(once_failing)).run(made("c"))
        before = files_of(tmp_path)
        rig = Rig(tmp_path)
        rig.register(made("line one\nchanged"))
        plan = await rig.workflows.plan_async(first.run_id)
        assert rig.team.asked == []
        assert files_of(tmp_path) == before
        assert [(each.action, each.reason) for each in plan.calls] == [
            ("cached", "recorded"),
            ("re-run", "failed before: NO_ANSWER: it broke"),
            ("re-run", "prompt changed"),
        ]
        assert not plan.is_complete
        assert plan.calls[2].changes is not None
        whole = Rig(tmp_path)
        whole.register(made("c"))
        await whole.workflows.run_async(resume_from_run_id=first.run_id)
        plan = await whole.workflows.plan_async(first.run_id)
        assert (plan.count("cached"), len(plan.calls), plan.is_complete) == (4, 4, True)

    asyncio.run(main())


def test_a_call_has_the_same_task_id_in_each_attempt_and_no_other_call_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        async def failing(spec: AgentStepSpec) -> Any:
            return failure(spec)

        async def script(ctx: Any, args: Any) -> Any:
            return await ctx.parallel([lambda each=each: ctx.agent(each) for each in ("a", "a", "b")])

        first = Rig(tmp_path, Team(failing))
        result = await first.run(script)
        again = Rig(tmp_path)
        again.register(script)
        await again.workflows.run_async(resume_from_run_id=result.run_id)
        ids = [spec.task_id for spec in first.team.asked]
        assert len(set(ids)) == 3
        assert [spec.task_id for spec in again.team.asked] == ids

    asyncio.run(main())


def test_chance_and_time_of_a_fork_are_those_of_the_run_that_was_launched_first(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return [ctx.now(), await ctx.agent(f"about {ctx.uuid()} {ctx.random()}")]

    async def main() -> None:
        first = await Rig(tmp_path).run(script, {"x": 1})
        rig = Rig(tmp_path)
        rig.register(script)
        forked = await rig.workflows.run_async(None, {"x": 2}, resume_from_run_id=first.run_id, fork=True)
        again = await rig.workflows.run_async(None, {"x": 3}, resume_from_run_id=forked.run_id, fork=True)
        assert forked.value == again.value == first.value
        assert rig.team.asked == []

    asyncio.run(main())
