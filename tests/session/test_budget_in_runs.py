"""The budget guard in real runs: asked before each model and tool call, whoever makes it, and obeyed."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import HostEnv, MemorySessionStore, PermissionPolicy, Session, Usage
from fanfold.contracts.facts import ToolResulted
from fanfold.contracts.messages import ModelRequest
from fanfold.errors import BudgetExhaustedError, ProviderError, SessionClosedError, UsageError
from fanfold.providers.retry import Endpoint, RetryingClient
from fanfold.testing import ManualClock, Reply, ScriptedModel, calls, echo
from fanfold.testing.scripted import newest_text
from tests.support.open_session import facts_of, heard, opened
from tests.support.tools import RecordingTool

ALLOWED = PermissionPolicy(default_decision="allow")
DENY = {"decision": "deny", "resource": "tokens", "reason": "monthly cap reached"}
SOFT = {"decision": "soft", "resource": "tokens", "consumed": 80, "limit": 100, "message": "careful"}
DENIED = "Budget exhausted on 'tokens': monthly cap reached"


class Guard:
    """Notes what it is asked and told; `llm` and `tool` are its decisions, or make them of what it was asked."""

    def __init__(self, *, llm: Any = None, tool: Any = None) -> None:
        self.llm = llm
        self.tool = tool
        self.asked: list[tuple[str, str, Any]] = []

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        self.asked.append(("llm", session_id, estimated_tokens))
        return self.llm(session_id) if callable(self.llm) else self.llm

    def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
        self.asked.append(("used", session_id, usage["total_tokens"]))

    def check_before_tool(self, session_id: str, tool_name: str) -> Any:
        self.asked.append(("tool", session_id, tool_name))
        return self.tool(session_id) if callable(self.tool) else self.tool

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.asked]

    def sessions(self, kind: str) -> list[str]:
        return [session_id for asked, session_id, _ in self.asked if asked == kind]


def tool_then(name: str, args: dict[str, Any], answer: str = "done") -> ScriptedModel:
    return ScriptedModel([calls((name, args)), answer])


def outputs(workspace: Path) -> list[tuple[bool, str]]:
    results = (fact.payload for fact in facts_of(workspace) if isinstance(fact.payload, ToolResulted))
    return [(result.ok, result.output) for result in results]


def child(task_id: str, agent: str = "answer", prompt: str = "p") -> dict[str, Any]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt}


# ---- one run --------------------------------------------------------------------------------------------------------


def test_the_guard_is_asked_before_each_call_and_told_after_each_answer(tmp_path: Path) -> None:
    guard = Guard()
    model = tool_then("look", {})

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look"), budget_guard=guard) as session:
            await session.send_async("go")

    asyncio.run(main())
    assert guard.kinds() == ["llm", "used", "tool", "llm", "used"]
    assert {session_id for _, session_id, _ in guard.asked} == {"s"}
    assert guard.asked[2] == ("tool", "s", "look")
    assert [amount for kind, _, amount in guard.asked if kind == "used"] == [15, 15]
    [first, second] = [amount for kind, _, amount in guard.asked if kind == "llm"]
    assert 0 < first < second


def test_a_soft_decision_is_told_and_the_call_is_made(tmp_path: Path) -> None:
    guard = Guard(llm=SOFT, tool={**SOFT, "resource": "calls"})

    async def main() -> None:
        async with opened(tmp_path, tool_then("look", {}), RecordingTool("look"), budget_guard=guard) as session:
            events = await heard(await session.stream_async("go"))
        told = [dict(each.payload) for each in events if each.type == "budget_threshold_hit"]
        soft = {"kind": "soft", "consumed": 80.0, "limit": 100.0, "message": "careful"}
        assert told == [{"resource": name, **soft} for name in ("tokens", "calls", "tokens")]
        assert events[-1].type == "agent_end"

    asyncio.run(main())


def test_a_denied_model_call_raises_with_its_code_and_the_session_stays_open(tmp_path: Path) -> None:
    model = ScriptedModel(["fine"])
    guard = Guard(llm=DENY)

    async def main() -> None:
        async with opened(tmp_path, model, budget_guard=guard) as session:
            with pytest.raises(BudgetExhaustedError) as raised:
                await session.send_async("go")
            assert isinstance(raised.value, RuntimeError)
            assert (raised.value.code, str(raised.value)) == ("BUDGET_EXHAUSTED", DENIED)
            assert (raised.value.resource, raised.value.reason) == ("tokens", "monthly cap reached")
            events = await heard(await session.stream_async("again"))
            [hit] = [each.payload for each in events if each.type == "budget_threshold_hit"]
            assert (hit["kind"], hit["resource"], hit["message"]) == ("hard", "tokens", "monthly cap reached")
            assert (events[-1].type, events[-1].payload["code"]) == ("error", "BUDGET_EXHAUSTED")
            assert (model.requests, guard.kinds()) == ([], ["llm", "llm"])
            assert not session.is_closed()
            session.set_budget_guard(None)
            assert (await session.send_async("go")).text == "fine"
            assert guard.kinds() == ["llm", "llm"]

    asyncio.run(main())


def test_a_denied_call_in_the_middle_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    guard = Guard()
    guard.llm = lambda _: DENY if "used" in guard.kinds() else None

    async def main() -> None:
        async with opened(tmp_path, tool_then("look", {}), RecordingTool("look"), budget_guard=guard) as session:
            with pytest.raises(BudgetExhaustedError):
                await session.send_async("go")
            session.set_budget_guard(None)
            assert (await session.resume_run_async()).text == "done"

    asyncio.run(main())
    assert outputs(tmp_path) == [(True, "done")]


def test_a_denied_tool_call_is_a_failed_result_and_the_turn_goes_on(tmp_path: Path) -> None:
    tool = RecordingTool("look")
    model = ScriptedModel([calls(("look", {}), ("look", {"n": 2})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, budget_guard=Guard(tool=DENY)) as session:
            events = await heard(await session.stream_async("go"))
            ends = [each.payload for each in events if each.type == "tool_end"]
            assert [(end["output"], end["exit_code"]) for end in ends] == [(DENIED, 1)] * 2
            assert [each.payload["kind"] for each in events if each.type == "budget_threshold_hit"] == ["hard"] * 2
            assert events[-1].payload["text"] == "done"

    asyncio.run(main())
    assert outputs(tmp_path) == [(False, DENIED)] * 2
    assert tool.calls == []


def test_what_the_permissions_deny_is_not_asked_about(tmp_path: Path) -> None:
    guard = Guard()
    tool = RecordingTool("look")
    policy = PermissionPolicy(deny=("look(*bad*)",))

    async def main() -> None:
        async with opened(
            tmp_path, tool_then("look", {"at": "bad"}), tool, budget_guard=guard, permission_policy=policy
        ) as session:
            await session.send_async("go")
            assert guard.kinds() == ["llm", "used", "llm", "used"]
            for number in range(200):
                result = await session.governed_tool_async("look", {"at": "bad", "n": number})
                assert result.exit_code == 1
            assert "tool" not in guard.kinds()
            assert (await session.governed_tool_async("look", {"at": "good"})).exit_code == 0
            assert guard.kinds()[-1] == "tool"

    asyncio.run(main())
    assert [args for args, _ in tool.calls] == [{"at": "good"}]


def test_a_call_that_cannot_run_or_that_a_hook_stops_is_not_asked_about(tmp_path: Path) -> None:
    guard = Guard()
    model = ScriptedModel([calls(("nothing", {}), ("look", {})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look"), budget_guard=guard) as session:
            session.register_hook("no", "pre_tool_use", handler=lambda payload: {"action": "block"})
            await session.send_async("go")

    asyncio.run(main())
    assert "tool" not in guard.kinds()


# ---- guards that do not decide --------------------------------------------------------------------------------------


@contextmanager
def sleeping() -> Iterator[Callable[[str], None]]:
    """A decision that does not come before the block ends."""
    over = threading.Event()

    def decide(_: str) -> None:
        over.wait(20)

    try:
        yield decide
    finally:
        over.set()


def broken(_: str) -> None:
    raise ValueError("meter is down")


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        ("sleeps", "Budget exhausted on 'budget_guard_timeout': Python BudgetGuard.check_before_tool did not respond"),
        (broken, "Budget exhausted on 'budget_guard_callback': Python BudgetGuard.check_before_tool raised ValueError"),
        ("allow", "Budget exhausted on 'budget_guard_error': invalid Python BudgetGuard.check_before_tool return"),
        ({"decision": "deny"}, "Budget exhausted on 'budget_guard_error': invalid Python BudgetGuard"),
    ],
)
@pytest.mark.parametrize("way", ["model", "tool", "governed_tool"])
def test_a_guard_that_hangs_raises_or_babbles_denies_a_write_in_time(
    tmp_path: Path, decision: Any, told: str, way: str
) -> None:
    args = {"file_path": "out.txt", "content": "x"}

    async def main(guard: Guard) -> str:
        async with opened(tmp_path, tool_then("write", args), permission_policy=ALLOWED) as session:
            session.set_budget_guard(guard, timeout_ms=25)
            if way == "model":
                await session.send_async("go")
                return outputs(tmp_path)[0][1]
            call = session.tool_async if way == "tool" else session.governed_tool_async
            result = await call("write", args)
            assert result.exit_code != 0
            return result.output

    with sleeping() as sleep:
        began = time.monotonic()
        output = asyncio.run(main(Guard(tool=sleep if decision == "sleeps" else decision)))
        assert time.monotonic() - began < 10
    assert output.startswith(told)
    assert not (tmp_path / "out.txt").exists()


def test_a_guard_that_hangs_before_a_model_call_denies_it(tmp_path: Path) -> None:
    model = ScriptedModel([])

    async def main(guard: Guard) -> None:
        async with opened(tmp_path, model, budget_guard=guard, budget_guard_timeout_ms=25) as session:
            with pytest.raises(BudgetExhaustedError, match="check_before_llm did not respond within 25ms") as raised:
                await session.send_async("go")
            assert raised.value.resource == "budget_guard_timeout"

    with sleeping() as sleep:
        asyncio.run(main(Guard(llm=sleep)))
    assert model.requests == []


def test_a_failing_record_is_ignored(tmp_path: Path) -> None:
    class Meter:
        def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
            raise OSError("meter is down")

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["one", "two"]), budget_guard=Meter()) as session:
            assert (await session.send_async("a")).text == "one"
            assert (await session.send_async("b")).text == "two"

    asyncio.run(main())


def test_a_guard_with_a_timeout_that_is_none_is_refused_and_a_closed_session_takes_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            with pytest.raises(UsageError, match="timeout_ms"):
                session.set_budget_guard(Guard(), timeout_ms=0)
            await session.close_async()
            with pytest.raises(SessionClosedError):
                session.set_budget_guard(None)

    asyncio.run(main())


# ---- children -------------------------------------------------------------------------------------------------------


async def by_parallel(session: Session) -> list[Any]:
    return list(await session.parallel_async([child("a"), child("b")]))


async def by_pipeline(session: Session) -> list[Any]:
    return list(await session.pipeline_async(["a", "b"], [lambda ctx: child(ctx["item"])]))


async def by_map(session: Session) -> list[Any]:
    return list(await session.parallel_resumable_async([child("a"), child("b")], "wf"))


async def by_task(session: Session) -> list[Any]:
    tasks = [{"agent": "answer", "description": "d", "prompt": "p"}] * 2
    result = await session.tasks_async(tasks)
    told: Any = result.metadata
    return list(told["results"])


@pytest.mark.parametrize("way", [by_parallel, by_pipeline, by_map, by_task])
def test_a_denied_child_fails_with_the_code_and_never_records(tmp_path: Path, way: Any) -> None:
    model = ScriptedModel(echo)
    guard = Guard(llm=lambda session_id: DENY if session_id.startswith("task-run-") else None)

    async def main() -> None:
        async with opened(tmp_path, model, session_store=MemorySessionStore()) as session:
            session.set_budget_guard(guard)
            outcomes = await way(session)
            assert [(each["success"], each["error_code"]) for each in outcomes] == [(False, "BUDGET_EXHAUSTED")] * 2
            text = outcomes[0].get("output") or outcomes[0]["error_message"]
            assert text == f"Task failed: {DENIED}"

    asyncio.run(main())
    assert (model.requests, guard.kinds().count("llm"), guard.kinds().count("used")) == ([], 2, 0)


def test_a_guard_set_at_run_time_governs_the_task_tool_of_the_model(tmp_path: Path) -> None:
    task = calls(("task", {"tasks": [{"agent": "answer", "description": "d", "prompt": "p"}]}))
    model = ScriptedModel([task, "it failed"])
    guard = Guard(llm=lambda session_id: DENY if session_id.startswith("task-run-") else None)

    async def main() -> None:
        async with opened(tmp_path, model, budget_guard=Guard(llm=DENY)) as session:
            session.set_budget_guard(guard)
            assert (await session.send_async("go")).text == "it failed"

    asyncio.run(main())
    assert guard.kinds() == ["llm", "used", "tool", "llm", "llm", "used"]
    [(ok, output)] = outputs(tmp_path)
    assert not ok
    assert DENIED in output


def test_tools_of_children_are_asked_about(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    model = tool_then("read", {"file_path": "a.txt"})
    guard = Guard(tool=DENY)

    async def main() -> None:
        async with opened(tmp_path, model, budget_guard=guard) as session:
            [outcome] = await session.parallel_async([child("a", "explore")])
            assert outcome.success

    asyncio.run(main())
    assert ("tool", "task-run-a", "read") in guard.asked
    assert newest_text(model.requests[1]) == DENIED


def test_a_child_s_threshold_is_told_to_the_listener_of_its_fan_out(tmp_path: Path) -> None:
    events: list[Any] = []

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo), budget_guard=Guard(llm=SOFT)) as session:
            await session.parallel_async([child("a")], events=events.append)

    asyncio.run(main())
    [hit] = [each for each in events if each.type == "budget_threshold_hit"]
    assert (hit.payload["kind"], hit.metadata["task_id"]) == ("soft", "a")


# ---- calls beside the conversation's own ----------------------------------------------------------------------------


def test_planning_goals_and_judging_are_model_calls_like_any_other(tmp_path: Path) -> None:
    goal = '{"goal": "it is done", "criteria": ["done"]}'
    verdict = '{"completed_steps": 1, "progress": 1, "reason": "seen", "achieved": true}'
    guard = Guard()

    async def main() -> None:
        model = ScriptedModel([goal, '{"steps": ["do it"]}', "did it", verdict])
        async with opened(tmp_path, model, budget_guard=guard, planning_mode="enabled", goal_tracking=True) as session:
            assert (await session.send_async("go")).total_tokens == 60

    asyncio.run(main())
    assert guard.kinds() == ["llm", "used"] * 4


@pytest.mark.parametrize("option", [{"planning_mode": "enabled"}, {"goal_tracking": True}])
def test_a_denied_call_before_the_prompt_ends_the_run(tmp_path: Path, option: dict[str, Any]) -> None:
    model = ScriptedModel([])

    async def main() -> None:
        async with opened(tmp_path, model, budget_guard=Guard(llm=DENY), **option) as session:
            with pytest.raises(BudgetExhaustedError):
                await session.send_async("go")

    asyncio.run(main())
    assert model.requests == []


def test_an_answer_that_could_not_be_judged_any_more_stays(tmp_path: Path) -> None:
    guard = Guard()
    guard.llm = lambda _: DENY if guard.kinds().count("used") == 2 else None
    model = ScriptedModel(['{"goal": "it is done", "criteria": ["done"]}', "did it"])

    async def main() -> None:
        async with opened(tmp_path, model, budget_guard=guard, goal_tracking=True) as session:
            result = await session.send_async("go")
            assert (result.text, result.verification_summary().status) == ("did it", "needs_review")

    asyncio.run(main())


def test_a_summary_is_a_model_call_like_any_other(tmp_path: Path) -> None:
    full = Reply(text="one " * 20, usage=Usage(prompt_tokens=90, completion_tokens=5, total_tokens=95))
    model = ScriptedModel([full, "short", "two"])
    guard = Guard()

    async def main() -> None:
        async with opened(tmp_path, model, budget_guard=guard, max_context_tokens=100) as session:
            await session.send_async("a")
            await session.send_async("b")
            assert guard.kinds() == ["llm", "used"] * 3

    asyncio.run(main())


# ---- retries --------------------------------------------------------------------------------------------------------

SLOW = ProviderError("slow down", kind="rate_limit", retryable=True)


def retried(script: Any) -> tuple[ScriptedModel, RetryingClient]:
    model = ScriptedModel(script)
    return model, RetryingClient(model, HostEnv(clock=ManualClock()), Endpoint())


def test_the_guard_is_asked_before_each_attempt_and_told_of_the_one_that_worked(tmp_path: Path) -> None:
    model, client = retried([SLOW, SLOW, "fine"])
    guard = Guard()

    async def main() -> None:
        async with opened(tmp_path, client, budget_guard=guard) as session:
            assert (await session.send_async("go")).text == "fine"

    asyncio.run(main())
    assert (len(model.requests), guard.kinds()) == (3, ["llm", "llm", "llm", "used"])


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_denial_before_a_retry_ends_the_call(tmp_path: Path, attempts: int) -> None:
    model, client = retried([SLOW, SLOW, "fine"])
    guard = Guard()
    guard.llm = lambda _: DENY if len(guard.asked) > attempts else None

    async def main() -> None:
        async with opened(tmp_path, client, budget_guard=guard) as session:
            with pytest.raises(BudgetExhaustedError, match="monthly cap"):
                await session.send_async("go")

    asyncio.run(main())
    assert len(model.requests) == attempts
    assert "used" not in guard.kinds()


def test_a_denial_before_a_retry_fails_a_child_with_the_code(tmp_path: Path) -> None:
    _, client = retried([SLOW, "fine"])
    guard = Guard()
    guard.llm = lambda _: DENY if len(guard.asked) > 1 else None

    async def main() -> None:
        async with opened(tmp_path, client, budget_guard=guard) as session:
            [outcome] = await session.parallel_async([child("a")])
            assert outcome.error_code == "BUDGET_EXHAUSTED"

    asyncio.run(main())


def test_a_guard_that_is_set_while_a_call_waits_for_its_retry_is_asked(tmp_path: Path) -> None:
    guard = Guard(llm=DENY)

    async def main() -> None:
        async def answer(request: ModelRequest) -> Any:
            session.set_budget_guard(guard)
            return SLOW

        _, client = retried(answer)
        async with opened(tmp_path, client) as session:
            with pytest.raises(BudgetExhaustedError):
                await session.send_async("go")

    asyncio.run(main())


def test_retries_of_calls_beside_the_conversation_are_asked_about_too(tmp_path: Path) -> None:
    full = Reply(text="one " * 20, usage=Usage(prompt_tokens=90, completion_tokens=5, total_tokens=95))
    plan = '{"steps": ["do it"]}'
    _, client = retried([SLOW, plan, full, SLOW, plan, SLOW, "short", "two"])
    guard = Guard()

    async def main() -> None:
        async with opened(
            tmp_path, client, budget_guard=guard, max_context_tokens=100, planning_mode="enabled"
        ) as session:
            await session.send_async("a")
            assert guard.kinds() == ["llm", "llm", "used", "llm", "used"]
            guard.asked.clear()
            await session.send_async("b")
            assert guard.kinds() == [*["llm", "llm", "used"] * 2, "llm", "used"]

    asyncio.run(main())
