"""Scripts, hosts and closings that misbehave: whatever they do, a run ends in order and its files tell what was."""

import asyncio
import configparser
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.run_journal import AttemptEnd, Result
from fanfold.contracts.steps import AgentStepSpec
from fanfold.contracts.workflow_runs import WorkflowLimits
from fanfold.errors import FanfoldError, SessionClosedError, UsageError, WorkflowAgentError, WorkflowInputError
from fanfold.testing import Reply, ScriptedModel
from fanfold.testing.memory_runs import Change, MemoryRuns
from fanfold.workflow.script_host import RunHaltedError
from tests.support.open_session import opened
from tests.workflow.rig import META, Rig, Team, failure, reached
from tests.workflow.test_stops import records

# ---- what is the run's own ------------------------------------------------------------------------------------------


def test_a_script_may_change_its_args_and_the_run_keeps_those_that_it_was_given(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        args["n"] += 1
        args["list"].append(object())
        ctx.args["more"] = "more"
        return await ctx.agent("a")

    async def main() -> None:
        rig, given = Rig(tmp_path), {"n": 1, "list": [1]}
        first = await rig.run(script, given)
        assert first.status == "completed"
        snapshot = (await rig.workflows.status_async(first.run_id)).snapshot
        assert snapshot is not None
        assert snapshot.args == given == {"n": 1, "list": [1]}
        again = await rig.run(None, given, resume_from_run_id=first.run_id)
        assert (again.status, again.counts.cached) == ("completed", 1)

    asyncio.run(main())


def test_a_schema_counts_as_it_was_when_the_call_was_made(tmp_path: Path) -> None:
    async def answer(spec: AgentStepSpec) -> Any:
        assert isinstance(spec.output_schema, dict)
        return {"n": spec.output_schema["properties"]["n"]["const"]}

    async def script(ctx: Any, args: Any) -> Any:
        number: dict[str, Any] = {"const": 0}
        schema = {"type": "object", "properties": {"n": number}}

        def ask(index: int) -> Any:
            number["const"] = index
            return ctx.agent("a", schema=schema)

        return await ctx.parallel([lambda each=each: ask(each) for each in range(4)])

    async def main() -> None:
        rig = Rig(tmp_path, Team(answer), limits=WorkflowLimits(concurrency=1))
        first = await rig.run(script)
        assert first.value == [{"n": each} for each in range(4)]
        again = await rig.run(resume_from_run_id=first.run_id)
        assert (again.value, again.counts.cached) == (first.value, 4)

    asyncio.run(main())


@pytest.mark.parametrize(
    "option",
    [
        {"budget_tokens": -1},
        {"budget_tokens": "5"},
        {"budget_tokens": True},
        {"limits": {"concurrency": 3}},
        {"limits": WorkflowLimits(concurrency=0)},
        {"limits": WorkflowLimits(max_agents="x")},  # type: ignore[arg-type]
        {"events": 5},
    ],
    ids=str,
)
def test_an_option_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, option: dict[str, Any]) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return None

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(script)
        with pytest.raises(UsageError):
            await rig.workflows.launch_async(META["name"], **option)
        assert not list(tmp_path.iterdir())

    asyncio.run(main())


