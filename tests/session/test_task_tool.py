"""Laws of the `task` tool: what it takes, how its children run, and what its caller is told."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent
from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.events import AgentEvent, event
from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import SessionRetentionLimits
from fanfold.contracts.steps import CANCELLED, AgentStepSpec, SourceAnchor, StepOutcome, child_session_id, failed
from fanfold.delegation.builtin_agents import BUILTIN_AGENTS
from fanfold.delegation.task_report import CONTEXT_BYTES, shown
from fanfold.delegation.task_tool import TaskTool
from fanfold.delegation.tracker import Tracker
from fanfold.env import HostEnv, SequentialIds
from fanfold.errors import SessionClosedError
from fanfold.kernel.schema import compile_schema
from fanfold.orchestration.control import FanOutControl
from fanfold.protocols import AgentExecutor, EventSink, ToolScope
from fanfold.testing import ManualClock, Reply, ScriptedModel, echo
from fanfold.testing.virtual_loop import run_virtually
from fanfold.tools.artifacts import keep_text
from fanfold.tools.read import read
from fanfold.tools.workspace import Workspace
from tests.support.host_executor import HostExecutor, done

SESSION = "parent"


class Told:
    """What the caller's session hears."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []

    def scope(self) -> ToolScope:
        return ToolScope(session_id=SESSION, call_id="c", idempotency_key="k", emit=self.events.append)

    def types(self, task_id: str) -> list[str]:
        return [each.type for each in self.events if each.payload.get("task_id") == task_id]


class ChildExecutor:
    """Tells of its children as the session's own executor does, and has places for some of them at once."""

    def __init__(
        self, answer: Callable[[AgentStepSpec], Any] = lambda spec: f"did {spec.prompt}", places: int = 8
    ) -> None:
        self._answer = answer
        self._places = asyncio.Semaphore(places)
        self._limit = places
        self.tracker = Tracker(SessionRetentionLimits(), ManualClock(1))
        self.running: set[str] = set()

    def concurrency_hint(self) -> int:
        return self._limit

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        who: JsonObject = {
            "task_id": spec.task_id,
            "session_id": child_session_id(spec.task_id),
            "agent": spec.agent,
        }
        async with self._places:
            self._tell(events, event("subagent_start", **who, parent_session_id="", description="", started_ms=1))
            self.running.add(spec.prompt)
            outcome = failed(spec, CANCELLED)
            try:
                answer = self._answer(spec)
                answer = await answer if isinstance(answer, Awaitable) else answer
                outcome = answer if isinstance(answer, StepOutcome) else done(spec, answer)
            finally:
                self.running.discard(spec.prompt)
                ended = {"output": outcome.output, "success": outcome.success, "finished_ms": 2}
                self._tell(events, event("subagent_end", **who, **ended))
            return outcome

    def _tell(self, events: EventSink | None, item: AgentEvent) -> None:
        self.tracker(item)
        if events is not None:
            events(item)


def tool(executor: AgentExecutor, **more: Any) -> TaskTool:
    env = HostEnv(clock=ManualClock(), ids=SequentialIds("id"))
    return TaskTool(executor=executor, env=env, agents=more.pop("agents", BUILTIN_AGENTS), **more)


def item(prompt: str = "p", agent: str = "explore", **more: Any) -> JsonObject:
    return {"agent": agent, "description": f"about {prompt}", "prompt": prompt, **more}


def tasks(count: int, **options: Any) -> JsonObject:
    return {"tasks": [item(f"p{number}") for number in range(count)], **options}


def run(executor: AgentExecutor, args: JsonObject, told: Told | None = None, **more: Any) -> ToolOutput:
    return asyncio.run(tool(executor, **more).run(args, (told or Told()).scope()))


async def forever(spec: AgentStepSpec) -> str:
    await asyncio.Event().wait()
    return "never"


def some_fail(*prompts: str) -> Callable[[AgentStepSpec], StepOutcome]:
    def answer(spec: AgentStepSpec) -> StepOutcome:
        return failed(spec, f"Task failed: {spec.prompt}") if spec.prompt in prompts else done(spec, spec.prompt)

    return answer


def some_hang(*prompts: str) -> Callable[[AgentStepSpec], Any]:
    return lambda spec: forever(spec) if spec.prompt in prompts else f"did {spec.prompt}"


