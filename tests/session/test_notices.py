"""Laws of notices: the end of background work enters the conversation once, at a safe moment, and wakes an idle one."""

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, AgentDefinition, Session
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.facts import Fact, NewFact
from fanfold.contracts.messages import ModelRequest
from fanfold.contracts.notices import Notice
from fanfold.contracts.record import JsonObject
from fanfold.errors import ParkedError, ProviderError, SessionClosedError, UsageError
from fanfold.kernel.decide import MAX_STEPS_PER_RUN
from fanfold.options import AutoDelegation
from fanfold.protocols import HeldThread
from fanfold.session.notices import MAX_WAKES
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.testing import Reply, ScriptedModel, calls, echo
from tests.support.notices import ONE, THREE, TWO, FileOutbox, notices_of, runs
from tests.support.running import INTERRUPTED, HeldTool, PacedModel, facts, keys, opened, said, spoken, turns, until
from tests.support.tools import RecordingTool

# ---- into a run under way -------------------------------------------------------------------------------------------


def test_a_run_under_way_is_told_before_its_next_model_call(tmp_path: Path) -> None:
    model = PacedModel(calls(("look", {})), "done")

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look")) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            notices_of(session).post(ONE)
            model.answer()
            assert spoken(await model.asked())[-2:] == ["tool: done", f"user: {ONE.text}"]
            model.answer()
            assert (await run).text == "done"
            await session.settled_async()
            assert await runs(session) == [("go", "completed")]

    asyncio.run(main())
    assert keys(tmp_path) == ["m-0", "model:1:0", "tool-result:1:0:call-1", "notice-one", "model:2:0"]


def test_a_notice_that_meets_the_final_answer_gets_a_model_call_of_its_own(tmp_path: Path) -> None:
    model = PacedModel(Reply(text="first", usage=None), "second")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            notices_of(session).post(ONE)
            notices_of(session).post(TWO)
            model.answer(2)
            result = await run
            assert result.text == "second"
            assert said(session)[1:] == [
                "assistant: first",
                f"user: {ONE.text}",
                f"user: {TWO.text}",
                "assistant: second",
            ]
            assert [fact.cause for fact in facts(tmp_path) if fact.key.startswith("notice-")] == ["turn:1", "turn:2"]
            [snapshot] = await session.runs_async()
            assert snapshot.usage == result.usage
            assert session._conversation.state.session_usage == result.usage

    asyncio.run(main())


def test_what_a_person_says_stands_behind_the_notices(tmp_path: Path) -> None:
    model = PacedModel("first", "second")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            run = asyncio.create_task(session.send_async("go"))
            await model.asked()
            await session.steer_async("in one word", {"request_id": "r"})
            notices_of(session).post(ONE)
            model.answer(2)
            await run

    asyncio.run(main())
    assert keys(tmp_path) == ["m-0", "model:1:0", "notice-one", "steer:r", "model:3:0"]


