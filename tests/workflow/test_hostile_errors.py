"""Whatever a script raises, its run ends, tells it once, and lets its files go."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.events import event
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.protocols import EventSink
from fanfold.testing.memory_runs import Change, MemoryRuns
from fanfold.workflow.scripts import MAX_FAULT_CHARACTERS
from tests.workflow.rig import META, Rig, Team, outcome
from tests.workflow.test_launch import refused

UNENCODABLE = "\udc80 is no character"


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


ERRORS = {
    "exit": (SystemExit(3), "bad_script", "a script must not end its process (SystemExit: 3)"),
    "text that cannot be written": (ValueError(UNENCODABLE), "ValueError", "is no character"),
    "no text": (Untold(), "Untold", "Untold"),
    "long": (ValueError("x" * 10_000_000), "ValueError", "ValueError: xxx"),
    "cancelled": (asyncio.CancelledError("by itself"), "cancelled", "the script was cancelled"),
    "end of a generator": (GeneratorExit(), "GeneratorExit", "GeneratorExit"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_whatever_a_script_raises_ends_its_run_and_is_told(tmp_path: Path, name: str) -> None:
    error, code, told = ERRORS[name]

    async def script(ctx: Any, args: Any) -> Any:
        ctx.log(UNENCODABLE)
        raise error

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(script)
        launch = await rig.workflows.launch_async(META["name"], events=rig.events.append, notify=True)
        result = await rig.workflows.wait_async(launch.run_id)
        assert result.status == rig.notification()["status"] == "failed"
        assert result.error is not None
        assert result.error.code == code
        assert told in result.error.message
        assert len(result.error.message) <= MAX_FAULT_CHARACTERS
        assert result.error.line is None or result.error.line > 0
        summary = await Rig(tmp_path).workflows.status_async(launch.run_id)
        assert (summary.status, summary.is_alive) == ("failed", False)
        assert Path(rig.files.directory, f"{launch.run_id}.json").stat().st_size < 20_000
        (notice,) = await rig.notices.pending()
        assert "<status>failed</status>" in notice.text
        lines, _ = await rig.files.events(launch.run_id)
        assert b"task_notification" in lines[-1]
        assert b"is no character" in b"".join(lines[:-1])  # what it logged

    asyncio.run(main())


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "end of a generator"])
@pytest.mark.parametrize("where", ["thunk", "stage", "nested"])
def test_what_is_raised_in_a_slot_costs_that_slot(tmp_path: Path, name: str, where: str) -> None:
    error = ERRORS[name][0]

    def bad(*_: Any) -> Any:
        raise error

    async def inner(ctx: Any, args: Any) -> Any:
        return bad()

    async def script(ctx: Any, args: Any) -> Any:
        if where == "stage":
            return await ctx.pipeline([1, 2], lambda item: ctx.agent(f"a{item}") if item == 1 else bad())
        return await ctx.parallel([lambda: ctx.agent("a1"), bad if where == "thunk" else lambda: ctx.workflow("inner")])

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(inner, name="inner")
        result = await rig.run(script)
        assert (result.status, result.value) == ("completed_with_failures", ["re: a1", None])
        (failure,) = result.failures
        assert (failure.index, failure.stage) == (1, 0 if where == "stage" and name != "cancelled" else None)
        assert name == "cancelled" or failure.code == ERRORS[name][1]
        assert len(failure.message) <= MAX_FAULT_CHARACTERS

    asyncio.run(main())


def test_a_script_file_that_ends_its_process_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        text = 'META = {"name": "leaves", "description": "d"}\nraise SystemExit(3)\nasync def main(ctx, args): ...\n'
        rig.folder.scripts["leaves.py"] = text
        rig.workflows.approve("leaves")
        error = await refused(rig, "bad_script", "leaves")
        assert "line 2: SystemExit: 3" in str(error)

    asyncio.run(main())


def test_an_event_that_cannot_be_written_costs_no_other(tmp_path: Path) -> None:
    class Strange(Team):
        async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
            assert events is not None
            events(event("subagent_start", task_id=spec.task_id))
            events(event("user_question", task_id=spec.task_id, text=UNENCODABLE))
            return outcome(spec, "fine")

    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("a")

    async def main() -> None:
        rig = Rig(tmp_path, Strange())
        result = await rig.run(script)
        assert result.status == "completed"
        lines, _ = await rig.files.events(result.run_id)
        assert len(lines) == len(rig.events)
        assert b'"events_left_out"' in lines[-2]  # one, of which only that is told

    asyncio.run(main())


def test_an_error_of_our_own_at_the_end_of_a_run_does_not_keep_the_run() -> None:
    async def before(change: Change, run_id: str) -> None:
        if change == "write_output":
            raise ZeroDivisionError("a bug")

    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("a")

    async def main() -> None:
        files = MemoryRuns(before=before)
        rig = Rig(Path(), files=files)
        rig.register(script)
        launch = await rig.workflows.launch_async(META["name"])
        with pytest.raises(ZeroDivisionError):
            await rig.workflows.wait_async(launch.run_id)
        other = Rig(Path(), files=files.another_process())
        other.register(script)
        assert (await other.workflows.status_async(launch.run_id)).status == "interrupted"
        assert (await other.workflows.run_async(resume_from_run_id=launch.run_id)).counts.cached == 1

    asyncio.run(main())
