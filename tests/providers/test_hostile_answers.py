"""Answers that would cost memory, time, the budget or a good reply: from broken servers and from bad ones."""

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from fanfold.contracts.messages import ModelReply, ToolCall, Usage
from fanfold.errors import ProviderError
from tests.providers.calls import ANTHROPIC, BOTH_WIRES, KEY, OPENAI, Heard, Wire, asking, reply_to
from tests.support.chat_server import Answer, Http, events

WAYS = pytest.mark.parametrize("is_streaming", [False, True])
WIRES = pytest.mark.parametrize("wire", BOTH_WIRES)
MIB = 1 << 20


def asked(script: Answer, *, wire: Wire = OPENAI, is_streaming: bool = False, **fields: Any) -> ModelReply:
    return reply_to(asking(), wire, [script], heard=Heard() if is_streaming else None, **fields)


def failure(script: Answer, **fields: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        asked(script, **fields)
    return caught.value


def typed(media_type: str, body: bytes, **headers: str) -> Http:
    return Http((body,), headers={"Content-Type": media_type, **headers})


def body(wire: Wire, usage: str = "{}", text: str = '"hi"', call: str = "") -> bytes:
    """A whole answer, with these pieces of JSON in it."""
    if wire is OPENAI:
        calls = f'"tool_calls":[{{"id":"c","function":{{"name":"add","arguments":{call}}}}}],' if call else ""
        message = f'{{{calls}"content":{text}}}'
        return f'{{"choices":[{{"message":{message},"finish_reason":"stop"}}],"usage":{usage}}}'.encode()
    blocks = f'{{"type":"text","text":{text}}}'
    if call:
        blocks += f',{{"type":"tool_use","id":"c","name":"add","input":{call}}}'
    return f'{{"content":[{blocks}],"stop_reason":"end_turn","usage":{usage}}}'.encode()


# ---- token counts -----------------------------------------------------------------------------------------

IMPOSSIBLE = ["-1", '"5"', "5.5", "null", "NaN", "Infinity", "1e400", "true", "[]", str(2**53 + 1), "9" * 5000]


@WIRES
@pytest.mark.parametrize("count", IMPOSSIBLE)
@pytest.mark.parametrize("is_prompt", [True, False])
def test_a_reply_with_an_impossible_count_is_a_reply_without_usage(wire: Wire, count: str, is_prompt: bool) -> None:
    names = ("prompt_tokens", "completion_tokens") if wire is OPENAI else ("input_tokens", "output_tokens")
    usage = f'{{"{names[is_prompt]}":7,"{names[not is_prompt]}":{count}}}'
    assert asked(Http((body(wire, usage),)), wire=wire) == ModelReply(text="hi")


@pytest.mark.parametrize("usage", ['"many"', "[]", "5", "null", "{}", '{"prompt_tokens":5}', "NaN"])
@WIRES
def test_a_usage_that_is_none_is_none(wire: Wire, usage: str) -> None:
    assert asked(Http((body(wire, usage),)), wire=wire) == ModelReply(text="hi")


@pytest.mark.parametrize("field", ["total_tokens", "prompt_cache_hit_tokens", "prompt_tokens_details"])
def test_an_impossible_count_beside_good_ones_spoils_the_usage(field: str) -> None:
    wrong = '{"cached_tokens":-9}' if field == "prompt_tokens_details" else "-9"
    usage = f'{{"prompt_tokens":7,"completion_tokens":7,"{field}":{wrong}}}'
    assert asked(Http((body(OPENAI, usage),))).usage is None


def test_a_total_is_never_less_than_its_parts() -> None:
    usage = '{"prompt_tokens":30,"completion_tokens":10,"total_tokens":1,"prompt_tokens_details":null}'
    expected = Usage(prompt_tokens=30, completion_tokens=10, total_tokens=40)
    assert asked(Http((body(OPENAI, usage),))).usage == expected


def test_a_count_that_a_stream_corrects_to_nonsense_is_no_count() -> None:
    said: list[dict[str, Any]] = [{"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}]
    counts = [{"prompt_tokens": 9, "completion_tokens": 1}, None, {"prompt_tokens": -9, "completion_tokens": -1}]
    chat = [*said, *({"choices": [], "usage": count} for count in counts)]
    assert asked(events(*chat, done=True), is_streaming=True).usage is None
    assert asked(events(*chat[:-1], done=True), is_streaming=True).usage is not None
    messages = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}},
        {"type": "content_block_delta", "index": 0, "delta": {"text": "hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": -5}},
        {"type": "message_stop"},
    ]
    assert asked(events(*messages), wire=ANTHROPIC, is_streaming=True) == ModelReply(text="hi")


