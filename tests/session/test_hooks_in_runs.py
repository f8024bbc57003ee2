"""Hooks in real runs: when they hear of what, what they can stop, and that nothing gets past them."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from fanfold import PermissionPolicy, Session, Usage
from fanfold.contracts.facts import Compacted, ToolResulted, UserMessaged
from fanfold.contracts.governance import BLOCKING_EVENTS
from fanfold.errors import HookBlockedError, ProviderError, RunCancelledError, SessionClosedError
from fanfold.governance.hooks import HOOK_EVENTS
from fanfold.stores.memory import MemoryFactLog
from fanfold.testing import Reply, ScriptedModel, calls, echo, run_virtually
from fanfold.testing.scripted import newest_text
from tests.support.open_session import facts_of, heard, opened, until
from tests.support.tools import RecordingTool

ALL_ALLOWED = PermissionPolicy(default_decision="allow")
FULL = Reply(text="one " * 20, usage=Usage(prompt_tokens=90, completion_tokens=5, total_tokens=95))
"""An answer after which a window of 100 tokens is full."""
BLOCK = {"action": "block", "reason": "not today"}


class Heard:
    """A handler that notes what it hears, and answers with `answer` or with what that gives."""

    def __init__(self, answer: Any = None) -> None:
        self.payloads: list[dict[str, Any]] = []
        self._answer = answer

    async def __call__(self, payload: dict[str, Any]) -> Any:
        self.payloads.append(payload)
        return self._answer(payload) if callable(self._answer) else self._answer

    @property
    def points(self) -> list[str]:
        return [payload["event_type"] for payload in self.payloads]


def listen(session: Session, *points: str, answer: Any = None, **more: Any) -> Heard:
    """One handler for all `points`."""
    handler = Heard(answer)
    for number, point in enumerate(points):
        session.register_hook(f"{point}-{session.hook_count()}-{number}", point, handler=handler, **more)
    return handler


def raises(_: dict[str, Any]) -> None:
    raise RuntimeError("broken")


def one_call(name: str = "look", args: dict[str, Any] | None = None) -> ScriptedModel:
    return ScriptedModel([calls((name, args or {})), "done"])


def results(workspace: Path) -> list[tuple[bool, str]]:
    return [
        (fact.payload.ok, fact.payload.output) for fact in facts_of(workspace) if isinstance(fact.payload, ToolResulted)
    ]


# ---- order and payloads ---------------------------------------------------------------------------------------------


def test_the_points_of_a_run_with_a_tool_come_in_the_order_of_the_work(tmp_path: Path) -> None:
    model = ScriptedModel(['{"steps": ["look at it"]}', calls(("look", {})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look"), planning_mode="enabled") as session:
            handler = listen(session, *(point for point in HOOK_EVENTS if "run_control" not in point))
            await session.send_async("go")
        model_call = ["generate_start", "generate_end"]
        assert handler.points == [
            "session_start",
            "pre_prompt",
            "pre_planning",
            *model_call,
            "post_planning",
            *model_call,
            "pre_tool_use",
            "post_tool_use",
            *model_call,
            "post_response",
            "on_success",
            "session_end",
        ]

    asyncio.run(main())


def test_payloads_tell_of_the_call_the_place_and_the_tags(tmp_path: Path) -> None:
    tags: dict[str, Any] = {"tenant_id": "t", "principal": "p", "agent_template_id": "a", "correlation_id": "c"}
    model = ScriptedModel([calls(("look", {"at": 1})), calls(("look", {"at": 2})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look", lambda args: "seen"), **tags) as session:
            before, after = listen(session, "pre_tool_use"), listen(session, "post_tool_use")
            around = listen(session, "session_start", "pre_prompt", "generate_end", "on_success", "session_end")
            await session.send_async("go")
        who = {**tags, "session_id": "s", "tool": "look"}
        assert before.payloads[0] == {
            **who,
            "event_type": "pre_tool_use",
            "args": {"at": 1},
            "working_directory": str(tmp_path),
            "recent_tools": [],
        }
        assert before.payloads[1]["recent_tools"] == ["look"]
        result = after.payloads[0]["result"]
        assert (result["success"], result["output"], result["exit_code"]) == (True, "seen", 0)
        assert result["duration_ms"] >= 0
        assert all(payload.items() >= {**tags, "session_id": "s"}.items() for payload in around.payloads)
        told = {payload["event_type"]: payload for payload in around.payloads}
        assert told["session_start"]["workspace"] == str(tmp_path)
        assert told["pre_prompt"]["prompt"] == "go"
        assert told["generate_end"]["usage"]["total_tokens"] == 15
        assert told["on_success"]["text"] == "done"

    asyncio.run(main())


def test_a_session_starts_once_and_ends_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["one", "two"])) as session:
            handler = listen(session, "session_start", "session_end")
            await session.send_async("a")
            await session.send_async("b")
            await session.close_async()
            await session.close_async()
            assert handler.points == ["session_start", "session_end"]

    asyncio.run(main())


def test_a_hanging_session_end_holds_up_the_close_for_five_seconds_at_most(tmp_path: Path) -> None:
    async def main() -> float:
        async with opened(tmp_path, ScriptedModel([]), open_log=lambda root: MemoryFactLog()) as session:
            session.register_hook("hangs", "session_end", handler=hang)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await session.close_async()
            return loop.time() - began

    async def hang(payload: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    assert run_virtually(main()) == 5.0


def test_failures_are_told_at_on_error_and_cancellation_is_no_failure(tmp_path: Path) -> None:
    error = ProviderError("no such key", kind="auth", retryable=False)
    model = ScriptedModel([error, Reply(text="late", delay=60)])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            handler = listen(session, "on_error", "on_success")
            with pytest.raises(ProviderError):
                await session.send_async("go")
            [told] = handler.payloads
            assert (told["event_type"], told["code"], told["message"]) == ("on_error", "LLM_ERROR", str(error))
            running = asyncio.create_task(session.send_async("again"))
            await until(lambda: model.running)
            assert await session.cancel_async()
            with pytest.raises(RunCancelledError):
                await running
            assert len(handler.payloads) == 1

    asyncio.run(main())


def test_handlers_get_copies(tmp_path: Path) -> None:
    def spoil(payload: dict[str, Any]) -> None:
        payload["args"]["at"] = "elsewhere"
        payload["tool"] = "other"

    tool = RecordingTool("look")

    async def main() -> None:
        async with opened(tmp_path, one_call("look", {"at": "here"}), tool) as session:
            listen(session, "pre_tool_use", answer=spoil)
            later = listen(session, "pre_tool_use", "post_tool_use")
            await session.send_async("go")
            assert [payload["args"] for payload in later.payloads] == [{"at": "here"}, {"at": "here"}]

    asyncio.run(main())
    assert tool.calls[0][0] == {"at": "here"}


# ---- what a block stops ---------------------------------------------------------------------------------------------


def test_a_blocked_prompt_is_not_recorded_and_the_session_goes_on(tmp_path: Path) -> None:
    model = ScriptedModel(["fine"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            session.register_hook("no", "pre_prompt", handler=lambda payload: BLOCK)
            with pytest.raises(HookBlockedError, match="a hook blocked pre_prompt: not today") as raised:
                await session.send_async("secret")
            assert raised.value.code == "HOOK_BLOCKED"
            assert model.requests == []
            assert session.history() == []
            assert session.unregister_hook("no")
            await session.send_async("go")
        assert [fact.payload.text for fact in facts_of(tmp_path) if isinstance(fact.payload, UserMessaged)] == ["go"]

    asyncio.run(main())


def test_a_stream_tells_of_the_block_in_its_terminal_event(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            listen(session, "pre_prompt", answer=BLOCK)
            last = (await heard(await session.stream_async("go")))[-1]
            assert (last.type, last.payload["code"]) == ("error", "HOOK_BLOCKED")

    asyncio.run(main())


def test_a_modified_prompt_is_the_prompt(tmp_path: Path) -> None:
    model = ScriptedModel(["fine"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            listen(session, "pre_prompt", answer={"action": "continue", "modified": {"prompt": "clean"}})
            later = listen(session, "pre_prompt")
            await session.send_async("dirty")
            assert later.payloads[0]["prompt"] == "clean"
            assert session.history()[0]["content"] == [{"type": "text", "text": "clean"}]

    asyncio.run(main())
    assert newest_text(model.requests[0]) == "clean"


def test_a_blocked_model_call_is_not_made_and_the_log_can_go_on(tmp_path: Path) -> None:
    model = one_call()

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look")) as session:
            handler = listen(session, "generate_start", answer=lambda _: BLOCK if len(model.requests) else None)
            with pytest.raises(HookBlockedError, match="generate_start"):
                await session.send_async("go")
            assert [payload["model"] for payload in handler.payloads] == ["model", "model"]
            assert len(model.requests) == 1
            for hook in ("generate_start-0-0",):
                session.unregister_hook(hook)
            assert (await session.resume_run_async()).text == "done"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (BLOCK, "Hook denied look: not today"),
        ({"action": "block"}, "Hook denied look: Blocked by hook"),
        ({"action": "skip"}, "Hook skipped look: it was not run."),
        ({"action": "retry", "delay_ms": 20}, "Hook denied look: try again in 20 ms"),
        (raises, "Hook denied look: Python hook callback failed"),
        (lambda _: "yes", "Hook denied look: Python hook callback failed"),
        ({"action": "allow"}, "Hook denied look: Python hook callback failed"),
    ],
)
def test_a_tool_call_that_a_hook_stops_is_a_failed_result_and_the_turn_goes_on(
    tmp_path: Path, answer: Any, told: str
) -> None:
    tool = RecordingTool("look")

    async def main() -> None:
        async with opened(tmp_path, one_call(), tool) as session:
            listen(session, "pre_tool_use", answer=answer)
            after = listen(session, "post_tool_use")
            assert (await session.send_async("go")).text == "done"
            assert after.payloads == []

    asyncio.run(main())
    [(ok, output)] = results(tmp_path)
    assert not ok
    assert output.startswith(told)
    assert tool.calls == []


def test_a_hanging_handler_denies_when_its_time_is_up(tmp_path: Path) -> None:
    over = threading.Event()
    tool = RecordingTool("look")

    async def main() -> None:
        async with opened(tmp_path, one_call(), tool) as session:
            session.register_hook(
                "hangs", "pre_tool_use", config={"timeout_ms": 25}, handler=lambda _: over.wait(20) and None
            )
            assert (await session.send_async("go")).text == "done"

    try:
        asyncio.run(main())
    finally:
        over.set()
    [(ok, output)] = results(tmp_path)
    assert not ok
    assert "did not respond within 25ms" in output
    assert tool.calls == []


@pytest.mark.parametrize("point", ["pre_prompt", "generate_start", "pre_planning"])
@pytest.mark.parametrize("answer", [raises, lambda _: "yes", {"action": "skip"}, {"action": "retry"}])
def test_at_blocking_points_a_handler_that_fails_or_puts_off_ends_the_run(
    tmp_path: Path, point: str, answer: Any
) -> None:
    model = ScriptedModel([])

    async def main() -> None:
        async with opened(tmp_path, model, planning_mode="enabled") as session:
            listen(session, point, answer=answer)
            with pytest.raises(HookBlockedError, match=f"a hook blocked {point}"):
                await session.send_async("go")

    asyncio.run(main())
    assert model.requests == []


def test_elsewhere_what_handlers_answer_or_raise_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, one_call(), RecordingTool("look")) as session:
            others = [point for point in HOOK_EVENTS if point not in BLOCKING_EVENTS]
            broken, blocking = listen(session, *others, answer=raises), listen(session, *others, answer=BLOCK)
            assert (await session.send_async("go")).text == "done"
            assert broken.points == blocking.points != []

    asyncio.run(main())


# ---- modified arguments ---------------------------------------------------------------------------------------------


def test_modified_arguments_are_what_the_tool_gets(tmp_path: Path) -> None:
    tool = RecordingTool("look")

    async def main() -> None:
        async with opened(tmp_path, one_call("look", {"at": "here"}), tool) as session:
            listen(session, "pre_tool_use", answer={"action": "continue", "modified": {"args": {"at": "there"}}})
            await session.send_async("go")

    asyncio.run(main())
    assert tool.calls[0][0] == {"at": "there"}


@pytest.mark.parametrize("path", ["secret/x.txt", "open/../secret/x.txt", "link/x.txt", "./secret//x.txt"])
def test_a_modified_path_does_not_get_out_of_the_rules(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "link").symlink_to("secret")
    policy = PermissionPolicy(default_decision="allow", deny=("write(secret/**)",))
    args = {"file_path": path, "content": "x"}

    async def main() -> None:
        model = one_call("write", {"file_path": "open.txt", "content": "x"})
        async with opened(tmp_path, model, permission_policy=policy) as session:
            listen(session, "pre_tool_use", answer={"action": "continue", "modified": {"args": args}})
            await session.send_async("go")

    asyncio.run(main())
    assert results(tmp_path) == [(False, "Permission denied: Tool 'write' is blocked by permission policy.")]
    assert list((tmp_path / "secret").iterdir()) == []


def test_a_modified_path_does_not_get_out_of_the_workspace(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()

    async def main() -> None:
        model = one_call("write", {"file_path": "a.txt", "content": "x"})
        async with opened(inside, model, permission_policy=ALL_ALLOWED) as session:
            args = {"file_path": "../out.txt", "content": "x"}
            listen(session, "pre_tool_use", answer={"action": "continue", "modified": {"args": args}})
            await session.send_async("go")

    asyncio.run(main())
    [(ok, _)] = results(inside)
    assert not ok
    assert not (tmp_path / "out.txt").exists()


def test_an_approval_counts_for_the_arguments_that_were_approved(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, one_call("send", {"to": "friend"}), tool) as session:
            listen(session, "pre_tool_use", answer={"action": "continue", "modified": {"args": {"to": "enemy"}}})
            running = asyncio.create_task(session.send_async("go"))
            [waiting] = await until(session.pending_confirmations)
            assert await session.confirm_tool_use_async(waiting.tool_id, True)
            assert (await running).text == "done"

    asyncio.run(main())
    assert results(tmp_path) == [(False, "Permission denied: Tool 'send' is blocked by permission policy.")]
    assert tool.calls == []


def test_arguments_that_a_hook_leaves_as_they_are_keep_their_approval(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, one_call("send", {"to": "friend"}), tool) as session:
            listen(session, "pre_tool_use", answer={"action": "continue", "modified": {"args": {"to": "friend"}}})
            running = asyncio.create_task(session.send_async("go"))
            [waiting] = await until(session.pending_confirmations)
            await session.confirm_tool_use_async(waiting.tool_id, True)
            await running

    asyncio.run(main())
    assert [args for args, _ in tool.calls] == [{"to": "friend"}]


def test_modified_arguments_must_fit_the_schema_for_the_host_too(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    tool = RecordingTool("look", parameters=schema)

    async def main() -> None:
        async with opened(tmp_path, one_call("look", {"at": "x"}), tool) as session:
            listen(session, "pre_tool_use", answer={"action": "continue", "modified": {"args": {"at": 5}}})
            await session.send_async("go")
            assert (await session.tool_async("look", {"at": "x"})).exit_code == 1

    asyncio.run(main())
    [(ok, output)] = results(tmp_path)
    assert not ok
    assert "do not fit its schema" in output
    assert tool.calls == []


# ---- children and the host's own calls ------------------------------------------------------------------------------


def child(task_id: str, agent: str = "general") -> dict[str, Any]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": "p"}


def test_calls_of_children_are_heard_and_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    model = ScriptedModel([calls(("read", {"file_path": "a.txt"})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tenant_id="t") as session:
            handler = listen(session, "pre_tool_use", "generate_start", answer=lambda p: BLOCK if "tool" in p else None)
            progress: list[Any] = []
            [outcome] = await session.parallel_async([child("a")], events=progress.append)
            assert outcome.success
            assert handler.points == ["generate_start", "pre_tool_use", "generate_start"]
            assert {(each["session_id"], each["tenant_id"]) for each in handler.payloads} == {("task-run-a", "t")}

    asyncio.run(main())
    assert newest_text(model.requests[1]) == "Hook denied read: not today"


def test_a_blocked_model_call_of_a_child_fails_that_child_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            session.register_hook(
                "one", "generate_start", matcher={"session_id": "task-run-b"}, handler=lambda payload: BLOCK
            )
            outcomes = await session.parallel_async([child(name, "answer") for name in "abc"])
            assert [outcome.success for outcome in outcomes] == [True, False, True]
            assert outcomes[1].error_code == "HOOK_BLOCKED"
            assert outcomes[1].output == "Task failed: a hook blocked generate_start: not today"

    asyncio.run(main())


@pytest.mark.parametrize("governed", [True, False])
def test_the_host_s_own_calls_are_heard_too(tmp_path: Path, governed: bool) -> None:
    tool = RecordingTool("look")

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([]), tool) as session:
            handler = listen(session, "pre_tool_use", answer=BLOCK)
            call = session.governed_tool_async if governed else session.tool_async
            result = await call("look")
            assert (result.exit_code, result.output) == (1, "Hook denied look: not today")
            assert handler.points == ["pre_tool_use"]

    asyncio.run(main())
    assert tool.calls == []


# ---- permission requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "is_run"),
    [
        ({"action": "continue", "modified": {"approved": True}}, True),
        (BLOCK, False),
        (raises, False),
        ({"action": "skip"}, False),
        ({"action": "continue", "modified": {"approved": "yes"}}, False),
    ],
)
def test_a_hook_answers_in_a_person_s_stead(tmp_path: Path, answer: Any, is_run: bool) -> None:
    tool = RecordingTool("send", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, one_call("send", {"to": "x"}), tool) as session:
            handler = listen(session, "permission_request", answer=answer)
            result = await session.send_async("go")
            assert result.stop_reason == ("stop" if is_run else "denied")
            assert session.pending_confirmations() == []
            assert [(each["tool"], each["args"]) for each in handler.payloads] == [("send", {"to": "x"})]

    asyncio.run(main())
    assert bool(tool.calls) == is_run


@pytest.mark.parametrize("answer", [None, {"action": "continue"}, {"action": "continue", "modified": {}}])
def test_a_hook_that_decides_nothing_leaves_it_to_the_person(tmp_path: Path, answer: Any) -> None:
    tool = RecordingTool("send", is_read_only=False)

    async def main() -> None:
        async with opened(tmp_path, one_call("send"), tool) as session:
            listen(session, "permission_request", answer=answer)
            told = listen(session, "on_confirmation")
            running = asyncio.create_task(session.send_async("go"))
            [waiting] = await until(session.pending_confirmations)
            await session.confirm_tool_use_async(waiting.tool_id, True)
            await running
            [confirmed] = told.payloads
            assert (confirmed["tool"], confirmed["tool_id"], confirmed["approved"]) == ("send", waiting.tool_id, True)

    asyncio.run(main())
    assert len(tool.calls) == 1


# ---- compaction -----------------------------------------------------------------------------------------------------


def test_a_blocked_compaction_of_the_host_raises_and_changes_nothing(tmp_path: Path) -> None:
    model = ScriptedModel(["one " * 50, "two " * 50])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("a " * 50)
            await session.send_async("b " * 50)
            before = session.history()
            listen(session, "pre_compact", answer=BLOCK)
            with pytest.raises(HookBlockedError, match="pre_compact"):
                await session.compact_async()
            assert session.history() == before

    asyncio.run(main())
    assert len(model.requests) == 2


@pytest.mark.parametrize("answer", [BLOCK, {"action": "skip"}, raises])
def test_a_blocked_automatic_compaction_is_left_out_and_the_run_goes_on(tmp_path: Path, answer: Any) -> None:
    model = ScriptedModel([FULL, calls(("look", {})), "two"])

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look"), max_context_tokens=100) as session:
            await session.send_async("a")
            handler = listen(session, "pre_compact", "post_compact", answer=answer)
            stream = await session.stream_async("b")
            told = [each.payload["phase"] for each in await heard(stream) if each.type == "auto_compact"]
            assert told == ["blocked"]
            assert (await stream.result_async()).text == "two"
            assert handler.points == ["pre_compact"]

    asyncio.run(main())
    assert not any(isinstance(fact.payload, Compacted) for fact in facts_of(tmp_path))


def test_the_points_around_a_compaction_tell_what_it_does(tmp_path: Path) -> None:
    model = ScriptedModel([FULL, "short", "two"])

    async def main() -> None:
        async with opened(tmp_path, model, max_context_tokens=100) as session:
            await session.send_async("a")
            handler = listen(session, "pre_compact", "post_compact", "generate_start")
            await session.send_async("b")
            assert handler.points == ["pre_compact", "generate_start", "post_compact", "generate_start"]
            assert handler.payloads[0]["before_messages"] == 3
            assert handler.payloads[2]["summary"] == "short"

    asyncio.run(main())


# ---- life -----------------------------------------------------------------------------------------------------------


def test_hooks_can_be_changed_between_runs_and_not_after_the_close(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["one", "two"])) as session:
            handler = listen(session, "on_success")
            assert session.hook_count() == 1
            await session.send_async("a")
            assert session.unregister_hook("on_success-0-0")
            assert not session.unregister_hook("on_success-0-0")
            await session.send_async("b")
            assert handler.points == ["on_success"]
            await session.close_async()
            for late in (
                lambda: session.register_hook("late", "on_error", handler=handler),
                lambda: session.unregister_hook("late"),
            ):
                with pytest.raises(SessionClosedError):
                    late()

    asyncio.run(main())