# ---- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"tasks": []}, "task requires at least 1 task"),
        (tasks(33), "task accepts at most 32 tasks"),
        (tasks(1, timeout_ms=0), "task timeout_ms must be at least 1"),
        (tasks(2, min_success_count=1), "task min_success_count requires allow_partial_failure=true"),
        (
            tasks(2, min_success_count=3, allow_partial_failure=True),
            "task min_success_count must be between 1 and the task count (2)",
        ),
        (
            tasks(2, min_success_count=0, allow_partial_failure=True),
            "task min_success_count must be between 1 and the task count (2)",
        ),
        (
            {"tasks": [item(), item(background=True)]},
            "task 2 sets background=true, which only a call with a single task can; call task for it alone",
        ),
        ({}, "Invalid task parameters: Object missing required field `tasks`"),
        (tasks(1, when="now"), "Invalid task parameters: Object contains unknown field `when`"),
        (
            {"tasks": [item(), {"agent": "plan", "description": "d"}]},
            "Invalid task parameters: tasks[1]: Object missing required field `prompt`",
        ),
        (
            {"tasks": [item(model="a/b")]},
            "Invalid task parameters: tasks[0]: Object contains unknown field `model`",
        ),
        ({"tasks": [item(max_steps="5")]}, "Invalid task parameters: tasks[0].max_steps: Expected `int | null`, got"),
        ({"tasks": [item(max_steps=-1)]}, "Invalid task parameters: tasks[0].max_steps: must be 0 or more, got -1"),
        ({"tasks": [item(output_schema={"type": "no"})]}, "Invalid task parameters: tasks[0].output_schema: schema at"),
        ({"tasks": item()}, "Invalid task parameters: tasks: Expected `array`, got `object`"),
        (tasks(1, timeout_ms=10**12), "Invalid task parameters: timeout_ms: Expected `int` <= 1000000000"),
    ],
)
def test_a_call_that_cannot_be_meant_so_starts_nothing(args: JsonObject, says: str) -> None:
    executor, told = HostExecutor(), Told()
    output = run(executor, args, told)
    assert output.output.startswith(says)
    assert output.exit_code == 1
    assert output.metadata["error_kind"] == {"kind": "invalid_argument", "message": output.output}
    assert (executor.started, told.events) == ([], [])


def test_what_the_tool_words_better_passes_the_schema_of_its_parameters() -> None:
    schema = compile_schema(tool(HostExecutor()).spec.parameters)
    accepted: list[JsonObject] = [
        {"tasks": []},
        tasks(33),
        tasks(1, timeout_ms=0),
        item(),
        tasks(1, min_success_count=9),
    ]
    for args in accepted:
        assert schema.validate(args) == ()
    assert schema.validate({"tasks": [{"agent": "plan"}]}) != ()


def test_a_single_task_may_stand_for_the_list_of_it() -> None:
    executor = HostExecutor()
    output = run(executor, {**item("one"), "timeout_ms": 5_000, "max_steps": None})
    assert (output.output, executor.started) == ("did one", ["task-id-0"])


def test_the_most_tasks_that_are_allowed_run() -> None:
    executor = HostExecutor()
    assert run(executor, tasks(32)).metadata["success_count"] == 32
    assert len(set(executor.started)) == 32


def test_a_model_is_told_of_the_agents_that_there_are_but_not_of_hidden_ones() -> None:
    agents: dict[str, AgentDefinition] = {
        "plan": BUILTIN_AGENTS["plan"],
        "long": AgentDefinition(name="long", description="many\n words " * 100),
        "secret": AgentDefinition(name="secret", description="s", is_hidden=True),
    }
    named = tool(HostExecutor(), agents=agents)
    assert (named.spec.name, named.spec.is_read_only, named.spec.is_parallel_safe) == ("task", True, True)
    lines = named.spec.description.split("Agents:\n")[1].split("\n")
    assert lines[0] == f"- plan: {BUILTIN_AGENTS['plan'].description}"
    assert (len(lines), len(lines[1])) == (2, len("- long: ") + 300)
    agents["late"] = AgentDefinition(name="late", description="came later")
    assert "- late: came later" in named.spec.description


# ---- children -------------------------------------------------------------------------------------------------------


