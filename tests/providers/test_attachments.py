"""Attachments: what may be given, what each wire makes of them, and that their bytes show up nowhere else."""

import base64
import json
from typing import Any

import msgspec
import pytest

from fanfold.contracts.attachments import MAX_ATTACHMENT_BYTES, parse_attachments
from fanfold.contracts.messages import AssistantMessage, Attachment, Entry, ModelRequest, UserMessage, append
from fanfold.errors import ProviderError, UsageError
from fanfold.providers.anthropic import MessagesTranscript
from fanfold.providers.encoded import encoded
from fanfold.providers.local import plain_messages
from fanfold.providers.openai import ChatMessages
from tests.providers.calls import ANTHROPIC, OPENAI, asking, body_of, transcript

PIXELS = b"\x89PNG not really"
PNG = Attachment("image/png", PIXELS)
TABLE = Attachment("text/csv", "a;b\n1;ü\n".encode())
ENCODED = base64.b64encode(PIXELS).decode()
SHOWN = "[attachment text/csv]\na;b\n1;ü\n"
PREFIX = "Invalid session configuration for 'attachments': "


# ---- what may be given --------------------------------------------------------------------------------------


def test_dicts_and_records_give_the_same_attachments() -> None:
    given = [{"data": PIXELS, "media_type": "image/png"}, TABLE, {"data": bytearray(b"x"), "media_type": "text/plain"}]
    assert parse_attachments(given) == (PNG, TABLE, Attachment("text/plain", b"x"))
    assert parse_attachments(()) == ()


@pytest.mark.parametrize(
    ("media_type", "known"),
    [
        ("IMAGE/PNG", "image/png"),
        ("image/jpg", "image/jpeg"),
        ("image/webp", "image/webp"),
        ("image/gif", "image/gif"),
        ("text/markdown; charset=UTF-8", "text/markdown"),
        ('text/html;charset="utf-8";x=1', "text/html"),
    ],
)
def test_a_media_type_is_kept_in_the_form_that_wires_know(media_type: str, known: str) -> None:
    assert parse_attachments([{"data": b"x", "media_type": media_type}])[0].media_type == known


def test_the_limit_is_that_of_each_attachment_and_its_text_is_exact() -> None:
    most = b"x" * MAX_ATTACHMENT_BYTES
    assert len(parse_attachments([Attachment("image/png", most)] * 2)) == 2
    with pytest.raises(UsageError) as caught:
        parse_attachments([PNG, {"data": memoryview(most + b"x"), "media_type": "image/png"}])
    assert str(caught.value) == PREFIX + "attachment exceeds the 5242880-byte limit"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (PNG, "it must be a list of attachments, not Attachment"),
        ({"data": b"secret", "media_type": "image/png"}, "it must be a list of attachments, not dict"),
        (None, "it must be a list of attachments, not NoneType"),
        (b"secret", "it must be a list of attachments, not bytes"),
        ([b"secret"], "an attachment must be a dict"),
        ([{"data": b"secret"}], "an attachment lacks media_type"),
        ([{}], "an attachment lacks data and media_type"),
        ([{"data": b"secret", "media_type": "image/png", "name": "x"}], "has data and media_type, not 'name'"),
        ([{"data": "secret", "media_type": "image/png"}], "data of an attachment must be bytes, not str"),
        ([{"data": b"secret", "media_type": b"image/png"}], "media_type of an attachment must be a text"),
        ([{"data": b"", "media_type": "image/png"}], "attachment is empty"),
        (
            [{"data": b"secret", "media_type": "application/pdf"}],
            "unknown media type 'application/pdf'; there are image/",
        ),
        ([{"data": b"secret", "media_type": "image/svg+xml"}], "unknown media type 'image/svg+xml'"),
        ([{"data": b"secret", "media_type": "text/"}], "unknown media type 'text/'"),
        ([{"data": b"secret", "media_type": "text/x\ny"}], "unknown media type"),
        ([{"data": b"secret\xff", "media_type": "text/plain"}], "an attachment of text/plain is not UTF-8 text"),
        ([{"data": b"secret\0", "media_type": "text/plain"}], "an attachment of text/plain is not UTF-8 text"),
        ([{"data": b"secret", "media_type": "text/plain; charset=latin-1"}], "must be UTF-8, not 'latin-1'"),
        ([Attachment("video/mp4", b"secret")], "unknown media type 'video/mp4'"),
    ],
)
def test_what_is_no_attachment_is_refused_without_showing_its_bytes(given: object, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_attachments(given)
    assert str(caught.value).startswith(PREFIX)
    assert reason in str(caught.value)
    assert "secret" not in repr(caught.value) + repr(caught.value.__cause__) + repr(caught.value.__context__)


def test_an_unknown_type_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"there are image/png, image/jpeg, image/gif, image/webp and text/\.\.\.$"):
        parse_attachments([{"data": b"x", "media_type": "audio/mpeg"}])


