"""Models, tools, executors and listeners are foreign code: what they do wrong stays with them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentEvent, MapItem, MapStep, Session, ToolOutput, Usage
from fanfold.contracts.messages import ModelReply, ModelRequest, ToolCall, ToolMessage
from fanfold.errors import InvalidSpecError, ProviderError, RunCancelledError, UsageError
from fanfold.testing import Reply, ScriptedModel, calls
from tests.support.tools import RecordingTool


@asynccontextmanager
async def opened(workspace: Path, model: Any, *tools: RecordingTool, **options: Any) -> AsyncIterator[Session]:
    named = {tool.spec.name: tool for tool in tools}
    async with await Agent.create_async(models={"scripted/model": model}, tools=named) as agent:
        yield await agent.session_async(workspace, session_id="s", **options)


def steps(count: int, agent: str = "answer") -> list[dict[str, Any]]:
    return [{"task_id": f"t{n}", "agent": agent, "prompt": f"p{n}"} for n in range(count)]


class Panic(BaseException):
    """What a native library raises when it panics: no Exception."""


def raising(error: BaseException) -> Any:
    def work(_: Any) -> Any:
        raise error

    return work


NONE: Any = None
BYTES: Any = b"x"
WRONG_OUTPUTS: list[Any] = [
    None,
    "text",
    5,
    ToolOutput(output=NONE),
    ToolOutput(output=BYTES),
    ToolOutput(output="x", exit_code=BYTES),
]


class GivingTool(RecordingTool):
    async def run(self, args: Any, scope: Any) -> Any:
        self.calls.append((args, scope))
        return self._answer(args)


@pytest.mark.parametrize("output", WRONG_OUTPUTS, ids=range(len(WRONG_OUTPUTS)))
def test_an_output_that_is_none_is_a_failed_result_in_a_log_that_can_be_read(tmp_path: Path, output: Any) -> None:
    model = ScriptedModel([calls(("look", {})), "I see"])

    async def main() -> None:
        async with opened(tmp_path, model, GivingTool("look", lambda _: output)) as session:
            assert (await session.send_async("go")).text == "I see"
        async with opened(tmp_path, ScriptedModel([])) as again:
            assert len(again.history()) == 4

    asyncio.run(main())
    answer = model.requests[1].transcript.message
    assert isinstance(answer, ToolMessage)
    assert not answer.ok
    assert answer.output.startswith("the tool gave no valid output: ")


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), Panic("native"), StopAsyncIteration()])
def test_whatever_a_tool_raises_is_its_result(tmp_path: Path, error: BaseException) -> None:
    async def main() -> None:
        model = ScriptedModel([calls(("look", {})), "I see"])
        async with opened(tmp_path, model, RecordingTool("look", raising(error))) as session:
            assert (await session.send_async("go")).text == "I see"

    asyncio.run(main())


@pytest.mark.parametrize(
    "reply",
    [None, "text", ModelReply(text=NONE), ModelReply(text=BYTES), ModelReply(calls=BYTES), ModelReply(usage=BYTES)],
    ids=range(6),
)
def test_a_reply_that_is_none_is_a_provider_error_in_a_log_that_can_be_resumed(tmp_path: Path, reply: Any) -> None:
    class Wrong(ScriptedModel):
        async def generate(self, request: ModelRequest, deltas: Any = None) -> ModelReply:
            return reply  # type: ignore[no-any-return]

    async def main() -> None:
        async with opened(tmp_path, Wrong([])) as session:
            with pytest.raises(ProviderError, match="gave no valid reply"):
                await session.send_async("go")
        async with opened(tmp_path, ScriptedModel(["fine"])) as again:
            assert (await again.resume_run_async()).text == "fine"

    asyncio.run(main())


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), Panic("native"), KeyError("x")])
def test_whatever_a_model_raises_fails_its_own_step_only(tmp_path: Path, error: BaseException) -> None:
    def answer(request: ModelRequest) -> str:
        if "p1" in str(request.transcript.message):
            raise error
        return "fine"

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(answer)) as session:
            outcomes = await session.parallel_async(steps(4))
            assert [outcome.success for outcome in outcomes] == [True, False, True, True]
            assert type(error).__name__ in outcomes[1].output
            items = [MapItem(key=f"p{n}", fields={"item": f"p{n}"}) for n in range(4)]
            mapped = await session.map_async(items, [MapStep(prompt="{item}")])
            assert [row.outcome.success for row in mapped.rows] == [True, False, True, True]

    asyncio.run(main())


def test_a_negative_count_is_taken_for_none_and_never_refills_a_budget(tmp_path: Path) -> None:
    model = ScriptedModel(lambda _: Reply(text="x" * 40, usage=Usage(total_tokens=-10)))

    async def main() -> None:
        async with opened(tmp_path, model, max_parallel_tasks=1) as session:
            result = await session.parallel_async(steps(20), budget_tokens=30)
            assert [outcome.success for outcome in result.outcomes].count(True) < 5
            assert result.outcomes[0].usage.is_estimated

    asyncio.run(main())


def test_calls_with_one_id_or_none_are_told_apart(tmp_path: Path) -> None:
    tool = RecordingTool("look", lambda args: args["n"])
    same = [ToolCall("c", "look", {"n": 1}), ToolCall("c", "look", {"n": 2}), ToolCall("", "look", {"n": 3})]
    model = ScriptedModel([Reply(calls=same), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            assert (await session.send_async("go")).tool_calls_count == 3

    asyncio.run(main())
    results = [message for message in model.requests[1].transcript if isinstance(message, ToolMessage)]
    assert [(each.call_id, each.output) for each in results] == [("c", "1"), ("c-2", "2"), ("call-2", "3")]


def test_arguments_that_json_cannot_hold_are_answered_and_not_executed(tmp_path: Path) -> None:
    tool = RecordingTool("look")
    model = ScriptedModel([calls(("look", {"x": float("nan")})), "I see"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            assert (await session.send_async("go")).text == "I see"

    asyncio.run(main())
    assert tool.calls == []


def test_lone_surrogates_are_shown_and_never_stop_a_run(tmp_path: Path) -> None:
    bad = "a\ud800b"
    model = ScriptedModel([Reply(text=bad, calls=[ToolCall("c", "look", {"x": bad})]), bad])

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look", lambda _: bad)) as session:
            assert (await session.send_async("go")).text == "a\ufffdb"
        async with opened(tmp_path, ScriptedModel([])) as again:
            assert len(again.history()) == 4

    asyncio.run(main())


def test_a_prompt_that_is_no_text_is_refused_and_nothing_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel([])
        async with opened(tmp_path, model) as session:
            for prompt in ("a\ud800b", None, 5):
                with pytest.raises(UsageError, match="a prompt must be text"):
                    await session.send_async(prompt)  # type: ignore[arg-type]
            with pytest.raises(InvalidSpecError, match=r"specs\[0\].prompt: holds a lone surrogate"):
                await session.parallel_async([{"task_id": "a", "agent": "answer", "prompt": "\ud800"}])
            item = MapItem(key="k", fields={"item": "\ud800"})
            with pytest.raises(UsageError, match="item 'k': item holds a lone surrogate"):
                await session.map_async([item], [MapStep(prompt="{item}")])
            assert session.history() == []

    asyncio.run(main())


# ---- cancellation ---------------------------------------------------------------------------------------------------


class Stubborn(RecordingTool):
    """Answers its cancellation with a result."""

    async def run(self, args: Any, scope: Any) -> ToolOutput:
        self.running += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return ToolOutput(output="I would rather finish")
        raise AssertionError


def test_a_swallowed_cancellation_keeps_the_result_and_begins_nothing_new(tmp_path: Path) -> None:
    tool = Stubborn("look")
    model = ScriptedModel([calls(("look", {})), "must not be asked"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            run = asyncio.create_task(session.send_async("go"))
            while not tool.running:
                await asyncio.sleep(0)
            await session.cancel_async()
            with pytest.raises(RunCancelledError):
                await run
            assert len(model.requests) == 1
            assert [message["role"] for message in session.history()] == ["user", "assistant", "user", "assistant"]

    asyncio.run(main())


def test_a_fan_out_that_is_cancelled_begins_no_further_step(tmp_path: Path) -> None:
    class StubbornModel(ScriptedModel):
        async def generate(self, request: ModelRequest, deltas: Any = None) -> ModelReply:
            self.requests.append(request)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return ModelReply(text="late", usage=Usage(total_tokens=1))
            raise AssertionError

    async def main() -> None:
        model = StubbornModel([])
        async with opened(tmp_path, model, max_parallel_tasks=2) as session:
            run = asyncio.create_task(session.parallel_async(steps(50)))
            while len(model.requests) < 2:
                await asyncio.sleep(0)
            await session.close_async()
            with pytest.raises(RunCancelledError):
                await run
            assert len(model.requests) == 2

    asyncio.run(main())


# ---- listeners ------------------------------------------------------------------------------------------------------


def broken(_: Any, __: Any = None) -> None:
    raise ValueError("a broken listener")


def test_a_listener_that_raises_is_logged_once_and_costs_no_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel(lambda _: "fine")
    items = [MapItem(key=str(n), fields={"item": str(n)}) for n in range(3)]

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            outcomes = await session.parallel_async(steps(3), events=broken)
            assert [outcome.success for outcome in outcomes] == [True] * 3
            mapped = await session.map_async(items, [MapStep(prompt="{item}")], events=broken, on_row=broken)
            assert mapped.failed == []
            piped = await session.pipeline_async([1], [lambda ctx: 5], events=broken)  # type: ignore[list-item, return-value]
            assert piped == [None]

    asyncio.run(main())
    assert len(model.requests) == 6
    assert [record.getMessage() for record in caplog.records] == [
        "a listener raised and will hear no more of this operation"
    ] * 4


# ---- slots and inbox ------------------------------------------------------------------------------------------------


def test_a_step_whose_tool_fans_out_lends_its_slot(tmp_path: Path) -> None:
    async def main() -> None:
        sessions: list[Session] = []

        async def nested(_: Any) -> str:
            outcomes = await sessions[0].parallel_async(steps(2))
            return str([outcome.output for outcome in outcomes])

        class Nesting(RecordingTool):
            async def run(self, args: Any, scope: Any) -> ToolOutput:
                return ToolOutput(output=await nested(args))

        def answer(request: ModelRequest) -> Reply | str:
            is_outer = bool(request.tools) and request.transcript.length == 1
            return calls(("ls", {}), ("ls", {"path": "."})) if is_outer else "done"

        # The name of a built-in tool, so that a role shows it to its model.
        async with opened(
            tmp_path, ScriptedModel(answer), Nesting("ls", is_parallel_safe=True), max_parallel_tasks=2
        ) as s:
            sessions.append(s)
            async with asyncio.timeout(10):
                outcomes = await s.parallel_async(steps(4, "explore"))
            assert [outcome.success for outcome in outcomes] == [True] * 4

    asyncio.run(main())


def test_two_fan_outs_with_one_task_id_are_asked_for_apart(tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> Reply | str:
        return calls(("write", {"file_path": "x", "content": "y"})) if request.transcript.length == 1 else "done"

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(answer)) as session:
            runs = [asyncio.create_task(session.parallel_async(steps(1, "general"))) for _ in range(2)]
            while len(session.pending_confirmations()) < 2:
                await asyncio.sleep(0)
            ids = [each.tool_id for each in session.pending_confirmations()]
            assert ids == ["task-run-t0/call-1", "task-run-t0/call-1#2"]
            for each in ids:
                assert await session.confirm_tool_use_async(each, True)
            async with asyncio.timeout(10):
                assert all([(await run)[0].success for run in runs])

    asyncio.run(main())


def test_equal_items_of_a_map_are_asked_once(tmp_path: Path) -> None:
    answers = iter(range(9))
    model = ScriptedModel(lambda _: f"answer {next(answers)}")
    items = [MapItem(key=f"k{n}", fields={"item": "same"}) for n in range(4)]

    async def main() -> None:
        heard: list[AgentEvent] = []
        async with opened(tmp_path, model) as session:
            result = await session.map_async(items, [MapStep(prompt="{item}")], events=heard.append)
            assert [row.outcome.output for row in result.rows] == ["answer 0"] * 4
            assert [row.is_cached for row in result.rows] == [False, True, True, True]

    asyncio.run(main())
    assert len(model.requests) == 1
