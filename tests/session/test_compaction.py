"""Compaction in real runs: when it happens, what it keeps, and that neither its failure nor a restart costs a run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold import Session, Usage
from fanfold.contracts.facts import Compacted
from fanfold.contracts.messages import AssistantMessage, Message, ModelRequest, ToolMessage, UserMessage
from fanfold.errors import ProviderError, SessionBusyError
from fanfold.testing import Reply, ScriptedModel, calls
from fanfold.testing.scripted import newest_text
from tests.support.open_session import facts_of, heard, opened, types, until
from tests.support.tools import RecordingTool

WINDOW = 1_000
"""Compacted at 800 tokens, to a tail of 200."""


def using(tokens: int, text: str = "", *asked: tuple[str, dict[str, Any]]) -> Reply:
    """A reply after which the context has `tokens`."""
    usage = Usage(prompt_tokens=tokens - 5, completion_tokens=5, total_tokens=tokens)
    return Reply(text=text, calls=calls(*asked).calls, usage=usage)


def compactions(workspace: Path) -> list[Compacted]:
    return [fact.payload for fact in facts_of(workspace) if isinstance(fact.payload, Compacted)]


def is_summary(request: ModelRequest) -> bool:
    return request.system.startswith("Summarise this conversation")


def shown(request: ModelRequest) -> list[Message]:
    return list(request.transcript)


# ---- when -----------------------------------------------------------------------------------------------------------


def test_a_full_context_is_compacted_once_before_the_next_model_call(tmp_path: Path) -> None:
    model = ScriptedModel([using(800, "one"), "SHORT", using(900, "", ("look", {})), "two"])

    async def main() -> None:
        tool = RecordingTool("look", lambda args: "seen " * 200)  # there would be enough to compact once more
        async with opened(tmp_path, model, tool, max_context_tokens=WINDOW) as session:
            await session.send_async("first " * 200)
            events = await heard(await session.stream_async("second"))
            compacting = ("auto_compact", "context_compacted")
            assert types(events, *compacting) == ["auto_compact", "context_compacted", "auto_compact"]
            [started, told, completed] = [each.payload for each in events if each.type in compacting]
            assert started["phase"] == "started"
            assert started["context_window"] == WINDOW
            assert (told["before_messages"], told["after_messages"]) == (3, 3)
            assert told["percent_before"] >= 80
            assert told["summary"] == "SHORT"
            assert completed["phase"] == "completed"
            assert completed["tokens_after"] < completed["tokens_used"]

    asyncio.run(main())
    assert [is_summary(request) for request in model.requests] == [False, True, False, False]
    assert len(compactions(tmp_path)) == 1


def test_below_the_threshold_nothing_is_compacted(tmp_path: Path) -> None:
    model = ScriptedModel([using(700, "one"), "two"])

    async def main() -> None:
        async with opened(tmp_path, model, max_context_tokens=WINDOW) as session:
            await session.send_async("first")
            await session.send_async("second")

    asyncio.run(main())
    assert compactions(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "tokens", "is_compacted"),
    [
        ({"auto_compact": False}, 990, False),
        ({"auto_compact": True}, 810, True),
        ({"auto_compact_threshold": 0.5}, 510, True),
        ({"auto_compact_threshold": 0.95}, 900, False),
        ({"max_context_tokens": 2_000}, 1_500, False),
    ],
)
def test_the_options_say_whether_and_where(
    tmp_path: Path, options: dict[str, Any], tokens: int, is_compacted: bool
) -> None:
    model = ScriptedModel(lambda request: "SHORT" if is_summary(request) else using(tokens, "x"))

    async def main() -> None:
        async with opened(tmp_path, model, **{"max_context_tokens": WINDOW, **options}) as session:
            await session.send_async("first " * 200)
            await session.send_async("second")

    asyncio.run(main())
    assert bool(compactions(tmp_path)) == is_compacted


def test_without_a_known_window_nothing_is_compacted_by_itself(tmp_path: Path) -> None:
    model = ScriptedModel([using(900_000, "one"), "two"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await session.send_async("first")
            await session.send_async("second")

    asyncio.run(main())
    assert compactions(tmp_path) == []


def test_a_compaction_is_in_the_log_and_not_made_again_on_resume(tmp_path: Path) -> None:
    down = ProviderError("down", kind="server", retryable=False)

    async def first() -> None:
        model = ScriptedModel([using(900, "one"), "SHORT", down])
        async with opened(tmp_path, model, max_context_tokens=WINDOW) as session:
            await session.send_async("first " * 200)
            with pytest.raises(ProviderError):
                await session.send_async("second")

    async def second() -> None:
        model = ScriptedModel([using(950, "two")])
        async with opened(tmp_path, model, max_context_tokens=WINDOW) as session:
            assert (await session.resume_run_async()).text == "two"
            assert any("SHORT" in text for text in texts_of(model.requests[0]))

    asyncio.run(first())
    asyncio.run(second())
    assert len(compactions(tmp_path)) == 1


def texts_of(request: ModelRequest) -> list[str]:
    """Without those of tools."""
    return [each.text for each in request.transcript if isinstance(each, UserMessage | AssistantMessage)]


# ---- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [120, 240])
def test_the_newest_call_and_its_result_stay_together_and_the_turn_goes_on(tmp_path: Path, words: int) -> None:
    tool = RecordingTool("look", lambda args: "seen " * words)
    model = ScriptedModel([using(100, "", ("look", {"n": 1})), using(780, "", ("look", {"n": 2})), "SHORT", "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, max_context_tokens=WINDOW) as session:
            result = await session.send_async("go " * 100)
            assert (result.text, result.tool_calls_count) == ("done", 2)

    asyncio.run(main())
    summary, call, answer = shown(model.requests[-1])
    assert isinstance(summary, UserMessage)
    assert summary.text.endswith("SHORT")
    assert isinstance(call, AssistantMessage)
    assert call.calls[0].args == {"n": 2}
    assert isinstance(answer, ToolMessage)
    assert answer.output.startswith("seen")


@pytest.mark.parametrize("size", [1, 100, 160, 300, 390, 500, 900])
def test_no_call_is_ever_parted_from_its_results(tmp_path: Path, size: int) -> None:
    """Whatever the sizes: a provider takes no result without its call."""
    tool = RecordingTool("look", lambda args: "word" * size, is_parallel_safe=True)
    two = (("look", {"n": 1}), ("look", {"n": 2}))
    model: ScriptedModel = ScriptedModel(
        lambda request: "SHORT" if is_summary(request) else "done" if len(model.requests) > 4 else using(790, "", *two)
    )

    async def main() -> None:
        async with opened(tmp_path, model, tool, max_context_tokens=WINDOW) as session:
            assert (await session.send_async("go " * 300)).text == "done"
            await session.send_async("again")

    asyncio.run(main())
    assert compactions(tmp_path)
    for request in model.requests:
        asked: set[str] = set()
        for message in request.transcript:
            if isinstance(message, AssistantMessage):
                assert not asked
                asked = {call.id for call in message.calls}
            elif isinstance(message, ToolMessage):
                asked.remove(message.call_id)
        assert not asked


def test_the_newest_messages_stay_as_they_are(tmp_path: Path) -> None:
    model = ScriptedModel([using(100, "old answer"), using(900, "new answer"), "SHORT", "done"])

    async def main() -> None:
        async with opened(tmp_path, model, max_context_tokens=WINDOW) as session:
            await session.send_async("old question " * 80)
            await session.send_async("new question")
            await session.send_async("now")

    asyncio.run(main())
    assert texts_of(model.requests[-1])[1:] == [
        "old answer",
        "new question",
        "new answer",
        "now",
    ]


def test_what_a_summary_costs_is_part_of_the_result(tmp_path: Path) -> None:
    model = ScriptedModel([using(900, "one"), "SHORT", "two"])

    async def main() -> None:
        async with opened(tmp_path, model, max_context_tokens=WINDOW) as session:
            await session.send_async("first " * 200)
            assert (await session.send_async("second")).total_tokens == 30

    asyncio.run(main())


# ---- when the summary is none ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        ProviderError("down", kind="server", retryable=False),
        ProviderError("slow", kind="timeout", retryable=True),
        "",
        "longer " * 5_000,
    ],
)
def test_without_a_usable_summary_the_ends_of_the_conversation_stand_in(tmp_path: Path, answer: Any) -> None:
    model = ScriptedModel([using(900, "one"), answer, "two"])

    async def main() -> None:
        async with opened(tmp_path, model, max_context_tokens=WINDOW) as session:
            await session.send_async("BEGINNING " + "first " * 1_000 + " END")
            stream = await session.stream_async("second")
            [done] = [each.payload for each in await heard(stream) if each.payload.get("phase") == "completed"]
            assert done["tokens_after"] < done["tokens_used"]
            assert (await stream.result_async()).text == "two"

    asyncio.run(main())
    [compacted] = compactions(tmp_path)
    assert "BEGINNING" in compacted.summary
    assert "END" in compacted.summary
    assert "[earlier transcript compacted]" in compacted.summary


def test_a_summariser_is_not_sent_more_than_fits(tmp_path: Path) -> None:
    model = ScriptedModel([using(900, "one"), "SHORT", "two"])

    async def main() -> None:
        async with opened(tmp_path, model, max_context_tokens=WINDOW) as session:
            await session.send_async("first " * 10_000)
            await session.send_async("second")

    asyncio.run(main())
    assert len(newest_text(model.requests[1])) <= 2 * WINDOW
    assert model.requests[1].tools == ()


# ---- the host's own -------------------------------------------------------------------------------------------------


async def by_method(session: Session) -> bool:
    return await session.compact_async()


async def by_command(session: Session) -> bool:
    return (await session.send_async("/compact")).text.startswith("Compacted")


@pytest.mark.parametrize("way", [by_method, by_command])
def test_after_a_compaction_of_the_host_the_next_prompt_sees_the_summary(tmp_path: Path, way: Any) -> None:
    async def main() -> None:
        model = ScriptedModel(["one " * 100, "two " * 100, "SUMMARY"])
        async with opened(tmp_path, model) as session:
            await session.send_async("first")
            await session.send_async("second")
            assert await way(session)
            assert len(model.requests) == 3
            history = session.history()
            assert "SUMMARY" in history[0]["content"][0]["text"]
        model = ScriptedModel(["three"])
        async with opened(tmp_path, model) as session:
            assert session.history() == history
            await session.send_async("third")
        texts = texts_of(model.requests[0])
        assert texts[0].endswith("SUMMARY")
        assert "first" not in texts
        assert texts[-1] == "third"

    asyncio.run(main())
    assert len(compactions(tmp_path)) == 1


def test_where_there_is_nothing_to_gain_no_model_is_asked(tmp_path: Path) -> None:
    model = ScriptedModel(["one"])

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            assert not await session.compact_async()
            await session.send_async("first")
            assert not await session.compact_async()

    asyncio.run(main())
    assert compactions(tmp_path) == []


def test_a_parked_call_is_never_compacted_away(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)
    model = ScriptedModel([using(990, "one " * 200), "SHORT", using(990, "", ("send", {})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, max_context_tokens=WINDOW) as session:
            await session.send_async("first")
            running = asyncio.create_task(session.send_async("second"))
            [waiting] = await until(session.pending_confirmations)
            with pytest.raises(SessionBusyError):
                await session.compact_async()
            await session.confirm_tool_use_async(waiting.tool_id, True)
            assert (await running).text == "done"

    asyncio.run(main())
    assert len(compactions(tmp_path)) == 1
    assert len(tool.calls) == 1


def test_a_log_that_was_left_parked_is_not_compacted(tmp_path: Path) -> None:
    tool = RecordingTool("send", is_read_only=False)
    model = ScriptedModel(["one " * 100, calls(("send", {})), "done"])

    async def main() -> None:
        async with opened(tmp_path, model, tool, approvals="refuse") as session:
            await session.send_async("first " * 100)
            await heard(await session.stream_async("second"))
            assert not await session.compact_async()
            assert await session.confirm_tool_use_async("call-1", True)
            assert (await session.resume_run_async()).text == "done"

    asyncio.run(main())
    assert compactions(tmp_path) == []


# ---- children -------------------------------------------------------------------------------------------------------


def test_a_child_s_context_is_compacted_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    model = ScriptedModel([using(900, "", ("read", {"file_path": "a.txt"})), "SHORT", "done"])
    events: list[Any] = []

    async def main() -> None:
        async with opened(tmp_path, model, max_context_tokens=WINDOW) as session:
            spec = {"task_id": "a", "agent": "explore", "description": "d", "prompt": "go " * 400}
            [outcome] = await session.parallel_async([spec], events=events.append)
            assert outcome.output == "done"
            assert outcome.usage is not None
            assert outcome.usage.total_tokens == 930

    asyncio.run(main())
    assert types(events, "auto_compact") == ["auto_compact", "auto_compact"]
