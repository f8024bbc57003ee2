"""What goes out: each wire's JSON of messages, tools, schemas, limits and keys."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.contracts.messages import (
    AssistantMessage,
    Entry,
    Message,
    ModelRequest,
    ToolCall,
    ToolMessage,
    UserMessage,
    append,
)
from fanfold.contracts.settings import ModelSettings, Secret, StructuredMode
from fanfold.errors import ConfigError
from fanfold.protocols import ModelClient
from fanfold.providers.encoded import encoded
from fanfold.providers.frames import Frame, FrameCache
from fanfold.providers.http import HttpTransport
from fanfold.providers.openai import ChatMessages, OpenAIClient
from tests.providers.calls import (
    ADD,
    ANTHROPIC,
    BOTH_WIRES,
    KEY,
    OPENAI,
    SCHEMA,
    Heard,
    Wire,
    asking,
    body_of,
    provider,
    transcript,
    with_client,
)
from tests.support.chat_server import ChatServer, Request

TOOL_ROUND: tuple[Message, ...] = (
    UserMessage("add"),
    AssistantMessage("both", (ToolCall("c1", "add", {"a": 1}), ToolCall("c2", "add", "{not json"))),
    ToolMessage("c1", "add", True, "1"),
    ToolMessage("c2", "add", False, "no"),
    UserMessage("faster"),
)
CACHED = {"cache_control": {"type": "ephemeral"}}


def request_of(request: ModelRequest, wire: Wire, **fields: Any) -> Request:
    async def use(client: ModelClient, server: ChatServer) -> Request:
        await client.generate(request)
        return server.requests[0]

    sent: Request = with_client(wire, (), use, **fields)
    return sent


def test_chat_completions_gets_the_messages_in_its_own_form() -> None:
    body = body_of(asking(*TOOL_ROUND, tools=(ADD,)), OPENAI)
    unparsed = '{"unparsed_arguments":"{not json"}'
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "add"},
            {
                "role": "assistant",
                "content": "both",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
                    {"id": "c2", "type": "function", "function": {"name": "add", "arguments": unparsed}},
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "tool", "tool_call_id": "c2", "content": "no"},
            {"role": "user", "content": "faster"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "add", "description": ADD.description, "parameters": ADD.parameters},
            }
        ],
    }


def test_messages_gets_alternating_roles_with_results_grouped_and_the_ends_cached() -> None:
    body = body_of(asking(*TOOL_ROUND, tools=(ADD,)), ANTHROPIC)
    assert body == {
        "model": "m",
        "max_tokens": 8192,
        "system": [{"type": "text", "text": "Be short.", **CACHED}],
        "tools": [{"name": "add", "description": ADD.description, "input_schema": ADD.parameters}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "add"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "both"},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                    {
                        "type": "tool_use",
                        "id": "c2",
                        "name": "add",
                        "input": {"unparsed_arguments": "{not json"},
                    },
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
                    {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True},
                    {"type": "text", "text": "faster", **CACHED},
                ],
            },
        ],
    }


def test_without_a_system_prompt_the_tools_carry_the_cache_mark() -> None:
    body = body_of(asking(system="", tools=(ADD,)), ANTHROPIC)
    assert body["tools"][-1]["cache_control"] == CACHED["cache_control"]
    assert "system" not in body


def test_without_a_system_prompt_chat_completions_gets_no_system_message() -> None:
    assert body_of(asking("hi", system=""), OPENAI)["messages"] == [{"role": "user", "content": "hi"}]


def test_messages_defines_called_tools_but_forbids_them_when_none_is_left() -> None:
    body = body_of(asking(*TOOL_ROUND), ANTHROPIC)
    assert [tool["name"] for tool in body["tools"]] == ["add"]
    assert body["tool_choice"] == {"type": "none"}


def test_messages_never_gets_a_blank_text_block() -> None:
    body = body_of(asking(" ", AssistantMessage(""), ""), ANTHROPIC)
    assert [block["text"] for each in body["messages"] for block in each["content"]] == ["(no text)"] * 3


@pytest.mark.parametrize("wire", BOTH_WIRES)
def test_a_made_up_tool_name_goes_back_in_a_form_that_providers_accept(wire: Wire) -> None:
    odd = AssistantMessage("", (ToolCall("c1", "file system.read!", {}), ToolCall("c2", "", {})))
    sent = request_of(asking("x", odd), wire).body
    assert b'"file_system_read_"' in sent
    assert b'"unnamed"' in sent


def test_streaming_is_asked_for_only_when_somebody_listens() -> None:
    assert "stream" not in body_of(asking(), OPENAI)
    heard = body_of(asking(), OPENAI, heard=Heard())
    assert (heard["stream"], heard["stream_options"]) == (True, {"include_usage": True})
    assert "stream" not in body_of(asking(), ANTHROPIC)
    assert body_of(asking(), ANTHROPIC, heard=Heard())["stream"] is True


@pytest.mark.parametrize("wire", BOTH_WIRES)
def test_limits_of_the_request_win_over_those_of_the_model(wire: Wire) -> None:
    model = ModelSettings(id="m", temperature=0.5, max_output_tokens=100)
    own = body_of(asking(), wire, model=model)
    asked = body_of(asking(temperature=0.0, max_output_tokens=7), wire, model=model)
    assert (own["temperature"], own["max_tokens"]) == (0.5, 100)
    assert (asked["temperature"], asked["max_tokens"]) == (0.0, 7)


def test_each_wire_sends_the_key_in_its_header_and_configured_headers_last() -> None:
    model = ModelSettings(id="m", headers={"X-Team": "blue"})
    chat = request_of(asking(), OPENAI, model=model, headers={"X-Team": "red", "X-Org": "o"}).headers
    messages = request_of(asking(), ANTHROPIC).headers
    assert (chat["Authorization"], chat["X-Team"], chat["X-Org"]) == (f"Bearer {KEY}", "blue", "o")
    assert (messages["x-api-key"], messages["anthropic-version"]) == (KEY, "2023-06-01")


def test_an_endpoint_without_a_key_gets_no_key_header() -> None:
    assert "Authorization" not in request_of(asking(), OPENAI, api_key=None).headers
    assert "x-api-key" not in request_of(asking(), ANTHROPIC, api_key=None).headers


def test_a_key_read_with_its_newline_is_usable() -> None:
    assert request_of(asking(), OPENAI, api_key=Secret(f"{KEY}\n")).headers["Authorization"] == f"Bearer {KEY}"


# ---- structured output ------------------------------------------------------------------------------------


def test_json_schema_mode_sends_the_schema_natively() -> None:
    body = body_of(asking(output_schema=SCHEMA), OPENAI, structured_output="json_schema")
    form = {"name": "step_output", "schema": SCHEMA, "strict": False}
    assert body["response_format"] == {"type": "json_schema", "json_schema": form}


def test_prompt_mode_sends_no_schema() -> None:
    assert set(body_of(asking(output_schema=SCHEMA), OPENAI)) == {"model", "messages"}


def test_forced_tool_mode_offers_and_forces_one_tool() -> None:
    chat = body_of(asking(output_schema=SCHEMA), OPENAI, structured_output="forced_tool")
    messages = body_of(asking(output_schema=SCHEMA), ANTHROPIC)
    assert chat["tools"][0]["function"]["parameters"] == SCHEMA
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "emit_step_output"}}
    assert [tool["input_schema"] for tool in messages["tools"]] == [SCHEMA]
    assert messages["tool_choice"] == {"type": "tool", "name": "emit_step_output"}


@pytest.mark.parametrize("wire", BOTH_WIRES)
def test_other_tools_stay_usable_in_forced_tool_mode(wire: Wire) -> None:
    body = body_of(asking(output_schema=SCHEMA, tools=(ADD,)), wire, structured_output="forced_tool")
    assert len(body["tools"]) == 1
    assert "tool_choice" not in body


@pytest.mark.parametrize(
    ("of_provider", "of_model", "effective"),
    [
        ("auto", "auto", "prompt"),
        ("forced_tool", "auto", "forced_tool"),
        ("forced_tool", "json_schema", "json_schema"),
    ],
)
def test_the_structured_mode_of_the_model_wins(
    of_provider: StructuredMode, of_model: StructuredMode, effective: str
) -> None:
    settings = provider("http://host/v1", structured_output=of_provider)
    model = ModelSettings(id="m", structured_output=of_model, tool_call=False, context_tokens=9)
    capabilities = OpenAIClient(HttpTransport(), settings, model, "m").capabilities
    assert (capabilities.structured, capabilities.tools, capabilities.context_tokens) == (effective, False, 9)


def test_openai_itself_has_json_schema_and_its_own_name_for_the_limit() -> None:
    client = OpenAIClient(HttpTransport(), provider("https://api.openai.com/v1"), None, "m")
    assert client.capabilities.structured == "json_schema"
    body = json.loads(client.body(asking(max_output_tokens=5), False))
    assert (body["max_completion_tokens"], "max_tokens" in body) == (5, False)


# ---- where to ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "base_path", "path"),
    [
        (OPENAI, "/v1", "/v1/chat/completions"),
        (OPENAI, "/v1/", "/v1/chat/completions"),
        (OPENAI, "/v1/chat/completions", "/v1/chat/completions"),
        (OPENAI, "/deployments/x?api-version=3", "/deployments/x/chat/completions?api-version=3"),
        (ANTHROPIC, "", "/v1/messages"),
        (ANTHROPIC, "/v1", "/v1/messages"),
        (ANTHROPIC, "/proxy", "/proxy/v1/messages"),
    ],
)
def test_a_base_url_is_never_joined_twice(wire: Wire, base_path: str, path: str) -> None:
    async def run() -> str:
        transport = HttpTransport()
        async with ChatServer() as server:
            await wire(transport, provider(server.origin + base_path), None, "m").generate(asking())
            await transport.close()
            return server.requests[0].path

    assert asyncio.run(run()) == path


def test_the_model_may_have_its_own_address_and_key() -> None:
    async def run() -> str:
        transport = HttpTransport()
        async with ChatServer() as server:
            model = ModelSettings(id="m", base_url=server.base_url, api_key=Secret("its-own-key"))
            await OpenAIClient(transport, provider("http://127.0.0.1:9"), model, "m").generate(asking())
            await transport.close()
            return server.requests[0].headers["Authorization"]

    assert asyncio.run(run()) == "Bearer its-own-key"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"base_url": "host:80/v1"},
            r"built-in: base_url of provider 'acme' must be a URL such as http://localhost:8000/v1: 'host:80/v1'",
        ),
        ({"base_url": "http://me:pw@host/v1"}, "contains credentials; move them to api_key or headers"),
        ({"base_url": "http://[::1"}, r"must be a URL such as"),
        ({"base_url": "http://h:99999"}, "must have a port from 1 to 65535, or none: 'http://h:99999'"),
        ({"base_url": "http://h:0"}, "must have a port"),
        ({"base_url": "http://h:http"}, "must have a port"),
        (
            {"base_url": "http://...."},
            "must name a host whose parts have 1 to 63 characters: 'http://....'",
        ),
        ({"base_url": f"http://{'a' * 64}.example"}, "must name a host"),
        ({"base_url": f"http://{'ü' * 64}.example"}, "must name a host"),
        ({"base_url": f"http://{'a.' * 127}"}, "must name a host"),
        ({"base_url": "http://<host>"}, "must name a host"),
        ({"base_url": "http://a%20b"}, "must name a host"),
        ({"base_url": "http://h ost/v1"}, "must not contain spaces or control characters: 'http://h ost/v1'"),
        (
            {"base_url": "http://h/v1\r\nX: y"},
            r"must not contain spaces or control characters: 'http://h/v1\\r\\nX: y'$",
        ),
        (
            {"api_key": Secret("sk-one\nsk-two", "env ACME_KEY")},
            r"the key of provider 'acme' \(env ACME_KEY\) contains",
        ),
        (
            {"api_key": Secret("", "env ACME_KEY")},
            "no key for provider 'acme': env ACME_KEY is not set or empty",
        ),
    ],
)
@pytest.mark.parametrize("wire", BOTH_WIRES)
def test_settings_that_cannot_work_are_refused_at_once(wire: Wire, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        wire(HttpTransport(), provider(**{"base_url": "http://host", **settings}), None, "m")


@pytest.mark.parametrize(
    "base_url",
    ["http://me:pw@h:99999", "http://me:pw@[h", "http://me:pw@h ost", "http://h ost?key=pw", "ftp://me:pw@h"],
)
def test_a_refused_base_url_does_not_show_its_password(base_url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OPENAI(HttpTransport(), provider(base_url), None, "m")
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "base_url",
    [
        "http://my_service:8000/v1",
        "https://[::1]:80",
        "http://[fe80::1%eth0]",
        "http://bücher.example.",
        "HTTP://10.0.0.1:",
    ],
)
def test_base_urls_of_all_usual_forms_are_taken(base_url: str) -> None:
    OPENAI(HttpTransport(), provider(base_url), None, "m")


def test_the_messages_wire_refuses_a_mode_that_it_does_not_have() -> None:
    with pytest.raises(ConfigError, match="has no json_schema mode"):
        ANTHROPIC(HttpTransport(), provider("http://host", structured_output="json_schema"), None, "m")


# ---- encoded once -----------------------------------------------------------------------------------------


class CountingMessages(ChatMessages):
    added = 0

    def add(self, message: Message) -> None:
        CountingMessages.added += 1
        super().add(message)


def test_each_message_of_a_session_is_encoded_once() -> None:
    CountingMessages.added = 0
    memo: dict[str, Any] = {}
    newest = Entry(UserMessage("0"))
    for number in range(1, 200):
        encoded(newest, memo, CountingMessages)
        newest = append(append(newest, AssistantMessage(str(number))), UserMessage("go on"))
    encoded(newest, memo, CountingMessages)
    assert CountingMessages.added == newest.length


def test_after_a_compaction_everything_is_encoded_anew() -> None:
    memo: dict[str, Any] = {}
    encoded(transcript(*[UserMessage(str(number)) for number in range(10)]), memo, ChatMessages)
    compacted = transcript(*[UserMessage(f"new {number}") for number in range(12)])
    again = encoded(compacted, memo, ChatMessages).json
    assert again == encoded(compacted, {}, ChatMessages).json


texts = st.text(max_size=5)
calls = st.builds(ToolCall, st.sampled_from(["a", "b"]), st.just("add"), st.one_of(texts, st.just({"a": 1})))
messages = st.one_of(
    st.builds(UserMessage, texts),
    st.builds(AssistantMessage, texts, st.lists(calls, max_size=2).map(tuple)),
    st.builds(ToolMessage, st.just("a"), st.just("add"), st.booleans(), texts),
)


@pytest.mark.parametrize("wire", BOTH_WIRES)
@given(st.lists(messages, min_size=1, max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_a_body_grown_step_by_step_equals_one_made_at_once(
    wire: Wire, said: list[Message], is_sent: list[bool]
) -> None:
    client = wire(HttpTransport(), provider("http://host"), None, "m")
    memo: dict[str, Any] = {}
    newest: Entry | None = None
    for message, is_call in zip(said, is_sent, strict=False):
        newest = append(newest, message)
        if is_call:
            grown = client.body(asking(transcript=newest, memo=memo), False)
            assert grown == client.body(asking(transcript=newest), False)
            roles = [each["role"] for each in json.loads(grown)["messages"]]
            assert wire is OPENAI or all(one != other for one, other in pairwise(roles))


def test_what_children_share_is_encoded_once() -> None:
    frames, built = FrameCache(), list[str]()

    def build() -> Frame:
        built.append("frame")
        return Frame(b"", b"")

    for number in range(1000):
        request = asking(str(number), system="Be " + "short.", tools=(ADD, ADD), output_schema=SCHEMA)
        frames.get(request, False, build)
    assert len(built) == 1


@pytest.mark.parametrize("wire", BOTH_WIRES)
def test_one_call_never_gets_another_s_settings(wire: Wire) -> None:
    one, true = ({"type": "object", "const": value} for value in (1, True))
    other = msgspec.structs.replace(ADD, name="sub")
    different: list[dict[str, Any]] = [
        {},
        {"system": "Be long."},
        {"tools": (ADD,)},
        {"tools": (other,)},
        {"tools": (ADD, other)},
        {"output_schema": one},
        {"output_schema": true},
        {"max_output_tokens": 1},
        {"temperature": 1.0},
    ]
    shared = wire(HttpTransport(), provider("http://host", structured_output="forced_tool"), None, "m")
    for fields in different * 2:
        for is_streaming in (False, True):
            fresh = wire(HttpTransport(), provider("http://host", structured_output="forced_tool"), None, "m")
            request = asking(**fields)
            assert shared.body(request, is_streaming) == fresh.body(request, is_streaming)
