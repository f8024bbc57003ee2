"""A run is stopped wherever it stands; agents that do not end are left behind (spec-workflow 5.7, 7.63, 7.65)."""

import asyncio
import copy
import itertools
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold import AgentDefinition, PermissionPolicy, Session, ToolOutput, ToolSpec
from fanfold.contracts.facts import Fact, UserMessaged
from fanfold.contracts.messages import ModelRequest, UserMessage
from fanfold.contracts.record import JsonObject
from fanfold.contracts.run_journal import AttemptEnd, Result, Started, Turns
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, StepOutcome
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import LifecycleError
from fanfold.kernel.run_journal import decode_line
from fanfold.orchestration.leaving import GRACE_SECONDS as AGENT_GRACE_SECONDS
from fanfold.orchestration.runner import LEFT_BEHIND
from fanfold.protocols import EventSink, StepFacts, ToolScope
from fanfold.testing import Reply, ScriptedModel, calls
from fanfold.testing.memory_runs import Change, MemoryRuns
from fanfold.testing.virtual_loop import run_virtually, virtual_env
from fanfold.workflow.attempt import GRACE_SECONDS
from tests.support.open_session import opened, until
from tests.workflow.rig import META, Rig, Team, failure, outcome

PROMPTS = ("a", "b", "c")


class Place:
    """Somewhere in a run: says when it is reached, and holds up whoever comes there until it may go on."""

    def __init__(self) -> None:
        self.is_reached = asyncio.Event()
        self.may_go = asyncio.Event()

    async def pass_by(self) -> None:
        self.is_reached.set()
        await self.may_go.wait()


class Scene:
    """A run with one place in it, of three agents one after the other, two of which may run at once."""

    def __init__(self, *, width: int = 2) -> None:
        self.place = Place()
        self.files = MemoryRuns(before=self.before)
        self.team = Team(self.answer)
        self.rig = Rig(Path(), self.team, files=self.files, limits=WorkflowLimits(concurrency=width), env=virtual_env())
        self.rig.register(self.script)

    async def before(self, change: Change, run_id: str) -> None:
        return None

    async def answer(self, spec: AgentStepSpec) -> Any:
        return f"re: {spec.prompt}"

    async def script(self, ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(each, retries=1) for each in PROMPTS])


class WaitsForItsPlace(Scene):
    def __init__(self) -> None:
        super().__init__(width=1)

    async def answer(self, spec: AgentStepSpec) -> Any:
        await self.place.pass_by()


class AgentRuns(Scene):
    async def answer(self, spec: AgentStepSpec) -> Any:
        if spec.prompt == "b":
            await self.place.pass_by()
        return f"re: {spec.prompt}"


class AgentIsTriedAgain(Scene):
    async def answer(self, spec: AgentStepSpec) -> Any:
        if spec.prompt != "b":
            return f"re: {spec.prompt}"
        if self.team.prompts.count("b") == 2:
            await self.place.pass_by()
        return failure(spec)


class RecordIsWritten(Scene):
    async def before(self, change: Change, run_id: str) -> None:
        if change == "append" and self.team.asked:
            await self.place.pass_by()


class ScriptGoesOnBehindItsAgents(Scene):
    async def script(self, ctx: Any, args: Any) -> Any:
        found = await super().script(ctx, args)
        await self.place.pass_by()
        return found


class ScriptEndsMeanwhile(ScriptGoesOnBehindItsAgents):
    async def script(self, ctx: Any, args: Any) -> Any:
        asyncio.get_running_loop().call_later(GRACE_SECONDS / 2, self.place.may_go.set)
        return await super().script(ctx, args)


SCENES = (
    WaitsForItsPlace,
    AgentRuns,
    AgentIsTriedAgain,
    RecordIsWritten,
    ScriptGoesOnBehindItsAgents,
    ScriptEndsMeanwhile,
)


def records(files: MemoryRuns, run_id: str) -> list[Any]:
    return [decode_line(line) for line in (files.journal_bytes(run_id) or b"").split(b"\n")[:-1]]


