"""Agents in real sessions: where they come from, what they may do, and how work is handed to them."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentDefinition, MemorySessionStore, PermissionPolicy, Session, SessionOptions
from fanfold.contracts.agents import WorkerAgentSpec
from fanfold.contracts.facts import ToolResulted, ToolTurn
from fanfold.contracts.messages import TASK, ModelRequest, ToolMessage, UserMessage
from fanfold.errors import ConfigError, UsageError
from fanfold.testing import ScriptedModel, calls, echo
from fanfold.testing.scripted import newest_text
from tests.support.open_session import facts_of, heard, opened, types, until
from tests.support.tools import RecordingTool

ALLOWED = PermissionPolicy(default_decision="allow")


def agent_file(folder: Path, name: str, prompt: str, *lines: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = "\n".join([f"name: {name}", f"description: does {name}", *lines])
    (folder / f"{name}.md").write_text(f"---\n{head}\n---\n{prompt}\n")


def step(task_id: str, agent: str, prompt: str = "p") -> dict[str, Any]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt}


def item(agent: str, prompt: str = "p", **more: Any) -> dict[str, Any]:
    return {"agent": agent, "description": "d", "prompt": prompt, **more}


def task_call(*items: dict[str, Any], **options: Any) -> Any:
    return calls((TASK, {"tasks": list(items), **options}))


def asked(request: ModelRequest) -> str:
    """The newest thing that the user said."""
    return next(each.text for each in reversed(list(request.transcript)) if isinstance(each, UserMessage))


def is_child(request: ModelRequest) -> bool:
    return request.session_id.startswith("task-run-")


def parent_and_children(*parent: Any, child: Any = echo) -> ScriptedModel:
    """`parent` in order for the session's own agent, `child` for all its children."""
    answers = iter(parent)

    def answer(request: ModelRequest) -> Any:
        if not is_child(request):
            return next(answers)
        return child(request) if callable(child) else child

    return ScriptedModel(answer)


def of_children(model: ScriptedModel) -> list[ModelRequest]:
    return [request for request in model.requests if is_child(request)]


def results(workspace: Path) -> list[tuple[bool, str]]:
    found = (fact.payload for fact in facts_of(workspace) if isinstance(fact.payload, ToolResulted))
    return [(result.ok, result.output) for result in found]


def tool_names(request: ModelRequest) -> list[str]:
    return [spec.name for spec in request.tools]


# ---- where agents come from -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [".a3s/agents", ".claude/agents", ".a3s/agents/deep/er"])
def test_agents_of_the_workspace_run_steps_and_tasks(tmp_path: Path, place: str) -> None:
    agent_file(tmp_path / place, "poet", "You rhyme.", "tools: Read, Grep")
    model = parent_and_children(
        task_call(item("poet", "one")), "done", child=lambda request: f"rhyme: {asked(request)}"
    )

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("go")
            assert [each.output for each in await session.parallel_async([step("a", "poet", "two")])] == ["rhyme: two"]

    asyncio.run(main())
    assert results(tmp_path) == [(True, "rhyme: one")]
    for request in of_children(model):
        assert "You rhyme." in request.system
        assert tool_names(request) == ["read", "search"]
    assert "- poet: does poet" in next(spec for spec in model.requests[0].tools if spec.name == TASK).description


def test_of_two_agents_with_one_name_the_nearer_counts(tmp_path: Path) -> None:
    options: dict[str, Any] = {}

    def says(request: ModelRequest) -> str:
        return request.system.rpartition("FROM ")[2]

    async def main() -> str:
        given = {"poet": AgentDefinition(name="poet", description="d", prompt="FROM code")}
        async with opened(tmp_path, ScriptedModel(says), agents=given, session_id=None, **options) as session:
            [outcome] = await session.parallel_async([step("a", "poet")])
            return str(outcome.output)

    agent_file(tmp_path / ".claude/agents", "poet", "FROM claude")
    agent_file(tmp_path / ".a3s/agents", "poet", "FROM a3s")
    assert asyncio.run(main()) == "code"
    agent_file(tmp_path / "more", "poet", "FROM dir")
    options["agent_dirs"] = [str(tmp_path / "more")]
    assert asyncio.run(main()) == "dir"
    options["worker_agents"] = [WorkerAgentSpec(name="poet", kind="custom", prompt="FROM worker")]
    assert asyncio.run(main()) == "worker"


