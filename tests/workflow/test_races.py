"""Several processes at one run, in every order that seeds give (spec-workflow 5.5, 5.7, 7.37, 7.63).

Processes share a disk in memory; a VirtualLoop draws the order of whatever is ready. `FANFOLD_RACE_SEEDS`: how many.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from fanfold.contracts.run_journal import AttemptEnd, Header
from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowResult
from fanfold.errors import WorkflowInputError
from fanfold.kernel.run_journal import decode_line
from fanfold.testing.memory_runs import Change, MemoryRuns
from fanfold.testing.virtual_loop import VirtualLoop, virtual_env
from fanfold.workflow.runs import run_summary
from tests.workflow.rig import META, Answer, Rig, Team, failure

SEEDS = int(os.environ.get("FANFOLD_RACE_SEEDS", "100"))
SESSION = "s-1"


async def five(ctx: Any, args: Any) -> Any:
    found = await ctx.parallel([lambda each=each: ctx.agent(f"p{each}") for each in range(4)])
    return [*found, await ctx.agent("sum")]


PROMPTS = Counter(["p0", "p1", "p2", "p3", "sum"])


def process(files: MemoryRuns, answer: Answer | None = None, script: Any = five) -> Rig:
    rig = Rig(Path(), Team(answer), files=files, env=virtual_env(), limits=WorkflowLimits(concurrency=2))
    rig.register(script)
    return rig


def in_any_order(scenario: Callable[[Random], Awaitable[None]], seeds: int = SEEDS) -> None:
    for seed in range(seeds):
        loop = VirtualLoop(seed)
        try:
            loop.run_until_complete(scenario(Random(seed)))
            assert loop.unhandled == []
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            loop.wind_down()


def paced(dice: Random, fails: Callable[[str], bool] = lambda prompt: False) -> Answer:
    async def answer(spec: AgentStepSpec) -> Any:
        await asyncio.sleep(dice.uniform(0.1, 0.5))
        return failure(spec) if fails(spec.prompt) else f"re: {spec.prompt}"

    return answer


def slow(dice: Random) -> Callable[[Change, str], Awaitable[None]]:
    """A disk on which any change may take a while."""

    async def wait(change: Change, run_id: str) -> None:
        if dice.random() < 0.3:
            await asyncio.sleep(dice.uniform(0, 3))

    return wait


def records(files: MemoryRuns, run_id: str) -> list[Any]:
    journal = files.journal_bytes(run_id)
    assert journal is not None
    return [decode_line(line) for line in journal.split(b"\n")[:-1]]


async def cut_off_run(dice: Random, *, notify: bool = False) -> tuple[MemoryRuns, str, Counter[str]]:
    """A run whose process died with some agents done; and what is still to be asked."""
    files = MemoryRuns()
    rig = process(files, paced(dice))
    launch = await rig.workflows.launch_async(META["name"], notify=notify)
    await asyncio.sleep(dice.uniform(0.1, 0.4))
    files.crash()
    for task in rig.tasks:
        task.cancel()
        await asyncio.wait({task})
    done = [
        each for each in records(files, launch.run_id) if getattr(each, "status", "") == "ok" and hasattr(each, "seq")
    ]
    starts = {each.seq: each.label for each in records(files, launch.run_id) if hasattr(each, "label")}
    return files, launch.run_id, PROMPTS - Counter(starts[each.seq] for each in done)


async def try_to_resume(rig: Rig, run_id: str, wait: float) -> WorkflowResult | None:
    await asyncio.sleep(wait)
    try:
        return await rig.workflows.run_async(resume_from_run_id=run_id)
    except WorkflowInputError as error:
        if error.code != "already_active":
            raise
        return None


def test_of_several_that_go_on_with_one_run_each_attempt_has_a_number_of_its_own() -> None:
    wins: Counter[int] = Counter()

    async def scenario(dice: Random) -> None:
        files, run_id, left = await cut_off_run(dice)
        rigs = [process(files.another_process(before=slow(dice)), paced(dice)) for _ in range(3)]
        waits = [dice.choice([0.0, dice.uniform(0, 1.5)]) for _ in rigs]
        results = await asyncio.gather(
            *(try_to_resume(rig, run_id, wait) for rig, wait in zip(rigs, waits, strict=True))
        )
        won = [result for result in results if result is not None]
        wins[len(won)] += 1
        assert all(result.value == [f"re: {prompt}" for prompt in sorted(PROMPTS)] for result in won)
        assert Counter(prompt for rig in rigs for prompt in rig.team.prompts) == left
        attempts = [each.attempt for each in records(files, run_id) if isinstance(each, Header)]
        assert attempts == list(range(1, len(won) + 2))
        ends = [each.attempt for each in records(files, run_id) if isinstance(each, AttemptEnd)]
        assert ends == attempts[1:]
        summary = await run_summary(files, run_id)
        assert (summary.status, summary.is_alive) == ("completed", False)
        assert summary.snapshot is not None
        assert summary.snapshot.attempt == attempts[-1]

    in_any_order(scenario)
    assert len(wins) > 1, wins  # one alone, and one after the other


def test_a_stop_that_races_with_the_end_leaves_one_answer_and_no_request_behind() -> None:
    ends: Counter[str] = Counter()

    async def scenario(dice: Random) -> None:
        files = MemoryRuns()
        rig = process(files, paced(dice))
        launch = await rig.workflows.launch_async(META["name"], events=rig.events.append)
        other = process(files.another_process())
        await asyncio.sleep(dice.uniform(0, 1.6))
        end = other.workflows.stop_async if dice.random() < 0.5 else other.workflows.pause_async
        seen = (await end(launch.run_id)).status
        result = await rig.workflows.wait_async(launch.run_id)
        assert seen == result.status == rig.notification()["status"]
        ends[seen] += 1
        assert (await end(launch.run_id)).status in (seen, "paused", "stopped")
        again = process(files.another_process(), paced(dice))
        whole = await again.workflows.run_async(resume_from_run_id=launch.run_id)  # whatever was asked of the other one
        assert whole.status == "completed"
        assert (whole.counts.cached, whole.counts.launched) == (result.counts.done, 5 - result.counts.done)

    in_any_order(scenario)
    assert set(ends) == {"completed", "stopped", "paused"}, ends


def test_a_stop_of_a_dead_run_never_covers_up_what_goes_on_with_it() -> None:
    async def scenario(dice: Random) -> None:
        files, run_id, _ = await cut_off_run(dice)
        one = process(files.another_process(), paced(dice))
        other = process(files.another_process(before=slow(dice)))
        waits = [dice.uniform(0, 1) for _ in range(2)]

        async def stop() -> None:
            await asyncio.sleep(waits[0])
            await other.workflows.stop_async(run_id)

        result, _ = await asyncio.gather(try_to_resume(one, run_id, waits[1]), stop())
        summary = await run_summary(files, run_id)
        assert summary.snapshot is not None
        assert not summary.is_alive
        if result is None:
            assert (summary.status, summary.snapshot.attempt) == ("stopped", 1)
        elif result.status == "completed":
            assert summary.snapshot.counts == result.counts
            assert summary.snapshot.attempt == 2
        else:
            assert (summary.status, summary.snapshot.attempt) == ("stopped", 2)

    in_any_order(scenario)


def test_what_has_ended_is_never_told_as_cut_off() -> None:
    async def scenario(dice: Random) -> None:
        is_ending = asyncio.Event()

        async def before(change: Change, run_id: str) -> None:
            if change == "write_output":
                is_ending.set()

        files = MemoryRuns(before=before)
        rig = process(files, paced(dice))
        launch = await rig.workflows.launch_async(META["name"], notify=True)
        (task,) = rig.tasks
        told: set[str] = set()

        async def look() -> None:
            teller = process(files.another_process())
            await is_ending.wait()
            while not (task.done() and told):
                told.update(notice.text for notice in await teller.notices.pending())

        await asyncio.gather(*(look() for _ in range(8)))
        (text,) = told
        assert "<status>completed</status>" in text
        await process(files).notices.delivered(f"{launch.run_id}-1")
        assert await files.notices(SESSION) == []

    in_any_order(scenario)


def test_who_gets_a_run_later_goes_on_from_how_the_other_has_left_it() -> None:
    async def scenario(dice: Random) -> None:
        files, run_id, _ = await cut_off_run(dice)
        may_hold = asyncio.Event()

        async def before(change: Change, run_id: str) -> None:
            if change == "hold":
                await may_hold.wait()

        later = asyncio.create_task(try_to_resume(process(files.another_process(before=before)), run_id, 0))
        await asyncio.sleep(1)
        sooner = process(files.another_process())
        await sooner.workflows.run_async(resume_from_run_id=run_id, budget_tokens=777)
        may_hold.set()
        await later
        summary = await run_summary(files, run_id)
        assert summary.snapshot is not None
        assert summary.snapshot.budget is not None
        assert (summary.snapshot.attempt, summary.snapshot.budget.limit_tokens) == (3, 777)

    in_any_order(scenario, 1)
