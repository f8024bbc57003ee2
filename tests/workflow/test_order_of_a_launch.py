"""What comes first in a launch: of several things that are wrong the first one is told, and no code runs before all of
them were looked at (spec-workflow 5.1, 7.1, 7.7)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.errors import WorkflowInputError
from tests.workflow.rig import Rig, Team, reached
from tests.workflow.test_launch import files_of, refused

META = '{"name": "filed", "description": "from a file", "args_schema": {"type": "object", "required": ["a"]}}'


def tattling(place: Path, meta: str = META, *, rest: str = "") -> str:
    """A script whose module leaves a file when it is executed."""
    return (
        f"META = {meta}\nfrom pathlib import Path\nmark = Path({str(place)!r})\n"
        f"mark.write_text((mark.read_text() if mark.exists() else '') + 'x')\n{rest}\n"
        "async def main(ctx, args):\n    return await ctx.agent('hello')\n"
    )


async def three(ctx: Any, args: Any) -> Any:
    return 3


def executions(mark: Path) -> int:
    return len(mark.read_text()) if mark.exists() else 0


def test_of_several_faults_the_first_in_order_is_told(tmp_path: Path) -> None:
    """The name, the metadata, the arguments, the permissions, the approval, and the rest."""
    mark = tmp_path.with_suffix(".mark")

    async def main() -> None:
        rig = Rig(tmp_path, rules={"filed": "deny", "other": "deny"})
        rig.folder.scripts["bad.py"] = tattling(mark, '{"name": "bad"}')
        rig.folder.scripts["a.py"] = tattling(mark, rest="raise ValueError('at import')")
        await refused(rig, "unknown_workflow", "other", args="[]")
        await refused(rig, "bad_meta", "bad.py", args="[]")
        await refused(rig, "bad_args", "filed", args={})
        await refused(rig, "denied", "filed", args={"a": 1})
        rig.rules.clear()
        await refused(rig, "needs_approval", "filed", args={"a": 1})
        assert executions(mark) == 0
        rig.workflows.approve("filed")
        assert "at import" in str(await refused(rig, "bad_script", "filed", args={"a": 1}))
        assert executions(mark) == 1

    asyncio.run(main())


def test_of_several_faults_of_a_resume_the_first_in_order_is_told(tmp_path: Path) -> None:
    """The arguments, the permissions, and only then whether the run is one of that workflow, script and arguments."""

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.folder.scripts["a.py"] = tattling(tmp_path.with_suffix(".mark"))
        rig.workflows.approve("filed")
        first = await rig.workflows.run_async("filed", {"a": 1})
        rig.register(three, name="other")
        for name in ("filed", "other"):
            await refused(rig, "bad_args", name, args="[]", resume_from_run_id=first.run_id)
            rig.rules[name] = "deny"
            await refused(rig, "denied", name, args={"a": 2}, resume_from_run_id=first.run_id)
        rig.rules.clear()
        await refused(rig, "wrong_workflow", "other", args={"a": 2}, resume_from_run_id=first.run_id)
        await refused(rig, "args_mismatch", "filed", args={"a": 2}, resume_from_run_id=first.run_id)

    asyncio.run(main())


@pytest.mark.parametrize("meta", ["{}", '{"name": "../x", "description": "d"}', '{"name": "x", "description": " "}'])
def test_a_file_without_sound_metadata_is_never_executed(tmp_path: Path, meta: str) -> None:
    mark = tmp_path.with_suffix(".mark")

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.folder.scripts["a.py"] = tattling(mark, meta)
        for name in ("a.py", "x", "../x"):
            with pytest.raises(WorkflowInputError):
                await rig.workflows.launch_async(name)
        for call in (rig.workflows.approve, rig.workflows.source):
            with pytest.raises(WorkflowInputError):
                call("a.py")
        assert executions(mark) == 0
        assert files_of(tmp_path) == {}

    asyncio.run(main())


def test_a_resume_that_cannot_be_executes_nothing_of_its_script(tmp_path: Path) -> None:
    mark = tmp_path.with_suffix(".mark")

    async def main() -> None:
        release = asyncio.Event()

        async def answer(spec: AgentStepSpec) -> str:
            await release.wait()
            return "hello"

        rig = Rig(tmp_path, Team(answer))
        rig.folder.scripts["a.py"] = tattling(mark)
        rig.workflows.approve("filed")
        launch = await rig.workflows.launch_async("filed", {"a": 1})
        await reached(lambda: rig.team.in_flight == 1)
        before = files_of(tmp_path)
        for code, args in (("already_active", None), ("args_mismatch", {"a": 2})):
            with pytest.raises(WorkflowInputError) as raised:
                await rig.workflows.launch_async(resume_from_run_id=launch.run_id, args=args)
            assert raised.value.code == code
        assert files_of(tmp_path) == before
        release.set()
        await rig.workflows.wait_async(launch.run_id)
        assert executions(mark) == 1
        Path(rig.files.directory, f"{launch.run_id}.journal.jsonl").unlink()
        await refused(rig, "journal_missing", None, resume_from_run_id=launch.run_id)
        assert executions(mark) == 1

    asyncio.run(main())


def test_a_module_that_raises_at_a_resume_leaves_its_run_as_it_was(tmp_path: Path) -> None:
    mark = tmp_path.with_suffix(".mark")

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.folder.scripts["a.py"] = tattling(mark)
        rig.workflows.approve("filed")
        first = await rig.workflows.run_async("filed", {"a": 1})
        rig.folder.scripts["a.py"] = tattling(mark, rest="raise ValueError('at import')")
        rig.workflows.approve("filed")
        for fork in (False, True):
            await refused(rig, "bad_script", None, resume_from_run_id=first.run_id, fork=fork)
        rig.folder.scripts["a.py"] = tattling(mark)
        again = await rig.workflows.run_async(resume_from_run_id=first.run_id)
        assert (again.status, again.counts.cached) == ("completed", 1)

    asyncio.run(main())


def test_the_arguments_of_a_nested_workflow_are_looked_at_as_those_of_a_launch(tmp_path: Path) -> None:
    async def inner(ctx: Any, args: Any) -> Any:
        return args

    async def outer(ctx: Any, args: Any) -> Any:
        found = []
        for given in ('{"a": 1}', {"a": {1}}, "[]", {}):
            try:
                found.append(await ctx.workflow("inner", given))
            except WorkflowInputError as error:
                found.append(error.code)
        return found

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(inner, name="inner", args_schema={"type": "object", "required": ["a"]})
        assert (await rig.run(outer)).value == [{"a": 1}, "bad_args", "bad_args", "bad_args"]

    asyncio.run(main())