@pytest.mark.parametrize("by", ["itself", "another"])
@pytest.mark.parametrize("scene", SCENES)
def test_wherever_a_run_is_stopped_it_is_told_once_and_can_be_gone_on_with(scene: type[Scene], by: str) -> None:
    async def main() -> None:
        made = scene()
        rig, place = made.rig, made.place
        launch = await rig.workflows.launch_async(META["name"], events=rig.events.append, notify=True)
        await place.is_reached.wait()
        stopper = rig if by == "itself" else Rig(Path(), files=made.files.another_process(), env=virtual_env())
        stopping = asyncio.create_task(stopper.workflows.stop_async(launch.run_id))
        if scene is RecordIsWritten:
            await asyncio.sleep(1)
            place.may_go.set()  # the disk is only slow
        loop = asyncio.get_running_loop()
        begun = loop.time()
        summary = await stopping
        assert loop.time() - begun <= GRACE_SECONDS + 1
        result = await rig.workflows.wait_async(launch.run_id)
        assert (summary.status, result.status, result.reason) == ("stopped", "stopped", "requested")
        assert not summary.is_alive
        assert rig.notification()["status"] == "stopped"
        (notice,) = await rig.notices.pending()
        assert "<status>stopped</status>" in notice.text
        found = records(made.files, launch.run_id)
        assert [each.status for each in found if isinstance(each, AttemptEnd)] == ["stopped"]
        done = [each for each in found if isinstance(each, Result) and each.status == "ok"]
        started = [each for each in found if isinstance(each, Started)]
        assert (len(started), len(done)) == (result.counts.launched, result.counts.done)
        assert set(made.team.prompts) <= {each.label for each in started}
        again = Rig(Path(), files=made.files.another_process(), env=virtual_env())
        again.register(Scene.script.__get__(made))
        whole = await again.workflows.run_async(resume_from_run_id=launch.run_id, strict=True)
        assert (whole.status, whole.value) == ("completed", [f"re: {each}" for each in PROMPTS])
        assert len(again.team.asked) == 3 - len(done)

    run_virtually(main())


def test_a_stop_that_comes_behind_the_script_leaves_the_run_as_it_ended() -> None:
    async def main() -> None:
        made = Scene()
        place = made.place

        async def before(change: Change, run_id: str) -> None:
            if change == "write_output":
                await place.pass_by()

        made.before = before  # type: ignore[method-assign]
        made.files = MemoryRuns(before=before)
        rig = Rig(Path(), made.team, files=made.files, env=virtual_env())
        rig.register(made.script)
        launch = await rig.workflows.launch_async(META["name"], events=rig.events.append)
        await place.is_reached.wait()
        stopping = asyncio.create_task(rig.workflows.stop_async(launch.run_id))
        await asyncio.sleep(1)
        place.may_go.set()
        assert (await stopping).status == "completed"
        assert rig.notification()["status"] == "completed"

    run_virtually(main())


# ---- agents that do not end -----------------------------------------------------------------------------------------