# ---- without an end ---------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream", "text/html"])
def test_an_answer_without_an_end_is_cut_at_64_mib(media_type: str, is_streaming: bool) -> None:
    lines = typed(media_type, b"x" * 1023 + b"\n")
    error = failure(replace(lines, pieces=(lines.pieces[0] * 1024,), then="repeat"), is_streaming=is_streaming)
    assert (error.kind, error.retryable) == ("protocol", False)
    assert str(error).endswith("sent more than 64 MiB in one answer")


@WAYS
@pytest.mark.parametrize("status", [200, 500])
def test_a_small_answer_that_unpacks_to_a_huge_one_is_cut_at_64_mib(status: int, is_streaming: bool) -> None:
    bomb = Http((gzip.compress(b" " * (65 * MIB)),), status, {"Content-Encoding": "gzip"})
    error = failure(bomb, is_streaming=is_streaming)
    assert (error.kind, error.retryable) == ("protocol", False)
    assert str(error).endswith("sent more than 64 MiB in one answer")


def test_a_compressed_answer_is_unpacked() -> None:
    packed = typed("application/json", gzip.compress(body(OPENAI)), **{"Content-Encoding": "gzip"})
    assert asked(packed).text == "hi"


def test_a_line_of_a_stream_without_an_end_is_cut_at_1_mib() -> None:
    endless = replace(typed("text/event-stream", b"data: " + b"x" * 10_000), then="repeat")
    error = failure(endless, is_streaming=True)
    assert (error.kind, error.retryable) == ("protocol", False)
    assert str(error).endswith("answered 200, but its stream contains a line of more than 1 MiB")


PING = b'data: {"type":"ping"}\n\n'


@pytest.mark.parametrize("piece", [b": ping\n\n", b"\n", b"event: x\n", PING])
@WIRES
def test_a_stream_that_is_only_kept_alive_ends_with_the_timeout(wire: Wire, piece: bytes) -> None:
    endless = replace(typed("text/event-stream", piece), then="repeat")
    error = failure(endless, wire=wire, is_streaming=True, timeout_ms=200)
    assert (error.kind, error.retryable) == ("timeout", True)
    assert "only kept the connection alive for 0.2 s; raise timeout_ms" in str(error)


def test_a_whole_answer_that_is_only_kept_alive_ends_with_the_timeout() -> None:
    assert failure(Http((b"\n",), then="repeat"), timeout_ms=200).kind == "timeout"


def test_what_is_said_between_pings_counts_as_progress() -> None:
    said = events(*({"choices": [{"delta": {"content": "x"}}]} for _ in range(300)), done=True)
    pinged = replace(said, pieces=tuple(piece + PING for piece in said.pieces), pause_seconds=0.002)
    assert asked(pinged, is_streaming=True, timeout_ms=300).text == "x" * 300


def test_line_ends_before_the_answer_are_waited_out() -> None:
    assert asked(Http((b"\n", b"\n \n", body(OPENAI), b"\n"))).text == "hi"


# ---- of another kind --------------------------------------------------------------------------------------


@WIRES
@WAYS
@pytest.mark.parametrize("media_type", ["text/html", "text/plain; charset=bogus", "application/octet-stream"])
def test_what_is_no_json_is_named_by_what_it_says_it_is(wire: Wire, media_type: str, is_streaming: bool) -> None:
    error = failure(typed(media_type, b"<h1>Welcome\r\n</h1>"), wire=wire, is_streaming=is_streaming)
    assert (error.kind, error.status) == ("protocol", 200)
    kind = media_type.split(";")[0]
    assert str(error).endswith(f") answered {kind} where JSON was expected; is base_url right? <h1>Welcome </h1>")