def test_a_bad_file_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent_file(tmp_path / ".a3s/agents", "good", "You work.")
    (tmp_path / ".a3s/agents/bad.md").write_text("no front matter")

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            assert (await session.parallel_async([step("a", "good")]))[0].success

    with caplog.at_level(logging.WARNING, "fanfold"):
        asyncio.run(main())
    assert "bad.md" in caplog.text


def test_agents_can_be_registered_while_the_session_lives(tmp_path: Path) -> None:
    agent_file(tmp_path / "more", "poet", "You rhyme.")
    agent_file(tmp_path / "more", "singer", "You sing.")
    model = parent_and_children("one", "two")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("a")
            assert session.register_agent_dir(str(tmp_path / "more")) == 2
            session.register_worker_agent({"name": "checker", "kind": "verifier", "description": "checks it"})
            session.register_worker_agent(WorkerAgentSpec(name="poet", kind="custom", prompt="You write prose."))
            await session.send_async("b")
            outcomes = await session.parallel_async([step(name, name) for name in ("poet", "singer", "checker")])
            assert all(outcome.success for outcome in outcomes)
            with pytest.raises(ConfigError):
                session.register_worker_agent({"name": "w", "kind": "magician"})

    asyncio.run(main())
    before, after = (next(spec.description for spec in each.tools if spec.name == TASK) for each in model.requests[:2])
    assert "poet" not in before
    assert "- singer: does singer" in after
    assert "- checker: checks it" in after
    systems = {request.session_id: request.system for request in of_children(model)}
    assert "You write prose." in systems["task-run-poet"]
    assert "You sing." in systems["task-run-singer"]


@pytest.mark.parametrize(
    ("kind", "may_write"), [("read_only", False), ("planner", False), ("reviewer", False), ("implementer", True)]
)
def test_a_worker_may_what_its_kind_may(tmp_path: Path, kind: Any, may_write: bool) -> None:
    write = calls(("write", {"file_path": "a.txt", "content": "x"}))
    model = ScriptedModel([write, "done"])

    async def main() -> None:
        workers = [WorkerAgentSpec(name="w", kind=kind, description="d")]
        async with opened(tmp_path, model, worker_agents=workers, permission_policy=ALLOWED) as session:
            assert (await session.parallel_async([step("a", "w")]))[0].success

    asyncio.run(main())
    assert (tmp_path / "a.txt").exists() == may_write


def test_workers_are_options_too_given_as_records_or_as_mappings(tmp_path: Path) -> None:
    model = ScriptedModel(echo)
    given: list[Any] = [{"name": "w", "kind": "scanner"}, WorkerAgentSpec(name="v", kind="planner")]

    async def main() -> None:
        async with opened(tmp_path, model, worker_agents=given) as session:
            assert all(each.success for each in await session.parallel_async([step("a", "w"), step("b", "v")]))
        async with await agent_of(model) as agent:
            with pytest.raises(ConfigError, match="unknown worker agent kind 'magician'"):
                await agent.session_async(tmp_path, SessionOptions(worker_agents=({"name": "w", "kind": "magician"},)))  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="worker_agents"):
                await agent.session_async(tmp_path, worker_agents="reviewer")

    asyncio.run(main())
    assert "You explore a workspace" in model.requests[0].system
    assert "You plan a change" in model.requests[1].system