def test_nothing_comes_between_a_call_and_its_result(tmp_path: Path) -> None:
    tool, question = HeldTool(), calls(("ask_user", {"question": "which?"}))
    model = ScriptedModel([calls(("hold", {}), ("hold", {})), question, "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool) as session:
            run = asyncio.create_task(session.send_async("go"))
            await tool.started.get()
            notices_of(session).post(ONE)
            await turns()
            tool.let_go.set()
            await until(session.pending_questions)
            notices_of(session).post(TWO)
            await turns()
            assert await session.answer_question_async(session.pending_questions()[0].question_id, "this")
            await run

    asyncio.run(main())
    kinds = [key.partition(":")[0] for key in keys(tmp_path)]
    assert kinds == ["m-0", "model", "tool-result", "tool-result", "notice-one", "model", "a-6", "notice-two", "model"]


def test_a_notice_brings_back_rounds_and_tool_budget_but_no_steps(tmp_path: Path) -> None:
    asked: list[bool] = []
    sessions: list[Session] = []

    def answer(request: ModelRequest) -> Any:
        asked.append(bool(request.tools))
        if len(asked) == 2:
            notices_of(sessions[0]).post(ONE)
        return calls(("look", {"n": len(asked)})) if request.tools else "no tools"

    async def main() -> None:
        model, tool = ScriptedModel(answer), RecordingTool("look")
        async with opened(tmp_path, model, tool, max_tool_rounds=2) as session:
            sessions.append(session)
            assert (await session.send_async("go")).text == "no tools"
            assert session._conversation.state.steps == len(asked) + len(tool.calls) <= MAX_STEPS_PER_RUN

    asyncio.run(main())
    assert asked in ([True, True, True, True, False], [True, True, True, False])


# ---- waking an idle session -----------------------------------------------------------------------------------------


def test_an_idle_session_starts_one_run_for_all_that_waits(tmp_path: Path) -> None:
    model, heard = ScriptedModel(["hello", Reply(text="noted", usage=None)]), list[AgentEvent]()

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("go")
            session.on_wake(heard.append)
            notices_of(session).post(ONE)
            notices_of(session).post(TWO)
            await session.settled_async()
            [_, run] = await session.runs_async()
            assert run.prompt in ("<task_notification one>", "<task_notification one and 1 more>")
            assert run.status == "completed"
            assert run.result_text == "noted"
            assert heard == await session.run_events_async(run.id)
            assert heard[0].payload == {"prompt": run.prompt, "run_id": run.id}
            assert (heard[-1].type, heard[-1].payload["stop_reason"]) == ("agent_end", "stop")
            assert "text_delta" in [each.type for each in heard]
            assert session.history()[2] == {"role": "user", "content": [{"type": "text", "text": ONE.text}]}

    asyncio.run(main())
    assert spoken(model.requests[1])[2:] == [f"user: {ONE.text}", f"user: {TWO.text}"]
    assert keys(tmp_path) == ["m-0", "model:1:0", "notice-one", "notice-two", "model:3:0"]
    assert [fact.cause for fact in facts(tmp_path)][2:4] == [None, "turn:2"]


def test_a_woken_run_has_steps_and_usage_of_its_own(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            for number in range(MAX_STEPS_PER_RUN + 2):
                if number % 8 == 0:
                    await session.send_async("go on")
                notices_of(session).post(Notice(f"n{number}", f"n{number}"))
                await session.settled_async()
            done = await session.runs_async()
            assert {run.status for run in done} == {"completed"}
            assert session._conversation.state.steps == 1
            assert done[-1].usage.completion_tokens < 10

    asyncio.run(main())


def test_notices_that_arrive_together_are_counted_in_the_title(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            outbox = FileOutbox(tmp_path / "outbox")
            notices_of(session).connect(outbox)
            outbox.put(ONE, TWO, THREE)
            await turns()
            assert await runs(session) == []
            notices_of(session).look()
            await session.settled_async()
            assert await runs(session) == [("<task_notification one and 2 more>", "completed")]
            assert outbox.told == ["one", "two", "three"]

    asyncio.run(main())


def test_a_session_that_is_not_to_be_woken_is_told_in_front_of_its_next_prompt(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model, wake_on_notice=False) as session:
            notices_of(session).post(ONE)
            notices_of(session).post(TWO)
            await session.settled_async()
            assert await runs(session) == []
            assert (await session.send_async("and now?")).text == "and now?"

    asyncio.run(main())
    assert keys(tmp_path) == ["notice-one", "notice-two", "m-2", "model:3:0"]
    assert len(model.requests) == 1


def test_an_unfinished_turn_is_left_to_whoever_goes_on_with_it(tmp_path: Path) -> None:
    model = ScriptedModel([ProviderError("down", kind="server", retryable=False), "back", "again"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            with pytest.raises(ProviderError):
                await session.send_async("go")
            notices_of(session).post(ONE)
            await session.settled_async()
            assert len(model.requests) == 1
            assert (await session.resume_run_async()).text == "back"
            assert await runs(session) == [("go", "failed"), ("<resume run=s>", "completed")]

    asyncio.run(main())
    assert keys(tmp_path) == ["m-0", "notice-one", "model:2:0"]


@pytest.mark.parametrize("way", ["prompt", "resume"])
def test_a_parked_turn_is_told_behind_the_result_of_its_call(tmp_path: Path, way: str) -> None:
    model = ScriptedModel([calls(("send", {})), "done"])
    tool = RecordingTool("send", is_read_only=False)

    async def main() -> None:
        asks: JsonObject = {"permission_policy": {}, "approvals": "refuse"}
        async with opened(tmp_path, model, tool, **asks) as session:
            with pytest.raises(ParkedError):
                await session.send_async("go")
            notices_of(session).post(ONE)
            await session.settled_async()
            assert len(model.requests) == 1
            if way == "prompt":
                await session.send_async("never mind")
            else:
                [waiting] = session.pending_confirmations()
                assert await session.confirm_tool_use_async(waiting.tool_id, True)
                await session.settled_async()
                assert len(model.requests) == 1
                await session.resume_run_async()

    asyncio.run(main())
    if way == "prompt":
        assert keys(tmp_path)[2:] == ["tool-result:1:0:call-1", "notice-one", "m-4", "model:3:0"]
        assert "abandoned" in spoken(model.requests[1])[2]
    else:
        assert keys(tmp_path)[3:] == ["tool-result:1:0:call-1", "notice-one", "model:2:0"]
    assert len(tool.calls) == (way == "resume")


def test_a_finished_log_that_is_resumed_goes_on_with_what_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo), wake_on_notice=False) as session:
            await session.send_async("go")
            notices_of(session).post(ONE)
            assert (await session.resume_run_async()).text == ONE.text
            assert (await session.resume_run_async()).text == ONE.text

    asyncio.run(main())
    assert keys(tmp_path) == ["m-0", "model:1:0", "notice-one", "model:2:0"]


def test_a_slash_command_is_told_nothing_and_the_session_is_woken_behind_it(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            gate, asked = asyncio.Event(), asyncio.Event()

            async def slow(args: str, context: Any) -> str:
                asked.set()
                await gate.wait()
                return "slow"

            session.register_command("slow", "d", slow)
            run = asyncio.create_task(session.send_async("/slow"))
            await asked.wait()
            notices_of(session).post(ONE)
            await turns()
            assert keys(tmp_path) == []
            gate.set()
            assert (await run).text == "slow"
            await session.settled_async()
            assert [prompt for prompt, _ in await runs(session)] == ["/slow", "<task_notification one>"]

    asyncio.run(main())
    assert keys(tmp_path) == ["notice-one", "model:1:0"]


def test_the_words_of_a_notice_are_no_prompt(tmp_path: Path) -> None:
    """No hook for prompts hears them, no plan is made for them and nobody is handed work for them."""
    words = "Use the reviewer agent to review everything.\n1. first do this\n2. then do that"
    asked: list[JsonObject] = []

    def hook(event: JsonObject) -> JsonObject | None:
        asked.append(event)
        return {"action": "block", "reason": "no"} if len(asked) > 1 else None

    async def main() -> None:
        model = ScriptedModel(lambda request: "noted")
        agents = {"reviewer": AgentDefinition(name="reviewer", description="reviews code and everything")}
        options: JsonObject = {
            "auto_delegation": AutoDelegation(enabled=True, min_confidence=0.0),
            "goal_tracking": True,
        }
        async with await Agent.create_async(models={"a/b": model}, agents=agents) as agent:
            plain = await agent.session_async(
                tmp_path, auto_delegation=AutoDelegation(enabled=True, min_confidence=0.0)
            )
            await plain.send_async(words.splitlines()[0])
            assert plain.subagent_tasks() != []  # as a prompt they would have an effect
            session = await agent.session_async(tmp_path, **options)
            session.register_hook("h", "pre_prompt", handler=hook)
            before = len(model.requests)
            notices_of(session).post(Notice("n", words))
            await session.settled_async()
            assert (len(model.requests) - before, session.subagent_tasks(), asked) == (1, [], [])
            session.register_hook("down", "generate_start", handler=lambda event: {"action": "block", "reason": "no"})
            notices_of(session).post(Notice("n2", words))
            await session.settled_async()
            session.unregister_hook("down")
            await session.resume_run_async()
            assert (len(model.requests) - before, session.subagent_tasks()) == (2, [])

    asyncio.run(main())


def test_a_prompt_with_a_history_of_its_own_is_told_too(tmp_path: Path) -> None:
    model = PacedModel("aside", "more", "own")

    async def main() -> None:
        async with opened(tmp_path, model, wake_on_notice=False) as session:
            notices_of(session).post(ONE)
            run = asyncio.create_task(session.send_async("go", [{"role": "user", "content": "before"}]))
            assert spoken(await model.asked()) == ["user: before", f"user: {ONE.text}", "user: go"]
            notices_of(session).post(TWO)
            model.answer(2)
            assert (await run).text == "more"
            assert session.history() == []
            model.answer()
            await session.send_async("now")
            assert said(session) == [f"user: {ONE.text}", "user: now", "assistant: own"]

    asyncio.run(main())


def test_background_work_that_begets_more_of_it_waits_for_a_prompt_in_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            count = 0

            def beget(event: AgentEvent) -> None:
                nonlocal count
                if event.type == "agent_end":
                    count += 1
                    notices_of(session).post(Notice(f"n{count}", f"n{count}"))

            session.on_wake(beget)
            notices_of(session).post(ONE)
            await session.settled_async()
            assert len(await session.runs_async()) == count == MAX_WAKES
            assert "<task_notification n32> waits for the next prompt: 32 runs in a row" in caplog.text
            session.on_wake(None)
            await session.send_async("go on")
            notices_of(session).post(TWO)
            await session.settled_async()
            assert (await runs(session))[MAX_WAKES:] == [
                ("go on", "completed"),
                ("<task_notification two>", "completed"),
            ]

    asyncio.run(main())
    assert keys(tmp_path)[-6:-2] == ["model:32:0", "notice-n32", "m-65", "model:34:0"]


def test_what_a_person_says_to_a_woken_run_goes_to_the_agent_that_it_names(tmp_path: Path) -> None:
    model = PacedModel("never mind", "counted", "done")

    async def main() -> None:
        agents = {"counter": AgentDefinition(name="counter", description="counts")}
        async with await Agent.create_async(models={"a/b": model}, agents=agents) as agent:
            session = await agent.session_async(tmp_path, session_id="s")
            notices_of(session).post(ONE)
            await model.asked()
            await session.steer_async("@counter count the files")
            model.answer(3)
            await session.settled_async()
            assert [task.agent for task in session.subagent_tasks()] == ["counter"]

    asyncio.run(main())


# ---- stopping it ----------------------------------------------------------------------------------------------------


def test_a_woken_run_that_is_interrupted_has_told_its_notice(tmp_path: Path) -> None:
    model = PacedModel("never", "next")

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            notices_of(session).post(ONE)
            await model.asked()
            await session.steer_async("quick", {"request_id": "r"})
            assert await session.cancel_async()
            await session.settled_async()
            assert await runs(session) == [("<task_notification one>", "cancelled")]
            assert said(session) == [f"user: {ONE.text}", f"assistant: {INTERRUPTED}"]
            model.answer()
            await session.send_async("next")

    asyncio.run(main())
    assert keys(tmp_path)[0] == "notice-one"
    assert keys(tmp_path).count("notice-one") == 1


def test_a_woken_run_that_is_stopped_before_it_told_anything_is_not_started_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            gate, asked = asyncio.Event(), asyncio.Event()

            async def hook(event: JsonObject) -> None:
                asked.set()
                await gate.wait()

            session.register_hook("h", "session_start", handler=hook)
            notices_of(session).post(ONE)
            await asked.wait()
            assert await session.cancel_async()
            await session.settled_async()
            assert await runs(session) == [("<task_notification one>", "cancelled")]
            assert keys(tmp_path) == []
            notices_of(session).post(TWO)
            await session.settled_async()

    asyncio.run(main())
    assert keys(tmp_path) == ["notice-one", "notice-two", "model:2:0"]


class _SlowThread:
    def __init__(self, held: HeldThread, log: "SlowLog") -> None:
        self._held = held
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)

    async def append(self, facts: Sequence[NewFact]) -> Sequence[Fact]:
        self._log.begun.set()
        await self._log.go_on.wait()
        return await self._held.append(facts)


class SlowLog(JsonlFactLog):
    """Its appends wait for `go_on`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def hold(self, thread: str, *, wait_seconds: float = 0.0) -> Any:
        return _SlowThread(await super().hold(thread, wait_seconds=wait_seconds), self)


def test_a_woken_run_that_is_stopped_while_it_tells_has_told(tmp_path: Path) -> None:
    async def main() -> None:
        logs: list[SlowLog] = []

        def open_log(root: Path) -> SlowLog:
            logs.append(SlowLog(root / ".a3s/effect-log"))
            return logs[-1]

        async with await Agent.create_async(models={"a/b": ScriptedModel(echo)}, open_log=open_log) as agent:
            session = await agent.session_async(tmp_path, session_id="s")
            notices_of(session).post(ONE)
            await logs[0].begun.wait()
            stopping = asyncio.create_task(session.cancel_async())
            await turns()
            logs[0].go_on.set()
            assert await stopping
            await session.settled_async()
            assert await runs(session) == [("<task_notification one>", "cancelled")]
            assert said(session) == [f"user: {ONE.text}", f"assistant: {INTERRUPTED}"]

    asyncio.run(main())
    assert keys(tmp_path)[0] == "notice-one"


def test_a_woken_run_that_fails_is_told_in_the_log_of_the_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        model = ScriptedModel([ProviderError("down", kind="server", retryable=False), "up"])
        async with opened(tmp_path, model) as session:
            notices_of(session).post(ONE)
            await session.settled_async()
            assert await runs(session) == [("<task_notification one>", "failed")]
            assert (await session.resume_run_async()).text == "up"

    asyncio.run(main())
    assert "run <task_notification one> failed: ProviderError" in caplog.text
    assert keys(tmp_path) == ["notice-one", "model:1:0"]


def test_a_session_that_nobody_holds_any_more_is_not_woken(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with await Agent.create_async(models={"a/b": model}) as agent:
            conversation = (await agent.session_async(tmp_path))._conversation
            gc.collect()
            assert agent.list_sessions() == []
            conversation.notices.post(ONE)
            await turns()

    asyncio.run(main())
    assert model.requests == []


def test_a_closed_session_is_not_woken(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.close_async()
            notices_of(session).post(ONE)
            await turns()
            assert await runs(session) == []

    asyncio.run(main())
    assert keys(tmp_path) == []


def test_a_listener_that_raises_stops_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:

            def raises(event: AgentEvent) -> None:
                raise RuntimeError(event.type)

            session.on_wake(raises)
            notices_of(session).post(ONE)
            await session.settled_async()
            assert await runs(session) == [("<task_notification one>", "completed")]
            with pytest.raises(UsageError, match="listener must be a function of one event"):
                session.on_wake("print")  # type: ignore[arg-type]
            await session.close_async()
            with pytest.raises(SessionClosedError):
                session.on_wake(None)

    asyncio.run(main())


@pytest.mark.parametrize("notice", [Notice("", "x"), Notice("\ud800", "x"), Notice("x", "\ud800")])
def test_what_no_log_can_hold_is_no_notice(tmp_path: Path, notice: Notice) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            with pytest.raises(UsageError, match="a notice has an id"):
                notices_of(session).post(notice)
            assert not notices_of(session).has_any

    asyncio.run(main())
