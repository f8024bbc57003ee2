"""In every structured mode of both wires the answer's JSON is heard while it is written, and found where it stands."""

import json
from typing import Any, Literal

import pytest

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.messages import ModelReply
from fanfold.errors import ProviderError
from fanfold.kernel.schema import OutputSchema, compile_schema
from fanfold.kernel.structured import extract
from fanfold.protocols import DeltaSink, ModelClient
from fanfold.providers.structured import EMIT_TOOL
from fanfold.session.partials import PartialObjects
from tests.providers.calls import ANTHROPIC, BOTH_WIRES, OPENAI, Heard, Wire, asking, body_of, reply_to, with_client
from tests.support.chat_server import Answer, Call, ChatServer, Http, Say, events

Mode = Literal["json_schema", "forced_tool", "prompt"]
MODES = pytest.mark.parametrize(
    ("wire", "mode"),
    [
        (OPENAI, "json_schema"),
        (OPENAI, "forced_tool"),
        (OPENAI, "prompt"),
        (ANTHROPIC, "forced_tool"),
        (ANTHROPIC, "prompt"),
    ],
)
WIRES = pytest.mark.parametrize("wire", BOTH_WIRES)

PLACE = compile_schema({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
NAMES = compile_schema({"type": "array", "items": {"type": "string"}})
MOOD = compile_schema({"enum": ["sunny", "miserable"]})
ROOTS = pytest.mark.parametrize(
    ("schema", "value", "partial"),
    [
        (PLACE, {"city": "San Francisco, California"}, {"city": "San Fran"}),
        (NAMES, ["Ada", "Grace", "Barbara", "Edsger"], ["Ada"]),
        (MOOD, "miserable", None),
    ],
    ids=["object", "array", "scalar"],
)


def spoken(schema: OutputSchema, value: Any, mode: Mode) -> Say:
    text = json.dumps(value if schema.envelope is None else {schema.envelope: value})
    if mode == "forced_tool":
        return Say(calls=(Call(EMIT_TOOL, text),))
    return Say(f"Here:\n```json\n{text}\n```\n" if mode == "prompt" else text)


def streamed(schema: OutputSchema, wire: Wire, mode: Mode, *script: Answer, deltas: DeltaSink) -> ModelReply:
    async def use(client: ModelClient, server: ChatServer) -> ModelReply:
        return await client.generate(asking(output_schema=schema.wire_schema), deltas)

    reply: ModelReply = with_client(wire, script, use, structured_output=mode)
    return reply


@MODES
@ROOTS
def test_the_text_that_streams_is_the_text_of_the_reply(
    wire: Wire, mode: Mode, schema: OutputSchema, value: Any, partial: Any
) -> None:
    heard = Heard()
    reply = streamed(schema, wire, mode, spoken(schema, value, mode), deltas=heard)
    assert heard.joined("text") == reply.text
    assert len(heard.pieces) == 2
    assert (reply.calls, reply.stop_reason) == ((), "stop")
    assert extract(reply.text, schema).value == value


@MODES
@ROOTS
def test_partial_objects_come_while_the_reply_streams(
    wire: Wire, mode: Mode, schema: OutputSchema, value: Any, partial: Any
) -> None:
    told: list[AgentEvent] = []
    streamed(schema, wire, mode, spoken(schema, value, mode), deltas=PartialObjects(told.append, schema))
    shown = [each.payload["object"] for each in told]
    assert shown[-1] == value
    if partial is not None and mode != "prompt":
        assert shown[0] == partial


@WIRES
def test_only_the_forced_call_is_heard_as_text(wire: Wire) -> None:
    heard = Heard()
    said = Say("I think so.", calls=(Call(EMIT_TOOL, '{"city": "Rome"}', "one"), Call(EMIT_TOOL, '{"x": 1}', "two")))
    reply = streamed(PLACE, wire, "forced_tool", said, deltas=heard)
    assert heard.joined("text") == reply.text == '{"city": "Rome"}'


def test_a_repeated_call_voids_what_was_heard() -> None:
    """The retrying client says so; what was shown begins anew."""
    told: list[AgentEvent] = []
    sink = PartialObjects(told.append, PLACE)
    for city in ("Rome, the old one", "Lima"):
        streamed(PLACE, OPENAI, "json_schema", spoken(PLACE, {"city": city}, "json_schema"), deltas=sink)
        sink.restart()
    assert told[-1].payload["object"] == {"city": "Lima"}


@WIRES
def test_a_schema_in_prompt_mode_changes_nothing_of_the_request(wire: Wire) -> None:
    with_schema = body_of(asking(output_schema=PLACE.wire_schema), wire, structured_output="prompt")
    assert with_schema == body_of(asking(), wire, structured_output="prompt")


# ---- an answer in the reasoning ----------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("is_streaming", [False, True])
def test_an_answer_that_came_as_reasoning_is_found(wire: Wire, mode: Mode, is_streaming: bool) -> None:
    said = Say(reasoning='So: {"city": "Rome"}', stop="stop" if wire is OPENAI else "end_turn")
    request = asking(output_schema=PLACE.wire_schema)
    reply = reply_to(request, wire, [said], heard=Heard() if is_streaming else None, structured_output=mode)
    assert (reply.text, reply.stop_reason) == ("", "stop")
    assert extract(reply.text, PLACE, reply.reasoning).value == {"city": "Rome"}


@WIRES
def test_reasoning_alone_is_no_reply_where_no_json_was_asked_for(wire: Wire) -> None:
    with pytest.raises(ProviderError, match="no text and no tool call"):
        reply_to(asking(), wire, [Say(reasoning="Hm.")])


def test_reasoning_that_broke_off_is_no_finished_reply() -> None:
    script: Http = events({"choices": [{"delta": {"reasoning_content": '{"city": "Rome"}'}}]})
    reply = reply_to(asking(output_schema=PLACE.wire_schema), OPENAI, [script], heard=Heard())
    assert reply.stop_reason == "incomplete"
