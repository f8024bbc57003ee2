"""Laws of cassettes: what is recorded is what is replayed, nothing else is, and a crash loses no recorded call."""

import asyncio
import os
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from fanfold.contracts.messages import (
    AssistantMessage,
    Attachment,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from fanfold.errors import ProviderError, UsageError
from fanfold.protocols import DeltaSink, ModelCapabilities
from fanfold.testing import Cassette, CassetteMissError, Reply, ScriptedModel, echo
from fanfold.testing.cassette import CassetteMode
from fanfold.testing.recorded_call import RecordedError, RecordedRequest
from tests.testing.model_calls import READ, Listener, ask, request, texts

HELLO = request("hello")
CONVERSATION = (
    UserMessage("look"),
    AssistantMessage("I look.", (ToolCall("call-1", "read", {"path": "a\nb", "deep": [1, {"x": None}]}),)),
    ToolMessage("call-1", "read", True, "line one\nline two\n"),
)


def record(path: Path, model: Any, *requests: ModelRequest, **options: Any) -> list[ModelReply]:
    return ask(Cassette(path, "record", inner=model, **options), *requests)


def replay(path: Path, *requests: ModelRequest, **options: Any) -> list[ModelReply]:
    return ask(Cassette(path, **options), *requests)


class Speaker:
    """Gives one reply, or raises it, after the pieces; they may hold reasoning and restarts."""

    capabilities = ModelCapabilities(structured="json_schema", context_tokens=9)

    def __init__(self, reply: ModelReply | BaseException, *pieces: tuple[str, str]) -> None:
        self._reply = reply
        self._pieces = pieces
        self.is_closed = False

    async def generate(self, request: ModelRequest, deltas: DeltaSink | None = None) -> ModelReply:
        for kind, piece in self._pieces if deltas is not None else ():
            assert deltas is not None
            deltas.restart() if kind == "restart" else getattr(deltas, kind)(piece)
        if isinstance(self._reply, BaseException):
            raise self._reply
        return self._reply

    async def close(self) -> None:
        self.is_closed = True


# ---- what is recorded is replayed -----------------------------------------------------------------------------------


def test_a_replay_gives_every_part_of_the_recorded_reply(tmp_path: Path) -> None:
    reply = ModelReply(
        text="two\nlines ü\x1b",
        reasoning="because",
        calls=(ToolCall("c-1", "read", {"path": "a", "n": 1.5, "none": None}), ToolCall("c-2", "read", "{broken")),
        stop_reason="tool_calls",
        usage=Usage(prompt_tokens=7, total_tokens=9, cache_read_tokens=2),
    )
    path = tmp_path / "deep" / "er" / "c.json"
    assert record(path, Speaker(reply), HELLO) == [reply]
    assert replay(path, HELLO) == [reply]


def test_a_reply_without_usage_is_replayed_without(tmp_path: Path) -> None:
    record(tmp_path / "c.json", Speaker(ModelReply(text="x")), HELLO)
    assert replay(tmp_path / "c.json", HELLO)[0].usage is None


@pytest.mark.parametrize(
    "asked",
    [
        HELLO,
        request(*CONVERSATION, tools=(READ,), temperature=0, max_output_tokens=5),
        request("x", output_schema={"type": "object", "required": ("a", "b")}),
        request(UserMessage("see", (Attachment("image/png", b"\x89PNG"), Attachment("text/plain", b"")))),
        request("\ud800 is no character", system=""),
    ],
    ids=["plain", "a conversation with tools", "a schema", "attachments", "a lone surrogate"],
)
def test_every_kind_of_request_is_found_again(tmp_path: Path, asked: ModelRequest) -> None:
    record(tmp_path / "c.json", ScriptedModel(["yes"]), asked)
    assert texts(replay(tmp_path / "c.json", asked)) == ["yes"]


def test_each_part_of_a_request_is_recorded_or_known_not_to_be_seen() -> None:
    unseen = {"session_id", "before_retry", "memo"}
    seen = {"messages" if name == "transcript" else name for name in ModelRequest.__struct_fields__} - unseen
    assert set(RecordedRequest.__struct_fields__) == seen


def test_what_the_model_does_not_see_is_no_part_of_the_request(tmp_path: Path) -> None:
    async def nothing() -> None:
        return None

    record(tmp_path / "c.json", ScriptedModel(["yes"]), request("x", tools=(READ,), session_id="one", memo={"a": 1}))
    flagged = type(READ)(
        name=READ.name, description=READ.description, parameters=READ.parameters, is_parallel_safe=True
    )
    other = request("x", tools=(flagged,), session_id="two", memo={}, before_retry=nothing)
    assert texts(replay(tmp_path / "c.json", other)) == ["yes"]


@pytest.mark.parametrize(
    "other",
    [
        request("hello "),
        request("hello", model="m2"),
        request("hello", system="Be long."),
        request("hello", tools=(READ,)),
        request("hello", output_schema={"type": "object"}),
        request("hello", temperature=0.0),
        request("hello", max_output_tokens=1),
        request("hello", AssistantMessage("hi"), "hello"),
        request(UserMessage("hello", (Attachment("image/png", b"x"),))),
    ],
)
def test_whatever_the_model_would_see_otherwise_is_a_miss(tmp_path: Path, other: ModelRequest) -> None:
    record(tmp_path / "c.json", ScriptedModel(["yes"]), HELLO)
    with pytest.raises(CassetteMissError):
        replay(tmp_path / "c.json", other)


def test_other_bytes_of_an_attachment_are_a_miss_and_none_of_them_are_in_the_file(tmp_path: Path) -> None:
    def showing(data: bytes) -> ModelRequest:
        return request(UserMessage("see", (Attachment("image/png", data),)))

    record(tmp_path / "c.json", ScriptedModel(["yes"]), showing(b"SECRET-PIXELS"))
    with pytest.raises(CassetteMissError, match="sha256"):
        replay(tmp_path / "c.json", showing(b"OTHERS-PIXELS"))
    content = (tmp_path / "c.json").read_text()
    assert '"bytes": 13' in content
    assert "PIXELS" not in content
    assert "U0VDUkVU" not in content  # in base64


def test_the_same_request_gets_its_replies_in_order_and_then_misses(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    record(path, ScriptedModel(["one", "two", "between", "three"]), HELLO, HELLO, request("other"), HELLO)
    cassette = Cassette(path)
    assert texts(ask(cassette, HELLO, HELLO, HELLO)) == ["one", "two", "three"]
    with pytest.raises(CassetteMissError, match="has this request 3 times, and it was asked for once more"):
        ask(cassette, HELLO)
    assert texts(ask(Cassette(path), HELLO)) == ["one"]


def test_a_provider_error_is_replayed_with_all_that_it_says(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "kind": "rate_limit",
        "retryable": True,
        "provider": "p",
        "status": 429,
        "retry_after_ms": 7,
        "blocked_by": "quota",
        "reset_ms": 1_700_000_000_000,
    }
    assert {"message", *fields} == set(signature(ProviderError).parameters)  # one that is new is to be kept as well
    assert {*fields, "message", "hint"} == set(RecordedError.__struct_fields__)
    error = ProviderError("too much", **fields).with_hint("wait")
    with pytest.raises(ProviderError):
        record(tmp_path / "c.json", Speaker(error), HELLO)
    with pytest.raises(ProviderError) as raised:
        replay(tmp_path / "c.json", HELLO)
    assert str(raised.value) == str(error)
    assert vars(raised.value) == vars(error)
    assert set(vars(error)) == {*fields, "hint"}


@pytest.mark.parametrize("error", [ValueError("a bug"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_is_no_answer_of_the_provider_is_not_recorded(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        record(tmp_path / "c.json", Speaker(error), HELLO)
    assert list(tmp_path.iterdir()) == []


# ---- streams --------------------------------------------------------------------------------------------------------


def heard_from(model: Any, asked: ModelRequest = HELLO) -> list[tuple[str, str]]:
    listener = Listener()

    async def main() -> None:
        try:
            await model.generate(asked, listener)
        except ProviderError:
            listener.heard.append(("failed", ""))
        await model.close()

    asyncio.run(main())
    return listener.heard


PIECES = (
    ("text", "Hal"),
    ("restart", ""),
    ("reasoning", "hm"),
    ("reasoning", "m\n"),
    ("text", "Hel"),
    ("text", "lo\n"),
    ("text", ""),
)


@pytest.mark.parametrize(
    "given", [ModelReply(text="Hello\n"), ProviderError("broken off", kind="connection", retryable=True)]
)
def test_a_replay_streams_the_recorded_pieces(tmp_path: Path, given: Any) -> None:
    live = heard_from(Cassette(tmp_path / "c.json", "record", inner=Speaker(given, *PIECES)))
    assert live[: len(PIECES)] == list(PIECES)
    assert heard_from(Cassette(tmp_path / "c.json")) == live


def test_a_call_that_nobody_heard_is_streamed_in_one_piece(tmp_path: Path) -> None:
    record(tmp_path / "c.json", Speaker(ModelReply(text="Hello", reasoning="hm"), *PIECES), HELLO)
    assert heard_from(Cassette(tmp_path / "c.json")) == [("reasoning", "hm"), ("text", "Hello")]


def test_a_streamed_recording_serves_a_caller_who_does_not_listen(tmp_path: Path) -> None:
    heard_from(Cassette(tmp_path / "c.json", "record", inner=Speaker(ModelReply(text="Hello"), *PIECES)))
    assert texts(replay(tmp_path / "c.json", HELLO)) == ["Hello"]


# ---- modes ----------------------------------------------------------------------------------------------------------


def test_recording_anew_replaces_the_old_recordings(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    record(path, ScriptedModel(["old", "gone"]), HELLO, request("other"))
    record(path, ScriptedModel(["new"]), HELLO)
    assert texts(replay(path, HELLO)) == ["new"]
    with pytest.raises(CassetteMissError):
        replay(path, request("other"))


def test_auto_asks_only_for_what_is_missing_and_records_it(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    record(path, ScriptedModel(["old"]), HELLO)
    model = ScriptedModel(["new", "once more"])
    assert texts(ask(Cassette(path, "auto", inner=model), HELLO, request("other"), HELLO)) == [
        "old",
        "new",
        "once more",
    ]
    assert len(model.requests) == 2
    assert texts(replay(path, HELLO, request("other"), HELLO)) == ["old", "new", "once more"]


def test_auto_without_a_model_misses_as_a_replay_does(tmp_path: Path) -> None:
    with pytest.raises(CassetteMissError):
        ask(Cassette(tmp_path / "c.json", "auto"), HELLO)


def test_live_reads_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("no cassette at all")
    assert texts(ask(Cassette(path, "live", inner=ScriptedModel(["now"])), HELLO)) == ["now"]
    assert path.read_text() == "no cassette at all"
    assert os.listdir(tmp_path) == ["c.json"]


def test_a_cassette_that_was_asked_nothing_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    record(path, ScriptedModel(["old"]), HELLO)
    written = path.stat()
    modes: tuple[CassetteMode, ...] = ("replay", "auto", "record")
    for mode in modes:
        ask(Cassette(path, mode, inner=ScriptedModel([])))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


@pytest.mark.parametrize("mode", ["record", "live"])
def test_a_mode_that_asks_a_model_needs_one(tmp_path: Path, mode: CassetteMode) -> None:
    with pytest.raises(UsageError, match=f"mode '{mode}' needs the model to ask: inner="):
        Cassette(tmp_path / "c.json", mode)


def test_an_unknown_mode_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not 'rewind'"):
        Cassette(tmp_path / "c.json", "rewind")  # type: ignore[arg-type]


def test_the_model_is_closed_by_whoever_may_have_opened_it(tmp_path: Path) -> None:
    for mode, is_closed in (("record", True), ("auto", True), ("live", True), ("replay", False)):
        model = Speaker(ModelReply(text="x"))
        ask(Cassette(tmp_path / "c.json", mode, inner=model))  # type: ignore[arg-type]
        assert model.is_closed == is_closed


def test_the_capabilities_of_the_recorded_model_are_those_of_its_replay(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    assert Cassette(path).capabilities == ModelCapabilities()
    assert Cassette(path, "auto", inner=Speaker(ModelReply())).capabilities == Speaker.capabilities
    record(path, Speaker(ModelReply(text="x")), HELLO)
    assert Cassette(path).capabilities == Speaker.capabilities
    assert Cassette(path, "auto", inner=ScriptedModel([])).capabilities == Speaker.capabilities


def test_a_cassette_goes_on_after_it_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    cassette = Cassette(path, "record", inner=ScriptedModel(["one", "two"]))
    ask(cassette, HELLO)
    assert texts(replay(path, HELLO)) == ["one"]
    ask(cassette, HELLO)
    assert texts(replay(path, HELLO, HELLO)) == ["one", "two"]
    assert os.listdir(tmp_path) == ["c.json"]


def test_a_with_block_saves(tmp_path: Path) -> None:
    with Cassette(tmp_path / "c.json", "record", inner=ScriptedModel(["one"])) as cassette:
        asyncio.run(cassette.generate(HELLO))
    assert texts(replay(tmp_path / "c.json", HELLO)) == ["one"]


# ---- together -------------------------------------------------------------------------------------------------------


def test_calls_at_once_are_written_in_the_order_in_which_they_were_asked(tmp_path: Path) -> None:
    def slowest_first(asked: ModelRequest) -> Reply:
        number = int(echo(asked))
        return Reply(text=f"answer {number}", delay=0.002 * (20 - number))

    async def main(cassette: Cassette) -> list[ModelReply]:
        try:
            return await asyncio.gather(*[cassette.generate(request(str(number))) for number in range(20)])
        finally:
            await cassette.close()

    path = tmp_path / "c.json"
    live = asyncio.run(main(Cassette(path, "record", inner=ScriptedModel(slowest_first))))
    first = path.read_text()
    assert [first.index(f'"answer {number}"') for number in range(20)] == sorted(
        first.index(f'"answer {number}"') for number in range(20)
    )
    assert asyncio.run(main(Cassette(path))) == live
    asyncio.run(main(Cassette(path, "record", inner=ScriptedModel(echo_answer))))
    assert path.read_text() == first


def echo_answer(asked: ModelRequest) -> str:
    return f"answer {echo(asked)}"


def test_a_path_has_one_recorder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    first = Cassette(path, "record", inner=ScriptedModel(["one", "two"]))
    second = Cassette(path, "auto", inner=ScriptedModel(["three"]))
    asyncio.run(first.generate(HELLO))
    with pytest.raises(UsageError, match=r"c.json is being recorded by another Cassette in this process; share that"):
        asyncio.run(second.generate(HELLO))
    with pytest.raises(UsageError, match="is being recorded by another"):
        Cassette(path, "auto", inner=ScriptedModel([]))
    asyncio.run(first.close())
    with pytest.raises(UsageError, match=r"c.json was changed since it was opened; open it anew"):
        asyncio.run(second.generate(HELLO))
    assert texts(ask(Cassette(path, "auto", inner=ScriptedModel(["three"])), HELLO, HELLO)) == ["one", "three"]


# ---- a crash --------------------------------------------------------------------------------------------------------

CRASHING = """
import asyncio, os, signal, sys
from fanfold.testing import Cassette, ScriptedModel
from tests.testing.model_calls import request
async def main():
    cassette = Cassette(sys.argv[1], sys.argv[2], inner=ScriptedModel(["paid for", "this too", "lost"]))
    await cassette.generate(request("hello"))
    await cassette.generate(request("other"))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def crash_while_recording(path: Path, mode: str = "record") -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", CRASHING, str(path), mode], cwd=root, timeout=25, check=False)
    assert done.returncode == -9


def test_what_was_recorded_before_a_crash_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    crash_while_recording(path)
    assert os.listdir(tmp_path) == ["c.json.part"]
    with pytest.raises(CassetteMissError, match=r'not finished: .*c.json.part; mode "auto" takes it up'):
        replay(path, HELLO)
    model = ScriptedModel(["third"])
    asked = (HELLO, request("other"), request("new"))
    assert texts(ask(Cassette(path, "auto", inner=model), *asked)) == ["paid for", "this too", "third"]
    assert os.listdir(tmp_path) == ["c.json"]
    assert texts(replay(path, *asked)) == ["paid for", "this too", "third"]


def test_a_crash_while_recording_anew_leaves_the_old_recordings(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    record(path, ScriptedModel(["old"]), HELLO)
    crash_while_recording(path)
    assert texts(replay(path, HELLO)) == ["old"]


def test_half_a_line_at_the_end_of_an_unfinished_recording_is_cut_off(tmp_path: Path) -> None:
    path, part = tmp_path / "c.json", tmp_path / "c.json.part"
    crash_while_recording(path)
    lines = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines)[:-5])
    assert texts(ask(Cassette(path, "auto", inner=ScriptedModel(["anew"])), HELLO, request("other"))) == [
        "paid for",
        "anew",
    ]
    part.write_bytes(lines[0][:-5])
    assert texts(ask(Cassette(path, "auto"), HELLO)) == ["paid for"]
    assert os.listdir(tmp_path) == ["c.json"]


def test_what_follows_half_a_line_can_be_taken_up_after_another_crash(tmp_path: Path) -> None:
    path, part = tmp_path / "c.json", tmp_path / "c.json.part"
    crash_while_recording(path)
    part.write_bytes(part.read_bytes()[:-5])
    asyncio.run(Cassette(path, "auto", inner=ScriptedModel(["anew"])).generate(request("other")))  # and never saved
    assert texts(ask(Cassette(path, "auto"), HELLO, request("other"))) == ["paid for", "anew"]


def test_recording_anew_does_not_take_up_what_a_crash_left(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    crash_while_recording(path)
    record(path, ScriptedModel(["anew"]), HELLO)
    assert texts(replay(path, HELLO)) == ["anew"]
    assert os.listdir(tmp_path) == ["c.json"]


# ---- scrubbing ------------------------------------------------------------------------------------------------------


def without_secret(text: str) -> str:
    return text.replace("s3cret", "<key>")


def test_scrubbed_text_is_nowhere_in_the_file_and_does_not_keep_a_replay_from_matching(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    reply = ModelReply(text="your s3cret", reasoning="s3cret!", calls=(ToolCall("1", "read", {"path": ["s3cret"]}),))
    asked = request("my s3cret", ToolMessage("1", "read", True, "s3cret"), system="s3cret", tools=(READ,))
    pieces = (("text", "your s3c"), ("reasoning", "s3"), ("text", "ret"), ("reasoning", "cret!"))
    live = Cassette(path, "record", inner=Speaker(reply, *pieces), scrub=without_secret)
    assert heard_from(live, asked) == list(pieces)
    failing = Speaker(ProviderError("bad key s3cret", kind="auth", retryable=False))
    with pytest.raises(ProviderError, match="s3cret"):
        ask(Cassette(path, "auto", inner=failing, scrub=without_secret), request("fail"))
    assert "s3c" not in path.read_text()
    other = request("my <key>", ToolMessage("1", "read", True, "s3cret"), system="<key>", tools=(READ,))
    replayed = Cassette(path, scrub=without_secret)
    assert heard_from(replayed, other) == [("reasoning", "<key>!"), ("text", "your <key>")]
    with pytest.raises(ProviderError, match="bad key <key>"):
        ask(replayed, request("fail"))


def test_what_was_streamed_before_a_restart_is_scrubbed_too(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    pieces = (("text", "s3c"), ("text", "ret"), ("restart", ""), ("text", "Hel"), ("text", "lo"))
    heard_from(Cassette(path, "record", inner=Speaker(ModelReply(text="Hello"), *pieces), scrub=without_secret))
    assert heard_from(Cassette(path, scrub=without_secret)) == [("text", "<key>"), *pieces[2:]]


def test_pieces_without_anything_to_scrub_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    live = Cassette(path, "record", inner=Speaker(ModelReply(text="Hello\n"), *PIECES), scrub=without_secret)
    assert heard_from(live) == heard_from(Cassette(path, scrub=without_secret))


# ---- what was not asked for -----------------------------------------------------------------------------------------


def test_recordings_that_were_not_asked_for_are_told(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    record(path, ScriptedModel(["one", "two", "three"]), HELLO, request("other"), HELLO)
    cassette = Cassette(path)
    assert [each.reply and each.reply.text for each in cassette.unused()] == ["one", "two", "three"]
    ask(cassette, HELLO)
    assert [each.reply and each.reply.text for each in cassette.unused()] == ["two", "three"]
    ask(cassette, HELLO, request("other"))
    assert cassette.unused() == []


def test_a_request_that_is_no_json_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="values that are no JSON"):
        record(tmp_path / "c.json", ScriptedModel(["x"]), request("x", output_schema={"a": object()}))
