"""Slash commands in real sessions: answered without a model, under the gate, and with the effect that they tell."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, Session, Usage
from fanfold.contracts.facts import Compacted
from fanfold.contracts.messages import ModelRequest, UserMessage
from fanfold.errors import ProviderError, SessionBusyError, SessionClosedError, UsageError
from fanfold.testing import Reply, ScriptedModel, calls, echo
from fanfold.testing.scripted import newest_text
from tests.support.chat_server import ChatServer
from tests.support.open_session import facts_of, heard, opened, types, until
from tests.support.tools import RecordingTool

BUILT_IN = ["clear", "compact", "cost", "help", "history", "mcp", "model", "tools"]


def said(request: ModelRequest) -> list[str]:
    """What the user said, of what a model is shown."""
    return [message.text for message in request.transcript if isinstance(message, UserMessage)]


async def by_send(session: Session, prompt: str) -> str:
    result = await session.send_async(prompt)
    assert (result.stop_reason, result.total_tokens, result.tool_calls_count) == ("command", 0, 0)
    return result.text


async def by_stream(session: Session, prompt: str) -> str:
    stream = await session.stream_async(prompt)
    events = await heard(stream)
    assert types(events) == ["agent_start", "text_delta", "agent_end"]
    text: str = events[1].payload["text"]
    assert events[2].payload["text"] == text == (await stream.result_async()).text
    return text


async def by_request(session: Session, prompt: str) -> str:
    return (await session.send_async({"prompt": f"  {prompt}\n"})).text


# ---- each built-in one ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [by_send, by_stream, by_request])
@pytest.mark.parametrize(
    ("prompt", "lines"),
    [
        ("/help", [*(f"/{name}" for name in BUILT_IN), "Begin a new conversation"]),
        ("/help cost", ["/cost  Show the tokens used"]),
        ("/cost", ["15 tokens used; what they cost is not known"]),
        ("/model", ["Model: scripted/model"]),
        ("/history", ["2 messages, the newest 2:", "user: hi", "assistant: hello"]),
        ("/history 1", ["2 messages, the newest 1:", "assistant: hello"]),
        ("/tools", ["look", "read", "task"]),
        ("/mcp", ["There are no MCP servers."]),
        ("/compact", ["Nothing to compact: the conversation has 2 messages."]),
        ("/clear", ["Conversation cleared: 2 messages will not be sent any more."]),
        ("/halp", ["Unknown command: /halp", "/help"]),
    ],
)
def test_each_command_is_answered_without_the_model(tmp_path: Path, way: Any, prompt: str, lines: list[str]) -> None:
    model = ScriptedModel(["hello"])

    async def main() -> None:
        async with opened(tmp_path, model, RecordingTool("look")) as session:
            await session.send_async("hi")
            before = session.history()
            text = await way(session, prompt)
            assert all(line in text for line in lines), text
            assert session.history() == ([] if prompt == "/clear" else before)

    asyncio.run(main())
    assert len(model.requests) == 1
    is_recorded = len(facts_of(tmp_path)) > 2
    assert is_recorded == (prompt == "/clear")


def test_what_is_no_command_goes_to_the_model(tmp_path: Path) -> None:
    model = ScriptedModel(echo)
    prompts = ["/etc/passwd is missing", "/Help", "see /help", "//", "/"]

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            for prompt in prompts:
                assert (await session.send_async(prompt)).text == prompt

    asyncio.run(main())
    assert len(model.requests) == len(prompts)


@pytest.mark.parametrize("streams", [False, True])
def test_with_attachments_a_slash_is_only_text(tmp_path: Path, streams: bool) -> None:
    model = ScriptedModel(echo)
    notes = [{"data": b"notes", "media_type": "text/plain"}]

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            if streams:
                await heard(await session.stream_with_attachments_async("/help", notes))
            else:
                await session.send_with_attachments_async("/help", notes)

    asyncio.run(main())
    assert [newest_text(request) for request in model.requests] == ["/help"]


def test_a_command_is_a_run_with_its_events(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            result = await session.send_async("/model")
            [run] = await session.runs_async()
            assert (run.id, run.status, run.prompt, run.result_text) == (
                result.run_id,
                "completed",
                "/model",
                "Model: scripted/model",
            )
            assert types(await session.run_events_async(run.id)) == ["agent_start", "text_delta", "agent_end"]

    asyncio.run(main())


# ---- the gate -------------------------------------------------------------------------------------------------------


def test_a_command_is_refused_while_a_run_is_under_way_and_the_other_way_round(tmp_path: Path) -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def slow(args: str, context: Any) -> str:
            await go_on.wait()
            return "slept"

        async def answer(request: ModelRequest) -> str:
            await go_on.wait()
            return "hello"

        async with opened(tmp_path, ScriptedModel(answer)) as session:
            session.register_command("slow", "sleeps", slow)
            for first, text in (("hi", "hello"), ("/slow", "slept")):
                go_on.clear()
                running = asyncio.create_task(session.send_async(first))
                await until(lambda: (run := session.current_run()) and not run.is_terminal)
                for second in ("/help", "ho"):
                    with pytest.raises(SessionBusyError):
                        await session.send_async(second)
                    with pytest.raises(SessionBusyError):
                        await session.stream_async(second)
                go_on.set()
                assert (await running).text == text

    asyncio.run(main())


def test_a_closed_session_answers_no_command_and_takes_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            await session.close_async()
            with pytest.raises(SessionClosedError):
                await session.send_async("/help")
            with pytest.raises(SessionClosedError):
                session.register_command("late", "too late", lambda args, context: "")

    asyncio.run(main())


# ---- own commands ---------------------------------------------------------------------------------------------------


def test_an_own_command_gets_its_arguments_and_the_context(tmp_path: Path) -> None:
    seen: list[Any] = []

    def greet(args: str, context: Any) -> str:
        seen.append((args, dict(context)))
        return f"hello {args}"

    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["fine"]), RecordingTool("look")) as session:
            session.register_command("greet", "Greets", greet)
            assert [info.name for info in session.list_commands()] == sorted([*BUILT_IN, "greet"])
            await session.send_async("hi")
            assert await by_stream(session, "/greet  you and me ") == "hello you and me"
            assert "/greet" in await by_send(session, "/help")
            [(args, context)] = seen
            assert args == "you and me"
            assert context["tool_names"]
            assert "look" in context.pop("tool_names")
            assert context == {
                "session_id": "s",
                "workspace": str(tmp_path),
                "model": "scripted/model",
                "history_len": 2,
                "total_tokens": 15,
            }

    asyncio.run(main())


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (lambda args, context: 1 / 0, "Command /odd failed: it raised ZeroDivisionError"),
        (lambda args, context: 5, "Command /odd failed: it gave int, not text"),
        (lambda args, context: None, "Command /odd failed: it gave NoneType, not text"),
        (lambda: "no arguments", "Command /odd failed: it raised TypeError"),
    ],
)
def test_a_handler_that_fails_is_an_answer_and_no_error(tmp_path: Path, handler: Any, told: str) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["fine"])) as session:
            session.register_command("odd", "Fails", handler)
            assert (await by_send(session, "/odd")).startswith(told)
            assert (await by_stream(session, "/odd")).startswith(told)
            assert (await session.send_async("hi")).text == "fine"

    asyncio.run(main())


def test_a_name_that_is_taken_or_none_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel([])) as session:
            for name in ("help", "two words", "", "Upper"):
                with pytest.raises(UsageError):
                    session.register_command(name, "d", lambda args, context: "")

    asyncio.run(main())


def test_a_command_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        has_begun = asyncio.Event()

        async def slow(args: str, context: Any) -> str:
            has_begun.set()
            await asyncio.Event().wait()
            return "never"

        async with opened(tmp_path, ScriptedModel(["fine"])) as session:
            session.register_command("slow", "sleeps", slow)
            stream = await session.stream_async("/slow")
            await has_begun.wait()
            assert await session.cancel_async()
            assert (await heard(stream))[-1].type == "error"
            assert session.history() == []
            assert (await session.send_async("hi")).text == "fine"

    asyncio.run(main())


# ---- /clear ---------------------------------------------------------------------------------------------------------


def test_after_a_clear_the_model_is_not_shown_what_was_said_before_nor_after_a_restart(tmp_path: Path) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("old")
            await by_send(session, "/clear")
            assert session.history() == []
            assert "0 messages" in await by_send(session, "/history")
            await session.send_async("new")
            assert len(session.history()) == 2
        async with opened(tmp_path, model) as session:
            assert len(session.history()) == 2
            await session.send_async("newer")
            await by_send(session, "/clear")
        async with opened(tmp_path, model) as session:
            assert session.history() == []
            await session.send_async("newest")

    asyncio.run(main())
    assert [said(request) for request in model.requests] == [["old"], ["new"], ["new", "newer"], ["newest"]]


def test_a_clear_of_nothing_and_a_second_one_change_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["hello"])) as session:
            await by_send(session, "/clear")
            await session.send_async("hi")
            await by_send(session, "/clear")
            before = len(facts_of(tmp_path))
            assert await by_send(session, "/clear") == "Conversation cleared: 0 messages will not be sent any more."
            assert len(facts_of(tmp_path)) == before

    asyncio.run(main())


def test_a_clear_with_words_behind_it_clears_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["hello"])) as session:
            await session.send_async("hi")
            assert await by_send(session, "/clear the table") == "Usage: /clear"
            assert len(session.history()) == 2

    asyncio.run(main())


def test_what_a_failed_run_left_is_cleared_too(tmp_path: Path) -> None:
    model = ScriptedModel([ProviderError("down", kind="server", retryable=False), "fine"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            with pytest.raises(ProviderError):
                await session.send_async("old")
            await by_send(session, "/clear")
            assert (await session.send_async("new")).text == "fine"
            assert len(session.history()) == 2

    asyncio.run(main())
    assert said(model.requests[-1]) == ["new"]


def test_what_waits_for_a_person_is_cleared_too(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)
    model = ScriptedModel([calls(("send", {})), "fine"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, approvals="refuse") as session:
            assert (await heard(await session.stream_async("old")))[-1].payload["code"] == "PARKED"
            await by_send(session, "/clear")
            assert session.pending_confirmations() == []
            await session.send_async("new")

    asyncio.run(main())
    assert (said(model.requests[-1]), tool.calls) == (["new"], [])


# ---- /compact -------------------------------------------------------------------------------------------------------


def test_after_a_compact_the_model_sees_the_summary(tmp_path: Path) -> None:
    model = ScriptedModel(["one " * 100, "two " * 100, "SUMMARY", "three"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("first")
            await session.send_async("second")
            text = await by_send(session, "/compact")
            after = len(session.history())
            assert text == f"Compacted: 4 messages became {after}."
            assert after < 4
            await session.send_async("third")

    asyncio.run(main())
    assert any("SUMMARY" in text for text in said(model.requests[-1]))
    assert "first" not in said(model.requests[-1])
    assert sum(isinstance(fact.payload, Compacted) for fact in facts_of(tmp_path)) == 1


# ---- /model ---------------------------------------------------------------------------------------------------------


def test_another_model_answers_from_the_next_prompt_on(tmp_path: Path) -> None:
    one, two = ScriptedModel(["one"]), ScriptedModel(["two", "child"])

    async def main() -> None:
        async with opened(tmp_path, one, models={"other/big": two}) as session:
            assert (await session.send_async("a")).text == "one"
            assert await by_send(session, "/model other/big") == "Model: other/big (it was scripted/model)"
            assert session.model == "other/big"
            assert (await session.send_async("b")).text == "two"
            assert await by_send(session, "/model") == "Model: other/big"
            spec = {"task_id": "t", "agent": "answer", "description": "d", "prompt": "p"}
            assert (await session.parallel_async([spec]))[0].output == "child"

    asyncio.run(main())
    assert [request.model for request in two.requests] == ["big", "big"]
    assert said(two.requests[0]) == ["a", "b"]


def test_a_model_that_there_is_not_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(["one"])) as session:
            text = await by_send(session, "/model nobody/none")
            assert text.startswith("The model stays scripted/model. ")
            assert (await session.send_async("a")).text == "one"

    asyncio.run(main())


# ---- /cost and /tools -----------------------------------------------------------------------------------------------


def test_the_cost_is_that_of_all_runs_also_of_earlier_ones_and_of_those_that_failed(tmp_path: Path) -> None:
    used = Usage(prompt_tokens=100, completion_tokens=11, total_tokens=111)
    down = ProviderError("down", kind="server", retryable=False)

    async def main() -> None:
        model = ScriptedModel([Reply(text="a", usage=used), Reply(calls=calls(("look", {})).calls, usage=used), down])
        async with opened(tmp_path, model, RecordingTool("look")) as session:
            assert "0 tokens used" in await by_send(session, "/cost")
            await session.send_async("a")
            assert "111 tokens used" in await by_send(session, "/cost")
            with pytest.raises(ProviderError):
                await session.send_async("b")
            assert "222 tokens used" in await by_send(session, "/cost")
            await by_send(session, "/clear")
        async with opened(tmp_path, ScriptedModel([])) as session:
            assert "222 tokens used" in await by_send(session, "/cost")

    asyncio.run(main())


def test_the_cost_counts_planning_and_goals(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(['{"steps": ["do it"]}', "done"])
        async with opened(tmp_path, model, planning_mode="enabled") as session:
            await session.send_async("a")
            assert "30 tokens used" in await by_send(session, "/cost")

    asyncio.run(main())


def test_known_prices_make_a_cost(tmp_path: Path) -> None:
    acl = """
        default_model = "priced/m"
        providers "priced" {
            base_url = "%s"
            models "m" { cost { input = 10000, output = 20000 } }
        }
    """

    async def main() -> None:
        async with ChatServer() as server, await Agent.create_async(acl % server.base_url) as agent:
            session = await agent.session_async(tmp_path)
            await session.send_async("a")
            assert await by_send(session, "/cost") == "20 tokens used, $0.2800."

    asyncio.run(main())
