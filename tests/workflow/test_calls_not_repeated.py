"""Calls that a resume must not simply run again: what their mark `repeat` makes of them (spec-workflow 5.5)."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.contracts.messages import NO_USAGE
from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import REPEAT_UNDECIDED, WorkflowLimits, WorkflowResult
from fanfold.errors import UsageError
from fanfold.testing import ReplayMissError, replay_run
from fanfold.testing.memory_runs import MemoryRuns
from tests.workflow.rig import Rig, Team, failure
from tests.workflow.test_launch import refused

INLINE = """META = {"name": "demo", "description": "a demo"}

async def main(ctx, args):
    return await ctx.parallel([
        lambda: ctx.agent("pay", repeat=args["repeat"]),
        lambda: ctx.agent("see"),
    ])
"""


async def paying(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([lambda: ctx.agent("pay", repeat=args["repeat"]), lambda: ctx.agent("see")])


async def breaking(spec: AgentStepSpec) -> Any:
    return failure(spec) if spec.prompt == "pay" else "seen"


async def refusing(spec: AgentStepSpec) -> Any:
    if spec.prompt == "pay":
        return failure(spec, error_code="LLM_ERROR", usage=NO_USAGE, blocked_by="quota")
    return "seen"


async def launched(rig: Rig, mode: str, args: Any) -> WorkflowResult:
    if mode == "inline":
        return await rig.workflows.run_async(args=args, script=INLINE)
    return await rig.run(None, args)


def rig_of(place: Path, team: Team | None = None, mode: str = "function", script: Any = paying) -> Rig:
    rig = Rig(place, team, takes_inline=mode == "inline")
    if mode == "function":
        rig.register(script)
    return rig


async def begun(place: Path, repeat: str, mode: str = "function", script: Any = paying, answer: Any = breaking) -> str:
    """A run whose agent `pay` has failed."""
    return (await launched(rig_of(place, Team(answer), mode, script), mode, {"repeat": repeat})).run_id


def cut_off(place: Path, run_id: str, prompt: str = "pay") -> None:
    """Have the process of that run die before its agent `prompt` had ended."""
    (path,) = place.rglob(f"{run_id}.journal.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    records = [msgspec.json.decode(line) for line in lines]
    (seq,) = [each["seq"] for each in records if each["t"] == "started" and each["call"]["prompt"] == prompt]
    kept = [line for line, each in zip(lines, records, strict=True) if (each["t"], each.get("seq")) != ("result", seq)]
    path.write_bytes(b"".join(kept))


def calls_of(place: Path, run_id: str) -> list[Any]:
    (path,) = place.rglob(f"{run_id}.journal.jsonl")
    return [each for line in path.read_bytes().splitlines() if (each := msgspec.json.decode(line))["t"] != "header"]


async def resumed(
    place: Path, run_id: str, mode: str = "function", script: Any = paying, **how: Any
) -> tuple[Rig, WorkflowResult]:
    rig = rig_of(place, None, mode, script)
    return rig, await rig.run(resume_from_run_id=run_id, **how)


@pytest.mark.parametrize("mode", ["function", "inline"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_skipped_call_gives_none_in_this_and_every_later_resume_and_nothing_runs(
    tmp_path: Path, mode: str, is_cut: bool
) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path, "skip", mode)
        if is_cut:
            cut_off(tmp_path, run_id)
        rig, result = await resumed(tmp_path, run_id, mode)
        assert rig.team.asked == []
        assert (result.status, result.value) == ("completed", [None, "seen"])
        assert (result.counts.skipped, result.counts.cached, result.counts.launched) == (1, 1, 0)
        assert result.usage.total_tokens == 0
        told = {each["where"]: each["status"] for each in rig.progress("workflow_agent")}
        assert told == {"/0.0#0": "skipped", "/0.1#0": "cached"}
        _, later = await resumed(tmp_path, run_id, mode, repeat="rerun")
        assert (later.value, later.counts.cached, later.counts.skipped) == ([None, "seen"], 2, 0)
        assert later.total_usage.is_estimated is is_cut, "what the skip took is known"

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["function", "inline"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_call_that_asks_pauses_its_run_and_the_journal_stays_as_it_was(
    tmp_path: Path, mode: str, is_cut: bool
) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path, "ask", mode)
        if is_cut:
            cut_off(tmp_path, run_id)
        before = [each for each in calls_of(tmp_path, run_id) if each["t"] != "attempt_end"]
        for _ in range(2):
            rig, result = await resumed(tmp_path, run_id, mode)
            assert rig.team.asked == []
            assert (result.status, result.reason) == ("paused", "parked")
            (failed,) = result.failures
            why = "in doubt" if is_cut else "failed before: NO_ANSWER: it broke"
            assert (failed.code, failed.where) == (REPEAT_UNDECIDED, "/0.0#0")
            assert failed.message == (
                f'it was begun before ({why}): say whether it runs again, by a resume with repeat="rerun" or "skip"'
            )
            (told,) = [each for each in rig.progress("workflow_agent") if each["where"] == "/0.0#0"]
            assert (told["status"], told["code"], told["usage"]["total_tokens"]) == ("failed", REPEAT_UNDECIDED, 0)
        assert [each for each in calls_of(tmp_path, run_id) if each["t"] != "attempt_end"] == before

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["function", "inline"])
def test_who_goes_on_decides_of_the_calls_that_ask(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        for how, value in (("rerun", "re: pay"), ("skip", None)):
            place = tmp_path / how
            run_id = await begun(place, "ask", mode)
            keys = {each["key"] for each in calls_of(place, run_id) if each["t"] == "started"}
            await resumed(place, run_id, mode)
            rig, result = await resumed(place, run_id, mode, repeat=how)
            assert rig.team.prompts == (["pay"] if how == "rerun" else [])
            assert (result.status, result.value) == ("completed", [value, "seen"])
            assert {each["key"] for each in calls_of(place, run_id) if each["t"] == "started"} == keys

    asyncio.run(main())


def test_a_decision_is_one_of_the_calls_that_ask_alone(tmp_path: Path) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path / "skip", "skip")
        rig, _ = await resumed(tmp_path / "skip", run_id, repeat="rerun")
        assert rig.team.asked == []
        run_id = await begun(tmp_path / "rerun", "rerun")
        rig, _ = await resumed(tmp_path / "rerun", run_id, repeat="skip")
        assert rig.team.prompts == ["pay"]

    asyncio.run(main())


@pytest.mark.parametrize("repeat", ["skip", "ask"])
def test_the_mark_is_no_part_of_the_call_and_changes_nothing_where_nothing_was_begun(
    tmp_path: Path, repeat: str
) -> None:
    async def marked(ctx: Any, args: Any) -> Any:
        return [await ctx.agent("see", repeat=repeat), await ctx.agent("new", repeat=repeat)]

    async def main() -> None:
        rig = rig_of(tmp_path, script=marked)
        first = await rig.run(None, {})
        assert rig.team.prompts == ["see", "new"]

        async def unmarked(ctx: Any, args: Any) -> Any:
            return [await ctx.agent("see"), await ctx.agent("new")]

        rig, again = await resumed(tmp_path, first.run_id, script=unmarked)
        assert rig.team.asked == []
        assert again.value == first.value

    asyncio.run(main())


@pytest.mark.parametrize("repeat", ["skip", "ask"])
def test_an_agent_that_the_provider_refused_has_done_nothing_and_runs(tmp_path: Path, repeat: str) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path, repeat, answer=refusing)
        rig, result = await resumed(tmp_path, run_id)
        assert "pay" in rig.team.prompts
        assert (result.status, result.value) == ("completed", ["re: pay", "seen"])

    asyncio.run(main())


def test_an_answer_that_is_damaged_is_not_fetched_again(tmp_path: Path) -> None:
    async def large(spec: AgentStepSpec) -> Any:
        return "x" * 300_000 if spec.prompt == "pay" else "seen"

    async def main() -> None:
        run_id = await begun(tmp_path, "skip", answer=large)
        (blob,) = [each for each in tmp_path.rglob("blobs/*") if each.is_file()]
        blob.unlink()
        rig, result = await resumed(tmp_path, run_id)
        assert rig.team.asked == []
        assert (result.value, result.counts.skipped) == ([None, "seen"], 1)

    asyncio.run(main())


def test_equal_calls_that_share_one_answer_share_the_skip_and_the_wait(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        pay = lambda: ctx.agent("pay", repeat=args["repeat"], share=True)  # noqa: E731
        return [*await ctx.parallel([pay, pay]), *await ctx.parallel([pay])]

    async def fails_at_once(spec: AgentStepSpec) -> Any:
        return failure(spec)

    async def main() -> None:
        for repeat, value in (("skip", [None] * 3), ("ask", None)):
            place = tmp_path / repeat
            rig = rig_of(place, Team(fails_at_once), script=script)
            run_id = (await rig.run(None, {"repeat": repeat})).run_id
            (path,) = place.rglob(f"{run_id}.journal.jsonl")
            # The first attempt has gone no further than to the first call.
            lines = [line for line in path.read_bytes().splitlines(True) if msgspec.json.decode(line).get("seq", 1) < 2]
            path.write_bytes(b"".join(lines))
            rig, result = await resumed(place, run_id, script=script)
            assert rig.team.asked == []
            assert result.value == value
            assert result.reason == (None if repeat == "skip" else "parked")
            rig, result = await resumed(place, run_id, script=script, repeat="rerun")
            assert rig.team.prompts == ([] if repeat == "skip" else ["pay"])

    asyncio.run(main())


def test_calls_of_a_nested_workflow_are_marked_alike(tmp_path: Path) -> None:
    async def outer(ctx: Any, args: Any) -> Any:
        try:
            return await ctx.workflow("inner", args)
        except RuntimeError as error:
            return ctx.failure(error)["agent_code"]

    async def inner(ctx: Any, args: Any) -> Any:
        return [await ctx.agent("pay", repeat=args["repeat"])]

    def rig(place: Path, team: Team | None = None) -> Rig:
        given = rig_of(place, team, script=outer)
        given.register(inner, name="inner")
        return given

    async def main() -> None:
        for repeat in ("skip", "ask"):
            place = tmp_path / repeat
            first = await rig(place, Team(breaking)).run(None, {"repeat": repeat})
            again = rig(place)
            result = await again.run(resume_from_run_id=first.run_id)
            assert again.team.asked == []
            assert result.status == ("completed" if repeat == "skip" else "paused")
            again = rig(place)
            result = await again.run(resume_from_run_id=first.run_id, repeat="rerun")
            assert result.value == ([None] if repeat == "skip" else ["re: pay"])

    asyncio.run(main())


def test_a_fork_has_begun_nothing_so_it_runs_what_was_begun_and_keeps_what_was_skipped(tmp_path: Path) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path / "ask", "ask")
        rig, result = await resumed(tmp_path / "ask", run_id, fork=True)
        assert (rig.team.prompts, result.value) == (["pay"], ["re: pay", "seen"])
        run_id = await begun(tmp_path / "skip", "skip")
        await resumed(tmp_path / "skip", run_id)
        rig, result = await resumed(tmp_path / "skip", run_id, fork=True)
        assert (rig.team.prompts, result.value) == ([], [None, "seen"])

    asyncio.run(main())


@pytest.mark.parametrize("repeat", ["skip", "ask"])
def test_a_resume_of_what_failed_obeys_the_mark(tmp_path: Path, repeat: str) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path, repeat)
        rig, result = await resumed(tmp_path, run_id, only_failed=True)
        assert rig.team.asked == []
        assert result.status == ("completed" if repeat == "skip" else "paused")

    asyncio.run(main())


def test_where_only_what_failed_may_run_a_marked_call_elsewhere_is_not_recorded(tmp_path: Path) -> None:
    async def moved(ctx: Any, args: Any) -> Any:
        return await ctx.parallel(
            [lambda: ctx.agent("see"), lambda: ctx.agent("see too"), lambda: ctx.agent("pay", repeat=args["repeat"])]
        )

    async def main() -> None:
        for repeat in ("skip", "ask"):
            place = tmp_path / repeat
            run_id = await begun(place, repeat)
            rig = rig_of(place, script=moved)
            plan = await rig.workflows.plan_async(run_id, only_failed=True)
            assert [each.action for each in plan.calls if each.label == "pay"] == ["not run"]
            result = await rig.run(resume_from_run_id=run_id, only_failed=True)
            assert "pay" not in rig.team.prompts
            assert [each.code for each in result.failures if each.label == "pay"] == ["NOT_RECORDED"]
            assert (result.counts.skipped, result.reason) == (0, None)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("repeat", "how", "action"),
    [
        ("skip", None, "skip"),
        ("skip", "rerun", "skip"),
        ("ask", None, "ask"),
        ("ask", "skip", "skip"),
        ("ask", "rerun", "re-run"),
        ("rerun", "skip", "re-run"),
    ],
)
def test_a_plan_tells_what_becomes_of_a_marked_call_and_why(tmp_path: Path, repeat: str, how: Any, action: str) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path, repeat)
        rig = rig_of(tmp_path)
        plan = await rig.workflows.plan_async(run_id, repeat=how)
        (call,) = [each for each in plan.calls if each.label == "pay"]
        assert (call.action, call.reason) == (action, "failed before: NO_ANSWER: it broke")
        assert bool(call.estimated_tokens) is (action == "re-run")
        assert plan.is_complete is (action != "re-run"), "a skip and a wait are known before"
        assert rig.team.asked == []
        _, result = await resumed(tmp_path, run_id, repeat=how)
        assert (result.counts.launched, result.counts.skipped) == (int(action == "re-run"), int(action == "skip"))

    asyncio.run(main())


def test_a_plan_of_a_fork_says_that_it_runs(tmp_path: Path) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path, "ask")
        plan = await rig_of(tmp_path).workflows.plan_async(run_id, fork=True)
        assert {each.label: each.action for each in plan.calls} == {"pay": "re-run", "see": "cached"}

    asyncio.run(main())


def test_a_replay_skips_as_a_resume_does_and_misses_what_would_wait(tmp_path: Path) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path / "skip", "skip")
        assert await replay_run(tmp_path / "skip", run_id, paying) == [None, "seen"]

        async def pay(ctx: Any, args: Any) -> Any:
            return await ctx.agent("pay", repeat="ask")

        run_id = await begun(tmp_path / "ask", "ask")
        with pytest.raises(ReplayMissError, match="'pay' at #0 would wait for a decision: failed before"):
            await replay_run(tmp_path / "ask", run_id, pay)

    asyncio.run(main())


def test_a_run_that_is_stopped_skips_nothing_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        run_id = await begun(tmp_path, "skip")

        async def stopping(ctx: Any, args: Any) -> Any:
            pauses.append(asyncio.ensure_future(rig.workflows.pause_async(run_id)))
            await asyncio.sleep(0)
            return await ctx.agent("pay", repeat="skip")

        pauses: list[Any] = []
        rig = rig_of(tmp_path, script=stopping)
        result = await rig.run(resume_from_run_id=run_id)
        await asyncio.gather(*pauses)
        assert (result.status, result.counts.skipped) == ("paused", 0)
        _, again = await resumed(tmp_path, run_id)
        assert again.counts.skipped == 1

    asyncio.run(main())


def test_a_skip_takes_no_place_of_an_agent_and_no_token(tmp_path: Path) -> None:
    async def later(ctx: Any, args: Any) -> Any:
        async def pay() -> Any:
            skipped = await ctx.agent("pay", repeat="skip")
            release.set()
            return skipped

        return await asyncio.gather(ctx.agent("slow"), pay())

    async def slow(spec: AgentStepSpec) -> Any:
        await release.wait()
        return "at last"

    release = asyncio.Event()

    async def main() -> None:
        run_id = await begun(tmp_path, "skip")
        rig = Rig(tmp_path, Team(slow), limits=WorkflowLimits(concurrency=1, max_agents=1))
        rig.register(later)
        result = await rig.run(resume_from_run_id=run_id)
        assert (result.status, result.value) == ("completed", ["at last", None])
        run_id = await begun(tmp_path, "skip")
        _, result = await resumed(tmp_path, run_id, budget_tokens=1)
        assert (result.status, result.value) == ("completed", [None, "seen"])

    asyncio.run(main())


def test_a_skip_that_cannot_be_recorded_fails_the_run_and_is_none_yet(tmp_path: Path) -> None:
    files = MemoryRuns()

    async def full(ctx: Any, args: Any) -> Any:
        files.fail_next("append")
        try:
            return await ctx.agent("pay", repeat="skip")
        except RuntimeError:
            return await ctx.agent("what is done instead")

    async def main() -> None:
        rig = Rig(tmp_path, Team(breaking), files=files)
        run_id = (await rig.run(paying, {"repeat": "skip"})).run_id
        rig = Rig(tmp_path, files=files)
        rig.register(full)
        result = await rig.run(resume_from_run_id=run_id)
        assert (result.status, result.value, result.counts.skipped) == ("failed", None, 0)
        assert result.error is not None
        assert result.error.code == "IO_ERROR"
        assert rig.team.asked == []
        rig = Rig(tmp_path, files=files)
        rig.register(paying)
        result = await rig.run(resume_from_run_id=run_id)
        assert (rig.team.asked, result.counts.skipped) == ([], 1)

    asyncio.run(main())


def test_a_decision_needs_a_run_that_was_begun_and_is_one_of_two(tmp_path: Path) -> None:
    async def main() -> None:
        rig = rig_of(tmp_path)
        await refused(rig, "bad_run_id", "demo", {"repeat": "ask"}, repeat="skip")
        given: Any = "ask"
        with pytest.raises(UsageError, match='repeat must be "rerun" or "skip", got \'ask\''):
            await rig.workflows.run_async("demo", {"repeat": "ask"}, repeat=given)

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["function", "inline"])
def test_a_mark_that_is_none_is_refused_by_name(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        result = await launched(rig_of(tmp_path, None, mode), mode, {"repeat": "maybe"})
        assert [each.message for each in result.failures] == [
            'agent(): repeat must be "rerun", "skip" or "ask", got \'maybe\''
        ]

    asyncio.run(main())