def test_the_limits_of_a_launch_bound_its_args_too(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return args

    async def main() -> None:
        rig, given = Rig(tmp_path, limits=WorkflowLimits(max_args_bytes=20)), {"text": "x" * 40}
        rig.register(script)
        wide = await rig.workflows.run_async(META["name"], given, limits=WorkflowLimits(max_args_bytes=100))
        assert wide.value == given
        with pytest.raises(WorkflowInputError) as raised:
            await rig.workflows.run_async(META["name"], given)
        assert raised.value.code == "bad_args"

    asyncio.run(main())


# ---- what errors say of themselves ----------------------------------------------------------------------------------


class CodedText(Exception):
    code = "\udc80"


class Untellable(Exception):
    @property
    def code(self) -> str:
        raise RuntimeError("no code")

    @property
    def line(self) -> int:
        raise RuntimeError("no line")


class CodedBadly(FanfoldError):
    code = "\udc80"


def section_error() -> Exception:
    try:
        configparser.ConfigParser().read_string("no section")
    except configparser.Error as error:
        return error  # its `line` is a text
    raise AssertionError


ERRORS = {
    "line": section_error(),
    "code": CodedText("x"),
    "properties": Untellable("x"),
    "our code": CodedBadly("x"),
    "our fields": WorkflowAgentError(label=5, where="#0", reason="r", agent_code="\udc80"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("where", ["script", "thunk", "stage"])
def test_whatever_an_error_says_of_itself_the_files_can_be_read(tmp_path: Path, name: str, where: str) -> None:
    def bad(*_: Any) -> Any:
        raise ERRORS[name]

    async def script(ctx: Any, args: Any) -> Any:
        if where == "thunk":
            return await ctx.parallel([bad])
        return bad() if where == "script" else await ctx.pipeline([1], bad)

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(script)
        launch = await rig.workflows.launch_async(META["name"], notify=True)
        result = await rig.workflows.wait_async(launch.run_id)
        assert result.status == "failed"
        summary = await Rig(tmp_path).workflows.status_async(launch.run_id)
        assert (summary.status, summary.problem) == (result.status, None)
        assert len(await rig.notices.pending()) == 1

    asyncio.run(main())


# ---- what is left running -------------------------------------------------------------------------------------------


def test_agents_that_a_script_leaves_running_are_ended_and_recorded_before_their_run_ends(tmp_path: Path) -> None:
    kept: list[asyncio.Task[Any]] = []

    async def answer(spec: AgentStepSpec) -> str:
        await asyncio.Event().wait()
        return "never"

    async def script(ctx: Any, args: Any) -> Any:
        kept.extend(asyncio.create_task(ctx.agent(each)) for each in ("a", "b"))
        await reached(lambda: bool(rigs[0].team.in_flight))
        return "done"

    rigs: list[Rig] = []

    async def main() -> None:
        files = MemoryRuns()
        rig = Rig(tmp_path, Team(answer), files=files, limits=WorkflowLimits(concurrency=1))
        rigs.append(rig)
        result = await rig.run(script)
        assert (result.status, result.value) == ("completed", "done")
        assert rig.team.in_flight == 0
        assert [type(each) for each in await asyncio.gather(*kept, return_exceptions=True)] == [RunHaltedError] * 2
        assert rig.team.prompts == ["a"]  # the other one had no place yet
        *_, cancelled, end = records(files, result.run_id)
        assert isinstance(cancelled, Result)
        assert (cancelled.status, isinstance(end, AttemptEnd)) == ("cancelled", True)
        assert rig.events[-1].type == "task_notification"

    asyncio.run(main())


def test_one_that_waits_for_a_shared_answer_asks_anew_when_the_first_to_ask_is_cancelled(tmp_path: Path) -> None:
    gate: list[asyncio.Event] = []

    async def answer(spec: AgentStepSpec) -> str:
        await gate[0].wait()
        return "an answer"

    async def script(ctx: Any, args: Any) -> Any:
        first, *others = (asyncio.create_task(ctx.agent("a", share=True)) for _ in range(3))
        await reached(lambda: bool(rigs[0].team.in_flight))
        first.cancel()
        await asyncio.wait({first})
        gate[0].set()
        return await asyncio.gather(*others)

    rigs: list[Rig] = []

    async def main() -> None:
        gate.append(asyncio.Event())
        rigs.append(Rig(tmp_path, Team(answer)))
        result = await rigs[0].run(script)
        assert (result.status, result.value) == ("completed", ["an answer"] * 2)
        assert rigs[0].team.prompts == ["a"] * 2

    asyncio.run(main())


async def never_begun(place: Path) -> tuple[Rig, str]:
    """A run whose task was cancelled before its first step, let go again."""

    async def script(ctx: Any, args: Any) -> Any:
        return "done"

    rig = Rig(place)
    rig.register(script)
    launch = await rig.workflows.launch_async(META["name"], notify=True)
    (task,) = rig.tasks
    task.cancel()
    while (await rig.files.look(launch.run_id)).is_held:  # type: ignore[union-attr]
        await asyncio.sleep(0.001)
    rig.tasks.clear()
    return rig, launch.run_id


def test_a_run_whose_task_is_cancelled_before_its_first_step_is_let_go(tmp_path: Path) -> None:
    async def main() -> None:
        rig, run_id = await never_begun(tmp_path)
        assert not rig.workflows.is_busy
        assert (await rig.workflows.wait_async(run_id)).reason == "closed"
        (notice,) = await rig.notices.pending()
        assert "<status>stopped</status>" in notice.text
        assert (await rig.workflows.run_async(resume_from_run_id=run_id)).value == "done"

    asyncio.run(main())


def test_a_launch_that_comes_behind_the_close_leaves_no_run_that_looks_like_a_death(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return "done"

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([Reply(text="ok")])) as session:
            session.workflows.register(META, script)
        with pytest.raises(SessionClosedError):
            await session.workflows.launch_async(META["name"])
        assert {(run.status, run.is_alive) for run in await session.workflows.runs_async()} <= {("stopped", False)}

    asyncio.run(main())


def test_a_notice_whose_run_cannot_be_read_keeps_no_other_from_being_told(tmp_path: Path) -> None:
    async def main() -> None:
        rig, broken = await never_begun(tmp_path)
        snapshot = Path(rig.files.directory, f"{broken}.json")
        snapshot.unlink()
        snapshot.mkdir()
        whole = await rig.workflows.run_async(META["name"], notify=True)
        assert [notice.id for notice in await rig.notices.pending()] == [f"{whole.run_id}-1"]

    asyncio.run(main())


# ---- what asks again and again --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda ctx: ctx.agent("a"),
        lambda ctx: ctx.agent(""),
        lambda ctx: ctx.parallel([lambda: ctx.agent("a")]),
        lambda ctx: ctx.pipeline([1], lambda item: ctx.agent("a")),
        lambda ctx: ctx.workflow("unknown"),
    ],
    ids=["agent", "bad call", "parallel", "pipeline", "workflow"],
)
def test_what_swallows_every_refusal_and_asks_again_for_ever_does_not_stop_the_loop(tmp_path: Path, ask: Any) -> None:
    may_end: list[bool] = []
    kept: list[asyncio.Task[None]] = []

    async def again_and_again(ctx: Any) -> None:
        while not may_end:
            try:
                await ask(ctx)
            except BaseException:  # noqa: BLE001
                continue

    async def script(ctx: Any, args: Any) -> Any:
        kept.append(asyncio.create_task(again_and_again(ctx)))
        await asyncio.sleep(0.05)
        return "done"

    async def main() -> None:
        rig = Rig(tmp_path)
        assert (await rig.run(script)).value == "done"
        await asyncio.sleep(0.1)  # it asks behind the end of its run
        may_end.append(True)
        await asyncio.wait(kept)

    asyncio.run(main())


def test_a_fork_runs_only_what_failed_in_the_run_that_it_was_made_of(tmp_path: Path) -> None:
    is_broken = [True]

    async def answer(spec: AgentStepSpec) -> Any:
        return failure(spec) if spec.prompt == "b" and is_broken else f"re: {spec.prompt}"

    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.parallel([lambda each=each: ctx.agent(each) for each in ("a", "b", "c")])

    async def main() -> None:
        rig = Rig(tmp_path, Team(answer))
        first = await rig.run(script)
        assert first.value == ["re: a", None, "re: c"]
        is_broken.clear()
        fork = await rig.run(resume_from_run_id=first.run_id, fork=True, only_failed=True)
        assert fork.value == ["re: a", "re: b", "re: c"]
        assert (fork.counts.cached, fork.counts.launched) == (2, 1)

    asyncio.run(main())


def test_the_events_of_a_run_that_ends_by_an_error_of_our_own_are_written(tmp_path: Path) -> None:
    async def before(change: Change, run_id: str) -> None:
        if change == "write_output":
            raise ZeroDivisionError("a bug")

    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("a")

    async def main() -> None:
        files = MemoryRuns(before=before)
        rig = Rig(tmp_path, files=files)
        rig.register(script)
        launch = await rig.workflows.launch_async(META["name"], events=rig.events.append)
        with pytest.raises(ZeroDivisionError):
            await rig.workflows.wait_async(launch.run_id)
        lines, _ = await files.events(launch.run_id)
        assert len(lines) == len(rig.events) > 2

    asyncio.run(main())