async def ignores_everything(spec: AgentStepSpec) -> Any:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def test_an_agent_that_ignores_its_cancellation_is_left_behind_and_marked(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        files = MemoryRuns()
        rig = Rig(Path(), Team(ignores_everything), files=files, env=virtual_env())
        made = Scene()
        rig.register(made.script)
        launch = await rig.workflows.launch_async(META["name"], events=rig.events.append)
        await asyncio.sleep(1)
        assert rig.team.in_flight == 3
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert (await rig.workflows.stop_async(launch.run_id)).status == "stopped"
        assert loop.time() - begun == pytest.approx(AGENT_GRACE_SECONDS, abs=0.1)
        assert rig.team.in_flight == 3  # nobody can end them
        ends = [each for each in records(files, launch.run_id) if isinstance(each, Result)]
        assert [(each.status, each.error.message if each.error else "") for each in ends] == [
            ("cancelled", f"{CANCELLED}; {LEFT_BEHIND}")
        ] * 3
        assert rig.notification()["status"] == "stopped"
        again = Rig(Path(), files=files, env=virtual_env())
        again.register(made.script)
        assert (await again.workflows.run_async(resume_from_run_id=launch.run_id)).status == "completed"

    run_virtually(main())
    assert caplog.text.count("is left behind") == 3


def test_one_that_was_skipped_and_does_not_end_holds_nobody_up() -> None:
    async def answer(spec: AgentStepSpec) -> Any:
        return await ignores_everything(spec) if spec.prompt == "b" else f"re: {spec.prompt}"

    async def main() -> None:
        made = Scene()
        rig = Rig(Path(), Team(answer), files=made.files, env=virtual_env(), limits=WorkflowLimits(concurrency=1))
        rig.register(made.script)
        launch = await rig.workflows.launch_async(META["name"])
        await asyncio.sleep(1)
        assert await rig.workflows.skip_async(launch.run_id, "/0.1#0")
        result = await rig.workflows.wait_async(launch.run_id)
        assert (result.status, result.value) == ("completed", ["re: a", None, "re: c"])

    run_virtually(main())


def test_an_agent_that_its_script_waits_for_no_longer_is_ended_first() -> None:
    ended: list[str] = []

    async def answer(spec: AgentStepSpec) -> Any:
        try:
            return await ignores_everything(spec) if spec.prompt == "stubborn" else await asyncio.Event().wait()
        finally:
            ended.append(spec.prompt)

    async def script(ctx: Any, args: Any) -> Any:
        loop = asyncio.get_running_loop()
        took: list[float] = []
        for prompt in ("willing", "stubborn"):
            begun = loop.time()
            try:
                await asyncio.wait_for(ctx.agent(prompt), 1)
            except TimeoutError:
                took.append(loop.time() - begun)
            ended.append(f"end of {prompt}")
        return took

    async def main() -> None:
        rig = Rig(Path(), Team(answer), files=MemoryRuns(), env=virtual_env(), limits=WorkflowLimits(concurrency=1))
        result = await rig.run(script)
        assert result.value == pytest.approx([1, 1 + AGENT_GRACE_SECONDS])
        assert ended == ["willing", "end of willing", "end of stubborn"]

    run_virtually(main())


class Late(Team):
    """Its agent `b` cannot be cancelled; when it is let go it tells of a turn. `c` takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()
        self.came_to: list[str] = []
        self.kept: StepFacts | None = None

    def within(self, facts: StepFacts) -> "Late":
        inner = copy.copy(self)
        inner.kept = facts
        return inner

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        while spec.prompt == "b" and not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue
        if spec.prompt == "b":
            assert self.kept is not None
            try:
                await self.kept.record([Fact(1, "m-1", None, UserMessaged("late"))])
            except LifecycleError as error:
                self.came_to.append(str(error))
        else:
            await asyncio.sleep(10 if spec.prompt == "c" else 0)
        return outcome(spec, f"re: {spec.prompt}")


def test_what_was_left_behind_writes_nothing_any_more() -> None:
    async def main() -> None:
        made, team = Scene(), Late()
        rig = Rig(Path(), team, files=made.files, env=virtual_env())
        rig.register(made.script)
        launch = await rig.workflows.launch_async(META["name"])
        await asyncio.sleep(1)
        assert await rig.workflows.skip_async(launch.run_id, "/0.1#0")
        await asyncio.sleep(2 * AGENT_GRACE_SECONDS)
        team.let_go.set()
        result = await rig.workflows.wait_async(launch.run_id)
        assert (result.status, result.value) == ("completed", ["re: a", None, "re: c"])
        assert len(team.came_to) == 1
        assert not any(isinstance(each, Turns) for each in records(made.files, launch.run_id))

    run_virtually(main())


# ---- in a session ---------------------------------------------------------------------------------------------------

WORKER = AgentDefinition(name="worker", description="works with a tool", tools=("hold", "bash"))


class Hold:
    """A tool that goes on in its own way."""

    spec = ToolSpec(name="hold", description="", parameters={"type": "object"}, is_read_only=True)

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self._work = work
        self.runs = 0

    async def run(self, args: JsonObject, scope: ToolScope) -> ToolOutput:
        self.runs += 1
        await self._work()
        return ToolOutput(output="held")


def model_of(*wanted: tuple[str, JsonObject]) -> ScriptedModel:
    """Its agents call each tool that is `wanted`, if their prompt is `hold on`."""

    def answer(request: ModelRequest) -> Reply:
        assert request.transcript is not None
        message = request.transcript.message
        is_held = isinstance(message, UserMessage) and message.text == "hold on"
        return calls(*wanted) if is_held else Reply(text="done")

    return ScriptedModel(answer)


async def holding(ctx: Any, args: Any) -> Any:
    return await ctx.agent(args["prompt"], agent_type="worker")


async def stopped_while_held(session: Session, is_held: Callable[[], Any]) -> float:
    """The seconds that it took to stop a run whose agent is held up by its tool; another run has its place then."""
    session.workflows.register({"name": "holding", "description": "holds"}, holding)
    launch = await session.workflows.launch_async("holding", {"prompt": "hold on"})
    await until(is_held)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert (await session.workflows.stop_async(launch.run_id)).status == "stopped"
    took = loop.time() - begun
    assert took < GRACE_SECONDS
    async with asyncio.timeout(10):
        other = await session.workflows.run_async("holding", {"prompt": "be quick"})
    assert (other.status, other.value) == ("completed", "done")
    return took


def test_a_tool_that_ignores_its_cancellation_keeps_no_place_of_the_session(tmp_path: Path) -> None:
    async def main() -> None:
        let_go = asyncio.Event()

        async def ignores() -> None:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue

        tool = Hold(ignores)
        model = model_of(("hold", {}))
        async with opened(tmp_path, model, tool, agents={"worker": WORKER}, max_parallel_tasks=1) as session:
            try:
                await stopped_while_held(session, lambda: tool.runs)
            finally:
                let_go.set()
            await session.settled_async()
            assert await session.parallel_async(
                [{"task_id": "t", "agent": "worker", "description": "d", "prompt": "p"}]
            )

    asyncio.run(main())


def test_a_tool_that_waits_for_a_thread_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    async def main() -> None:
        let_go = threading.Event()
        tool = Hold(lambda: asyncio.to_thread(let_go.wait))
        model = model_of(("hold", {}))
        try:
            async with opened(tmp_path, model, tool, agents={"worker": WORKER}, max_parallel_tasks=1) as session:
                assert await stopped_while_held(session, lambda: tool.runs) < AGENT_GRACE_SECONDS
        finally:
            let_go.set()

    asyncio.run(main())


@pytest.mark.skipif(os.name != "posix", reason="bash needs a POSIX system")
def test_nothing_that_a_command_has_started_outlives_the_stop(tmp_path: Path) -> None:
    mark = f"9{os.getpid()}{id(tmp_path)}"
    command = f"trap '' TERM; sleep {mark} & (trap '' TERM; sleep {mark}) & echo up > up; sleep {mark}"

    def running() -> list[str]:
        found: list[str] = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it ended while we looked
            found += [entry.name] * (f"sleep\0{mark}".encode() in line)
        return found

    async def main() -> None:
        model = model_of(("bash", {"command": command}))
        options: dict[str, Any] = {"allow_unsandboxed_bash": True, "permission_policy": PermissionPolicy(allow=("*",))}
        async with opened(tmp_path, model, agents={"worker": WORKER}, **options) as session:
            took = await stopped_while_held(session, lambda: (tmp_path / "up").exists() and len(running()) >= 2)
            assert took < AGENT_GRACE_SECONDS
            assert running() == []

    asyncio.run(main())


def test_a_run_is_stopped_while_an_answer_is_repaired(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("count", schema={"type": "object", "required": ["n"]})

    async def main() -> None:
        asked = itertools.count()
        is_repairing = asyncio.Event()

        async def answer(request: ModelRequest) -> Reply:
            if next(asked) == 1:
                is_repairing.set()
                await asyncio.Event().wait()
            return Reply(text="many" if not is_repairing.is_set() else '{"n": 3}')

        async with opened(tmp_path, ScriptedModel(answer)) as session:
            session.workflows.register({"name": "count", "description": "counts"}, script)
            launch = await session.workflows.launch_async("count", notify=True)
            await is_repairing.wait()
            assert (await session.workflows.stop_async(launch.run_id)).status == "stopped"
            assert (await session.workflows.wait_async(launch.run_id)).total_usage.total_tokens >= 15
            again = await session.workflows.run_async(resume_from_run_id=launch.run_id)
            assert (again.status, again.value) == ("completed", {"n": 3})

    asyncio.run(main())
