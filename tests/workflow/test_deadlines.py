"""The time limit of an agent holds, also where its agent does not end (spec-workflow 5.7)."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.facts import Fact, UserMessaged
from fanfold.contracts.run_journal import Result, Turns
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import LifecycleError
from fanfold.kernel.run_journal import decode_line
from fanfold.orchestration.leaving import GRACE_SECONDS
from fanfold.orchestration.runner import LEFT_BEHIND
from fanfold.protocols import EventSink, StepFacts
from fanfold.testing.memory_runs import MemoryRuns
from fanfold.testing.virtual_loop import run_virtually, virtual_env
from tests.workflow.rig import META, Rig, Team, outcome

PROMPTS = ("a", "b", "c")
GONE = f"it did not end within 1000 ms; {LEFT_BEHIND}"


class Stubborn(Team):
    """Its agent `a` cannot be cancelled, as often as it is `tries`; when it is let go it tells of a turn, and so does
    every other one at once."""

    def __init__(self, tries: int = 1_000) -> None:
        super().__init__()
        self.tries = tries
        self.let_go = asyncio.Event()
        self.refused: list[str] = []
        self.kept: StepFacts | None = None

    def within(self, facts: StepFacts) -> "Stubborn":
        inner = copy.copy(self)
        inner.kept = facts
        return inner

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        self.asked.append(spec)
        is_late = spec.prompt == "a" and self.prompts.count("a") <= self.tries
        while is_late and not self.let_go.is_set():
            try:
                if events is not None:
                    events(AgentEvent(type="subagent_start", payload={"task_id": spec.task_id}))
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue
        assert self.kept is not None
        try:
            await self.kept.record([Fact(1, "m-1", None, UserMessaged("late" if is_late else "in time"))])
        except LifecycleError as error:
            self.refused.append(str(error))
        return outcome(spec, f"re: {spec.prompt}")


class Scene:
    def __init__(self, *, tries: int = 1_000, retries: int = 0) -> None:
        self.files = MemoryRuns()
        self.team = Stubborn(tries)
        self.rig = Rig(Path(), self.team, files=self.files, env=virtual_env(), limits=WorkflowLimits(concurrency=1))
        self.retries = retries
        self.rig.register(self.script)

    async def script(self, ctx: Any, args: Any) -> Any:
        limits = {"timeout_ms": 1_000, "retries": self.retries}
        return await ctx.parallel([lambda each=each: ctx.agent(each, **limits) for each in PROMPTS])

    async def let_go(self) -> None:
        self.team.let_go.set()
        await asyncio.sleep(1)

    def records(self, run_id: str) -> list[Any]:
        return [decode_line(line) for line in (self.files.journal_bytes(run_id) or b"").split(b"\n")[:-1]]


def test_an_agent_that_ignores_its_time_limit_is_left_behind_and_only_it_runs_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        made = Scene(tries=1)
        result = await made.rig.workflows.run_async(META["name"])
        assert (result.status, result.value) == ("completed_with_failures", [None, "re: b", "re: c"])
        assert [(each.code, each.message) for each in result.failures] == [("TIMEOUT", GONE)]
        ends = [each for each in made.records(result.run_id) if isinstance(each, Result)]
        assert [each.status for each in ends] == ["error", "ok", "ok"]
        assert asyncio.get_running_loop().time() == pytest.approx(1 + GRACE_SECONDS, abs=0.1)
        again = await made.rig.workflows.run_async(resume_from_run_id=result.run_id)
        assert (again.status, again.value) == ("completed", ["re: a", "re: b", "re: c"])
        assert made.team.prompts == ["a", "b", "c", "a"]
        await made.let_go()

    run_virtually(main())
    assert caplog.text.count("is left behind") == 1


def test_what_it_tells_since_is_refused_while_its_next_try_is_recorded() -> None:
    async def main() -> None:
        made = Scene(tries=1, retries=1)
        result = await made.rig.workflows.run_async(META["name"])
        assert (result.status, result.value) == ("completed", ["re: a", "re: b", "re: c"])
        await made.let_go()
        assert len(made.team.refused) == 1
        turns = [each for each in made.records(result.run_id) if isinstance(each, Turns)]
        texts = [b"".join(map(bytes, each.facts)) for each in turns]
        assert [b"in time" in text for text in texts] == [True] * 3

    run_virtually(main())


def test_every_try_has_its_time_and_its_grace() -> None:
    async def main() -> None:
        made = Scene(retries=2)
        result = await made.rig.workflows.run_async(META["name"])
        assert result.value == [None, "re: b", "re: c"]
        assert asyncio.get_running_loop().time() == pytest.approx(3 * (1 + GRACE_SECONDS), abs=0.1)
        assert made.team.prompts == ["a", "a", "a", "b", "c"]
        await made.let_go()

    run_virtually(main())


def test_a_stop_in_the_grace_ends_the_run_with_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        made = Scene(tries=1, retries=3)
        launch = await made.rig.workflows.launch_async(META["name"])
        await asyncio.sleep(2)
        assert (await made.rig.workflows.stop_async(launch.run_id)).status == "stopped"
        assert asyncio.get_running_loop().time() == pytest.approx(1 + GRACE_SECONDS, abs=0.1)
        ends = [each for each in made.records(launch.run_id) if isinstance(each, Result)]
        assert [each.status for each in ends] == ["cancelled"]
        again = await made.rig.workflows.run_async(resume_from_run_id=launch.run_id)
        assert (again.status, again.value) == ("completed", ["re: a", "re: b", "re: c"])
        assert made.team.prompts == ["a", "a", "b", "c"]
        await made.let_go()

    run_virtually(main())
    assert caplog.text.count("is left behind") == 1


@pytest.mark.parametrize("times", [1, 2, 3])
def test_however_often_a_run_is_cancelled_its_end_is_recorded_and_it_is_let_go(times: int) -> None:
    async def main() -> None:
        made = Scene(tries=1)
        launch = await made.rig.workflows.launch_async(META["name"])
        [task] = made.rig.tasks
        await asyncio.sleep(1.5)  # its first agent is in its grace
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.5)
        await asyncio.wait({task})
        await asyncio.sleep(0.1)  # who waits for it may hear of its end in any order
        summary = await made.rig.workflows.status_async(launch.run_id)
        assert (summary.status, summary.is_alive) == ("stopped", False)
        again = await made.rig.workflows.run_async(resume_from_run_id=launch.run_id)
        assert (again.status, again.value) == ("completed", ["re: a", "re: b", "re: c"])
        await made.let_go()

    run_virtually(main())
