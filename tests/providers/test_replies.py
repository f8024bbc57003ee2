"""What comes back: both wires, whole and streamed, give the same reply; odd answers have a meaning."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from fanfold.contracts.messages import ModelReply, ToolCall, Usage
from fanfold.errors import ProviderError
from fanfold.providers.http import HttpTransport
from fanfold.providers.openai import OpenAIClient
from tests.providers.calls import ANTHROPIC, BOTH_WIRES, KEY, OPENAI, SCHEMA, Heard, Wire, asking, provider, reply_to
from tests.support.chat_server import Answer, Call, ChatServer, Http, Say, events

WAYS = pytest.mark.parametrize("is_streaming", [False, True])
WIRES = pytest.mark.parametrize("wire", BOTH_WIRES)


def heard_if(is_streaming: bool) -> Heard | None:
    return Heard() if is_streaming else None


def answer(body: object) -> Http:
    return Http((json.dumps(body).encode(),))


def chat(message: dict[str, Any], stop: str | None = "stop", **fields: Any) -> Http:
    return answer({"choices": [{"message": message, "finish_reason": stop}], **fields})


def deltas(*deltas: dict[str, Any], stop: str | None = "stop") -> Http:
    last = [{"choices": [{"delta": {}, "finish_reason": stop}]}] if stop else []
    return events(*({"choices": [{"delta": delta}]} for delta in deltas), *last, done=stop is not None)


def fragment(arguments: Any = "", **fields: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": fields.pop("name")} if "name" in fields else {})}
    return {"tool_calls": [{"function": function, **fields}]}


def failure(script: Answer, *, wire: Wire = OPENAI, heard: Heard | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        reply_to(asking(), wire, [script], heard=heard)
    return caught.value


# ---- well-formed ------------------------------------------------------------------------------------------


@WIRES
@WAYS
def test_text_reasoning_and_usage_arrive(wire: Wire, is_streaming: bool) -> None:
    heard = heard_if(is_streaming)
    said = Say("Hello, wörld", reasoning="Let me think.", usage=(30, 5))
    assert reply_to(asking(), wire, [said], heard=heard) == ModelReply(
        text="Hello, wörld",
        reasoning="Let me think.",
        usage=Usage(prompt_tokens=30, completion_tokens=5, total_tokens=35),
    )
    if heard:
        assert (heard.joined("text"), heard.joined("reasoning")) == ("Hello, wörld", "Let me think.")
        assert len(heard.pieces) == 4


@WIRES
@WAYS
def test_several_tool_calls_arrive_in_order(wire: Wire, is_streaming: bool) -> None:
    said = Say("I add.", calls=(Call("add", '{"a": 1}', "one"), Call("sub", '{"a": {"b": []}}', "two")))
    reply = reply_to(asking(), wire, [said], heard=heard_if(is_streaming))
    assert reply.calls == (ToolCall("one", "add", {"a": 1}), ToolCall("two", "sub", {"a": {"b": []}}))
    assert (reply.text, reply.stop_reason) == ("I add.", "tool_calls")


@WIRES
@WAYS
def test_a_forced_tool_call_becomes_the_text(wire: Wire, is_streaming: bool) -> None:
    heard = heard_if(is_streaming)
    reply = reply_to(asking(output_schema=SCHEMA), wire, (), heard=heard, structured_output="forced_tool")
    assert (json.loads(reply.text), reply.calls, reply.stop_reason) == ({"kind": "x"}, (), "stop")
    if heard:
        assert json.loads(heard.joined("text")) == {"kind": "x"}


@WIRES
def test_a_forced_answer_cut_at_the_limit_stays_cut(wire: Wire) -> None:
    cut = '{"kind": "unfin'
    if wire is OPENAI:
        script = chat(
            {"tool_calls": [{"id": "1", "function": {"name": "emit_step_output", "arguments": cut}}]},
            "length",
        )
        heard = None
    else:
        block = {"type": "tool_use", "id": "1", "name": "emit_step_output", "input": {}}
        script = events(
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": {"partial_json": cut}},
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
            {"type": "message_stop"},
        )
        heard = Heard()
    reply = reply_to(asking(output_schema=SCHEMA), wire, [script], heard=heard, structured_output="forced_tool")
    assert (reply.text, reply.stop_reason) == (cut, "length")


@WIRES
def test_a_model_that_ignores_the_forced_tool_is_still_heard(wire: Wire) -> None:
    reply = reply_to(asking(output_schema=SCHEMA), wire, [Say("in words")], structured_output="forced_tool")
    assert reply.text == "in words"


@pytest.mark.parametrize(
    ("wire", "given", "stop_reason"),
    [
        (OPENAI, "stop", "stop"),
        (OPENAI, "length", "length"),
        (OPENAI, "content_filter", "content_filter"),
        (OPENAI, "eos", "stop"),
        (OPENAI, "tool_calls", "stop"),
        (ANTHROPIC, "end_turn", "stop"),
        (ANTHROPIC, "stop_sequence", "stop"),
        (ANTHROPIC, "max_tokens", "length"),
        (ANTHROPIC, "model_context_window_exceeded", "length"),
        (ANTHROPIC, "refusal", "content_filter"),
        (ANTHROPIC, "pause_turn", "incomplete"),
    ],
)
@WAYS
def test_stop_reasons_are_mapped(wire: Wire, given: str, stop_reason: str, is_streaming: bool) -> None:
    reply = reply_to(asking(), wire, [Say("t", stop=given)], heard=heard_if(is_streaming))
    assert reply.stop_reason == stop_reason


def test_calls_that_come_with_a_plain_stop_are_calls() -> None:
    reply = reply_to(asking(), OPENAI, [Say(calls=(Call("add"),), stop="stop")])
    assert reply.stop_reason == "tool_calls"


def test_usage_counts_cached_and_reasoning_tokens_of_chat_completions() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 80},
        "completion_tokens_details": {"reasoning_tokens": 15},
    }
    assert reply_to(asking(), OPENAI, [chat({"content": "x"}, usage=usage)]).usage == Usage(
        prompt_tokens=100, completion_tokens=20, total_tokens=120, cache_read_tokens=80, reasoning_tokens=15
    )


def test_usage_of_deepseek_counts_its_cache_hits() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_cache_hit_tokens": 64}
    found = reply_to(asking(), OPENAI, [chat({"content": "x"}, usage=usage)]).usage
    assert found is not None
    assert (found.cache_read_tokens, found.total_tokens) == (64, 120)


def test_usage_of_the_messages_wire_adds_the_cached_tokens_to_the_prompt() -> None:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 200,
        "cache_creation_input_tokens": 30,
        "output_tokens": 4,
    }
    body = answer({"content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn", "usage": usage})
    assert reply_to(asking(), ANTHROPIC, [body]).usage == Usage(
        prompt_tokens=240, completion_tokens=4, total_tokens=244, cache_read_tokens=200, cache_write_tokens=30
    )


@WIRES
@WAYS
def test_missing_usage_is_none(wire: Wire, is_streaming: bool) -> None:
    assert reply_to(asking(), wire, [Say("x", usage=None)], heard=heard_if(is_streaming)).usage is None


def test_usage_of_nulls_is_none() -> None:
    usage = {"prompt_tokens": None, "completion_tokens": None}
    assert reply_to(asking(), OPENAI, [chat({"content": "x"}, usage=usage)]).usage is None


# ---- odd --------------------------------------------------------------------------------------------------


@WIRES
@WAYS
def test_an_empty_turn_is_a_retryable_error(wire: Wire, is_streaming: bool) -> None:
    error = failure(Say(), wire=wire, heard=heard_if(is_streaming))
    assert (error.kind, error.retryable) == ("protocol", True)
    assert "no text and no tool call" in str(error)


@WIRES
def test_an_empty_turn_with_a_reason_is_a_reply(wire: Wire) -> None:
    stop = {OPENAI: "length", ANTHROPIC: "max_tokens"}[wire]
    assert reply_to(asking(), wire, [Say(stop=stop)]) == ModelReply(
        stop_reason="length", usage=Usage(prompt_tokens=12, completion_tokens=8, total_tokens=20)
    )


def test_a_refusal_is_text_that_was_filtered() -> None:
    reply = reply_to(asking(), OPENAI, [chat({"content": None, "refusal": "I will not."})])
    assert (reply.text, reply.stop_reason) == ("I will not.", "content_filter")


def test_a_whole_answer_without_a_finish_reason_is_finished() -> None:
    assert reply_to(asking(), OPENAI, [chat({"content": "x"}, None)]).stop_reason == "stop"


@pytest.mark.parametrize("arguments", ["", "null", " ", None, "{}", {}])
@WAYS
def test_absent_arguments_are_an_empty_object(arguments: Any, is_streaming: bool) -> None:
    call = {"id": "c", "index": 0, "function": {"name": "add", "arguments": arguments}}
    script = deltas({"tool_calls": [call]}) if is_streaming else chat({"tool_calls": [call]})
    reply = reply_to(asking(), OPENAI, [script], heard=heard_if(is_streaming))
    assert reply.calls == (ToolCall("c", "add", {}),)


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", '"text"', "42", "a=1"])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    reply = reply_to(asking(), OPENAI, [Say(calls=(Call("add", arguments),))])
    assert reply.calls[0].args == arguments


def test_arguments_sent_as_an_object_are_taken() -> None:
    call = {"id": "c", "function": {"name": "add", "arguments": {"a": 1}}}
    assert reply_to(asking(), OPENAI, [chat({"tool_calls": [call]})]).calls[0].args == {"a": 1}


@WIRES
@WAYS
def test_odd_and_repeated_ids_become_unique_and_harmless(wire: Wire, is_streaming: bool) -> None:
    ids = ("same", "same", "", "with space", "x" * 65, "same")
    said = Say(calls=tuple(Call("add", "{}", id) for id in ids))
    reply = reply_to(asking(), wire, [said], heard=heard_if(is_streaming))
    assert [call.id for call in reply.calls] == ["same", "same-2", "call-2", "call-3", "call-4", "same-3"]


def test_ids_that_are_numbers_or_missing_are_taken() -> None:
    calls = [{"id": 7, "function": {"name": "a"}}, {"id": None, "function": {"name": "b"}}]
    reply = reply_to(asking(), OPENAI, [chat({"tool_calls": calls})])
    assert [call.id for call in reply.calls] == ["7", "call-1"]


def test_interleaved_fragments_are_put_together_by_index() -> None:
    script = deltas(
        fragment('{"a":', index=0, id="c0", name="add"),
        fragment('{"b":', index=1, id="c1", name="sub"),
        fragment("1}", index=0),
        fragment("2}", index=1),
    )
    reply = reply_to(asking(), OPENAI, [script], heard=Heard())
    assert reply.calls == (ToolCall("c0", "add", {"a": 1}), ToolCall("c1", "sub", {"b": 2}))


def test_whole_calls_without_an_index_are_separate_calls() -> None:
    script = deltas(
        fragment('{"a": 1}', id="same", name="add"),
        fragment('{"a": 2}', id="same", name="add"),
        fragment('{"a": 3}', name="add"),
        fragment('{"a": 4}', name="add"),
    )
    reply = reply_to(asking(), OPENAI, [script], heard=Heard())
    assert [call.args for call in reply.calls] == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]
    assert len({call.id for call in reply.calls}) == 4


def test_fragments_without_an_index_continue_their_call() -> None:
    script = deltas(
        fragment('{"a"', id="c0", name="add"),
        fragment(": 1"),
        fragment("}", id="c0", name="add"),
        fragment("{}", id="c1", name="sub"),
    )
    reply = reply_to(asking(), OPENAI, [script], heard=Heard())
    assert reply.calls == (ToolCall("c0", "add", {"a": 1}), ToolCall("c1", "sub", {}))


def test_calls_that_all_have_index_0_are_told_apart_by_id_and_name() -> None:
    script = deltas(
        fragment('{"a": 1}', index=0, id="c0", name="add"), fragment('{"a": 2}', index=0, id="c1", name="add")
    )
    reply = reply_to(asking(), OPENAI, [script], heard=Heard())
    assert [call.args for call in reply.calls] == [{"a": 1}, {"a": 2}]


def test_content_in_parts_is_joined() -> None:
    parts = [
        {"type": "thinking", "thinking": []},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    assert reply_to(asking(), OPENAI, [chat({"content": parts})]).text == "ab"


def test_a_server_that_does_not_stream_is_still_heard() -> None:
    heard = Heard()
    assert reply_to(asking(), OPENAI, [chat({"content": "at once"})], heard=heard).text == "at once"
    assert heard.pieces == [("text", "at once")]


# ---- streams that end too early ---------------------------------------------------------------------------


def test_a_stream_without_a_stop_keeps_its_text_as_incomplete() -> None:
    text = reply_to(asking(), OPENAI, [deltas({"content": "half"}, stop=None)], heard=Heard())
    start = {"type": "content_block_delta", "index": 0, "delta": {"text": "half"}}
    block = reply_to(asking(), ANTHROPIC, [events(start)], heard=Heard())
    assert {text.stop_reason, block.stop_reason} == {"incomplete"}
    assert {text.text, block.text} == {"half"}


def test_a_stream_that_ends_inside_a_call_is_a_retryable_error() -> None:
    begun = deltas({"content": "I add"}, fragment('{"a":', index=0, id="c", name="add"), stop=None)
    error = failure(begun, heard=Heard())
    assert (error.kind, error.retryable) == ("protocol", True)
    assert "broke off inside a tool call" in str(error)


def test_a_stream_that_ends_before_it_began_is_an_empty_turn() -> None:
    assert failure(deltas(stop=None), heard=Heard()).kind == "protocol"


def test_the_last_event_counts_without_its_empty_line() -> None:
    whole = deltas({"content": "all"})
    cut = replace(whole, pieces=(*whole.pieces[:-2], whole.pieces[-2].removesuffix(b"\n")))
    assert reply_to(asking(), OPENAI, [cut], heard=Heard()).stop_reason == "stop"


# ---- errors in place of a reply ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "error", "kind", "is_retryable"),
    [
        (OPENAI, {"message": "too busy", "code": 503}, "overloaded", True),
        (OPENAI, {"message": "too busy", "code": "rate_limit_exceeded"}, "rate_limit", True),
        (OPENAI, {"message": "too busy"}, "server", True),
        (OPENAI, "too busy", "server", True),
        (OPENAI, {"message": "too busy", "type": "insufficient_quota"}, "quota", False),
        (ANTHROPIC, {"type": "overloaded_error", "message": "too busy"}, "overloaded", True),
        (ANTHROPIC, {"type": "invalid_request_error", "message": "too busy"}, "bad_request", False),
    ],
)
@WAYS
def test_an_error_object_in_the_answer_is_an_error(
    wire: Wire, error: Any, kind: str, is_retryable: bool, is_streaming: bool
) -> None:
    body = {"type": "error", "error": error}
    found = failure(events(body) if is_streaming else answer(body), wire=wire, heard=heard_if(is_streaming))
    assert (found.kind, found.retryable) == (kind, is_retryable)
    assert "acme (127.0.0.1:" in str(found)
    assert str(found).endswith("too busy")


def test_a_finish_reason_that_says_error_is_an_error() -> None:
    assert failure(chat({"content": "hal"}, "error")).retryable


@WIRES
@pytest.mark.parametrize("body", [b"<html><title>Welcome</title>", b"", b"{", b"[]", b"{}", b'{"choices": 3}'])
@WAYS
def test_a_body_that_is_no_reply_is_shown(wire: Wire, body: bytes, is_streaming: bool) -> None:
    found = failure(Http((body,)), wire=wire, heard=heard_if(is_streaming))
    assert (found.kind, found.retryable, found.status) == ("protocol", True, 200)
    assert "acme (127.0.0.1:" in str(found)
    assert str(found).endswith(body.decode())


def test_an_event_that_is_no_json_is_shown() -> None:
    script = Http((b"data: {oops}\n\n",), headers={"Content-Type": "text/event-stream"})
    assert str(failure(script, heard=Heard())).endswith("{oops}")


def test_an_error_page_is_shown_by_its_first_200_characters_without_secrets() -> None:
    page = Http((f"<h1>Bad\n gateway</h1> {KEY} ".encode() + b"x" * 1000,), status=502)
    found = failure(page)
    assert (found.kind, found.status, found.retryable) == ("server", 502, True)
    assert KEY not in str(found)
    shown = str(found).split("answered 502: ")[1]
    assert shown.startswith("<h1>Bad gateway</h1> *** xxx")
    assert len(shown) == 200


def test_the_words_of_a_json_error_are_shown() -> None:
    body = {"error": {"message": "Unknown model 'm'.", "type": "invalid_request_error", "code": "model_not_found"}}
    found = failure(replace(answer(body), status=404))
    assert str(found).endswith("answered 404: Unknown model 'm'.")
    assert found.hint is not None
    assert found.hint.startswith("check the model's id and base_url (http://127.0.0.1:")


def test_a_refused_key_is_named_by_where_it_comes_from() -> None:
    body = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
    found = failure(replace(answer(body), status=401))
    assert found.hint == "check the key (env ACME_KEY)"
    assert KEY not in str(found)


def test_a_redirect_is_not_followed_but_explained() -> None:
    found = failure(Http(status=308, headers={"Location": "https://new.example/v1"}))
    assert (found.kind, found.retryable) == ("bad_request", False)
    assert "moved to https://new.example/v1: change base_url" in str(found)


@pytest.mark.parametrize(
    ("status", "body", "kind", "is_retryable"),
    [
        (400, {}, "bad_request", False),
        (400, {"error": {"message": "Your credit balance is too low to access"}}, "quota", False),
        (401, {}, "auth", False),
        (402, {}, "quota", False),
        (403, {}, "auth", False),
        (404, {}, "not_found", False),
        (408, {}, "timeout", True),
        (409, {}, "server", True),
        (413, {}, "bad_request", False),
        (422, {"detail": "no"}, "bad_request", False),
        (425, {}, "server", True),
        (429, {}, "rate_limit", True),
        (429, {"error": {"code": "insufficient_quota"}}, "quota", False),
        (429, {"error": {"type": "rate_limit_error"}}, "rate_limit", True),
        (500, {"error": {"type": "invalid_request_error"}}, "server", True),
        (503, {}, "overloaded", True),
        (504, {}, "timeout", True),
        (529, {"error": "Overloaded"}, "overloaded", True),
    ],
)
@WAYS
def test_statuses_are_classified(
    status: int, body: dict[str, Any], kind: str, is_retryable: bool, is_streaming: bool
) -> None:
    found = failure(replace(answer(body), status=status), heard=heard_if(is_streaming))
    assert (found.kind, found.retryable, found.status) == (kind, is_retryable, status)


@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({"retry-after-ms": "1500.4", "retry-after": "9"}, 1500),
        ({"retry-after": "2"}, 2000),
        ({"retry-after": "0.5"}, 500),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:07 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 7000),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "nan"}, None),
        ({"retry-after-ms": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], wait_ms: int | None) -> None:
    assert failure(Http(status=429, headers=headers)).retry_after_ms == wait_ms


@pytest.mark.parametrize(("status", "advice"), [(400, "true"), (503, "false")])
def test_the_server_may_say_itself_whether_to_retry(status: int, advice: str) -> None:
    found = failure(Http(status=status, headers={"x-should-retry": advice}))
    assert found.retryable is (advice == "true")


def test_secrets_in_headers_and_queries_are_never_shown() -> None:
    async def run() -> tuple[str, str]:
        transport = HttpTransport()
        echo = "see header-secret-1 and query-secret-2"
        async with ChatServer([Http((echo.encode(),), 500, {"Location": "/?key=query-secret-2"})]) as server:
            settings = provider(f"{server.base_url}?key=query-secret-2", headers={"X-Auth": "Token header-secret-1"})
            client = OpenAIClient(transport, settings, None, "m")
            with pytest.raises(ProviderError) as caught:
                await client.generate(asking())
            await transport.close()
            return str(caught.value), repr(client._route)

    for shown in asyncio.run(run()):
        assert "secret-" not in shown
        assert KEY not in shown