def test_the_repr_of_an_attachment_tells_its_size_and_not_its_bytes() -> None:
    assert repr(UserMessage("see", (PNG,))) == (
        "UserMessage(text='see', attachments=(Attachment('image/png', <15 bytes>),))"
    )
    assert PNG.__rich_repr__() == [("media_type", "image/png"), ("size", 15)]


def test_an_attachment_survives_the_log() -> None:
    message = UserMessage("see", (PNG, TABLE))
    assert msgspec.json.decode(msgspec.json.encode(message), type=UserMessage) == message


# ---- what goes out ------------------------------------------------------------------------------------------


def test_chat_completions_gets_pictures_as_data_urls_and_text_under_its_type() -> None:
    body = body_of(asking(UserMessage("see", (PNG, TABLE))), OPENAI)
    assert body["messages"][1] == {
        "role": "user",
        "content": [
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}},
            {"type": "text", "text": SHOWN},
        ],
    }


def test_messages_gets_pictures_as_base64_before_the_words_about_them() -> None:
    body = body_of(asking(UserMessage("see", (PNG, TABLE))), ANTHROPIC)
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}},
                {"type": "text", "text": SHOWN},
                {"type": "text", "text": "see", "cache_control": {"type": "ephemeral"}},
            ],
        }
    ]


def test_the_cache_mark_may_stand_on_a_picture() -> None:
    (message,) = body_of(asking(UserMessage("", (PNG,))), ANTHROPIC)["messages"]
    (image,) = message["content"]
    assert (image["type"], image["cache_control"]) == ("image", {"type": "ephemeral"})


def test_a_prompt_of_pictures_alone_has_no_blank_text() -> None:
    (part,) = body_of(asking(UserMessage(" ", (PNG,))), OPENAI)["messages"][1]["content"]
    assert part["type"] == "image_url"


def test_messages_without_attachments_are_encoded_as_they_always_were() -> None:
    chat, messages = ChatMessages(), MessagesTranscript()
    for wire in (chat, messages):
        wire.add(UserMessage("hi"))
    assert bytes(chat.json) == b'{"role":"user","content":"hi"},'
    assert messages.open_message() == (
        b'{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}'
    )


def test_a_transcript_with_attachments_grows_in_the_memo_as_if_encoded_at_once() -> None:
    grown: list[Entry] = [transcript(UserMessage("see", (PNG,)))]
    for message in (AssistantMessage("a dot"), UserMessage("and this", (TABLE, PNG)), AssistantMessage("a table")):
        grown.append(append(grown[-1], message))
    chat_memo: dict[str, Any] = {}
    messages_memo: dict[str, Any] = {}
    for entry in grown:
        assert encoded(entry, chat_memo, ChatMessages).json == encoded(entry, {}, ChatMessages).json
        at_once = encoded(entry, {}, MessagesTranscript)
        memoized = encoded(entry, messages_memo, MessagesTranscript)
        assert (memoized.closed, memoized.open_message()) == (at_once.closed, at_once.open_message())


# ---- local models -------------------------------------------------------------------------------------------


def local_messages(request: ModelRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(bytes(plain_messages("local/default", request.system, request)))
    return found


def test_a_local_model_reads_attached_text_in_the_prompt_itself() -> None:
    request = asking(UserMessage("sum it up", (TABLE,)))
    assert local_messages(request) == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": f"sum it up\n\n{SHOWN}"},
    ]
    assert local_messages(asking(UserMessage("", (TABLE,))))[-1] == {"role": "user", "content": SHOWN}


def test_a_local_model_has_no_eyes_and_says_so_at_each_call_of_the_conversation() -> None:
    memo: dict[str, Any] = {}
    first = transcript(UserMessage("see", (PNG,)))
    for newest in (first, append(first, UserMessage("and now?"))):
        with pytest.raises(ProviderError, match="local/default has no eyes") as caught:
            local_messages(ModelRequest(model="default", system="", transcript=newest, memo=memo))
        assert (caught.value.kind, caught.value.retryable) == ("bad_request", False)
    compacted = transcript(UserMessage("there was a dot"))
    request = ModelRequest(model="default", system="", transcript=compacted, memo=memo)
    assert local_messages(request) == [{"role": "user", "content": "there was a dot"}]
