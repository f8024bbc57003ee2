"""Which recorded answer a call gets: its own, by what it means and where it stands (spec-workflow 5.3, 7.8-7.18)."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from tests.workflow.rig import Rig, Team, failure


def numbered() -> Team:
    """Equal prompts get different answers."""
    numbers = itertools.count()

    async def answer(spec: AgentStepSpec) -> str:
        return f"{spec.prompt}/{next(numbers)}"

    return Team(answer)


async def resumed(place: Path, run_id: str, script: Any, team: Team | None = None, **more: Any) -> tuple[Any, Team]:
    rig = Rig(place, team or numbered(), **more)
    rig.register(script)
    return await rig.workflows.run_async(resume_from_run_id=run_id), rig.team


def test_equal_calls_in_sequence_have_an_answer_each_and_keep_them(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return [await ctx.agent("vote") for _ in range(3)]

    async def main() -> None:
        first = await Rig(tmp_path, numbered()).run(script)
        assert first.value == ["vote/0", "vote/1", "vote/2"]
        again, team = await resumed(tmp_path, first.run_id, script)
        assert (again.value, team.asked, again.usage.total_tokens) == (first.value, [], 0)
        assert (again.counts.cached, again.counts.launched) == (3, 0)

    asyncio.run(main())


def test_equal_calls_at_once_keep_their_answers_whatever_order_they_end_in(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("vote") for _ in range(5)])

    async def main() -> None:
        started: list[asyncio.Event] = []

        async def answer(spec: AgentStepSpec) -> str:
            own, number = asyncio.Event(), len(started)
            started.append(own)
            if len(started) == 5:
                started[-1].set()
            await own.wait()
            if number:
                started[number - 1].set()  # the last one that began ends first
            return f"answer {number}"

        first = await Rig(tmp_path, Team(answer)).run(script)
        assert first.value == [f"answer {number}" for number in range(5)]
        again, team = await resumed(tmp_path, first.run_id, script)
        assert (again.value, team.asked) == (first.value, [])

    asyncio.run(main())


def test_of_five_equal_voters_only_the_two_that_failed_run_again(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("vote") for _ in range(5)])

    async def main() -> None:
        numbers = itertools.count()

        async def answer(spec: AgentStepSpec) -> Any:
            number = next(numbers)
            return failure(spec) if number in (1, 3) else f"vote {number}"

        first = await Rig(tmp_path, Team(answer)).run(script)
        assert first.value == ["vote 0", None, "vote 2", None, "vote 4"]
        assert first.status == "completed_with_failures"
        again, team = await resumed(tmp_path, first.run_id, script)
        assert len(team.asked) == 2
        assert again.status == "completed"
        assert {"vote 0", "vote 2", "vote 4"} < set(again.value)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"label": "a"}, {"label": "b"}),
        ({"phase": "a"}, {"phase": "b"}),
        ({"timeout_ms": 1000}, {"timeout_ms": 2000}),
        ({}, {"retries": 2}),
    ],
)
def test_what_is_no_part_of_the_meaning_costs_nothing(tmp_path: Path, before: Any, after: Any) -> None:
    _changed(tmp_path, before, after, live=0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"model": "test/two"}),
        ({}, {"schema": {"type": "object"}}),
        ({"schema": {"type": "object"}}, {"schema": {"type": "object", "required": ["a"]}}),  # the answer has one
        ({}, {"agent_type": "explore"}),
        ({}, {"max_steps": 3}),
        ({}, {"isolation": "worktree"}),
    ],
)
def test_what_is_a_part_of_the_meaning_runs_that_call_alone(tmp_path: Path, before: Any, after: Any) -> None:
    _changed(tmp_path, before, after, live=1)


def _changed(place: Path, before: Any, after: Any, *, live: int) -> None:
    def made(options: Any) -> Any:
        async def script(ctx: Any, args: Any) -> Any:
            return [await ctx.agent("same"), await ctx.agent("one", **options), await ctx.agent("other")]

        return script

    async def answer(spec: AgentStepSpec) -> Any:
        return {"a": 1} if spec.output_schema is not None else "text"

    async def main() -> None:
        first = await Rig(place, Team(answer)).run(made(before))
        again, team = await resumed(place, first.run_id, made(after), Team(answer))
        assert len(team.asked) == live
        assert again.counts.cached == 3 - live

    asyncio.run(main())


def test_agents_of_two_names_that_are_the_same_otherwise_are_asked_two_calls(tmp_path: Path) -> None:
    async def main() -> None:
        def made(name: str) -> Any:
            async def script(ctx: Any, args: Any) -> Any:
                return await ctx.agent("one", agent_type=name)

            return script

        same = {"reader": "reads", "looker": "reads"}
        first = await Rig(tmp_path, agents=same).run(made("reader"))
        rig = Rig(tmp_path, agents=same)
        rig.register(made("looker"))
        assert (await rig.run(resume_from_run_id=first.run_id)).counts.launched == 1

    asyncio.run(main())


@pytest.mark.parametrize("texts", [("\u00e9", "e\u0301"), ("a", "a "), ("a\n", "a\r\n")])
def test_texts_that_look_alike_are_two_calls(tmp_path: Path, texts: tuple[str, str]) -> None:
    async def main() -> None:
        async def first_script(ctx: Any, args: Any) -> Any:
            return await ctx.agent(texts[0])

        async def second_script(ctx: Any, args: Any) -> Any:
            return await ctx.agent(texts[1])

        first = await Rig(tmp_path).run(first_script)
        _, team = await resumed(tmp_path, first.run_id, second_script)
        assert team.prompts == [texts[1]]

    asyncio.run(main())


def test_another_model_or_agent_behind_the_same_name_is_another_call(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("one")

    async def main() -> None:
        first = await Rig(tmp_path).run(script)
        for changed in ({"model": "test/two"}, {"agents": {"general": "another prompt"}}):
            _, team = await resumed(tmp_path, first.run_id, script, **changed)
            assert team.prompts == ["one"]

    asyncio.run(main())


def test_a_call_that_is_gone_is_reported_and_the_others_are_not_touched(tmp_path: Path) -> None:
    async def long(ctx: Any, args: Any) -> Any:
        return [await ctx.agent(name) for name in ("a", "b", "c")]

    async def short(ctx: Any, args: Any) -> Any:
        return [await ctx.agent(name) for name in ("a", "c")]

    async def main() -> None:
        first = await Rig(tmp_path).run(long)
        again, team = await resumed(tmp_path, first.run_id, short)
        assert (team.asked, again.counts.unclaimed) == ([], 1)

    asyncio.run(main())


def test_calls_that_are_inserted_or_moved_cost_only_themselves(tmp_path: Path) -> None:
    def asking(*prompts: str) -> Any:
        async def script(ctx: Any, args: Any) -> Any:
            return await ctx.parallel([lambda each=each: ctx.agent(each) for each in prompts])

        return script

    async def main() -> None:
        first = await Rig(tmp_path).run(asking("a", "b", "c"))
        again, team = await resumed(tmp_path, first.run_id, asking("c", "new", "a", "b"))
        assert team.prompts == ["new"]
        assert again.counts.cached == 3

    asyncio.run(main())


def test_a_nested_workflow_asks_for_itself(tmp_path: Path) -> None:
    async def inner(ctx: Any, args: Any) -> Any:
        return await ctx.agent("same")

    async def outer(ctx: Any, args: Any) -> Any:
        return [await ctx.agent("same"), await ctx.workflow("inner", {})]

    async def main() -> None:
        rig = Rig(tmp_path, numbered())
        rig.register(inner, name="inner")
        first = await rig.run(outer)
        assert first.value == ["same/0", "same/1"]
        rig = Rig(tmp_path, numbered())
        rig.register(inner, name="inner")
        rig.register(outer)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert (again.value, again.counts.cached, rig.team.asked) == (first.value, 2, [])

    asyncio.run(main())


def test_shared_calls_have_one_answer_and_a_copy_each(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        schema = {"type": "object"}
        found = await ctx.parallel([lambda: ctx.agent("one", schema=schema, share=True) for _ in range(4)])
        for number, each in enumerate(found):
            each["mine"] = number
        return [*found, await ctx.agent("one", schema=schema, share=True)]

    async def answer(spec: AgentStepSpec) -> Any:
        return {"a": [1]}

    async def main() -> None:
        team = Team(answer)
        result = await Rig(tmp_path, team).run(script)
        assert len(team.asked) == 1
        assert result.value == [*({"a": [1], "mine": number} for number in range(4)), {"a": [1]}]

    asyncio.run(main())


def test_a_legitimate_none_replays_and_an_error_runs_again(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda: ctx.agent("null", schema=True), lambda: ctx.agent("bad")])

    async def answer(spec: AgentStepSpec) -> Any:
        from tests.workflow.rig import outcome

        return failure(spec) if spec.prompt == "bad" else outcome(spec, [None])

    async def main() -> None:
        async def nothing(spec: AgentStepSpec) -> Any:
            from fanfold.contracts.steps import StepOutcome

            if spec.prompt == "bad":
                return failure(spec)
            return StepOutcome(task_id=spec.task_id, agent=spec.agent, output="null", success=True)

        first = await Rig(tmp_path, Team(nothing)).run(script)
        assert (first.value, first.counts.null_results) == ([None, None], 1)
        _, team = await resumed(tmp_path, first.run_id, script, Team(nothing))
        assert team.prompts == ["bad"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("prompt", "options", "named"),
    [
        ("", {}, "prompt"),
        (7, {}, "prompt"),
        ("\ud800", {}, "surrogates"),
        ("p", {"schme": {}}, "schema"),
        ("p", {"schema": 3}, "schema"),
        ("p", {"schema": {"type": "nonsense"}}, "schema"),
        ("p", {"schema": {"enum": []}}, "schema"),
        ("p", {"max_steps": -1}, "max_steps"),
        ("p", {"max_steps": True}, "max_steps"),
        ("p", {"timeout_ms": 0}, "timeout_ms"),
        ("p", {"isolation": "vm"}, "isolation"),
        ("p", {"share": 1}, "share"),
        ("p", {"label": " "}, "label"),
    ],
)
def test_a_call_that_cannot_be_meant_so_is_refused_by_name(
    tmp_path: Path, prompt: Any, options: Any, named: str
) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent(prompt, **options)

    async def main() -> None:
        rig = Rig(tmp_path)
        result = await rig.run(script)
        assert result.status == "failed"
        assert result.error is not None
        assert result.error.code == "bad_call"
        assert named in result.error.message
        assert rig.team.asked == []

    asyncio.run(main())
