"""Permissions and confirmations in real runs: every way to a tool goes through one gate, and people are asked by it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold import AgentDefinition, PermissionPolicy, Session
from fanfold.contracts.facts import ConfirmationAnswered, ToolResulted
from fanfold.contracts.messages import ToolMessage
from fanfold.contracts.policy import ConfirmationPolicy
from fanfold.errors import ParkedError, RunCancelledError, SessionClosedError
from fanfold.stores.memory import MemoryFactLog
from fanfold.testing import ScriptedModel, calls, run_virtually, virtual_env
from fanfold.testing.scripted import newest_text
from tests.support.open_session import facts_of, heard, opened, types, until
from tests.support.tools import RecordingTool

ALLOWED = PermissionPolicy(default_decision="allow")
REFUSED = "Permission denied: Tool '{}' is blocked by permission policy."


def sender(name: str = "send") -> RecordingTool:
    """A tool that changes something, which the default policy asks about."""
    return RecordingTool(name, is_read_only=False)


def one_call(name: str = "send", **args: Any) -> ScriptedModel:
    return ScriptedModel([calls((name, args)), "done"])


def results(workspace: Path) -> list[tuple[bool, str]]:
    found = (fact.payload for fact in facts_of(workspace) if isinstance(fact.payload, ToolResulted))
    return [(result.ok, result.output) for result in found]


def child(task_id: str, agent: str = "helper") -> dict[str, Any]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": "p"}


def helper(**more: Any) -> dict[str, AgentDefinition]:
    return {"helper": AgentDefinition(name="helper", description="helps", tools=("*",), **more)}


def call_then_done(request: Any) -> Any:
    """A script for any number of children: each calls `send` once."""
    is_answered = isinstance(request.transcript.message, ToolMessage)
    return newest_text(request) if is_answered else calls(("send", {"by": request.session_id}))


async def answered(session: Session, running: "asyncio.Task[Any]", *approved: bool) -> Any:
    """The result of `running`, whose requests are answered in their order."""
    for each in approved:
        [waiting] = await until(session.pending_confirmations)
        assert await session.confirm_tool_use_async(waiting.tool_id, each)
    return await running


# ---- the rules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "paths", "decision"),
    [
        (PermissionPolicy(deny=("read(secret/**)",)), ["a.txt", "secret/b.txt"], "deny"),
        (PermissionPolicy(deny=("read(secret/**)",)), ["secret/b.txt", "a.txt"], "deny"),
        (PermissionPolicy(deny=("read(secret/**)",)), ["a.txt", "./x/../secret/b.txt"], "deny"),
        (PermissionPolicy(deny=("read(secret/**)",)), ["link/b.txt"], "deny"),
        (PermissionPolicy(ask=("read(secret/**)",)), ["a.txt", "secret/b.txt"], "ask"),
        (PermissionPolicy(allow=("read(a.txt)",), default_decision="deny"), ["a.txt", "secret/b.txt"], "deny"),
        (PermissionPolicy(allow=("read(*.txt)", "read(secret/*)"), default_decision="deny"), ["a.txt"], "allow"),
        (PermissionPolicy(allow=("read(a.txt)", "read(secret/*)"), default_decision="deny"), ["secret/b.txt"], "allow"),
    ],
)
def test_each_path_of_a_read_is_judged(
    tmp_path: Path, policy: PermissionPolicy, paths: list[str], decision: str
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "link").symlink_to("secret")
    for name in ("a.txt", "secret/b.txt"):
        (tmp_path / name).write_text(name)

    async def main() -> None:
        model = one_call("read", files=[{"path": path} for path in paths])
        async with opened(tmp_path, model, permission_policy=policy) as session:
            running = asyncio.create_task(session.send_async("go"))
            await answered(session, running, *([False] if decision == "ask" else []))

    asyncio.run(main())
    if decision == "ask":
        assert results(tmp_path) == []
    else:
        [(ok, output)] = results(tmp_path)
        assert ok == (decision == "allow")
        assert ok or output == REFUSED.format("read")


@pytest.mark.parametrize(
    ("policy", "command", "decision"),
    [
        (PermissionPolicy(deny=("bash(rm *)",), default_decision="allow"), "ls && rm x", "deny"),
        (PermissionPolicy(deny=("bash(rm *)",), default_decision="allow"), "ls; sudo 'rm' x", "deny"),
        (PermissionPolicy(deny=("bash(rm *)",), default_decision="allow"), "echo hi\nrm x", "deny"),
        (PermissionPolicy(allow=("bash(echo *)",)), "echo hi; rm x", "ask"),
        (PermissionPolicy(allow=("bash(echo *)",)), "echo hi", "allow"),
    ],
)
def test_each_command_of_a_line_is_judged(
    tmp_path: Path, policy: PermissionPolicy, command: str, decision: str
) -> None:
    (tmp_path / "x").write_text("kept")

    async def main() -> None:
        options: dict[str, Any] = {"permission_policy": policy, "allow_unsandboxed_bash": True}
        async with opened(tmp_path, one_call("bash", command=command), **options) as session:
            running = asyncio.create_task(session.send_async("go"))
            await answered(session, running, *([False] if decision == "ask" else []))

    asyncio.run(main())
    assert (tmp_path / "x").exists()
    if decision != "ask":
        [(ok, output)] = results(tmp_path)
        assert (ok, output == REFUSED.format("bash")) == (decision == "allow", decision == "deny")


def test_a_rule_for_a_server_is_about_exactly_that_server(tmp_path: Path) -> None:
    pen, pencil = RecordingTool("mcp__pen__draw"), RecordingTool("mcp__pencil__draw")
    model = ScriptedModel([calls(("mcp__pen__draw", {}), ("mcp__pencil__draw", {})), "done"])

    async def main() -> None:
        policy = PermissionPolicy(deny=("mcp__pen",))
        async with opened(tmp_path, model, pen, pencil, permission_policy=policy) as session:
            await session.send_async("go")
            names = {tool["name"] for tool in session.tool_definitions()}
            assert ("mcp__pen__draw" in names, "mcp__pencil__draw" in names) == (False, True)

    asyncio.run(main())
    assert (len(pen.calls), len(pencil.calls)) == (0, 1)


def test_a_deny_rule_beats_a_later_allow_rule_and_what_the_default_would_ask(tmp_path: Path) -> None:
    tool = sender()

    async def main() -> None:
        policy = PermissionPolicy(deny=("send(*enemy*)",), allow=("send",))
        async with opened(tmp_path, one_call(to="enemy"), tool, permission_policy=policy) as session:
            events = await heard(await session.stream_async("go"))
            [denied] = [each.payload for each in events if each.type == "permission_denied"]
            assert (denied["tool_name"], denied["args"]) == ("send", {"to": "enemy"})
            assert "confirmation_required" not in types(events)
            assert session.pending_confirmations() == []

    asyncio.run(main())
    assert (results(tmp_path), tool.calls) == ([(False, REFUSED.format("send"))], [])


# ---- a person's answer ----------------------------------------------------------------------------------------------


def test_an_approved_call_runs_and_a_denied_one_ends_the_turn(tmp_path: Path) -> None:
    tool = sender()
    model = ScriptedModel([calls(("send", {"n": 1})), calls(("send", {"n": 2})), "never"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            stream = await session.stream_async("go")
            listening = asyncio.create_task(heard(stream))
            for approved in (True, False):
                [waiting] = await until(session.pending_confirmations)
                assert (waiting.tool_id, waiting.tool_name, waiting.session_id) == ("call-1", "send", "s")
                assert await session.confirm_tool_use_async("call-1", approved, "because")
                assert not await session.confirm_tool_use_async("call-1", True)
            events = await listening
            result = await stream.result_async()
            assert result.stop_reason == "denied"
            told = [each.payload for each in events if each.type == "confirmation_required"]
            assert told[0] == {"tool_id": "call-1", "tool_name": "send", "args": {"n": 1}, "timeout_ms": 0}
            received = [each.payload for each in events if each.type == "confirmation_received"]
            assert [(each["approved"], each["reason"]) for each in received] == [(True, "because"), (False, "because")]

    asyncio.run(main())
    assert [args for args, _ in tool.calls] == [{"n": 1}]
    assert len(model.requests) == 2


def test_each_call_of_one_response_is_asked_about_by_itself(tmp_path: Path) -> None:
    tool = sender()
    model = ScriptedModel([calls(*[("send", {"n": n}) for n in range(3)])])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            running = asyncio.create_task(session.send_async("go"))
            result = await answered(session, running, True, True, False)
            assert result.stop_reason == "denied"

    asyncio.run(main())
    assert [args for args, _ in tool.calls] == [{"n": 0}, {"n": 1}]


def test_an_answer_for_what_does_not_wait_is_false_and_records_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, one_call(), sender()) as session:
            assert not await session.confirm_tool_use_async("call-1", True)
            running = asyncio.create_task(session.send_async("go"))
            await until(session.pending_confirmations)
            assert not await session.confirm_tool_use_async("call-2", True)
            await answered(session, running, True)

    asyncio.run(main())
    answers = [fact.payload for fact in facts_of(tmp_path) if isinstance(fact.payload, ConfirmationAnswered)]
    assert answers == [ConfirmationAnswered(tool_call_id="call-1", approved=True)]


def test_where_nobody_can_answer_the_run_ends_parked(tmp_path: Path) -> None:
    tool = sender()

    async def main() -> None:
        async with opened(tmp_path, one_call(to="x"), tool, approvals="refuse") as session:
            with pytest.raises(ParkedError, match=r"approval of send\(.*\) \(id call-1\)") as raised:
                await session.send_async("go")
            assert (raised.value.code, raised.value.tool_id) == ("PARKED", "call-1")
            assert [each.tool_id for each in session.pending_confirmations()] == ["call-1"]
            assert await session.confirm_tool_use_async("call-1", True)
            assert (await session.resume_run_async()).text == "done"

    asyncio.run(main())
    assert len(tool.calls) == 1


# ---- the confirmation policy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "tool", "is_asked"),
    [
        (None, "send", True),
        (ConfirmationPolicy(), "send", True),
        (ConfirmationPolicy(enabled=False), "send", False),
        (ConfirmationPolicy(yolo_lanes=("execute",)), "send", False),
        (ConfirmationPolicy(yolo_lanes=("query", "generate", "control")), "send", True),
        (ConfirmationPolicy(yolo_lanes=("query",)), "look", False),
        (ConfirmationPolicy(yolo_lanes=("execute",)), "look", True),
        (ConfirmationPolicy(yolo_lanes=("generate",)), "task", False),
        (ConfirmationPolicy(yolo_lanes=("query",)), "task", True),
    ],
)
def test_the_confirmation_policy_says_what_a_person_is_asked_about(
    tmp_path: Path, policy: ConfirmationPolicy | None, tool: str, is_asked: bool
) -> None:
    args = {"tasks": [{"agent": "answer", "prompt": "p"}]} if tool == "task" else {}
    model: ScriptedModel = ScriptedModel(lambda request: "done" if len(model.requests) > 1 else calls((tool, args)))

    async def main() -> None:
        permissions = PermissionPolicy(ask=("send", "look", "task"))
        tools = (sender(), RecordingTool("look"))
        options: dict[str, Any] = {"permission_policy": permissions, "confirmation_policy": policy}
        async with opened(tmp_path, model, *tools, **options) as session:
            running = asyncio.create_task(session.send_async("go"))
            if is_asked:
                await answered(session, running, True)
            else:
                assert (await running).text == "done"

    asyncio.run(main())
    asked = [fact for fact in facts_of(tmp_path) if isinstance(fact.payload, ConfirmationAnswered)]
    assert bool(asked) == is_asked


@pytest.mark.parametrize("policy", [ConfirmationPolicy(enabled=False), ConfirmationPolicy(yolo_lanes=("execute",))])
def test_deny_rules_stand_above_the_confirmation_policy(tmp_path: Path, policy: ConfirmationPolicy) -> None:
    tool = sender()

    async def main() -> None:
        permissions = PermissionPolicy(deny=("send(*enemy*)",))
        options: dict[str, Any] = {"permission_policy": permissions, "confirmation_policy": policy}
        async with opened(tmp_path, one_call(to="enemy"), tool, **options) as session:
            await session.send_async("go")

    asyncio.run(main())
    assert (results(tmp_path), tool.calls) == ([(False, REFUSED.format("send"))], [])


@pytest.mark.parametrize("action", ["reject", "auto_approve"])
def test_a_request_that_nobody_answers_in_time_is_decided_by_the_policy(tmp_path: Path, action: Any) -> None:
    tool = sender()
    model = one_call()

    async def main() -> None:
        policy = ConfirmationPolicy(timeout_ms=5_000, timeout_action=action)
        async with opened(
            tmp_path, model, tool, confirmation_policy=policy, open_log=lambda root: MemoryFactLog(), session_id=None
        ) as session:
            began = asyncio.get_running_loop().time()
            stream = await session.stream_async("go")
            events = await heard(stream)
            assert asyncio.get_running_loop().time() - began == 5
            [required] = [each.payload for each in events if each.type == "confirmation_required"]
            assert required["timeout_ms"] == 5_000
            [timeout] = [each.payload for each in events if each.type == "confirmation_timeout"]
            assert timeout == {"tool_id": "call-1", "action_taken": action}
            assert "confirmation_received" not in types(events)
            assert (await stream.result_async()).stop_reason == ("denied" if action == "reject" else "stop")
            assert session.pending_confirmations() == []
            assert not await session.confirm_tool_use_async("call-1", True)

    run_virtually(main())
    assert len(tool.calls) == (action == "auto_approve")


def test_a_child_whose_request_has_timed_out_takes_its_place_again(tmp_path: Path) -> None:
    tool = sender()
    model = ScriptedModel(call_then_done)

    async def main() -> None:
        policy = ConfirmationPolicy(timeout_ms=1_000, timeout_action="auto_approve")
        options: dict[str, Any] = {"confirmation_policy": policy, "max_parallel_tasks": 1, "agents": helper()}
        async with opened(tmp_path, model, tool, open_log=lambda root: MemoryFactLog(), **options) as session:
            fan_outs = [session.parallel_async([child(f"t{number}")]) for number in range(6)]
            assert all(outcome.success for [outcome] in await asyncio.gather(*fan_outs))

    run_virtually(main())
    assert (len(tool.calls), tool.most_running, model.most_running) == (6, 1, 1)


# ---- children -------------------------------------------------------------------------------------------------------


def test_what_a_child_is_asked_about_surfaces_at_its_session(tmp_path: Path) -> None:
    tool = sender()
    events: list[Any] = []

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(call_then_done), tool, agents=helper()) as session:
            running = asyncio.create_task(session.parallel_async([child("a"), child("b")], events=events.append))
            await until(lambda: len(session.pending_confirmations()) == 2)
            waiting = {each.tool_id: each.session_id for each in session.pending_confirmations()}
            assert waiting == {"task-run-a/call-1": "task-run-a", "task-run-b/call-1": "task-run-b"}
            assert await session.confirm_tool_use_async("task-run-b/call-1", False, "no")
            assert await session.confirm_tool_use_async("task-run-a/call-1", True)
            outcomes = await running
            assert [outcome.success for outcome in outcomes] == [True, False]
            assert outcomes[1].error_code == "NO_ANSWER"

    asyncio.run(main())
    assert [args for args, _ in tool.calls] == [{"by": "task-run-a"}]
    required = [each for each in events if each.type == "confirmation_required"]
    assert {each.metadata["task_id"]: each.payload["tool_id"] for each in required} == {
        "a": "task-run-a/call-1",
        "b": "task-run-b/call-1",
    }


def test_children_that_wait_for_a_person_hold_up_nobody(tmp_path: Path) -> None:
    tool = sender()

    async def main() -> None:
        options: dict[str, Any] = {"agents": helper(), "max_parallel_tasks": 1}
        async with opened(tmp_path, ScriptedModel(call_then_done), tool, **options) as session:
            running = [asyncio.create_task(session.parallel_async([child(name)])) for name in "abc"]
            await until(lambda: len(session.pending_confirmations()) == 3)
            for name in "cba":
                assert await session.confirm_tool_use_async(f"task-run-{name}/call-1", True)
            assert all(outcome.success for [outcome] in await asyncio.gather(*running))

    asyncio.run(main())
    assert tool.most_running == 1


def test_requests_of_children_with_one_id_are_told_apart(tmp_path: Path) -> None:
    tool = sender()

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(call_then_done), tool, agents=helper()) as session:
            both = [asyncio.create_task(session.parallel_async([child("a")])) for _ in range(2)]
            await until(lambda: len(session.pending_confirmations()) == 2)
            ids = [each.tool_id for each in session.pending_confirmations()]
            assert ids == ["task-run-a/call-1", "task-run-a/call-1#2"]
            await session.confirm_tool_use_async(ids[1], True)
            await session.confirm_tool_use_async(ids[0], False)
            outcomes = [(await each)[0].success for each in both]
            assert sorted(outcomes) == [False, True]

    asyncio.run(main())
    assert len(tool.calls) == 1


@pytest.mark.parametrize(
    ("own", "session_s", "is_run"),
    [
        (PermissionPolicy(default_decision="allow"), PermissionPolicy(deny=("send(*)",)), False),
        (PermissionPolicy(deny=("send(*by*)",), default_decision="allow"), ALLOWED, False),
        (PermissionPolicy(allow=("send",), default_decision="deny"), ALLOWED, True),
        (PermissionPolicy(enabled=False), PermissionPolicy(deny=("send(*by*)",), default_decision="allow"), False),
        (PermissionPolicy(default_decision="deny"), ALLOWED, False),
    ],
)
def test_the_permissions_of_an_agent_only_narrow_those_of_its_session(
    tmp_path: Path, own: PermissionPolicy, session_s: PermissionPolicy, is_run: bool
) -> None:
    tool = sender()

    async def main() -> None:
        options: dict[str, Any] = {"agents": helper(permissions=own), "permission_policy": session_s}
        async with opened(tmp_path, ScriptedModel(call_then_done), tool, **options) as session:
            [outcome] = await session.parallel_async([child("a")])
            assert outcome.output == ("done" if is_run else REFUSED.format("send"))

    asyncio.run(main())
    assert bool(tool.calls) == is_run


@pytest.mark.parametrize("inheritance", ["inherit_parent", "auto_approve", "deny_on_ask"])
@pytest.mark.parametrize("asks", ["agent", "session"])
def test_what_an_agent_s_own_ask_comes_to_is_its_inheritance_and_the_session_s_ask_surfaces(
    tmp_path: Path, inheritance: Any, asks: str
) -> None:
    tool = sender()
    asking = PermissionPolicy(ask=("send",), default_decision="allow")
    own, session_s = (asking, ALLOWED) if asks == "agent" else (ALLOWED, asking)
    is_person_asked = asks == "session" or inheritance == "inherit_parent"

    async def main() -> None:
        agents = helper(permissions=own, confirmation_inheritance=inheritance)
        async with opened(
            tmp_path, ScriptedModel(call_then_done), tool, agents=agents, permission_policy=session_s
        ) as session:
            running = asyncio.create_task(session.parallel_async([child("a")]))
            [outcome] = await answered(session, running, *([True] if is_person_asked else []))
            is_denied = asks == "agent" and inheritance == "deny_on_ask"
            assert outcome.output == (REFUSED.format("send") if is_denied else "done")

    asyncio.run(main())


def test_a_child_s_request_ends_with_its_cancellation(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(call_then_done), sender(), agents=helper()) as session:
            running = asyncio.create_task(session.parallel_async([child("a")]))
            await until(session.pending_confirmations)
            assert await session.cancel_subagent_task_async("a")
            [outcome] = await running
            assert (outcome.success, outcome.output) == (False, "Task cancelled by caller")
            assert session.pending_confirmations() == []

    asyncio.run(main())


# ---- the host's own calls -------------------------------------------------------------------------------------------


def test_a_governed_call_of_the_host_waits_for_its_approval_beside_a_run(tmp_path: Path) -> None:
    tool = sender()
    model = ScriptedModel([calls(("send", {"by": "model"})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            running = asyncio.create_task(session.send_async("go"))
            await until(session.pending_confirmations)
            governed = asyncio.create_task(session.governed_tool_async("send", {"by": "host"}))
            await until(lambda: len(session.pending_confirmations()) == 2)
            [host] = [each for each in session.pending_confirmations() if each.tool_id.startswith("host-")]
            assert await session.confirm_tool_use_async(host.tool_id, True)
            assert (await governed).ok
            await answered(session, running, True)

    asyncio.run(main())
    assert [args["by"] for args, _ in tool.calls] == ["host", "model"]


def test_a_governed_call_that_is_denied_is_a_failed_result_and_a_trusted_one_is_not_asked_about(
    tmp_path: Path,
) -> None:
    tool = sender()

    async def main() -> None:
        async with opened(
            tmp_path, ScriptedModel([]), tool, permission_policy=PermissionPolicy(deny=("send(*x*)",))
        ) as session:
            assert (await session.tool_async("send", {"to": "x"})).ok
            denied = await session.governed_tool_async("send", {"to": "x"})
            assert (denied.exit_code, denied.output) == (1, REFUSED.format("send"))
            governed = asyncio.create_task(session.governed_tool_async("send", {"to": "y"}))
            [waiting] = await until(session.pending_confirmations)
            await session.confirm_tool_use_async(waiting.tool_id, False, "no")
            assert ((await governed).exit_code, (await governed).output) == (1, "denied by the user: no")

    asyncio.run(main())
    assert [args for args, _ in tool.calls] == [{"to": "x"}]


def test_where_nobody_can_answer_a_governed_call_says_so_unless_a_hook_can(tmp_path: Path) -> None:
    tool = sender()

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), tool, approvals="refuse") as session:
            with pytest.raises(ParkedError, match="approval of send"):
                await session.governed_tool_async("send")
            assert session.pending_confirmations() == []
            yes = {"action": "continue", "modified": {"approved": True}}
            session.register_hook("yes", "permission_request", handler=lambda payload: yes)
            assert (await session.governed_tool_async("send")).ok

    asyncio.run(main())
    assert len(tool.calls) == 1


def test_the_close_ends_what_waits_for_a_person(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, one_call(), sender()) as session:
            running = asyncio.create_task(session.send_async("go"))
            governed = asyncio.create_task(session.governed_tool_async("send"))
            await until(lambda: len(session.pending_confirmations()) == 2)
            await session.close_async()
            for each in (running, governed):
                with pytest.raises(RunCancelledError):
                    await each
            with pytest.raises(SessionClosedError):
                await session.governed_tool_async("send")

    asyncio.run(main())


# ---- repeated calls -------------------------------------------------------------------------------------------------


def test_the_same_call_with_the_same_result_again_and_again_becomes_a_nudge(tmp_path: Path) -> None:
    tool = RecordingTool("look", lambda args: "nothing new")
    model = ScriptedModel([*[calls(("look", {"at": 1}))] * 3, calls(("look", {"at": 2})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, duplicate_tool_call_threshold=3) as session:
            assert (await session.send_async("go")).text == "done"

    asyncio.run(main())
    assert [args["at"] for args, _ in tool.calls] == [1, 1, 2]
    assert [ok for ok, _ in results(tmp_path)] == [True, True, False, True]
    assert "Change the approach" in newest_text(model.requests[3])


def test_a_call_with_a_new_result_or_in_a_new_turn_is_no_repetition(tmp_path: Path) -> None:
    tool = RecordingTool("look", lambda args: f"seen {len(tool.calls)}")
    model = ScriptedModel([*[calls(("look", {}))] * 4, "one", calls(("look", {})), "two"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, duplicate_tool_call_threshold=3) as session:
            await session.send_async("a")
            await session.send_async("b")

    asyncio.run(main())
    assert len(tool.calls) == 5


def test_without_a_threshold_a_call_may_be_repeated(tmp_path: Path) -> None:
    tool = RecordingTool("look")
    model = ScriptedModel([*[calls(("look", {}))] * 6, "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            await session.send_async("go")

    asyncio.run(main())
    assert len(tool.calls) == 6


def test_the_host_may_repeat_itself(tmp_path: Path) -> None:
    tool = RecordingTool("look")

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), tool, duplicate_tool_call_threshold=2) as session:
            for _ in range(3):
                assert (await session.tool_async("look")).ok

    asyncio.run(main())


def test_virtual_time_counts_for_requests_of_children_too(tmp_path: Path) -> None:
    """The time of a request is the loop's, so that a simulation does not wait for people."""

    async def main() -> None:
        policy = ConfirmationPolicy(timeout_ms=60_000)
        options: dict[str, Any] = {"agents": helper(), "confirmation_policy": policy, "host_env": virtual_env()}
        async with opened(
            tmp_path, ScriptedModel(call_then_done), sender(), open_log=lambda root: MemoryFactLog(), **options
        ) as session:
            [outcome] = await session.parallel_async([child("a")])
            assert (outcome.success, outcome.duration_ms) == (False, 60_000)

    run_virtually(main())