def test_tasks_run_together_and_their_results_keep_the_order_of_the_call() -> None:
    async def main() -> ToolOutput:
        second_ran = asyncio.Event()

        async def answer(spec: AgentStepSpec) -> str:
            if spec.prompt == "p0":
                await second_ran.wait()
            second_ran.set()
            return spec.prompt

        return await tool(HostExecutor(answer)).run(tasks(3), Told().scope())

    output = asyncio.run(main())
    rows: Any = output.metadata["results"]
    assert [row["output_excerpt"] for row in rows] == ["p0", "p1", "p2"]
    assert output.output == (
        "3 of 3 tasks succeeded.\n\n"
        "## 1. explore: about p0 (succeeded)\np0\n\n"
        "## 2. explore: about p1 (succeeded)\np1\n\n"
        "## 3. explore: about p2 (succeeded)\np2"
    )


def test_what_a_task_says_is_what_its_step_is() -> None:
    specs: list[AgentStepSpec] = []

    def answer(spec: AgentStepSpec) -> StepOutcome:
        specs.append(spec)
        return done(spec, "x")

    schema = {"type": "object"}
    run(HostExecutor(answer), {"tasks": [item("one", "plan", max_steps=3, output_schema=schema)]})
    assert specs == [
        AgentStepSpec(
            task_id="task-id-0",
            agent="plan",
            description="about one",
            prompt="one",
            max_steps=3,
            output_schema=schema,
            parent_session_id=SESSION,
        )
    ]


def test_the_executors_limit_holds() -> None:
    executor = HostExecutor(hint=3)
    run(executor, tasks(20))
    assert executor.most_running == 3


def test_one_failure_fails_the_call_but_no_sibling() -> None:
    output = run(HostExecutor(some_fail("p1")), tasks(3))
    assert output.exit_code == 1
    assert output.metadata["error_kind"] == {"kind": "partial_failure", "failed": 1, "total": 3}
    assert output.output.startswith("2 of 3 tasks succeeded.")
    assert "## 2. explore: about p1 (failed)\nTask failed: p1" in output.output


@pytest.mark.parametrize(
    ("failing", "options", "exit_code"),
    [
        (("p0", "p1"), {"allow_partial_failure": True}, 0),
        (("p0", "p1", "p2"), {"allow_partial_failure": True}, 1),
        (("p0",), {"allow_partial_failure": True, "min_success_count": 2}, 0),
        (("p0", "p1"), {"allow_partial_failure": True, "min_success_count": 2}, 1),
        ((), {}, 0),
        (("p2",), {"allow_partial_failure": False}, 1),
    ],
)
def test_how_many_have_to_succeed_is_the_callers(failing: Sequence[str], options: JsonObject, exit_code: int) -> None:
    output = run(HostExecutor(some_fail(*failing)), tasks(3, **options))
    assert output.exit_code == exit_code
    assert output.metadata["partial_failure"] == (0 < len(failing) < 3)


def test_the_metadata_tell_the_whole_call() -> None:
    output = run(HostExecutor(some_fail("p1")), tasks(2, allow_partial_failure=True, timeout_ms=60_000))
    metadata = dict(output.metadata)
    rows = metadata.pop("results")
    assert metadata == {
        "task_count": 2,
        "result_count": 2,
        "success_count": 1,
        "failed_count": 1,
        "all_success": False,
        "partial_failure": True,
        "allow_partial_failure": True,
        "timeout_ms": 60_000,
        "timed_out": False,
        "min_success_count": None,
        "returned_early": False,
        "duration_ms": 0,
    }
    assert isinstance(rows, list)
    usage = rows[0].pop("usage")
    assert usage["total_tokens"] == 10
    assert rows[0] == {
        "task_id": "task-id-0",
        "session_id": "task-run-task-id-0",
        "agent": "explore",
        "success": True,
        "output_excerpt": "p0",
        "output_bytes": 2,
        "truncated_for_context": False,
        "artifact_id": "task-output:task-id-0",
        "artifact_uri": "a3s://tasks/task-run-task-id-0/runs/task-id-0/output",
    }
    assert (rows[1]["success"], rows[1]["error_message"]) == (False, "Task failed: p1")
    json.dumps(output.metadata)


def test_a_single_task_has_its_result_as_metadata() -> None:
    def answer(spec: AgentStepSpec) -> StepOutcome:
        return StepOutcome(task_id=spec.task_id, agent=spec.agent, output="{}", success=True, structured={"yes": True})

    output = run(HostExecutor(answer), tasks(1))
    assert (output.output, output.metadata["task_id"], output.metadata["structured"]) == (
        "{}",
        "task-id-0",
        {"yes": True},
    )
    assert "results" not in output.metadata


