"""Attachments in real runs: what is sent with a prompt reaches the model, now, after a restart and on resume."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold import Agent, Session
from fanfold.contracts.attachments import MAX_ATTACHMENT_BYTES
from fanfold.contracts.facts import UserMessaged
from fanfold.contracts.messages import Attachment, ModelRequest, UserMessage
from fanfold.errors import ProviderError, SessionBusyError, SessionClosedError, UsageError
from fanfold.testing import ScriptedModel, calls, echo
from tests.support.chat_server import ChatServer
from tests.support.open_session import facts_of, heard, opened, until
from tests.support.tools import RecordingTool

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PICTURE = {"data": PNG, "media_type": "image/png"}
NOTES = {"data": "Größe: 5".encode(), "media_type": "text/plain; charset=UTF-8"}
AS_SENT = (Attachment("image/png", PNG), Attachment("text/plain", "Größe: 5".encode()))


def attached(request: ModelRequest) -> list[tuple[str, tuple[Attachment, ...]]]:
    return [(each.text, each.attachments) for each in request.transcript if isinstance(each, UserMessage)]


async def by_send(session: Session, prompt: str, attachments: Any) -> str:
    return (await session.send_with_attachments_async(prompt, attachments)).text


async def by_stream(session: Session, prompt: str, attachments: Any) -> str:
    stream = await session.stream_with_attachments_async(prompt, attachments)
    assert (await heard(stream))[-1].type == "agent_end"
    return (await stream.result_async()).text


async def by_request(session: Session, prompt: str, attachments: Any) -> str:
    return (await session.send_async({"prompt": prompt, "attachments": attachments})).text


async def by_streamed_request(session: Session, prompt: str, attachments: Any) -> str:
    stream = await session.stream_async({"prompt": prompt, "attachments": attachments})
    await heard(stream)
    return (await stream.result_async()).text


WAYS = [by_send, by_stream, by_request, by_streamed_request]


# ---- the way to the model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_they_reach_the_model_as_they_are_and_are_in_the_log(tmp_path: Path, way: Any) -> None:
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            assert await way(session, "what is this?", [PICTURE, NOTES]) == "what is this?"
            assert await session.send_async("and now?")
            assert session.history()[0]["content"] == [
                {"type": "text", "text": "what is this?"},
                {"type": "attachment", "media_type": "image/png", "size": len(PNG)},
                {"type": "attachment", "media_type": "text/plain", "size": len(NOTES["data"])},
            ]

    asyncio.run(main())
    assert attached(model.requests[0]) == [("what is this?", AS_SENT)]
    assert attached(model.requests[1]) == [("what is this?", AS_SENT), ("and now?", ())]
    assert facts_of(tmp_path)[0].payload == UserMessaged("what is this?", AS_SENT)


def test_they_are_shown_again_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            await by_send(session, "look", [PICTURE])
        model = ScriptedModel(echo)
        async with opened(tmp_path, model) as session:
            await session.send_async("again")
        assert attached(model.requests[0]) == [("look", AS_SENT[:1]), ("again", ())]

    asyncio.run(main())


def test_a_resumed_run_shows_them_again(tmp_path: Path) -> None:
    async def main() -> None:
        down = ProviderError("down", kind="server", retryable=False)
        async with opened(tmp_path, ScriptedModel([down])) as session:
            with pytest.raises(ProviderError):
                await by_send(session, "look", [PICTURE])
        model = ScriptedModel([calls(("look", {})), "seen"])
        async with opened(tmp_path, model, RecordingTool("look")) as session:
            assert (await session.resume_run_async()).text == "seen"
        assert [attached(request) for request in model.requests] == [[("look", AS_SENT[:1])]] * 2

    asyncio.run(main())


def test_a_real_request_carries_them_in_the_form_of_its_wire(tmp_path: Path) -> None:
    acl = 'default_model = "here/fake"\nproviders "here" { base_url = "%s" }\n'

    async def main() -> None:
        async with ChatServer() as server, await Agent.create_async(acl % server.base_url) as agent:
            async with await agent.session_async(tmp_path) as session:
                await by_send(session, "look", [PICTURE])
            content = server.requests[0].json["messages"][-1]["content"]
            assert [part["type"] for part in content if part["type"] != "text"] == ["image_url"]

    asyncio.run(main())


def test_they_are_not_passed_to_agents_that_could_not_see_them(tmp_path: Path) -> None:
    """A prompt that names an agent goes to it, unless that would lose what is attached."""
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await by_send(session, "@review look at this", [PICTURE])
            assert session.subagent_tasks() == []

    asyncio.run(main())
    assert attached(model.requests[0])[0][1] == AS_SENT[:1]


def test_a_plan_and_a_goal_are_made_of_the_words(tmp_path: Path) -> None:
    model = ScriptedModel(['{"steps": ["look"]}', "seen"])

    async def main() -> None:
        async with opened(tmp_path, model, planning_mode="enabled") as session:
            await by_send(session, "what is this?", [PICTURE])

    asyncio.run(main())
    assert attached(model.requests[0])[0][1] == ()
    assert attached(model.requests[1])[0][1] == AS_SENT[:1]


def test_bytes_of_other_kinds_and_attachment_records_are_taken(tmp_path: Path) -> None:
    model = ScriptedModel(echo)
    given = [
        {"data": bytearray(PNG), "media_type": "IMAGE/PNG"},
        {"data": memoryview(PNG), "media_type": "image/png"},
        Attachment("image/jpg", PNG),
    ]

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            await by_send(session, "look", given)
            await by_send(session, "none", ())

    asyncio.run(main())
    types = [each.media_type for each in attached(model.requests[0])[0][1]]
    assert types == ["image/png", "image/png", "image/jpeg"]


# ---- what is refused ------------------------------------------------------------------------------------------------

LARGE = {"data": b"SECRET" * (MAX_ATTACHMENT_BYTES // 6 + 1), "media_type": "image/png"}
BAD = {
    "too large": ([LARGE], f"attachment exceeds the {MAX_ATTACHMENT_BYTES}-byte limit"),
    "empty": ([{"data": b"", "media_type": "image/png"}], "attachment is empty"),
    "of an unknown type": ([{"data": b"SECRET", "media_type": "application/pdf"}], "unknown media type"),
    "no text": ([{"data": b"SECRET\xff", "media_type": "text/plain"}], "is not UTF-8 text"),
    "a text as data": ([{"data": "SECRET", "media_type": "text/plain"}], "must be bytes"),
    "without a type": ([{"data": b"SECRET"}], "lacks media_type"),
    "with more": ([{**PICTURE, "name": "SECRET"}], "has data and media_type"),
    "no dict": ([b"SECRET"], "must be a dict"),
    "no list": (b"SECRET", "must be a list"),
    "the second": ([PICTURE, LARGE], "limit"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", BAD)
def test_bad_ones_are_refused_before_anything_is_recorded(tmp_path: Path, way: Any, kind: str) -> None:
    given, told = BAD[kind]
    model = ScriptedModel(echo)

    async def main() -> None:
        async with opened(tmp_path, model) as session:
            with pytest.raises(
                UsageError, match=f"^Invalid session configuration for 'attachments': .*{told}"
            ) as error:
                await way(session, "look", given)
            assert len(str(error.value)) < 300
            assert "SECRET" not in str(error.value) or kind == "with more"
            assert (session.history(), await session.runs_async(), session.current_run()) == ([], [], None)
            assert (await session.send_async("fine")).text == "fine"

    asyncio.run(main())
    assert len(facts_of(tmp_path)) == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_busy_session_says_so_before_it_looks_at_them_and_a_closed_one_too(tmp_path: Path, way: Any) -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def answer(request: ModelRequest) -> str:
            await go_on.wait()
            return "done"

        model = ScriptedModel(answer)
        async with opened(tmp_path, model) as session:
            running = asyncio.create_task(session.send_async("go"))
            await until(lambda: model.running)
            with pytest.raises(SessionBusyError):
                await way(session, "look", [LARGE])
            go_on.set()
            await running
            await session.close_async()
            with pytest.raises(SessionClosedError):
                await way(session, "look", [LARGE])

    asyncio.run(main())


def test_a_request_knows_its_keys(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, ScriptedModel(echo)) as session:
            for given, told in (
                ({"prompt": "a", "files": []}, "no key 'files'"),
                ({"attachments": []}, "needs a prompt"),
            ):
                with pytest.raises(UsageError, match=told):
                    await session.send_async(given)
            history = [{"role": "user", "content": "old"}, {"role": "assistant", "content": "yes"}]
            await session.send_async({"prompt": "a", "history": history, "attachments": [PICTURE]})
            assert session.history() == []

    asyncio.run(main())