def test_a_child_in_the_background_can_ask_a_person_when_its_run_is_over(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)
    helper = AgentDefinition(name="helper", description="d", tools=("send",))
    model: ScriptedModel = parent_and_children(
        task_call(item("helper", background=True)),
        "started",
        child=lambda request: "sent" if len(of_children(model)) > 1 else calls(("send", {})),
    )

    async def main() -> None:
        async with opened(tmp_path, model, tool, agents={"helper": helper}) as session:
            await session.send_async("go")
            [waiting] = await until(session.pending_confirmations)
            assert waiting.session_id == f"task-run-{session.subagent_tasks()[0].task_id}"
            assert await session.confirm_tool_use_async(waiting.tool_id, True)
            await until(lambda: not session.pending_subagent_tasks())
            assert session.subagent_tasks()[0].output == "sent"

    asyncio.run(main())
    assert len(tool.calls) == 1


def test_an_unknown_agent_fails_its_step_and_its_task_alone(tmp_path: Path) -> None:
    model = parent_and_children(task_call(item("nobody"), item("answer")), "done")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            outcomes = await session.parallel_async([step("a", "nobody"), step("b", "answer")])
            assert [outcome.success for outcome in outcomes] == [False, True]
            assert outcomes[0].output == "Task failed: Unknown agent type: 'nobody'"
            await session.send_async("go")

    asyncio.run(main())
    [(ok, output)] = results(tmp_path)
    assert not ok
    assert output.startswith("1 of 2 tasks succeeded.")
    assert "Unknown agent type: 'nobody'" in output


@pytest.mark.parametrize(
    ("alias", "name"), [("general-purpose", "general"), ("verifier", "verification"), ("code-review", "review")]
)
def test_aliases_are_names_too(tmp_path: Path, alias: str, name: str) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            assert (await session.parallel_async([step("a", alias), step("b", name)]))[0].success

    asyncio.run(main())
    first, second = model.requests
    assert first.system == second.system


# ---- sessions of an agent -------------------------------------------------------------------------------------------


async def agent_of(model: Any, *tools: RecordingTool, **more: Any) -> Agent:
    models = {"scripted/model": model, **more.pop("models", {})}
    return await Agent.create_async(models=models, tools={tool.spec.name: tool for tool in tools}, **more)


def test_a_session_for_an_agent_has_its_prompt_its_tools_and_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    write = ("write", {"file_path": "b.txt", "content": "x"})
    model = ScriptedModel([calls(write), calls(("read", {"file_path": "a.txt"})), "found"])

    async def main() -> None:
        async with await agent_of(model) as agent:
            options = SessionOptions(permission_policy=ALLOWED, planning_mode="auto")
            async with await agent.session_for_agent_async(tmp_path, "explore", None, options) as session:
                assert (await session.send_async("look")).text == "found"

    asyncio.run(main())
    first = model.requests[0]
    assert "You explore a workspace and change nothing." in first.system
    assert set(tool_names(first)) == {"read", "search", "ls", "bash", "web_fetch", "update_plan"}
    denied, read = (message for message in model.requests[-1].transcript if isinstance(message, ToolMessage))
    assert not denied.ok
    assert read.ok
    assert not (tmp_path / "b.txt").exists()


