"""What is refused before anything is run or written, and what a launch answers (spec-workflow 5.1, 7.1-7.7)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.steps import AgentStepSpec
from fanfold.errors import WorkflowInputError
from tests.workflow.rig import META, Rig, Team, reached

SCRIPT = """
META = {"name": "filed", "description": "from a file"}

async def main(ctx, args):
    return await ctx.agent("hello")
"""


async def _nothing(ctx: Any, args: Any) -> Any:
    return None


def files_of(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


async def refused(rig: Rig, code: str, name: Any = "demo", args: Any = None, **more: Any) -> WorkflowInputError:
    before = files_of(Path(rig.files.directory).parent.parent)
    with pytest.raises(WorkflowInputError) as raised:
        await rig.workflows.launch_async(name, args, events=rig.events.append, **more)
    assert raised.value.code == code, str(raised.value)
    assert files_of(Path(rig.files.directory).parent.parent) == before
    assert rig.events == []
    return raised.value


def test_the_launch_answers_before_the_first_agent_ends(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return await ctx.agent("wait")

    async def main() -> None:
        release = asyncio.Event()

        async def answer(spec: AgentStepSpec) -> str:
            await release.wait()
            return "done"

        rig = Rig(tmp_path, Team(answer))
        rig.register(script)
        launch = await rig.workflows.launch_async("demo", {}, events=rig.events.append)
        assert launch.to_dict() == {
            "status": "async_launched",
            "task_id": f"local_workflow_{launch.run_id}",
            "task_type": "local_workflow",
            "run_id": launch.run_id,
            "workflow_name": "demo",
            "attempt": 1,
        }
        assert (await rig.workflows.status_async(launch.run_id)).status == "running"
        await reached(lambda: rig.team.in_flight == 1)
        release.set()
        assert (await rig.workflows.wait_async(launch.run_id)).value == "done"

    asyncio.run(main())


@pytest.mark.parametrize(
    "args",
    ["[1]", "text", [1], 7, {"a": float("nan")}, {"a": {1, 2}}, {"a": b"x"}, {1: 2},
     {"a": "x" * 1_100_000}, {"a": "\n" * 600_000}],  # the last one is twice as long as JSON
)  # fmt: skip
def test_arguments_that_are_no_json_object_are_refused(tmp_path: Path, args: Any) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(_nothing)
        await refused(rig, "bad_args", args=args)

    asyncio.run(main())


def test_arguments_as_the_json_text_of_an_object_are_parsed_once(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return [args, ctx.args == args]

    async def main() -> None:
        assert (await Rig(tmp_path).run(script, '{"a": "{}"}')).value == [{"a": "{}"}, True]

    asyncio.run(main())


def test_arguments_are_held_against_the_schema_of_the_workflow(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(_nothing, args_schema={"type": "object", "required": ["path"]})
        error = await refused(rig, "bad_args", args={})
        assert "path" in str(error)

    asyncio.run(main())


def test_an_unknown_workflow_is_refused_with_what_there_is(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(_nothing)
        error = await refused(rig, "unknown_workflow", "demmo")
        assert "demo" in str(error)
        for name in (7, "DEMO", ""):
            await refused(rig, "unknown_workflow", name)
        assert "which workflow?" in str(await refused(rig, "unknown_workflow", None))

    asyncio.run(main())


def test_names_that_differ_in_case_only_are_one_name(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(_nothing)
        with pytest.raises(WorkflowInputError) as raised:
            rig.register(_nothing, name="Demo")
        assert raised.value.code == "bad_meta"

    asyncio.run(main())


def test_what_the_permissions_deny_is_denied_as_a_launch_and_as_a_nested_workflow(tmp_path: Path) -> None:
    async def outer(ctx: Any, args: Any) -> Any:
        return await ctx.workflow("demo")

    async def main() -> None:
        rig = Rig(tmp_path, rules={"demo": "deny"})
        rig.register(_nothing)
        rig.register(outer, name="outer")
        await refused(rig, "denied")
        result = await rig.workflows.run_async("outer")
        assert result.error is not None
        assert result.error.code == "denied"

    asyncio.run(main())


def test_a_nested_workflow_that_is_to_be_asked_about_is_not_run_unasked(tmp_path: Path) -> None:
    async def outer(ctx: Any, args: Any) -> Any:
        return await ctx.workflow("demo")

    async def main() -> None:
        rig = Rig(tmp_path, rules={"demo": "ask"})
        rig.register(_nothing)
        rig.register(outer, name="outer")
        result = await rig.workflows.run_async("outer")
        assert result.error is not None
        assert result.error.code == "needs_approval"

    asyncio.run(main())


def test_a_project_file_is_run_only_as_it_was_approved(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.folder.scripts["a.py"] = SCRIPT
        assert rig.workflows.show("filed").needs_approval
        await refused(rig, "needs_approval", "filed")
        assert not rig.workflows.approve("filed").needs_approval
        assert (await rig.workflows.run_async("filed")).value == "re: hello"
        rig.folder.scripts["a.py"] = SCRIPT.replace("hello", "bye")
        await refused(rig, "needs_approval", "filed")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        ("META = {'name': 'x', 'description': 'd'}\nasync def main(ctx, args:\n  pass", "bad_script", "line 2"),
        ("META = {'name': 'x', 'description': 'd'}", "bad_script", "async def"),
        (
            "META = {'name': 'x', 'description': 'd'}\nasync def a(ctx, args): pass\nasync def b(ctx, args): pass",
            "bad_script",
            "a, b",
        ),
        ("async def main(ctx, args): pass", "bad_meta", "META"),
        ("META = dict(name='x')\nasync def main(ctx, args): pass", "bad_meta", "line 1"),
        ("META = {'name': '../x', 'description': 'd'}\nasync def main(ctx, args): pass", "bad_meta", "name"),
        ("META = {'name': 'con', 'description': 'd'}\nasync def main(ctx, args): pass", "bad_meta", "con"),
        ("META = {'name': 'a.', 'description': 'd'}\nasync def main(ctx, args): pass", "bad_meta", "a."),
    ],
)
def test_a_file_that_is_no_workflow_is_listed_with_its_problem_and_never_run(
    tmp_path: Path, text: str, code: str, named: str
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.folder.scripts["bad.py"] = text
        (bad,) = [info for info in rig.workflows.available() if info.path == "bad.py"]
        assert bad.problem is not None
        assert named in bad.problem
        await refused(rig, code, "bad.py")

    asyncio.run(main())


def test_a_script_whose_module_raises_is_refused_at_its_launch(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.folder.scripts["a.py"] = SCRIPT + "\nraise RuntimeError('at import')\n"
        rig.workflows.approve("filed")
        error = await refused(rig, "bad_script", "filed")
        assert "at import" in str(error)
        assert "line 7" in str(error)

    asyncio.run(main())


def test_module_state_of_one_run_is_not_seen_by_the_next(tmp_path: Path) -> None:
    text = 'META = {"name": "filed", "description": "d"}\nseen = []\n'
    text += "async def main(ctx, args):\n    seen.append(1)\n    return len(seen)\n"

    async def main() -> None:
        rig = Rig(tmp_path)
        rig.folder.scripts["a.py"] = text
        rig.workflows.approve("filed")
        assert [(await rig.workflows.run_async("filed")).value for _ in range(2)] == [1, 1]

    asyncio.run(main())


def test_inline_scripts_are_off_unless_the_host_turns_them_on(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        error = await refused(rig, "denied", None, script=SCRIPT)
        assert "inline_workflows" in str(error)

    asyncio.run(main())


@pytest.mark.parametrize("run_id", ["", "x", "wf_demo_0", "wf_demo_" + "0" * 15 + "G", "wf_x_../../y", 7, ["a"]])
def test_what_is_no_run_id_is_refused(tmp_path: Path, run_id: Any) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(_nothing)
        await refused(rig, "bad_run_id", None, resume_from_run_id=run_id)
        runs = rig.workflows
        verbs = (
            runs.wait_async,
            runs.status_async,
            runs.plan_async,
            runs.stop_async,
            runs.pause_async,
            runs.delete_async,
        )
        for verb in (*verbs, lambda run_id: runs.skip_async(run_id, "#0")):
            with pytest.raises(WorkflowInputError) as raised:
                await verb(run_id)
            assert raised.value.code == "bad_run_id"

    asyncio.run(main())


def test_a_run_that_there_is_not_is_not_found(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.register(_nothing)
        await refused(rig, "run_not_found", None, resume_from_run_id="wf_demo_0123456789abcdef")

    asyncio.run(main())


def test_a_taken_run_id_is_never_overwritten(tmp_path: Path) -> None:
    class Ids:
        def __init__(self, *ids: str) -> None:
            self._ids = list(ids)

        def new_id(self) -> str:
            return self._ids.pop(0)

    async def main() -> None:
        from msgspec.structs import replace

        from fanfold.env import HostEnv

        first = await Rig(tmp_path, env=replace(HostEnv(), ids=Ids("a"))).run(_nothing)
        before = files_of(tmp_path)
        second = await Rig(tmp_path, env=replace(HostEnv(), ids=Ids("a", "a", "b"))).run(_nothing)
        assert first.run_id != second.run_id
        assert {name: data for name, data in files_of(tmp_path).items() if name in before} == before

    asyncio.run(main())


def test_a_result_that_is_no_json_fails_the_run_and_says_where(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return {"a": [1, {2}]}

    async def main() -> None:
        result = await Rig(tmp_path).run(script)
        assert result.error is not None
        assert (result.status, result.error.code) == ("failed", "not_serialisable")

    asyncio.run(main())


def test_a_script_that_raises_fails_with_its_line_and_its_trace(tmp_path: Path) -> None:
    async def script(ctx: Any, args: Any) -> Any:
        return args["there is no such key"]

    async def main() -> None:
        rig = Rig(tmp_path)
        result = await rig.run(script)
        error = result.error
        assert error is not None
        assert (result.status, error.code) == ("failed", "KeyError")
        assert error.line == script.__code__.co_firstlineno + 1
        assert "there is no such key" in (error.trace or "")
        assert rig.notification()["error"]["code"] == "KeyError"

    asyncio.run(main())


def test_registering_checks_the_meta_data_first(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        for meta in ("text", {}, {"name": "x"}, {**META, "phases": [""]}, {**META, "phase": []}):
            with pytest.raises(WorkflowInputError) as raised:
                rig.workflows.register(meta, _nothing)  # type: ignore[arg-type]
            assert raised.value.code == "bad_meta"

    asyncio.run(main())


@pytest.mark.parametrize("file", ["{}.journal.jsonl", "{}.json"])
def test_a_run_whose_files_cannot_be_read_is_refused_and_let_go(tmp_path: Path, file: str) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        result = await rig.run(_nothing)
        path = Path(rig.files.directory, file.format(result.run_id))
        path.unlink()
        path.mkdir()
        for _ in range(2):
            with pytest.raises(WorkflowInputError) as raised:
                await rig.workflows.launch_async(resume_from_run_id=result.run_id)
            assert raised.value.code == "store_unwritable"

    asyncio.run(main())