@WIRES
@WAYS
@pytest.mark.parametrize("media_type", ["text/plain", "text/html; charset=utf-8", "application/problem+json"])
def test_json_is_read_whatever_it_says_it_is(wire: Wire, media_type: str, is_streaming: bool) -> None:
    assert asked(typed(media_type, body(wire)), wire=wire, is_streaming=is_streaming).text == "hi"


def test_a_stream_is_known_by_its_media_type_in_any_spelling() -> None:
    said = events({"choices": [{"delta": {"content": "hi"}}]}, done=True)
    spelt = replace(said, headers={"Content-Type": "Text/Event-Stream ; charset=utf-8"})
    assert asked(spelt, is_streaming=True).text == "hi"


def test_a_body_that_is_not_packed_as_its_header_says_is_told_in_one_line() -> None:
    error = failure(typed("application/json", b"notgzip", **{"Content-Encoding": "gzip"}))
    assert str(error).endswith(" was lost: Can not decode content-encoding: gzip")


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2028\x00"


@pytest.mark.parametrize("status", [200, 400, 502])
@pytest.mark.parametrize("in_json", [True, False])
def test_nothing_in_a_message_can_command_the_terminal(status: int, in_json: bool) -> None:
    page = json.dumps({"error": {"message": f"{EVIL} {KEY}\r\n"}}) if in_json else f"{EVIL} {KEY}\r\n"
    text = str(failure(replace(typed("text/html", page.encode()), status=status)))
    assert text.isprintable()
    assert r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil" in text
    assert KEY not in text


# ---- JSON of an unusual kind ------------------------------------------------------------------------------


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@WIRES
@WAYS
@pytest.mark.parametrize("levels", [990, 100_000])
def test_a_body_nested_too_deep_is_a_protocol_error(wire: Wire, levels: int, is_streaming: bool) -> None:
    deep = f'{{"unknown":{nested(levels)}}}'.encode()
    script = typed("text/event-stream", b"data: " + deep + b"\n\n") if is_streaming else Http((deep,))
    assert failure(script, wire=wire, is_streaming=is_streaming).kind == "protocol"


def test_an_error_nested_too_deep_is_an_error() -> None:
    assert failure(Http((f'{{"unknown":{nested(100_000)}}}'.encode(),), 400)).kind == "bad_request"


@WIRES
@pytest.mark.parametrize("levels", [130, 900])
def test_arguments_nested_too_deep_stay_text(wire: Wire, levels: int) -> None:
    arguments = f'{{"a":{nested(levels)}}}'
    assert asked(Http((body(wire, call=arguments),)), wire=wire).calls == (ToolCall("c", "add", arguments),)


def test_arguments_in_a_string_nested_too_deep_stay_text() -> None:
    arguments = f'{{"a":{nested(100_000)}}}'
    assert asked(Http((body(OPENAI, call=json.dumps(arguments)),))).calls[0].args == arguments


@WIRES
def test_arguments_nested_as_tools_need_it_are_parsed(wire: Wire) -> None:
    arguments = f'{{"a":{nested(100)}}}'
    assert asked(Http((body(wire, call=arguments),)), wire=wire).calls[0].args == json.loads(arguments)


@WIRES
@pytest.mark.parametrize("arguments", ["null", "{}", "{ }", '""', '"{}"'])
def test_no_arguments_in_any_form_are_an_empty_object(wire: Wire, arguments: str) -> None:
    assert asked(Http((body(wire, call=arguments),)), wire=wire).calls[0].args == {}


@WIRES
def test_half_of_a_surrogate_pair_costs_one_character(wire: Wire) -> None:
    assert asked(Http((body(wire, text=r'"a\ud83db"'),)), wire=wire).text == "a\ufffdb"


@WIRES
def test_a_number_of_python_beside_the_reply_costs_nothing(wire: Wire) -> None:
    assert asked(Http((body(wire).replace(b"{", b'{"logprob":-Infinity,', 1),)), wire=wire).text == "hi"


def test_a_throttled_call_says_what_can_be_done() -> None:
    hint = failure(Http(status=429)).hint
    assert hint == "lower --concurrency (max_parallel_tasks), or wait before you go on"