def test_the_session_s_own_rules_narrow_the_agent_further(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    model = ScriptedModel([calls(("read", {"file_path": "a.txt"})), "found"])

    async def main() -> None:
        async with await agent_of(model) as agent:
            policy = PermissionPolicy(deny=("read(a.txt)",))
            async with await agent.session_for_agent_async(tmp_path, "explore", permission_policy=policy) as session:
                await session.send_async("look")

    asyncio.run(main())
    assert newest_text(model.requests[-1]) == "Permission denied: Tool 'read' is blocked by permission policy."


def test_it_is_looked_for_in_the_folders_given_and_not_in_those_of_the_workspace(tmp_path: Path) -> None:
    agent_file(tmp_path / ".a3s/agents", "poet", "You rhyme.")
    agent_file(tmp_path / "agents", "singer", "You sing.", "tools: Read", "max_steps: 2", "model: other/big")
    small, big = ScriptedModel(echo), ScriptedModel(echo)

    async def main() -> None:
        async with await agent_of(small, models={"other/big": big}) as agent:
            with pytest.raises(UsageError, match="agent 'poet' not found"):
                await agent.session_for_agent_async(tmp_path, "poet")
            with pytest.raises(UsageError, match="agent 'exploer' not found; did you mean 'explore'"):
                await agent.session_for_agent_async(tmp_path, "exploer")
            folders = [str(tmp_path / "agents")]
            async with await agent.session_for_agent_async(tmp_path, "singer", folders) as session:
                assert session.model == "other/big"
                await session.send_async("go")
            async with await agent.session_for_agent_async(
                tmp_path, "singer", folders, model="scripted/model"
            ) as session:
                await session.send_async("go")
                assert (await session.parallel_async([step("a", "poet")]))[0].success

    asyncio.run(main())
    for model in (small, big):
        assert "You sing." in model.requests[0].system
        assert tool_names(model.requests[0]) == ["read"]


@pytest.mark.parametrize(("given", "rounds"), [(None, 2), (4, 4)])
def test_the_rounds_are_the_agent_s_unless_the_session_says_otherwise(
    tmp_path: Path, given: int | None, rounds: int
) -> None:
    agent_file(tmp_path / "agents", "worker", "You work.", "tools: Look", "max_steps: 2")
    model: ScriptedModel = ScriptedModel(
        lambda request: calls(("Look", {"n": len(model.requests)})) if request.tools else "done"
    )

    async def main() -> None:
        async with (
            await agent_of(model, RecordingTool("Look")) as agent,
            await agent.session_for_agent_async(
                tmp_path, "worker", [str(tmp_path / "agents")], max_tool_rounds=given
            ) as session,
        ):
            assert (await session.send_async("go")).tool_calls_count == rounds

    asyncio.run(main())
    assert len(model.requests) == rounds + 1


@pytest.mark.parametrize("given", [{"name": "w", "kind": "reviewer"}, WorkerAgentSpec(name="w", kind="reviewer")])
def test_a_session_for_a_worker_is_one_for_the_agent_of_its_kind(tmp_path: Path, given: Any) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with await agent_of(model) as agent:
            async with await agent.session_for_worker_async(tmp_path, given) as session:
                await session.send_async("go")
            with pytest.raises(ConfigError, match="unknown worker agent kind 'magician'"):
                await agent.session_for_worker_async(tmp_path, {"name": "w", "kind": "magician"})
            assert agent.list_sessions() == []

    asyncio.run(main())
    assert "You review and change nothing." in model.requests[0].system


def test_a_custom_worker_asks_before_each_call(tmp_path: Path) -> None:
    tool = RecordingTool("look")
    model = ScriptedModel([calls(("look", {})), "done"])

    async def main() -> None:
        async with await agent_of(model, tool) as agent:
            worker = {"name": "w", "confirmation_inheritance": "inherit_parent"}
            async with await agent.session_for_worker_async(tmp_path, worker, permission_policy=ALLOWED) as session:
                running = asyncio.create_task(session.send_async("go"))
                [waiting] = await until(session.pending_confirmations)
                await session.confirm_tool_use_async(waiting.tool_id, True)
                await running

    asyncio.run(main())
    assert len(tool.calls) == 1


def test_the_blocking_forms_open_the_same_sessions(tmp_path: Path) -> None:
    agent_file(tmp_path / "agents", "poet", "You rhyme.")
    model = ScriptedModel(echo)
    with Agent.create(models={"scripted/model": model}) as agent:
        with agent.session_for_agent(tmp_path, "poet", [str(tmp_path / "agents")]) as session:
            session.send("one")
        with agent.session_for_worker(tmp_path, {"name": "w", "prompt": "You dance."}) as session:
            session.send("two")
    assert "You rhyme." in model.requests[0].system
    assert "You dance." in model.requests[1].system


# ---- the task tool --------------------------------------------------------------------------------------------------


def test_a_model_hands_out_tasks_and_reads_their_results(tmp_path: Path) -> None:
    model = parent_and_children(task_call(item("explore", "one"), item("plan", "two")), "summed up")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            stream = await session.stream_async("go")
            events = await heard(stream)
            result = await stream.result_async()
            assert (result.text, result.tool_calls_count) == ("summed up", 1)
            told = types(events, "tool_start", "subagent_start", "subagent_end", "tool_end", "agent_end")
            assert told[0] == "tool_start"
            assert told[-2:] == ["tool_end", "agent_end"]
            assert sorted(told[1:-2]) == [*["subagent_end"] * 2, *["subagent_start"] * 2]
            ends = [each.payload for each in events if each.type == "subagent_end"]
            assert {(end["agent"], end["output"], end["success"]) for end in ends} == {
                ("explore", "one", True),
                ("plan", "two", True),
            }
            rows = session.subagent_tasks()
            assert [(row.agent, row.status, row.output, row.parent_session_id) for row in rows] == [
                ("explore", "completed", "one", "s"),
                ("plan", "completed", "two", "s"),
            ]
            assert session.pending_subagent_tasks() == []
            assert session.subagent_task(rows[0].task_id) == rows[0]
            assert session.subagent_task("nobody") is None
            assert await session.run_events_async(result.run_id)

    asyncio.run(main())
    [(ok, output)] = results(tmp_path)
    assert ok
    assert "one" in output
    assert "two" in output
    assert all(TASK not in tool_names(request) for request in of_children(model))
    assert [asked(request) for request in of_children(model)] == ["one", "two"]


def test_children_never_see_the_task_tool_whatever_they_are_given(tmp_path: Path) -> None:
    everything = AgentDefinition(name="everything", description="d", tools=("*", TASK))
    model = parent_and_children(
        task_call(item("everything")),
        "done",
        child=lambda request: (
            newest_text(request)
            if isinstance(request.transcript.message, ToolMessage)
            else task_call(item("explore", "deeper"))
        ),
    )

    async def main() -> None:
        async with opened(tmp_path, model, agents={"everything": everything}, permission_policy=ALLOWED) as session:
            await session.send_async("go")
            assert len(session.subagent_tasks()) == 1

    asyncio.run(main())
    [(_, output)] = results(tmp_path)
    assert output.startswith("There is no tool 'task'.")
    assert TASK not in tool_names(of_children(model)[0])


@pytest.mark.parametrize(("partial", "ok"), [(False, False), (True, True)])
def test_one_failed_child_fails_the_call_unless_that_is_allowed(tmp_path: Path, partial: bool, ok: bool) -> None:
    options: dict[str, Any] = {"allow_partial_failure": True} if partial else {}
    model = parent_and_children(
        task_call(item("answer", "good"), item("answer", "bad"), **options),
        "done",
        child=lambda request: "" if asked(request) == "bad" else "fine",
    )

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("go")
            assert [row.status for row in session.subagent_tasks()] == ["completed", "failed"]

    asyncio.run(main())
    [(was_ok, output)] = results(tmp_path)
    assert was_ok == ok
    assert output.startswith("1 of 2 tasks succeeded.")
    assert "child agent returned no final output" in output


def test_a_wrong_call_is_told_to_the_model_and_starts_nobody(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tasks": []}, "at least 1 task"),
        ({"tasks": [item("answer")] * 33}, "at most 32 tasks"),
        ({"tasks": [item("answer", colour="red")]}, "colour"),
        ({"tasks": [item("answer", background=True), item("answer")]}, "background=true"),
        ({"tasks": [{"agent": "answer"}]}, "prompt"),
    ]
    model = parent_and_children(*[calls((TASK, args)) for args, _ in wrong], "done")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("go")
            assert session.subagent_tasks() == []

    asyncio.run(main())
    assert [ok for ok, _ in results(tmp_path)] == [False] * len(wrong)
    for (_, output), (_, told) in zip(results(tmp_path), wrong, strict=True):
        assert told in output


def test_a_long_answer_of_a_child_can_be_read_whole(tmp_path: Path) -> None:
    long = "".join(f"line {number}\n" for number in range(2_000))
    read: list[Any] = []

    def parent(request: ModelRequest) -> Any:
        if is_child(request):
            return long
        message = request.transcript.message
        if isinstance(message, UserMessage):
            return task_call(item("answer"))
        if isinstance(message, ToolMessage) and message.name == TASK:
            place = message.output.partition("read ")[2].partition(" ")[0]
            return calls(("read", {"file_path": place, "offset": 1_000, "limit": 1}))
        read.append(message)
        return "done"

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(parent)) as session:
            await session.send_async("go")

    asyncio.run(main())
    assert "line 1000" in newest_of(read)


