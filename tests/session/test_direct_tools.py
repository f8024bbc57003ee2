"""Tools that the host calls itself: under which rules, beside what, and in every form that a session has for them."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentDefinition, PermissionPolicy, Session, ToolOutput
from fanfold.contracts.messages import ModelRequest
from fanfold.errors import RunCancelledError, SessionClosedError, ToolError, UsageError
from fanfold.protocols import ModelCapabilities
from fanfold.testing import ScriptedModel, calls, echo
from tests.support.open_session import heard, opened, types, until
from tests.support.tools import RecordingTool

NOTHING = PermissionPolicy(default_decision="deny")


# ---- trusted and governed -------------------------------------------------------------------------------------------


def test_a_trusted_call_asks_no_rule_and_a_governed_one_does(tmp_path: Path) -> None:
    tool = RecordingTool("look", lambda args: f"saw {args['at']}", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), tool, permission_policy=NOTHING) as session:
            result = await session.tool_async("look", {"at": "x"})
            assert (result.name, result.output, result.exit_code, result.ok) == ("look", "saw x", 0, True)
            assert str(result) == "saw x"
            assert result["output"] == "saw x"
            refused = await session.governed_tool_async("look", {"at": "x"})
            assert refused.output == "Permission denied: Tool 'look' is blocked by permission policy."
            assert (refused.exit_code, refused.ok) == (1, False)

    asyncio.run(main())
    assert len(tool.calls) == 1


def test_a_trusted_search_shows_what_read_may_not_have(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("needle")

    async def main() -> None:
        policy = PermissionPolicy(deny=("read(secret.txt)",))
        async with opened(tmp_path, ScriptedModel([]), permission_policy=policy) as session:
            assert "needle" in await session.grep_async("needle")
            assert "needle" in await session.read_file_async("secret.txt")
            governed = await session.governed_tool_async("search", {"mode": "grep", "query": "needle"})
            assert "secret.txt" not in governed.output

    asyncio.run(main())


@pytest.mark.parametrize("governed", [True, False])
def test_a_call_that_cannot_run_is_a_failed_result(tmp_path: Path, governed: bool) -> None:
    schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
    tool = RecordingTool("look", parameters=schema)

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), tool) as session:
            call = session.governed_tool_async if governed else session.tool_async
            for name, told in (("nothing", "There is no tool 'nothing'"), ("look", "do not fit its schema")):
                result = await call(name, {})
                assert result.exit_code == 1
                assert told in result.output

    asyncio.run(main())
    assert tool.calls == []


@pytest.mark.parametrize("args", ["text", ["a"], {"a": object()}, {1, 2}, 5])
def test_arguments_that_are_no_json_object_are_refused(tmp_path: Path, args: Any) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), RecordingTool("look")) as session:
            for call in (session.tool_async, session.governed_tool_async):
                with pytest.raises(UsageError, match="the arguments of a tool must be"):
                    await call("look", args)

    asyncio.run(main())


def test_a_tool_that_raises_or_gives_nonsense_is_a_failed_result(tmp_path: Path) -> None:
    def broken(args: Any) -> Any:
        raise ValueError("out of order")

    tools = (RecordingTool("broken", broken), RecordingTool("odd", lambda args: ToolOutput(output=5)))  # type: ignore[arg-type]

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), *tools) as session:
            result = await session.tool_async("broken")
            assert (result.exit_code, result.output) == (1, "ValueError: out of order")
            assert (await session.tool_async("odd")).output.startswith("the tool gave no valid output")

    asyncio.run(main())


def test_metadata_and_artifacts_come_along(tmp_path: Path) -> None:
    given = ToolOutput(output="part", artifact="a3s://whole", metadata={"rows": 3})

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), RecordingTool("look", lambda args: given)) as session:
            result = await session.tool_async("look")
            assert (result.artifact, result.metadata) == ("a3s://whole", {"rows": 3})
            assert result.to_dict()["metadata"] == {"rows": 3}

    asyncio.run(main())


# ---- the session's agent is another matter --------------------------------------------------------------------------


def test_the_host_has_every_tool_whatever_the_session_s_own_agent_has(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    role = AgentDefinition(name="mute", description="d")

    async def main() -> None:
        model = ScriptedModel(echo, capabilities=ModelCapabilities(tools=False))
        async with opened(tmp_path, model) as session:
            assert "text" in await session.read_file_async("a.txt")
        async with (
            await Agent.create_async(models={"scripted/model": ScriptedModel(echo)}, agents={"mute": role}) as agent,
            await agent.session_for_agent_async(tmp_path, "mute") as session,
        ):
            assert session.tool_definitions() == []
            assert "text" in await session.read_file_async("a.txt")
            assert (await session.governed_tool_async("read", {"file_path": "a.txt"})).ok

    asyncio.run(main())


def test_the_permissions_of_the_role_hold_for_governed_calls(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Agent.create_async(models={"scripted/model": ScriptedModel(echo)}) as agent:
            options: dict[str, Any] = {"permission_policy": PermissionPolicy(default_decision="allow")}
            async with await agent.session_for_agent_async(tmp_path, "plan", **options) as session:
                args = {"file_path": "a.txt", "content": "x"}
                assert not (await session.governed_tool_async("write", args)).ok
                assert not (tmp_path / "a.txt").exists()
                assert (await session.tool_async("write", args)).ok

    asyncio.run(main())


# ---- beside runs ----------------------------------------------------------------------------------------------------


def test_direct_calls_run_beside_a_prompt_and_beside_each_other_and_leave_no_trace_in_the_conversation(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def answer(request: ModelRequest) -> str:
            await go_on.wait()
            return "done"

        model = ScriptedModel(answer)
        tool = RecordingTool("look", wait=go_on)
        async with opened(tmp_path, model, tool) as session:
            running = asyncio.create_task(session.send_async("go"))
            await until(lambda: model.running)
            direct = [asyncio.create_task(session.tool_async("look")) for _ in range(3)]
            await until(lambda: tool.running == 3)
            go_on.set()
            assert all(result.ok for result in await asyncio.gather(*direct))
            await running
            assert len(session.history()) == 2
            assert len(await session.runs_async()) == 1
            assert tool.calls[0][1].session_id == "s"
            assert len({scope.call_id for _, scope in tool.calls}) == 3

    asyncio.run(main())
    assert tmp_path.joinpath(".a3s/effect-log/s.jsonl").read_bytes().count(b"\n") == 2


def test_what_a_direct_call_does_is_told_to_its_own_listener(tmp_path: Path) -> None:
    events: list[Any] = []

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), RecordingTool("look")) as session:
            await session.tool_async("look", {"at": 1}, events=events.append)

    asyncio.run(main())
    assert types(events) == ["tool_start", "tool_execution_start", "tool_end"]
    assert events[1].payload["args"] == {"at": 1}


def test_a_call_that_takes_too_long_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        tool = RecordingTool("look", wait=asyncio.Event())
        async with opened(tmp_path, ScriptedModel([]), tool, tool_timeout_ms=20) as session:
            result = await session.tool_async("look")
            assert (result.exit_code, result.output) == (1, "Tool 'look' did not end within 0.02 s; cancelled.")
            assert tool.running == 0

    asyncio.run(main())


def test_cancelling_the_caller_cancels_the_call_and_the_close_does_too(tmp_path: Path) -> None:
    async def main() -> None:
        tool = RecordingTool("look", wait=asyncio.Event())
        async with opened(tmp_path, ScriptedModel([]), tool) as session:
            first = asyncio.create_task(session.tool_async("look"))
            await until(lambda: tool.running)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert tool.running == 0
            second = asyncio.create_task(session.tool_async("look"))
            await until(lambda: tool.running)
            assert not await session.cancel_async()  # it is no run
            await session.close_async()
            with pytest.raises(RunCancelledError):
                await second
            assert tool.running == 0

    asyncio.run(main())


# ---- helpers --------------------------------------------------------------------------------------------------------


def git(workspace: Path, *args: str) -> None:
    named = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    subprocess.run(["git", *named, *args], cwd=workspace, check=True, capture_output=True)


def filled(workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src" / "one.py").write_text("first\nsecond\nthird\n")
    (workspace / "src" / "two.py").write_text("other\n")
    git(workspace, "init", "-q")
    git(workspace, "add", ".")
    git(workspace, "commit", "-q", "-m", "begun")


def test_each_helper_does_what_its_tool_does(tmp_path: Path) -> None:
    filled(tmp_path)

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo), allow_unsandboxed_bash=True) as session:
            assert "second" in await session.read_file_async("src/one.py", 1, 1)
            assert "first" not in await session.read_file_async("src/one.py", offset=1)
            await session.write_file_async("new.txt", "a a")
            await session.edit_file_async("new.txt", "a", "b", True)
            assert (tmp_path / "new.txt").read_text() == "b b"
            assert "src" in await session.ls_async()
            assert "one.py" in await session.ls_async("src")
            assert await session.glob_async("*.py") == ["src/one.py", "src/two.py"]
            assert "src/one.py" in await session.grep_async("sec.nd")
            assert "begun" in await session.git_async({"command": "log"})
            assert await session.bash_async("echo hi") == "hi\n" or "hi" in await session.bash_async("echo hi")

    asyncio.run(main())


def test_each_helper_has_a_blocking_form(tmp_path: Path) -> None:
    filled(tmp_path)
    model = ScriptedModel(echo)
    with Agent.create(models={"scripted/model": model}) as agent:
        session = agent.session(tmp_path, allow_unsandboxed_bash=True)
        assert "second" in session.read_file("src/one.py", 1, 1)
        session.write_file("new.txt", "a")
        session.edit_file("new.txt", "a", "b")
        assert (tmp_path / "new.txt").read_text() == "b"
        assert "src" in session.ls()
        assert session.glob("*.py") == ["src/one.py", "src/two.py"]
        assert "src/one.py" in session.grep("second")
        assert "begun" in session.git({"command": "log"})
        assert "hi" in session.bash("echo hi")
        assert session.tool("read", {"file_path": "new.txt"}).ok
        assert session.governed_tool("read", {"file_path": "new.txt"}).ok
        assert session.task({"agent": "answer", "prompt": "p"}).output == "p"
        assert "2 of 2" in session.tasks([{"agent": "answer", "prompt": "p"}] * 2).output
        assert session.delegate_task("answer", "d", "p").output == "p"


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 450])
def test_a_glob_gives_all_paths_on_however_many_pages(tmp_path: Path, count: int) -> None:
    for number in range(count):
        (tmp_path / f"f{number:03}.txt").touch()
    (tmp_path / "other.md").touch()

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            assert await session.glob_async("*.txt") == [f"f{number:03}.txt" for number in range(count)]

    asyncio.run(main())


def test_a_file_may_be_called_like_a_note_of_the_search(tmp_path: Path) -> None:
    names = ["[3 more; continue with cursor=5]", "[no file matches]"]
    for name in names:
        (tmp_path / name).touch()

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            assert await session.glob_async("*") == names

    asyncio.run(main())


def test_a_helper_whose_tool_fails_raises_and_the_session_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), allow_unsandboxed_bash=True) as session:
            await session.write_file_async("a.txt", "x")
            for fail, told in (
                (lambda: session.read_file_async("nowhere.txt"), "read: Failed to read"),
                (lambda: session.read_file_async("../outside.txt"), "read: "),
                (lambda: session.write_file_async("../outside.txt", "x"), "write: "),
                (lambda: session.edit_file_async("a.txt", "b", "c"), "edit: old_string not found"),
                (lambda: session.ls_async("nowhere"), "ls: Failed to ls"),
                (lambda: session.glob_async(""), "search: "),
                (lambda: session.grep_async("("), "search: "),
                (lambda: session.git_async({"command": "rebase"}), "git: git rebase is refused"),
                (lambda: session.git_async({"command": "branch", "name": "x"}), "git: .*'name' was unexpected"),
                (lambda: session.bash_async("exit 3"), r"bash: \[exit code 3\]"),
            ):
                with pytest.raises(ToolError, match=f"^Tool error: {told}") as error:
                    await fail()
                assert error.value.code == "TOOL_ERROR"
            assert not (tmp_path.parent / "outside.txt").exists()
            assert "x" in await session.read_file_async("a.txt")

    asyncio.run(main())


def test_a_task_for_a_child_that_fails_is_a_failed_result(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            unknown = await session.task_async({"agent": "nobody", "prompt": "p"})
            assert (unknown.exit_code, unknown.output) == (1, "Task failed: Unknown agent type: 'nobody'")
            both = await session.tasks_async([{"agent": "nobody", "prompt": "p"}, {"agent": "answer", "prompt": "p"}])
            assert both.exit_code == 1
            assert both.metadata is not None
            assert (both.metadata["success_count"], both.metadata["partial_failure"]) == (1, True)
            wrong = await session.task_async({"agent": "answer"})
            assert wrong.exit_code == 1
            assert "prompt" in wrong.output

    asyncio.run(main())


# ---- after the close ------------------------------------------------------------------------------------------------


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(SessionClosedError, match="Session 's' is closed"):
        yield


def test_after_the_close_everything_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    async def main() -> None:
        tool = RecordingTool("look")
        async with opened(tmp_path, ScriptedModel([]), tool) as session:
            await session.close_async()
            for late in (
                session.tool_async("look"),
                session.governed_tool_async("look"),
                session.read_file_async("a"),
                session.write_file_async("a", "b"),
                session.edit_file_async("a", "b", "c"),
                session.ls_async(),
                session.bash_async("true"),
                session.glob_async("*"),
                session.grep_async("x"),
                session.git_async({"command": "log"}),
                session.web_fetch_async("https://example.com"),
                session.task_async({"agent": "answer", "prompt": "p"}),
                session.tasks_async([]),
                session.delegate_task_async("answer", "d", "p"),
            ):
                with refused():
                    await late
            for register in (
                lambda: session.register_agent_dir(str(tmp_path)),
                lambda: session.register_worker_agent({"name": "w", "kind": "reviewer"}),
                lambda: session.register_hook("h", "on_error", handler=print),
                lambda: session.register_command("c", "d", lambda args, context: ""),
            ):
                with refused():
                    register()
            assert (session.hook_count(), tool.calls) == (0, [])
            assert "c" not in [info.name for info in session.list_commands()]

    asyncio.run(main())


def test_an_answer_of_a_model_may_call_the_same_tools_meanwhile(tmp_path: Path) -> None:
    """The gate of calls that run beside each other judges each by its own arguments."""
    seen: list[str] = []
    tool = RecordingTool("look", lambda args: seen.append(args["by"]))
    policy = PermissionPolicy(deny=("look(*bad*)",))
    model = ScriptedModel([calls(("look", {"by": "model bad"}), ("look", {"by": "model good"})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, permission_policy=policy) as session:
            stream = await session.stream_async("go")
            direct = [session.governed_tool_async("look", {"by": f"host {word}"}) for word in ("bad", "good") * 5]
            results, _ = await asyncio.gather(asyncio.gather(*direct), heard(stream))
            assert [result.ok for result in results] == [False, True] * 5

    asyncio.run(main())
    assert sorted(seen) == ["host good"] * 5 + ["model good"]


def check_session_type(session: Session) -> None:
    """Only for the type checker: what the blocking forms give."""
    paths: list[str] = session.glob("*")
    text: str = session.read_file(paths[0])
    session.write_file(paths[0], text)
