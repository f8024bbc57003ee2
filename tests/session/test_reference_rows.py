"""Reference rows that stand in no other file: what the log, the gate and the stores do in a whole session.

`tests/test_reference_rows.py` says which test is that of which row.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fanfold import AgentDefinition, FileSessionStore, MemorySessionStore, PermissionPolicy, Session
from fanfold.contracts.codec import encode_fact
from fanfold.contracts.facts import Fact, NewFact, Payload, RecordedCall, TextTurn, ToolTurn, UserMessaged
from fanfold.contracts.messages import ASK_USER, AssistantMessage, ModelReply, ModelRequest, ToolCall, ToolMessage
from fanfold.contracts.record import JsonObject
from fanfold.errors import CorruptLogError, ParkedError, ProviderError
from fanfold.protocols import DeltaSink
from fanfold.session.saving import take_up
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.testing import CrashPoint, Reply, ScriptedModel, as_json, calls, echo
from fanfold.testing.scripted import Answer, newest_text
from tests.support import open_session
from tests.support.nodes import ROUNDS, dies, node, round_tools, stored_checkpoint
from tests.support.running import PacedModel, facts, keys, opened, refused, said, spoken, until
from tests.support.tools import RecordingTool

ASKING = PermissionPolicy(ask=("change",))


def changer() -> RecordingTool:
    return RecordingTool("change", is_read_only=False)


def log_of(workspace: Path, session_id: str = "s") -> Path:
    return workspace / f".a3s/effect-log/{session_id}.jsonl"


def written(workspace: Path, *payloads: Any) -> bytes:
    """The bytes of a log that somebody made by hand."""
    named = [NewFact(f"key-{seq}", None, payload).at(seq) for seq, payload in enumerate(payloads, 1)]
    path = log_of(workspace)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(map(encode_fact, named)))
    return path.read_bytes()


# ---- at rest --------------------------------------------------------------------------------------------------------


def test_a_turn_that_is_over_is_resumed_without_a_step_here_and_after_a_restart(tmp_path: Path) -> None:
    async def life(*script: Answer, prompt: str | None = None) -> bytes:
        model = ScriptedModel(script)
        async with opened(tmp_path, model) as session:
            if prompt is not None:
                await session.send_async(prompt)
            before = log_of(tmp_path).read_bytes()
            for _ in range(2):
                assert (await session.resume_run_async()).text == "done"
            assert log_of(tmp_path).read_bytes() == before
            assert len(model.requests) == len(script)
            return before

    assert asyncio.run(life("done", prompt="go")) == asyncio.run(life())


@pytest.mark.parametrize("has_store", [False, True])
@pytest.mark.parametrize("streams", [False, True])
def test_any_run_id_without_a_checkpoint_is_answered_from_the_log(
    tmp_path: Path, streams: bool, has_store: bool
) -> None:
    model = ScriptedModel(["the answer"])

    async def main() -> None:
        async with opened(tmp_path, model, session_store=MemorySessionStore() if has_store else None) as session:
            if streams:
                await (await session.stream_async("go")).result_async()
            else:
                await session.send_async("go")
            before = facts(tmp_path)
            assert (await session.resume_run_async("whatever")).text == "the answer"
            assert facts(tmp_path) == before

    asyncio.run(main())
    assert len(model.requests) == 1


# ---- parked, then opened again --------------------------------------------------------------------------------------


@pytest.mark.parametrize("approved", [True, False])
def test_what_was_answered_after_a_restart_is_obeyed_once_over_repeated_resumes(tmp_path: Path, approved: bool) -> None:
    tool = changer()
    options: dict[str, Any] = {"permission_policy": ASKING, "approvals": "refuse"}

    async def park() -> str:
        async with opened(tmp_path, ScriptedModel([calls(("change", {}), text="I will")]), tool, **options) as session:
            with pytest.raises(ParkedError):
                await session.send_async("go")
            return session.pending_confirmations()[0].tool_id

    async def go_on(*script: Answer, answers: bool = False) -> None:
        model = ScriptedModel(script)
        async with opened(tmp_path, model, tool, **options) as session:
            if answers:
                [waiting] = session.pending_confirmations()
                assert waiting.tool_id == parked
                assert await session.confirm_tool_use_async(parked, approved)
            for _ in range(3):
                result = await session.resume_run_async()
                assert (result.text, result.stop_reason) == (("done", "stop") if approved else ("I will", "denied"))
        assert len(model.requests) == len(script)

    parked = asyncio.run(park())
    asyncio.run(go_on(*(["done"] if approved else []), answers=True))
    asyncio.run(go_on())
    assert len(tool.calls) == int(approved)


@pytest.mark.parametrize("allows_text", [True, False])
def test_a_question_that_was_left_parked_is_whole_after_a_restart_and_costs_nothing_until_it_is_answered(
    tmp_path: Path, allows_text: bool
) -> None:
    question = {"question": "which?", "options": ["a", "b"], "allow_free_text": allows_text}

    async def park() -> None:
        async with opened(tmp_path, ScriptedModel([calls((ASK_USER, question))]), approvals="refuse") as session:
            with pytest.raises(ParkedError):
                await session.send_async("go")

    async def answer() -> None:
        model = ScriptedModel(["so it is b"])
        async with opened(tmp_path, model) as session:
            before = facts(tmp_path)
            [waiting] = session.pending_questions()
            assert (waiting.question, list(waiting.options), waiting.allow_free_text) == (
                "which?",
                ["a", "b"],
                allows_text,
            )
            for _ in range(2):
                with pytest.raises(ParkedError):
                    await session.resume_run_async(wait=False)
            assert (facts(tmp_path), model.requests) == (before, [])
            assert await session.answer_question_async(waiting.question_id, "b")
            for _ in range(2):
                assert (await session.resume_run_async()).text == "so it is b"
        assert len(model.requests) == 1

    asyncio.run(park())
    asyncio.run(answer())


def test_each_of_two_questions_gets_its_own_answer(tmp_path: Path) -> None:
    both = calls((ASK_USER, {"question": "one?"}), (ASK_USER, {"question": "two?"}))
    model = ScriptedModel([both, "done"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            for question_id, other in (("call-1", "call-2"), ("call-2", "call-1")):
                await until(lambda: [each.question_id for each in session.pending_questions()] == [question_id])  # noqa: B023
                assert not await session.answer_question_async(other, "stolen")
                assert await session.answer_question_async(question_id, f"for {question_id}")
            await run

    asyncio.run(main())
    results = [each for each in model.requests[1].transcript if isinstance(each, ToolMessage)]
    assert [(each.call_id, each.output) for each in results] == [("call-1", "for call-1"), ("call-2", "for call-2")]


def test_questions_that_children_ask_at_the_same_time_each_get_their_own_answer(tmp_path: Path) -> None:
    def ask_then_tell(request: ModelRequest) -> Answer:
        is_answered = isinstance(request.transcript.message, ToolMessage)
        return newest_text(request) if is_answered else calls((ASK_USER, {"question": request.session_id}))

    async def main() -> None:
        agents = {"asker": AgentDefinition(name="asker", description="asks", tools=("*",))}
        async with open_session.opened(tmp_path, ScriptedModel(ask_then_tell), agents=agents) as session:
            specs = [{"task_id": name, "agent": "asker", "prompt": "p"} for name in "ab"]
            running = asyncio.create_task(session.parallel_async(specs))
            await until(lambda: len(session.pending_questions()) == 2)
            for waiting in reversed(session.pending_questions()):
                assert await session.answer_question_async(waiting.question_id, f"for {waiting.question}")
            outputs = [outcome.output for outcome in await running]
            assert outputs == ["for task-run-a", "for task-run-b"]

    asyncio.run(main())


# ---- logs that somebody else made -----------------------------------------------------------------------------------


def test_a_recorded_call_without_a_result_is_run_once_and_then_the_model_is_asked(tmp_path: Path) -> None:
    call = RecordedCall(id="call-7", name="look", args={"at": "x"})
    written(tmp_path, UserMessaged("go"), ToolTurn(call=call, text="let me look"))
    tool = RecordingTool("look", lambda args: f"saw {args['at']}")

    async def life(*script: Answer) -> list[Fact]:
        model = ScriptedModel(script)
        async with opened(tmp_path, model, tool) as session:
            assert (await session.resume_run_async()).text == "it is x"
        assert [spoken(request)[-1] for request in model.requests] == ["tool: saw x"] * len(script)
        return facts(tmp_path)

    assert asyncio.run(life("it is x")) == asyncio.run(life())
    assert [args for args, _ in tool.calls] == [{"at": "x"}]


UNREADABLE = [b'{"kind":"riddle"}', b'{"kind":"tool"}', b'{"kind":"text","text":5}', b"null", b'"text"']


@pytest.mark.parametrize("payload", UNREADABLE, ids=ascii)
def test_a_model_turn_that_cannot_be_read_is_told_by_its_line_and_runs_nothing(tmp_path: Path, payload: bytes) -> None:
    written(tmp_path, UserMessaged("go"))
    with log_of(tmp_path).open("ab") as file:
        file.write(b'{"seq":2,"type":"model.turn","key":"model:1:0","cause":null,"payload":%b}\n' % payload)
    before = log_of(tmp_path).read_bytes()
    model, tool = ScriptedModel([]), RecordingTool("look")

    async def main() -> None:
        with pytest.raises(CorruptLogError, match="corrupt at line 2") as caught:
            async with opened(tmp_path, model, tool):
                pass
        assert (caught.value.thread, caught.value.line) == ("s", 2)

    asyncio.run(main())
    assert (model.requests, tool.calls, log_of(tmp_path).read_bytes()) == ([], [], before)


async def by_stream(session: Session) -> object:
    return await (await session.stream_async("second")).result_async()


OPERATIONS: dict[str, Callable[[Session], Awaitable[object]]] = {
    "send": lambda session: session.send_async("second"),
    "stream": by_stream,
    "resume": lambda session: session.resume_run_async(),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_log_that_is_damaged_under_an_open_session_takes_no_fact_and_no_model_call(
    tmp_path: Path, operation: str
) -> None:
    model = ScriptedModel(["one", "two"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("first")
            path = log_of(tmp_path)
            whole = path.read_bytes()
            path.write_bytes(b"{garbage\n" + whole.split(b"\n", 1)[1])
            before = path.read_bytes()
            with pytest.raises(CorruptLogError, match="corrupt at line 1"):
                await OPERATIONS[operation](session)
            assert (path.read_bytes(), len(model.requests)) == (before, 1)
            path.write_bytes(whole)
            assert (await session.send_async("second")).text == "two"

    asyncio.run(main())


CHANGES: dict[str, Callable[[Fact], Fact]] = {
    "type": lambda fact: replace(fact, payload=UserMessaged("answer")),
    "key": lambda fact: replace(fact, key="another"),
    "cause": lambda fact: replace(fact, cause="another"),
    "payload": lambda fact: replace(fact, payload=TextTurn(text="answer!")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_differs_in_any_field_of_a_fact_is_another_log(tmp_path: Path, change: str) -> None:
    payloads: tuple[Payload, ...] = (UserMessaged("go"), TextTurn(text="answer"))
    wanted = [NewFact(f"key-{seq}", None, payload).at(seq) for seq, payload in enumerate(payloads, 1)]
    local = [wanted[0], CHANGES[change](wanted[1])]
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(map(encode_fact, local)))
    before = path.read_bytes()

    async def main() -> Sequence[Fact]:
        log = JsonlFactLog(tmp_path)
        held = await log.hold("t")
        await take_up(held, wanted)
        found = await held.read()
        await held.release()
        await log.close()
        return found

    assert asyncio.run(main()) == wanted
    assert (tmp_path / "t.jsonl.aside-1").read_bytes() == before


# ---- what the model is sent -----------------------------------------------------------------------------------------


class ThinkingModel(ScriptedModel):
    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        return replace(await super().generate(request, deltas), reasoning="it may be there")


@pytest.mark.parametrize("restarts", [False, True])
def test_the_next_request_carries_the_call_as_it_was_made_with_the_words_about_it(
    tmp_path: Path, restarts: bool
) -> None:
    tool = RecordingTool("look", lambda args: "seen")
    made = Reply(text="let me look", calls=[ToolCall("toolu_9", "look", {"at": ["x", {"y": None}]})])
    fault = ProviderError("down", kind="server", retryable=False)

    async def main() -> ModelRequest:
        model = ThinkingModel([made, fault if restarts else "done"])
        async with opened(tmp_path, model, tool) as session:
            if not restarts:
                await session.send_async("go")
                return model.requests[1]
            with pytest.raises(ProviderError):
                await session.send_async("go")
        model = ThinkingModel(["done"])
        async with opened(tmp_path, model, tool) as session:
            await session.resume_run_async()
            return model.requests[0]

    request = asyncio.run(main())
    assert list(request.transcript)[1:] == [
        AssistantMessage("let me look", tuple(made.calls)),
        ToolMessage("toolu_9", "look", True, "seen"),
    ]
    turn = facts(tmp_path)[1].payload
    assert isinstance(turn, ToolTurn)
    assert (turn.text, turn.reasoning, turn.call.id) == ("let me look", "it may be there", "toolu_9")


def test_sessions_of_one_workspace_share_no_fact(tmp_path: Path) -> None:
    models = {name: ScriptedModel([f"answer of {name}", f"another of {name}"]) for name in "ab"}

    async def main() -> None:
        async with (
            opened(tmp_path, models["a"], session_id="a") as one,
            opened(tmp_path, models["b"], session_id="b") as other,
        ):
            for prompt in ("first", "second"):
                await asyncio.gather(one.send_async(f"{prompt} for a"), other.send_async(f"{prompt} for b"))

    asyncio.run(main())
    for name, model in models.items():
        assert spoken(model.requests[1]) == [
            f"user: first for {name}",
            f"assistant: answer of {name}",
            f"user: second for {name}",
        ]
        assert [fact.seq for fact in facts(tmp_path, name)] == [1, 2, 3, 4]
        assert f"for {'b' if name == 'a' else 'a'}" not in log_of(tmp_path, name).read_text()


# ---- failures and refusals ------------------------------------------------------------------------------------------


def test_a_stream_that_fails_changes_neither_the_history_nor_what_is_saved(tmp_path: Path) -> None:
    fault = ProviderError("no such key", kind="auth", retryable=False)
    model = ScriptedModel(["fine", fault])

    async def main() -> None:
        store = MemorySessionStore()
        async with opened(tmp_path, model, session_store=store, auto_save=True) as session:
            await session.send_async("one")
            saved, history = await store.load("session/s"), session.history()
            assert saved is not None
            stream = await session.stream_async("two")
            assert [item.type async for item in stream][-1] == "error"
            with pytest.raises(ProviderError):
                await stream.result_async()
            assert (await store.load("session/s"), session.history()) == (saved, history)

    asyncio.run(main())
    assert len(model.requests) == 2  # and no other was tried


@pytest.mark.parametrize("operation", ["steer", "interrupt"])
def test_a_control_that_a_hook_denies_never_gets_into_the_queue(tmp_path: Path, operation: str) -> None:
    model = PacedModel("done")

    def deny(payload: JsonObject) -> JsonObject:
        return {"action": "block", "reason": "not now"}

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            session.register_hook("h", "pre_run_control", handler=deny)
            stream = await session.stream_async("go")
            await model.asked()
            work = session.steer_async("x") if operation == "steer" else session.interrupt_async()
            assert (await refused(work))[0] == "HOOK_DENIED"
            now = await session.run_control_snapshot_async()
            assert now is not None
            assert (now.queued_controls, now.last_sequence, now.interrupt_requested) == (0, 0, False)
            assert await session.run_control_receipts_async(stream.run_id) == []
            model.answer()
            assert (await stream.result_async()).text == "done"

    asyncio.run(main())
    assert keys(tmp_path) == ["m-0", "model:1:0"]


def test_a_call_of_the_host_that_asks_no_rule_still_obeys_the_tool_budget(tmp_path: Path) -> None:
    asked: list[str] = []

    class Guard:
        def check_before_tool(self, session_id: str, tool_name: str) -> JsonObject:
            asked.append(tool_name)
            return {"decision": "deny", "resource": "calls", "reason": "enough"}

    async def main() -> None:
        tool = changer()
        nothing = PermissionPolicy(default_decision="deny")
        async with opened(
            tmp_path, ScriptedModel([]), tool, permission_policy=nothing, budget_guard=Guard()
        ) as session:
            result = await session.tool_async("change")
            assert (result.ok, result.output) == (False, "Budget exhausted on 'calls': enough")
            session.set_budget_guard(None)
            assert (await session.tool_async("change")).ok
            assert (len(tool.calls), asked) == (1, ["change"])

    asyncio.run(main())


def test_a_session_that_plans_is_denied_a_write_that_others_would_be_asked_about(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Answer:
        is_answered = isinstance(request.transcript.message, ToolMessage)
        return "only a plan" if is_answered else calls(("write", {"file_path": "x", "content": "y"}))

    async def main() -> None:
        async with node(tmp_path, script) as (agent, _):
            plain = await agent.session_async(tmp_path, session_id="plain", approvals="refuse")
            with pytest.raises(ParkedError, match="approval of write"):
                await plain.send_async("change it")
            planning = await agent.session_for_agent_async(tmp_path, "plan", session_id="plan", approvals="refuse")
            assert (await planning.send_async("change it")).text == "only a plan"
            assert planning.pending_confirmations() == []

    asyncio.run(main())
    assert not (tmp_path / "x").exists()


# ---- saved and taken up ---------------------------------------------------------------------------------------------


def test_rounds_that_were_used_up_before_the_crash_leave_a_call_without_tools_on_the_next_node(tmp_path: Path) -> None:
    def insisting(request: ModelRequest) -> Answer:
        return calls((ROUNDS[2], {"round": 2})) if request.tools else "so much for tools"

    async def main() -> None:
        store = MemorySessionStore()
        point = CrashPoint(before_fact=lambda fact: fact.key == "model:1:2")
        await dies(tmp_path / "a", store, point, *round_tools(), max_tool_rounds=2)
        found = await stored_checkpoint(store, "run-id-0")
        assert found is not None
        assert found.turn == 2
        tools = round_tools()
        async with node(tmp_path / "b", insisting, *tools, ids="other") as (agent, model):
            session = await agent.session_async(tmp_path / "b", session_id="s", session_store=store, max_tool_rounds=2)
            assert (await session.resume_run_async("run-id-0")).text == "so much for tools"
            assert [bool(request.tools) for request in model.requests] == [False]
        assert [tool.calls for tool in tools] == [[], [], []]

    asyncio.run(main())


def test_a_tool_budget_that_was_spent_before_the_crash_is_spent_on_the_next_node(tmp_path: Path) -> None:
    def insisting(request: ModelRequest) -> Answer:
        return calls(("look", {"at": request.transcript.length}), text="and one more")

    async def main() -> None:
        store, point = MemorySessionStore(), CrashPoint(before_fact=lambda fact: fact.key == "model:1:8")
        with point:
            async with node(tmp_path / "a", insisting, RecordingTool("look"), point=point) as (agent, _):
                session = await agent.session_async(tmp_path / "a", session_id="s", session_store=point.store(store))
                await session.send_async("go")
        assert point.has_crashed
        tool = RecordingTool("look")
        async with node(tmp_path / "b", insisting, tool, ids="other") as (agent, model):
            session = await agent.session_async(tmp_path / "b", session_id="s", session_store=store)
            result = await session.resume_run_async("run-id-0")
            assert (result.stop_reason, result.text, result.tool_calls_count) == ("tool_budget", "and one more", 8)
            assert (len(model.requests), tool.calls) == (1, [])

    asyncio.run(main())


def test_a_generation_stands_until_the_next_one_is_whole_forty_times_over(tmp_path: Path) -> None:
    """A process that dies while it writes a generation leaves half of it beside the old one."""
    here = tmp_path / "here"

    async def life(number: int, store: FileSessionStore) -> None:
        async with node(here, echo, ids=f"n{number}") as (agent, _):
            if number:
                session = await agent.resume_session_async("s", session_store=store)
            else:
                session = await agent.session_async(here, session_id="s", session_store=store)
            assert said(session)[1::2] == [f"assistant: {each}" for each in range(number)]
            assert len(await session.runs_async()) == number
            await session.send_async(f"{number}")
            await session.save_async()

    async def main() -> None:
        for number in range(40):
            async with FileSessionStore(tmp_path / "store") as store:
                await life(number, store)
            [document] = (tmp_path / "store/session").glob("*.json")
            data = document.read_bytes()
            document.with_name(f"{document.name}.tmp").write_bytes(data[: len(data) * number // 40])
            log_of(here).unlink()  # what comes next knows nothing but what was saved

    asyncio.run(main())


async def _judged(session: Session) -> list[JsonObject]:
    """The verification reports of all runs, as their last events tell them."""
    ends = [(await session.run_events_async(run.id))[-1] for run in await session.runs_async()]
    return [report for end in ends for report in end.payload.get("verification", [])]


def test_reports_and_the_whole_of_long_outputs_are_there_after_a_resume(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Answer:
        if request.output_schema is None:
            return "done"
        if "progress" in str(request.output_schema):
            return as_json({"achieved": True, "progress": 1.0, "reason": "seen", "completed_steps": 1})
        return as_json({"goal": "it is done", "criteria": ["done"]})

    async def main() -> None:
        store = MemorySessionStore()
        async with node(tmp_path, script) as (agent, _):
            session = await agent.session_async(
                tmp_path, session_id="s", session_store=store, goal_tracking=True, allow_unsandboxed_bash=True
            )
            assert (await session.send_async("go")).verification_summary().status == "passed"
            long = await session.tool_async("bash", {"command": "seq 1 60000"})
            assert long.artifact is not None
            assert "\n30000\n" not in long.output
            reports = await _judged(session)
            await session.save_async()
        async with node(tmp_path, script, ids="other") as (agent, _):
            session = await agent.resume_session_async("s", session_store=store)
            assert await _judged(session) == reports
            assert [(report["what"], report["status"]) for report in reports] == [("it is done", "passed")]
            page = await session.tool_async("read", {"file_path": long.artifact, "offset": 29_998, "limit": 5})
            assert "30000" in page.output

    asyncio.run(main())