def newest_of(messages: list[Any]) -> str:
    return str(messages[-1].output)


def test_a_schema_of_a_task_is_kept_by_its_child(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    model = parent_and_children(child='{"yes": true}')

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            result = await session.task_async(item("answer", output_schema=schema))
            assert result.metadata is not None
            assert result.metadata["structured"] == {"yes": True}

    asyncio.run(main())


def test_tasks_and_fan_outs_share_the_places_of_their_session(tmp_path: Path) -> None:
    model = parent_and_children(task_call(*[item("answer", f"t{n}") for n in range(6)]), "done")

    async def main() -> None:
        async with opened(tmp_path, model, max_parallel_tasks=2) as session:
            await asyncio.gather(
                session.send_async("go"), session.parallel_async([step(f"s{n}", "answer") for n in range(6)])
            )
            assert len(session.subagent_tasks()) == 12

    asyncio.run(main())
    assert len(of_children(model)) == 12


# ---- in the background ----------------------------------------------------------------------------------------------


class Slow:
    """Answers of children that come when they are let go."""

    def __init__(self, *parent: Any) -> None:
        self.go_on = asyncio.Event()
        self._parent = iter(parent)
        self.model = ScriptedModel(self._answer)

    async def _answer(self, request: ModelRequest) -> Any:
        if not is_child(request):
            return next(self._parent)
        await self.go_on.wait()
        return f"late {asked(request)}"


BACKGROUND = task_call(item("answer", "one", background=True))


def test_a_background_task_outlives_its_run(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(BACKGROUND, "started", "next")
        async with opened(tmp_path, slow.model) as session:
            stream = await session.stream_async("go")
            events = await heard(stream)
            assert types(events, "subagent_start", "tool_end", "subagent_end", "agent_end") == [
                "subagent_start",
                "tool_end",
                "agent_end",
            ]
            [row] = session.subagent_tasks()
            assert (row.status, [each.task_id for each in session.pending_subagent_tasks()]) == (
                "running",
                [row.task_id],
            )
            assert (await session.send_async("more")).text == "next"
            slow.go_on.set()
            await until(lambda: not session.pending_subagent_tasks())
            [row] = session.subagent_tasks()
            assert (row.status, row.output, row.success) == ("completed", "late one", True)
            assert await heard(stream) == []

    asyncio.run(main())
    [(ok, output)] = results(tmp_path)
    assert ok
    assert output.startswith("Task started in background. Task ID: task-id-")


def test_the_end_of_a_background_task_is_told_to_nobody_after_the_terminal_event(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(BACKGROUND, "started")
        async with opened(tmp_path, slow.model) as session:
            stream = await session.stream_async("go")
            await stream.result_async()
            slow.go_on.set()
            await until(lambda: not session.pending_subagent_tasks())
            assert (await heard(stream))[-1].type == "agent_end"
            assert types(await session.run_events_async(stream.run_id))[-1] in ("agent_end", "subagent_end")

    asyncio.run(main())


@pytest.mark.parametrize("way", ["model", "host"])
def test_the_close_cancels_background_tasks(tmp_path: Path, way: str) -> None:
    async def main() -> None:
        slow = Slow(BACKGROUND, "started")
        async with opened(tmp_path, slow.model) as session:
            if way == "model":
                await session.send_async("go")
            else:
                result = await session.delegate_task_async("answer", "d", "one", background=True)
                assert result.output.startswith("Task started in background.")
            await until(lambda: slow.model.running)
            await session.close_async()
            [row] = session.subagent_tasks()
            assert (row.status, row.success) == ("cancelled", False)
            assert slow.model.running == 0

    asyncio.run(main())


@pytest.mark.parametrize("background", [True, False])
def test_cancelling_a_child_stops_it_and_nobody_else(tmp_path: Path, background: bool) -> None:
    async def main() -> None:
        one = item("answer", "one", **({"background": True} if background else {}))
        slow = Slow(task_call(one), "done", "done")  # the end of one in the background is told too
        async with opened(tmp_path, slow.model) as session:
            running = asyncio.create_task(session.send_async("go"))
            other = asyncio.create_task(session.parallel_async([step("other", "answer", "two")]))
            await until(lambda: slow.model.running == 2)
            [row] = [each for each in session.subagent_tasks() if each.task_id != "other"]
            assert await session.cancel_subagent_task_async(row.task_id)
            assert not await session.cancel_subagent_task_async(row.task_id)
            assert not await session.cancel_subagent_task_async("nobody")
            assert (await running).text == "done"
            await until(lambda: slow.model.running == 1)
            slow.go_on.set()
            assert (await other)[0].output == "late two"
            cancelled = session.subagent_task(row.task_id)
            assert cancelled is not None
            assert (cancelled.status, cancelled.success) == ("cancelled", False)
            assert not await session.cancel_subagent_task_async("other")

    asyncio.run(main())
    if not background:
        [(ok, output)] = results(tmp_path)
        assert (ok, output) == (False, "Task cancelled by caller")


def test_cancelling_a_run_cancels_its_foreground_children_and_not_its_background_ones(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow(BACKGROUND, task_call(item("answer", "two")), "never")
        async with opened(tmp_path, slow.model) as session:
            running = asyncio.create_task(session.send_async("go"))
            await until(lambda: slow.model.running == 2)
            assert await session.cancel_async()
            assert running.done() or await asyncio.wait({running})
            running.exception()
            assert [row.status for row in session.subagent_tasks()] == ["running", "cancelled"]
            slow.go_on.set()
            await until(lambda: not session.pending_subagent_tasks())
            assert [row.status for row in session.subagent_tasks()] == ["completed", "cancelled"]

    asyncio.run(main())


# ---- delegation without the model's asking --------------------------------------------------------------------------

FITTING = "Review the change in the parser."


def was_delegated(workspace: Path) -> list[str]:
    """Names of the agents that the automatic calls of the log are for."""
    turns = [fact.payload for fact in facts_of(workspace) if isinstance(fact.payload, ToolTurn)]
    made = [turn.call for turn in turns if turn.call.id.startswith("auto-task")]
    return [each["agent"] for call in made if isinstance(call.args, dict) for each in call.args["tasks"]]


@pytest.mark.parametrize(
    ("options", "prompt", "agents"),
    [
        ({}, FITTING, []),
        ({"auto_delegation": {"enabled": False}}, FITTING, []),
        ({"auto_delegation": {"enabled": True}}, FITTING, ["review"]),
        ({"auto_delegation": {"enabled": True, "min_confidence": 1.0}}, "What is a review?", []),
        ({"auto_delegation": {"enabled": True}}, "Hello there.", []),
        ({}, "@review look at the parser", ["review"]),
        ({}, "@agent-plan how to change the parser", ["plan"]),
        ({}, "use the verification subagent for this", ["verification"]),
        ({}, "do not use the review agent", []),
        ({"manual_delegation_enabled": False}, "@review look at the parser", []),
        ({"manual_delegation_enabled": False, "auto_delegation": {"enabled": True}}, FITTING, []),
        ({"permission_policy": PermissionPolicy(deny=("task",))}, "@review look at the parser", []),
        ({"max_tool_rounds": 0}, "@review look at the parser", []),
        ({"auto_parallel": False}, "@review and @plan look at the parser", ["review", "plan"]),
    ],
)
def test_a_prompt_goes_to_the_agents_that_it_is_for(
    tmp_path: Path, options: dict[str, Any], prompt: str, agents: list[str]
) -> None:
    model = parent_and_children("answered")

    async def main() -> None:
        async with opened(tmp_path, model, **options) as session:
            result = await session.send_async(prompt)
            assert (result.text, result.stop_reason) == ("answered", "stop")

    asyncio.run(main())
    assert was_delegated(tmp_path) == agents
    assert len(model.requests) == len(agents) + 1
    assert [asked(request) for request in of_children(model)] == [prompt] * len(agents)


TWO_FIT = {
    name: AgentDefinition(name=name, description=f"{name} translates poems into verse")
    for name in ("poem-translator", "verse-translator", "poem-versifier")
}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"auto_delegation": {"enabled": True}}, 3),
        ({"auto_delegation": {"enabled": True, "max_tasks": 2}}, 2),
        ({"auto_delegation": {"enabled": True}, "max_parallel_tasks": 1}, 1),
        ({"auto_delegation": {"enabled": True, "allow_parallel": False}}, 1),
        ({"auto_delegation": {"enabled": True}, "auto_parallel": False}, 1),
    ],
)
def test_several_agents_that_fit_share_it_as_far_as_the_options_let_them(
    tmp_path: Path, options: dict[str, Any], count: int
) -> None:
    model = parent_and_children("answered")

    async def main() -> None:
        async with opened(tmp_path, model, agents=TWO_FIT, **options) as session:
            await session.send_async("Translate poems: poem translator, verse translator, poem versifier into verse.")

    asyncio.run(main())
    assert len(was_delegated(tmp_path)) == count


