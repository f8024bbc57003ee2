"""Laws of one session: what is recorded, what is replayed, what a person is asked."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, HostEnv, PermissionPolicy, SequentialIds, Session, Usage
from fanfold.contracts.codec import decode_fact
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.messages import ASK_USER, AssistantMessage, ModelReply, ModelRequest, ToolCall, ToolMessage
from fanfold.errors import (
    MissingStoreError,
    ParkedError,
    ProviderError,
    RunCancelledError,
    SessionBusyError,
    SessionClosedError,
    StepLimitError,
    UsageError,
)
from fanfold.protocols import DeltaSink, ModelCapabilities, Tool
from fanfold.testing import Reply, ScriptedModel, calls, echo
from tests.support.tools import RecordingTool


@asynccontextmanager
async def opened(
    workspace: Path, model: ScriptedModel, *tools: RecordingTool, **options: Any
) -> AsyncIterator[Session]:
    async with await Agent.create_async(
        models={"scripted/model": model},
        tools={tool.spec.name: tool for tool in tools},
        host_env=HostEnv(ids=SequentialIds("id")),
    ) as agent:
        yield await agent.session_async(workspace, session_id="s", **options)


def kinds(workspace: Path) -> list[str]:
    lines = (workspace / ".a3s/effect-log/s.jsonl").read_bytes().splitlines()
    assert [decode_fact(line).seq for line in lines] == list(range(1, len(lines) + 1))
    return [line.split(b'"type":"')[1].split(b'"')[0].decode() for line in lines]


def test_a_prompt_and_its_answer_are_facts(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["hello"])) as session:
            result = await session.send_async("hi")
            assert (result.text, result.stop_reason, result.total_tokens) == ("hello", "stop", 15)
            assert result["usage"]["total_tokens"] == 15
            assert str(result) == "hello"
            assert session.history() == [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "hello"}]},
            ]

    asyncio.run(main())
    assert kinds(tmp_path) == ["user.message", "model.turn"]


def test_later_turns_see_earlier_answers(tmp_path: Path) -> None:
    model = ScriptedModel(["one", "two"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("first")
            await session.send_async("second")

    asyncio.run(main())
    assert AssistantMessage("one") in list(model.requests[1].transcript)


def test_a_tool_round_is_recorded_before_and_after(tmp_path: Path) -> None:
    tool = RecordingTool("look", lambda args: f"saw {args['at']}")
    model = ScriptedModel([calls(("look", {"at": "x"})), "it is x"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            result = await session.send_async("what is there?")
            assert (result.text, result.tool_calls_count, result.total_tokens) == ("it is x", 1, 30)

    asyncio.run(main())
    assert kinds(tmp_path) == ["user.message", "model.turn", "tool.result", "model.turn"]
    assert [args for args, _ in tool.calls] == [{"at": "x"}]
    assert ToolMessage("call-1", "look", True, "saw x") in list(model.requests[1].transcript)


def test_a_reopened_session_goes_on_and_a_finished_log_costs_nothing(tmp_path: Path) -> None:
    async def first() -> None:
        async with opened(tmp_path, ScriptedModel(["one"])) as session:
            await session.send_async("first")

    async def second() -> None:
        model = ScriptedModel(["two"])
        async with opened(tmp_path, model) as session:
            assert len(session.history()) == 2
            assert (await session.resume_run_async()).text == "one"
            assert model.requests == []
            assert (await session.send_async("second")).text == "two"

    asyncio.run(first())
    asyncio.run(second())


def test_resuming_an_empty_log_says_that_there_is_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            with pytest.raises(MissingStoreError, match="resume_run requires a session_store on this session"):
                await session.resume_run_async("r-1")

    asyncio.run(main())


def test_parallel_safe_calls_run_together_and_others_in_order(tmp_path: Path) -> None:
    together = RecordingTool("together", is_parallel_safe=True)
    alone = RecordingTool("alone")
    model = ScriptedModel(
        [calls(*[("together", {"n": n}) for n in range(3)]), calls(*[("alone", {"n": n}) for n in range(3)]), "ok"]
    )

    async def main() -> None:
        async with opened(tmp_path, model, together, alone) as session:
            await session.send_async("go")

    asyncio.run(main())
    assert (together.most_running, alone.most_running) == (3, 1)
    assert [args["n"] for args, _ in alone.calls] == [0, 1, 2]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (ToolCall("c", "nothing", {}), "There is no tool 'nothing'. Available: "),
        (ToolCall("c", "look", "{broken"), "are not a JSON object: {broken"),
        (ToolCall("c", "look", {"at": 5}), "do not fit its schema: $.at: 5 is not of type"),
    ],
)
def test_a_call_that_cannot_run_is_answered_and_not_executed(tmp_path: Path, call: ToolCall, says: str) -> None:
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    tool = RecordingTool("look", parameters=schema)
    model = ScriptedModel([Reply(calls=[call]), "sorry"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            assert (await session.send_async("go")).text == "sorry"

    asyncio.run(main())
    assert tool.calls == []
    answer = model.requests[1].transcript.message
    assert isinstance(answer, ToolMessage)
    assert not answer.ok
    assert says in answer.output


def test_a_tool_that_raises_is_a_failed_result(tmp_path: Path) -> None:
    def explode(_: Any) -> str:
        raise ZeroDivisionError("boom")

    model = ScriptedModel([calls(("look", {})), "I see"])

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look", explode)) as session:
            assert (await session.send_async("go")).text == "I see"

    asyncio.run(main())
    answer = model.requests[1].transcript.message
    assert isinstance(answer, ToolMessage)
    assert (answer.ok, answer.output) == (False, "ZeroDivisionError: boom")


def test_missing_usage_is_estimated_and_marked(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([Reply(text="x" * 400, usage=None)])) as session:
            usage = (await session.send_async("y" * 400)).usage
            assert usage.is_estimated
            assert usage.total_tokens > 200

    asyncio.run(main())


def test_a_failing_provider_leaves_a_log_that_can_be_resumed(tmp_path: Path) -> None:
    fault = ProviderError("no route", kind="connection", retryable=True)

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([fault, "late answer"])) as session:
            with pytest.raises(ProviderError, match="no route"):
                await session.send_async("hi")
            assert (await session.resume_run_async()).text == "late answer"

    asyncio.run(main())
    assert kinds(tmp_path) == ["user.message", "model.turn"]


def test_a_run_stops_at_its_step_limit(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: Reply(calls=[ToolCall(f"c{request.transcript.length}", "nothing", {})]))

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            with pytest.raises(StepLimitError, match=r"^StepLimit: .*32"):
                await session.send_async("go")

    asyncio.run(main())
    assert len(model.requests) == 16


def test_the_tool_budget_ends_the_turn_with_the_last_prose(tmp_path: Path) -> None:
    model = ScriptedModel(
        lambda request: Reply(text=f"round {request.transcript.length}", calls=[ToolCall("c", "look", {})])
    )

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look")) as session:
            result = await session.send_async("go")
            assert (result.stop_reason, result.tool_calls_count) == ("tool_budget", 8)
            assert result.text == "round 17"

    asyncio.run(main())
    assert kinds(tmp_path)[-1] == "budget.denied"


def test_after_the_capped_rounds_the_model_sees_no_tools(tmp_path: Path) -> None:
    model = ScriptedModel([calls(("look", {})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look"), max_tool_rounds=1) as session:
            await session.send_async("go")

    asyncio.run(main())
    assert [bool(request.tools) for request in model.requests] == [True, False]


# ---- people ---------------------------------------------------------------------------------------------------------

ASKING = PermissionPolicy(ask=("change",))


def changer() -> RecordingTool:
    return RecordingTool("change", is_read_only=False)


async def parked(session: Session) -> None:
    while not (session.pending_confirmations() or session.pending_questions()):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("approved", "text", "ran"), [(True, "changed", 1), (False, "", 0)])
def test_an_approval_is_waited_for_and_obeyed(tmp_path: Path, approved: bool, text: str, ran: int) -> None:
    tool = changer()
    model = ScriptedModel([calls(("change", {"to": 1})), "changed"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, permission_policy=ASKING) as session:
            run = asyncio.create_task(session.send_async("go"))
            await parked(session)
            [waiting] = session.pending_confirmations()
            assert (waiting["tool_id"], waiting.tool_name, waiting.args) == ("call-1", "change", {"to": 1})
            assert not await session.confirm_tool_use_async("something-else", True)
            assert await session.confirm_tool_use_async("call-1", approved)
            assert not await session.confirm_tool_use_async("call-1", approved)
            result = await run
            assert (result.text, result.stop_reason) == (text, "stop" if approved else "denied")

    asyncio.run(main())
    assert len(tool.calls) == ran


def test_an_approval_given_after_a_restart_is_a_fact_that_resume_obeys(tmp_path: Path) -> None:
    tool = changer()

    async def park() -> None:
        async with opened(tmp_path, ScriptedModel([calls(("change", {}))]), tool, permission_policy=ASKING) as session:
            run = asyncio.create_task(session.send_async("go"))
            await parked(session)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

    async def answer() -> None:
        async with opened(tmp_path, ScriptedModel(["changed"]), tool, permission_policy=ASKING) as session:
            assert [each.tool_id for each in session.pending_confirmations()] == ["call-1"]
            assert await session.confirm_tool_use_async("call-1", True)
            assert session.pending_confirmations() == []
            assert tool.calls == []
            assert (await session.resume_run_async()).text == "changed"

    asyncio.run(park())
    asyncio.run(answer())
    assert len(tool.calls) == 1
    assert kinds(tmp_path) == ["user.message", "model.turn", "confirmation.answered", "tool.result", "model.turn"]


def test_where_nobody_can_answer_the_run_ends_parked(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel([calls(("change", {})), "changed"])
        async with opened(tmp_path, model, changer(), permission_policy=ASKING, approvals="refuse") as session:
            with pytest.raises(ParkedError, match="waits for approval of change") as caught:
                await session.send_async("go")
            assert caught.value.tool_id == "call-1"
            assert await session.confirm_tool_use_async("call-1", True)
            assert (await session.resume_run_async()).text == "changed"

    asyncio.run(main())


def test_a_denied_tool_is_refused_and_the_model_told(tmp_path: Path) -> None:
    tool = changer()
    policy = PermissionPolicy(deny=("change(*)",), allow=("change",))
    model = ScriptedModel([calls(("change", {})), "I may not"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, permission_policy=policy) as session:
            assert (await session.send_async("go")).text == "I may not"

    asyncio.run(main())
    assert tool.calls == []
    answer = model.requests[1].transcript.message
    assert isinstance(answer, ToolMessage)
    assert answer.output == "Permission denied: Tool 'change' is blocked by permission policy."


def ask(question: str) -> Reply:
    return calls((ASK_USER, {"question": question, "options": ["a", "b"]}))


def test_the_answer_to_a_question_is_told_before_the_model_reads_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([ask("which?"), "so it is a"])) as session:
            told: list[AgentEvent] = []
            async for item in await session.stream_async("go"):
                told.append(item)
                if item.type == "user_question":
                    await parked(session)
                    await session.answer_question_async(item.payload["question_id"], "a")
            types = [each.type for each in told]
            asked, answered = types.index("user_question"), types.index("question_answered")
            assert asked < answered < len(types) - 1 - types[::-1].index("turn_start")
            assert told[answered].payload == {"question_id": told[asked].payload["question_id"], "text": "a"}

    asyncio.run(main())


def test_a_question_is_waited_for(tmp_path: Path) -> None:
    model = ScriptedModel([ask("which?"), "so it is a"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await parked(session)
            [waiting] = session.pending_questions()
            assert (waiting.question, waiting.options) == ("which?", ["a", "b"])
            assert await session.answer_question_async(waiting.question_id, "a")
            assert (await run).text == "so it is a"

    asyncio.run(main())
    assert ToolMessage("call-1", ASK_USER, True, "a") in list(model.requests[1].transcript)
    assert kinds(tmp_path) == ["user.message", "model.turn", "question.answered", "model.turn"]


def test_a_question_beside_other_calls_is_asked_too(tmp_path: Path) -> None:
    tool = RecordingTool("look")
    model = ScriptedModel([calls(("look", {}), (ASK_USER, {"question": "sure?"})), "fine"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            run = asyncio.create_task(session.send_async("go"))
            await parked(session)
            assert len(tool.calls) == 1
            assert await session.answer_question_async("call-2", "yes")
            assert (await run).text == "fine"

    asyncio.run(main())


def test_a_fourth_question_of_a_run_is_refused(tmp_path: Path) -> None:
    model = ScriptedModel([ask("1"), ask("2"), ask("3"), ask("4"), "enough"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            for _ in range(3):
                await parked(session)
                assert await session.answer_question_async("call-1", "a")
                await asyncio.sleep(0)
            assert (await run).text == "enough"

    asyncio.run(main())
    answer = model.requests[4].transcript.message
    assert isinstance(answer, ToolMessage)
    assert "question cap" in answer.output


def test_a_prompt_that_comes_while_a_call_is_parked_abandons_it(tmp_path: Path) -> None:
    tool = changer()
    model = ScriptedModel([calls(("change", {})), "other answer"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, permission_policy=ASKING, approvals="refuse") as session:
            with pytest.raises(ParkedError):
                await session.send_async("go")
            assert (await session.send_async("something else")).text == "other answer"
            assert not await session.confirm_tool_use_async("call-1", True)

    asyncio.run(main())
    assert tool.calls == []
    assert kinds(tmp_path) == ["user.message", "model.turn", "tool.result", "user.message", "model.turn"]
    abandoned = list(model.requests[1].transcript)[2]
    assert isinstance(abandoned, ToolMessage)
    assert abandoned.output.startswith("abandoned: ")


# ---- one operation at a time ----------------------------------------------------------------------------------------


def waiting_model() -> tuple[ScriptedModel, asyncio.Event]:
    release = asyncio.Event()

    async def answer(_: ModelRequest) -> str:
        await release.wait()
        return "late"

    return ScriptedModel(answer), release


def test_an_overlapping_operation_is_refused_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        model, release = waiting_model()
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("one"))
            await asyncio.sleep(0)
            for overlapping in (session.send_async("two"), session.stream_async("two"), session.resume_run_async()):
                with pytest.raises(SessionBusyError, match="'s' already has an active operation"):
                    await overlapping
            release.set()
            await run
            await session.send_async("two")

    asyncio.run(main())
    assert kinds(tmp_path).count("user.message") == 2


def test_closing_cancels_what_runs_and_refuses_what_comes(tmp_path: Path) -> None:
    async def main() -> None:
        model, _ = waiting_model()
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("one"))
            await asyncio.sleep(0.01)
            await session.close_async()
            await session.close_async()
            assert session.is_closed()
            with pytest.raises(RunCancelledError):
                await run
            assert model.running == 0
            with pytest.raises(SessionClosedError):
                await session.send_async("two")
            with pytest.raises(SessionClosedError):
                await session.parallel_async([])

    asyncio.run(main())


def test_cancelling_one_run_leaves_the_session_usable(tmp_path: Path) -> None:
    async def main() -> None:
        model, release = waiting_model()
        async with opened(tmp_path, model) as session:
            assert not await session.cancel_async()
            run = asyncio.create_task(session.send_async("one"))
            await asyncio.sleep(0.01)
            assert await session.cancel_async()
            with pytest.raises(RunCancelledError):
                await run
            release.set()
            assert (await session.send_async("two")).text == "late"

    asyncio.run(main())


def test_a_second_agent_that_opens_a_running_thread_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        model, release = waiting_model()
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("one"))
            await asyncio.sleep(0.01)
            with pytest.raises(SessionBusyError):
                async with opened(tmp_path, ScriptedModel([])):
                    pass
            release.set()
            await run

    asyncio.run(main())


def test_one_agent_has_each_session_id_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Agent.create_async(models={"a/b": ScriptedModel(echo)}) as agent:
            session = await agent.session_async(tmp_path, session_id="s")
            with pytest.raises(UsageError, match="session 's' is already live"):
                await agent.session_async(tmp_path, session_id="s")
            assert agent.list_sessions() == ["s"]
            assert await agent.close_session_async("s")
            assert not await agent.close_session_async("s")
            assert session.is_closed()
            again = await agent.session_async(tmp_path, session_id="s")
            await agent.close_async()
            assert again.is_closed()
            assert agent.is_closed()
            with pytest.raises(SessionClosedError, match="<agent-closed>"):
                await agent.session_async(tmp_path)

    asyncio.run(main())


# ---- streams --------------------------------------------------------------------------------------------------------


def test_a_stream_tells_the_run_in_order_and_ends_when_the_session_is_free(tmp_path: Path) -> None:
    model = ScriptedModel([calls(("look", {"at": 1}), text="let me look"), "it is one", "again"])

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look")) as session:
            stream = await session.stream_async("go")
            seen = []
            async for item in stream:
                seen.append(item)
                if item.type == "agent_end":
                    await session.send_async("at once")
            assert [item.type for item in seen if item.type != "text_delta"] == [
                "agent_start",
                "turn_start",
                "turn_end",
                "tool_start",
                "tool_execution_start",
                "tool_end",
                "turn_start",
                "turn_end",
                "agent_end",
            ]
            assert "".join(item.text or "" for item in seen if item.type == "text_delta") == "let me lookit is one"
            assert seen[-1].total_tokens == 30
            [end] = [item for item in seen if item.type == "tool_end"]
            assert (end.tool_name, end.tool_output) == ("look", "done")
            assert (await stream.result_async()).text == "it is one"

    asyncio.run(main())


def test_a_failing_stream_ends_with_its_error(tmp_path: Path) -> None:
    async def main() -> None:
        fault = ProviderError("no route", kind="connection", retryable=True)
        async with opened(tmp_path, ScriptedModel([fault, "fine"])) as session:
            last = [item async for item in await session.stream_async("go")][-1]
            assert (last.type, last.error, last.payload["code"]) == ("error", "LLM error: no route", "LLM_ERROR")
            assert (await session.send_async("again")).text == "fine"

    asyncio.run(main())


def test_leaving_a_stream_cancels_its_run(tmp_path: Path) -> None:
    async def main() -> None:
        model, release = waiting_model()
        async with opened(tmp_path, model) as session:
            async with await session.stream_async("go") as stream:
                assert (await anext(stream)).type == "agent_start"
            assert model.running == 0
            release.set()
            assert (await session.send_async("again")).text == "late"

    asyncio.run(main())


def test_a_slow_reader_gets_all_text_though_deltas_are_joined(tmp_path: Path) -> None:
    pieces = [f"{number} " for number in range(5_000)]

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([Reply(text="".join(pieces), pieces=pieces)])) as session:
            stream = await session.stream_async("go")
            await stream.result_async()
            seen = [item async for item in stream]
            assert "".join(item.text or "" for item in seen if item.type == "text_delta") == "".join(pieces)
            assert len(seen) < 1_200
            assert seen[-1].type == "agent_end"

    asyncio.run(main())


class RetriedModel:
    """A client whose stream breaks once and is repeated."""

    capabilities = ModelCapabilities()

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        assert deltas is not None
        deltas.text("half an ")
        deltas.restart()
        deltas.text("answer")
        return ModelReply(text="answer", usage=Usage(total_tokens=1))

    async def close(self) -> None:
        return None


def test_a_repeated_call_repeats_its_turn_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with await Agent.create_async(models={"a/b": RetriedModel()}) as agent:
            session = await agent.session_async(tmp_path)
            seen = [item async for item in await session.stream_async("go")]
            kinds = [item.type for item in seen]
            assert kinds == [
                "agent_start",
                "turn_start",
                "text_delta",
                "turn_start",
                "text_delta",
                "turn_end",
                "agent_end",
            ]

    asyncio.run(main())


def test_explicit_history_seeds_only_an_empty_log(tmp_path: Path) -> None:
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "earlier"},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
    ]
    model = ScriptedModel(["one", "two"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("now", history)
            await session.send_async("later", [{"role": "user", "content": "ignored"}])

    asyncio.run(main())
    assert [message.text for message in model.requests[0].transcript if not isinstance(message, ToolMessage)] == [
        "earlier",
        "yes",
        "now",
    ]
    assert model.requests[1].transcript.length == 5


def test_a_full_context_is_summarised_once_and_the_run_goes_on(tmp_path: Path) -> None:
    model = ScriptedModel(
        [Reply(text="x" * 3000, usage=Usage(total_tokens=900)), "the summary", "short"],
        capabilities=ModelCapabilities(context_tokens=1000),
    )

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("tell me much")
            assert (await session.send_async("and now?")).text == "short"
            assert len(session.history()) == 3

    asyncio.run(main())
    assert kinds(tmp_path)[-3:] == ["user.message", "compaction.done", "model.turn"]


def test_the_same_environment_writes_the_same_bytes(tmp_path: Path) -> None:
    async def main(workspace: Path) -> None:
        workspace.mkdir()
        model = ScriptedModel([calls(("look", {"at": "x"})), "it is x"])
        async with opened(workspace, model, RecordingTool("look")) as session:
            await session.send_async("go")

    asyncio.run(main(tmp_path / "one"))
    asyncio.run(main(tmp_path / "two"))
    log = Path(".a3s/effect-log/s.jsonl")
    assert (tmp_path / "one" / log).read_bytes() == (tmp_path / "two" / log).read_bytes()


def test_a_host_tool_fits_the_seam() -> None:
    tools: Mapping[str, Tool] = {"look": RecordingTool("look")}
    assert tools["look"].spec.name == "look"


def test_a_torn_log_is_repaired_and_the_next_run_tells_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["one"])) as session:
            await session.send_async("first")
        path = tmp_path / ".a3s" / "effect-log" / "s.jsonl"
        with path.open("ab") as file:
            file.write(b'{"seq":3,"ty')
        async with opened(tmp_path, ScriptedModel(["two", "three"])) as session:
            result = await session.send_async("second")
            told = [each for each in await session.run_events_async(result.run_id) if each.type == "log_repaired"]
            assert [each.payload["kept_in"] for each in told] == [f"{path}.torn-1"]
            later = await session.send_async("third")
            assert "log_repaired" not in [each.type for each in await session.run_events_async(later.run_id)]

    asyncio.run(main())
    assert "the torn end of its log was put into" in caplog.text