def test_anchors_are_bounded_over_the_call_and_those_of_successes_come_first() -> None:
    def answer(spec: AgentStepSpec) -> StepOutcome:
        anchors = tuple(SourceAnchor(tool="read", url_or_path=f"{spec.prompt}/{number}") for number in range(40))
        return StepOutcome(
            task_id=spec.task_id, agent="a", output="x", success=spec.prompt != "p0", source_anchors=anchors
        )

    rows: Any = run(HostExecutor(answer), tasks(3)).metadata["results"]
    assert [len(row.get("source_anchors", ())) for row in rows] == [0, 40, 24]


# ---- long texts -----------------------------------------------------------------------------------------------------


def test_a_long_text_is_shown_by_its_ends() -> None:
    assert shown("x" * CONTEXT_BYTES) == "x" * CONTEXT_BYTES
    text = "h" * 3_000 + "m" * 1_234 + "t" * 800
    assert shown(text) == "h" * 3_000 + "\n[... 1234 bytes omitted ...]\n" + "t" * 800


def test_a_cut_never_goes_through_a_character() -> None:
    text = "a" + "é" * 4_000
    cut = shown(text)
    head, note, tail = cut.split("\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    missing = len(text.encode()) - len(head.encode()) - len(tail.encode())
    assert note == f"[... {missing} bytes omitted ...]"


def test_the_whole_of_a_long_text_can_be_read_where_it_is_kept(tmp_path: Path) -> None:
    workspace, text = Workspace(tmp_path), "\n".join(f"line {number}" for number in range(1_000))

    async def keep(whole: str) -> str | None:
        return await asyncio.to_thread(keep_text, workspace, "task", whole)

    output = run(HostExecutor(lambda spec: text if spec.prompt == "p0" else "short"), tasks(2), keep=keep)
    rows: Any = output.metadata["results"]
    uri = rows[0]["artifact_uri"]
    assert f"bytes omitted; the whole text: read {uri} with offset and limit" in output.output
    assert (rows[0]["truncated_for_context"], rows[1]["truncated_for_context"]) == (True, False)
    assert rows[1]["artifact_uri"].startswith("a3s://tasks/")
    again = read(workspace, {"file_path": uri, "offset": 500, "limit": 1})
    assert "line 500" in again.output
    alone = run(HostExecutor(lambda spec: text), tasks(1), keep=keep)
    assert (alone.artifact, alone.metadata["artifact_uri"]) == (uri, uri)


def test_a_text_that_cannot_be_kept_is_cut_all_the_same() -> None:
    async def keep(whole: str) -> str | None:
        return None

    output = run(HostExecutor(lambda spec: "x" * 5_000), tasks(1), keep=keep)
    assert "[... 1200 bytes omitted ...]" in output.output


# ---- an early end ---------------------------------------------------------------------------------------------------


def test_when_enough_have_succeeded_the_rest_is_cancelled() -> None:
    told, executor = Told(), None

    async def main() -> tuple[ToolOutput, ChildExecutor]:
        executor = ChildExecutor(some_hang("p1", "p3"))
        args = tasks(4, allow_partial_failure=True, min_success_count=2)
        return await tool(executor).run(args, told.scope()), executor

    output, executor = run_virtually(main())
    rows: Any = output.metadata["results"]
    why = "Task cancelled after parallel_task collected 2 successful child result(s)."
    assert [row["output_excerpt"] for row in rows] == ["did p0", why, "did p2", why]
    assert (output.exit_code, output.metadata["returned_early"], output.metadata["timed_out"]) == (0, True, False)
    assert executor.running == set()
    assert {each.status for each in executor.tracker.tasks()} == {"completed", "cancelled"}
    for number in range(4):
        assert told.types(f"task-id-{number}") == ["subagent_start", "subagent_end"]


def test_when_the_time_is_up_what_there_is_counts() -> None:
    async def main() -> tuple[ToolOutput, float]:
        loop = asyncio.get_running_loop()
        start = loop.time()
        executor = ChildExecutor(some_hang("p1"), places=1)
        output = await tool(executor).run(tasks(3, timeout_ms=70, allow_partial_failure=True), Told().scope())
        return output, loop.time() - start

    output, seconds = run_virtually(main())
    rows: Any = output.metadata["results"]
    why = "Task timed out before parallel_task finished collecting child results after 70 ms."
    succeeded = [row["output_excerpt"] for row in rows if row["success"]]
    assert [row["output_excerpt"] for row in rows if not row["success"]] == [why] * (3 - len(succeeded))
    assert rows[1]["output_excerpt"] == why
    assert (output.metadata["timed_out"], output.metadata["returned_early"]) == (True, False)
    assert seconds == pytest.approx(0.07)


def test_a_call_that_ended_in_time_is_not_timed_out_nor_early() -> None:
    for seed in range(20):
        args = tasks(4, timeout_ms=1_000, allow_partial_failure=True, min_success_count=4)
        output = run_virtually(tool(HostExecutor()).run(args, Told().scope()), seed)
        assert (output.metadata["timed_out"], output.metadata["returned_early"]) == (False, False)
        assert output.metadata["all_success"] is True


class Stubborn:
    """A child that does not mind being cancelled until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.is_over = False

    async def work(self, spec: AgentStepSpec) -> str:
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                pass
        self.is_over = True
        return "at last"


def test_a_child_that_will_not_stop_is_left_behind_with_one_end_and_an_owner() -> None:
    told = Told()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        child, owned = Stubborn(), list[asyncio.Task[Any]]()
        executor = ChildExecutor(lambda spec: child.work(spec) if spec.prompt == "p0" else "quick", places=1)

        def launch(name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            owned.append(asyncio.create_task(work))
            return owned[-1]

        named = tool(executor, launch=launch, tracker=executor.tracker)
        output = await named.run(tasks(2, timeout_ms=100), told.scope())
        assert loop.time() == pytest.approx(0.6)
        rows: Any = output.metadata["results"]
        assert [row["error_code"] for row in rows] == ["RUN_CANCELLED"] * 2
        assert told.types("task-id-0") == ["subagent_start", "subagent_end"]
        assert told.types("task-id-1") == []
        assert [each.status for each in executor.tracker.tasks()] == ["cancelled"]
        assert (len(owned), owned[0].done(), child.is_over) == (1, False, False)
        owned[0].cancel()  # a session that closes waits for it all the same
        await asyncio.sleep(1)
        assert not owned[0].done()
        child.let_go.set()
        await asyncio.wait(owned)
        assert child.is_over
        assert told.types("task-id-0") == ["subagent_start", "subagent_end"]
        assert [each.status for each in executor.tracker.tasks()] == ["cancelled"]

    run_virtually(main())


def test_cancelling_the_call_ends_its_children_first() -> None:
    told = Told()

    async def main() -> None:
        executor = ChildExecutor(forever)
        call = asyncio.create_task(tool(executor).run(tasks(5), told.scope()))
        while len(executor.running) < 5:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert executor.running == set()
        assert executor.tracker.pending() == []

    asyncio.run(main())
    for number in range(5):
        assert told.types(f"task-id-{number}") == ["subagent_start", "subagent_end"]


def test_one_child_can_be_cancelled_by_its_id_and_its_siblings_go_on() -> None:
    controls: list[FanOutControl] = []

    def control() -> FanOutControl:
        controls.append(FanOutControl())
        return controls[-1]

    async def main() -> ToolOutput:
        executor = ChildExecutor(some_hang("p1"))
        named = tool(executor, new_control=control)
        call = asyncio.create_task(named.run(tasks(3, allow_partial_failure=True), Told().scope()))
        while executor.running != {"p1"}:
            await asyncio.sleep(0)
        controls[0].cancel_step("task-id-1")
        return await call

    rows: Any = asyncio.run(main()).metadata["results"]
    assert [row["output_excerpt"] for row in rows] == ["did p0", CANCELLED, "did p2"]


# ---- background -----------------------------------------------------------------------------------------------------


class Owner:
    """Owns background children, as a session does."""

    def __init__(self) -> None:
        self.tasks: dict[str, asyncio.Task[Any]] = {}

    def __call__(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.tasks[name] = asyncio.create_task(work)
        return self.tasks[name]

    async def outcome(self, name: str) -> StepOutcome:
        outcome: StepOutcome = await self.tasks[name]
        return outcome


BACKGROUND: Mapping[str, Any] = {"tasks": [item("later", background=True)]}
ID = "task-id-0"


def test_a_background_task_is_started_and_told_before_the_call_returns() -> None:
    told = Told()

    async def main() -> None:
        gate = asyncio.Event()

        async def answer(spec: AgentStepSpec) -> str:
            await gate.wait()
            return "late"

        executor, owner = ChildExecutor(answer), Owner()
        named = tool(executor, launch=owner, tracker=executor.tracker)
        output = await named.run(dict(BACKGROUND), told.scope())
        assert output.output == f"Task started in background. Task ID: {ID}"
        assert output.metadata["task_id"] == ID
        assert told.types(ID) == ["subagent_start"]
        assert [each.task_id for each in executor.tracker.pending()] == [ID]
        gate.set()
        outcome = await owner.outcome(ID)
        assert (outcome.success, outcome.output) == (True, "late")
        task = executor.tracker.task(ID)
        assert task is not None
        assert (task.status, task.output) == ("completed", "late")

    asyncio.run(main())
    assert told.types(ID) == ["subagent_start", "subagent_end"]


def test_a_background_task_that_waits_for_its_place_is_pending_and_can_be_cancelled() -> None:
    told, controls = Told(), list[FanOutControl]()

    def control() -> FanOutControl:
        controls.append(FanOutControl())
        return controls[-1]

    async def main() -> None:
        executor, owner = ChildExecutor(forever, places=1), Owner()
        named = tool(executor, launch=owner, tracker=executor.tracker, new_control=control)
        first = asyncio.create_task(named.run(tasks(1), Told().scope()))
        while not executor.running:
            await asyncio.sleep(0)
        output = await named.run(dict(BACKGROUND), told.scope())
        [later] = owner.tasks
        assert later in output.output
        assert later in [each.task_id for each in executor.tracker.pending()]
        while not controls[1].is_running(later):
            await asyncio.sleep(0)
        controls[1].cancel_running(later)
        outcome = await owner.outcome(later)
        assert (outcome.success, outcome.output) == (False, CANCELLED)
        task = executor.tracker.task(later)
        assert task is not None
        assert task.status == "cancelled"
        assert told.types(later) == ["subagent_start", "subagent_end"]
        first.cancel()
        await asyncio.wait({first})
        assert executor.tracker.pending() == []

    asyncio.run(main())


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_background_task_that_its_owner_ends_has_an_end(is_begun: bool) -> None:
    told = Told()

    async def main() -> None:
        executor, owner = ChildExecutor(forever), Owner()
        named = tool(executor, launch=owner, tracker=executor.tracker)
        await named.run(dict(BACKGROUND), told.scope())
        while is_begun and not executor.running:
            await asyncio.sleep(0)
        owner.tasks[ID].cancel()
        await asyncio.wait(owner.tasks.values())
        task = executor.tracker.task(ID)
        assert task is not None
        assert task.status == "cancelled"

    asyncio.run(main())
    assert told.types(ID) == ["subagent_start", "subagent_end"]


def test_an_owner_that_ends_a_child_before_its_first_step_leaves_no_trace_and_no_hang() -> None:
    told = Told()

    async def main() -> ToolOutput:
        def launch(name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            task = asyncio.create_task(work)
            task.cancel()
            return task

        return await tool(ChildExecutor(), launch=launch).run(dict(BACKGROUND), told.scope())

    output = asyncio.run(main())
    assert (output.output, output.exit_code) == (CANCELLED, 1)
    assert told.events == []


def test_a_call_that_is_cancelled_at_any_moment_leaves_its_background_task_whole_or_unbegun() -> None:
    for moment in range(12):
        told, outcomes = Told(), list[str]()

        async def main(moment: int = moment, told: Told = told, outcomes: list[str] = outcomes) -> None:
            executor, owner = ChildExecutor(lambda spec: "x"), Owner()
            call = asyncio.create_task(tool(executor, launch=owner).run(dict(BACKGROUND), told.scope()))
            for _ in range(moment):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call, *owner.tasks.values()})
            outcomes.extend("cancelled" if each.cancelled() else each.result().output for each in owner.tasks.values())

        asyncio.run(main())
        kinds = [each.type for each in told.events]
        assert (outcomes, kinds) in (
            ([], []),
            (["cancelled"], []),
            (["x"], ["subagent_start", "subagent_end"]),
        )


def test_an_owner_that_refuses_has_its_reason_told() -> None:
    def launch(name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        work.close()
        raise SessionClosedError(session_id=SESSION)

    told = Told()
    with pytest.raises(SessionClosedError):
        run(HostExecutor(), dict(BACKGROUND), told, launch=launch)
    assert told.events == []


def test_a_background_task_that_cannot_start_has_an_end_that_says_why() -> None:
    class Broken(HostExecutor):
        async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
            return failed(spec, "Task failed: no key", code="CONFIG_ERROR")

    told = Told()

    async def main() -> None:
        owner, executor = Owner(), Broken()
        tracker = Tracker(SessionRetentionLimits(), ManualClock())
        await tool(executor, launch=owner, tracker=tracker).run(dict(BACKGROUND), told.scope())
        await owner.outcome(ID)
        assert [each.status for each in tracker.tasks()] == ["failed"]

    asyncio.run(main())
    assert [each.type for each in told.events] == ["subagent_start", "subagent_end"]
    assert told.events[1].payload["output"] == "Task failed before child execution started: no key"


def test_a_background_task_keeps_its_timeout() -> None:
    async def main() -> StepOutcome:
        executor, owner = ChildExecutor(forever), Owner()
        await tool(executor, launch=owner).run({**BACKGROUND, "timeout_ms": 50}, Told().scope())
        return await owner.outcome(ID)

    assert run_virtually(main()).error_code == "TIMEOUT"


def test_where_nobody_owns_background_tasks_there_are_none() -> None:
    executor = HostExecutor()
    output = run(executor, dict(BACKGROUND))
    assert output.output.startswith("task cannot run in the background here")
    assert (output.exit_code, executor.started) == (1, [])


def test_an_unknown_agent_is_told_at_once_also_in_the_background() -> None:
    async def main() -> None:
        model = ScriptedModel(echo)
        async with await Agent.create_async(models={"scripted/model": model}) as agent:
            session = await agent.session_async(Path.cwd())
            owner = Owner()
            named = tool(session.agent_executor(), launch=owner)
            output = await named.run({"tasks": [item(agent="nobody", background=True)]}, Told().scope())
            assert output.output == "Task failed: Unknown agent type: 'nobody'"
            assert (output.exit_code, owner.tasks) == (1, {})

    asyncio.run(main())


# ---- on a session's own executor ------------------------------------------------------------------------------------


def test_children_of_a_session_are_bounded_by_its_limiter_and_never_see_the_tool(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: Reply(text="x", delay=0.002))
    told = Told()

    async def main() -> ToolOutput:
        async with await Agent.create_async(models={"scripted/model": model}) as agent:
            session = await agent.session_async(tmp_path, max_parallel_tasks=2)
            args = {"tasks": [item(f"p{n}", name) for n, name in enumerate(["general", "plan", "verify", "review"])]}
            return await tool(session.agent_executor()).run(args, told.scope())

    output = asyncio.run(main())
    assert output.metadata["all_success"] is True
    assert model.most_running == 2
    assert not any(spec.name == "task" for request in model.requests for spec in request.tools)
    for number in range(4):
        types = told.types(f"task-id-{number}")
        assert (types[0], types[-1], types.count("subagent_end")) == ("subagent_start", "subagent_end", 1)
    assert {each.payload["parent_session_id"] for each in told.events if each.type == "subagent_start"} == {SESSION}


def test_a_schema_gives_the_caller_a_value(tmp_path: Path) -> None:
    async def main() -> ToolOutput:
        model = ScriptedModel(['Well: {"yes": true}'])
        async with await Agent.create_async(models={"scripted/model": model}) as agent:
            session = await agent.session_async(tmp_path)
            schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
            args = {"tasks": [item("is it?", "answer", output_schema=schema)]}
            return await tool(session.agent_executor()).run(args, Told().scope())

    assert asyncio.run(main()).metadata["structured"] == {"yes": True}


def test_a_wide_call_that_is_cancelled_halfway_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(lambda request: Reply(text="x", delay=60))
        async with await Agent.create_async(models={"scripted/model": model}) as agent:
            session = await agent.session_async(tmp_path, max_parallel_tasks=8)
            named = tool(session.agent_executor())
            for _ in range(20):
                told = Told()
                call = asyncio.create_task(named.run(tasks(32), told.scope()))
                while model.running < 8:
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait({call})
                kinds = [each.type for each in told.events]
                assert (kinds.count("subagent_start"), kinds.count("subagent_end")) == (8, 8)
                assert model.running == 0
            assert model.most_running == 8

    asyncio.run(main())