def test_a_delegation_is_a_fact_that_a_resumed_run_goes_on_from(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow("never")
        session_options: dict[str, Any] = {"session_store": MemorySessionStore()}
        async with opened(tmp_path, slow.model, **session_options) as session:
            running = asyncio.create_task(session.send_async("@review look"))
            await until(lambda: slow.model.running)
            await session.close_async()
            await asyncio.wait({running})
            running.exception()
        model = parent_and_children("answered")
        async with opened(tmp_path, model) as session:
            assert (await session.resume_run_async()).text == "answered"
        assert len(of_children(model)) == 1

    asyncio.run(main())
    assert was_delegated(tmp_path) == ["review"]


def test_a_delegation_is_asked_about_where_the_rules_ask_about_tasks(tmp_path: Path) -> None:
    model = parent_and_children("answered")

    async def main() -> None:
        async with opened(tmp_path, model, permission_policy=PermissionPolicy(ask=("task",))) as session:
            running = asyncio.create_task(session.send_async("@review look"))
            [waiting] = await until(session.pending_confirmations)
            assert waiting.tool_name == TASK
            await session.confirm_tool_use_async(waiting.tool_id, True)
            assert (await running).text == "answered"

    asyncio.run(main())
    assert len(of_children(model)) == 1


def test_only_the_user_s_words_say_whom_a_prompt_is_for(tmp_path: Path) -> None:
    model = parent_and_children('{"steps": ["use the review agent"]}', "answered")

    async def main() -> None:
        async with opened(tmp_path, model, planning_mode="enabled") as session:
            await session.send_async("look at the parser")

    asyncio.run(main())
    assert was_delegated(tmp_path) == []


def test_a_session_of_an_agent_without_the_task_tool_delegates_nothing(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with await agent_of(model) as agent:
            session = await agent.session_for_agent_async(tmp_path, "explore")
            assert (await session.send_async("@review look")).text == "@review look"

    asyncio.run(main())
    assert len(model.requests) == 1


def test_without_manual_delegation_there_is_no_task_tool(tmp_path: Path) -> None:
    model = ScriptedModel([task_call(item("answer")), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, manual_delegation_enabled=False) as session:
            assert TASK not in session.tool_names()
            await session.send_async("go")
            assert not (await session.task_async(item("answer"))).ok
            assert (await session.parallel_async([step("a", "nobody")]))[0].success is False

    asyncio.run(main())
    assert TASK not in tool_names(model.requests[0])
    assert results(tmp_path)[0][1].startswith("There is no tool 'task'.")


def test_the_task_tool_is_there_by_default(tmp_path: Path) -> None:
    async def main(session_check: Any) -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            session_check(session)

    def check(session: Session) -> None:
        assert TASK in session.tool_names()
        assert TASK in [tool["name"] for tool in session.tool_definitions()]

    asyncio.run(main(check))
