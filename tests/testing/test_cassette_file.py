"""Laws of a cassette's file: people can read, compare and edit it, and a fault is told with its line."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanfold.contracts.messages import AssistantMessage, ModelReply, ModelRequest, ToolCall, ToolMessage
from fanfold.errors import CorruptLogError, LogWriteError
from fanfold.protocols import ModelCapabilities
from fanfold.testing import Cassette, CassetteMissError, Reply, ScriptedModel
from fanfold.testing.cassette_file import read_cassette, write_cassette
from fanfold.testing.cassette_part import part_path
from fanfold.testing.recorded_call import Piece, RecordedError, RecordedRequest, Recording
from tests.testing.model_calls import READ, ask, request, texts

CALLED = AssistantMessage("", (ToolCall("call-1", "read", {"path": "a.py"}),))
ROUND = (CALLED, ToolMessage("call-1", "read", True, "x = 1\ny = 2\n"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a conversation of two calls."""
    model = ScriptedModel([Reply(calls=CALLED.calls), Reply(text="One\nTwo", usage=None)])
    asked = [request("look", tools=(READ,)), request("look", *ROUND, tools=(READ,))]
    ask(Cassette(tmp_path / "c.json", "record", inner=model), *asked)
    return tmp_path / "c.json"


def test_the_file_is_for_people_to_read(path: Path) -> None:
    first, second = request("look", tools=(READ,)), request("look", *ROUND, tools=(READ,))
    ids = [each.request.id() for each in Cassette(path).unused()]
    assert texts(ask(Cassette(path), first, second)) == ["", "One\nTwo"]
    assert path.read_text() == (
        """{
  "fanfold_cassette": 1,
  "capabilities": {"structured": "prompt", "tools": true, "context_tokens": null},
  "systems": {"system-1": "Be brief."},
  "tools": {
    "read": {
      "name": "read",
      "description": ["Read a file.", "It is not changed."],
      "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}
    }
  },
  "recordings": [
    {
      "id": "ID-0",
      "request": {
        "model": "m",
        "system": "system-1",
        "messages": [{"role": "user", "text": "look"}],
        "tools": ["read"]
      },
      "reply": {
        "calls": [{"id": "call-1", "name": "read", "args": {"path": "a.py"}}],
        "stop_reason": "tool_calls",
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
      }
    },
    {
      "id": "ID-1",
      "request": {
        "model": "m",
        "system": "system-1",
        "after": "ID-0",
        "messages": [
          {
            "role": "assistant",
            "text": "",
            "calls": [{"id": "call-1", "name": "read", "args": {"path": "a.py"}}]
          },
          {"role": "tool", "call_id": "call-1", "name": "read", "ok": true, "output": ["x = 1", "y = 2", ""]}
        ],
        "tools": ["read"]
      },
      "reply": {"text": ["One", "Two"], "stop_reason": "stop"}
    }
  ]
}
"""
    ).replace("ID-0", ids[0]).replace("ID-1", ids[1])


def test_a_long_conversation_stands_in_the_file_once(tmp_path: Path) -> None:
    said: list[Any] = []
    asked: list[ModelRequest] = []
    for number in range(30):
        said += [f"question {number} {'x' * 500}", AssistantMessage(f"answer {number}")]
        asked.append(request(*said[:-1], tools=(READ,)))
    path = tmp_path / "c.json"
    replies = [f"answer {number}" for number in range(30)]
    ask(Cassette(path, "record", inner=ScriptedModel(replies)), *asked)
    assert path.stat().st_size < 30 * 1_200
    assert texts(ask(Cassette(path), *asked)) == replies


def test_tools_of_one_name_and_other_schemas_are_kept_apart(tmp_path: Path) -> None:
    other = type(READ)(name="read", description="Another.", parameters={"type": "object"})
    path = tmp_path / "c.json"
    asked = [request("x", tools=(READ,)), request("x", tools=(other,)), request("x", tools=(READ, other))]
    ask(Cassette(path, "record", inner=ScriptedModel(["one", "two", "three"])), *asked)
    assert texts(ask(Cassette(path), *reversed(asked))) == ["three", "two", "one"]


def test_a_file_may_be_edited_by_hand(path: Path) -> None:
    path.write_text(path.read_text().replace('"look"', '"look closely"').replace('["One", "Two"]', '"Three"'))
    second = request("look closely", *ROUND, tools=(READ,))
    assert texts(ask(Cassette(path), second)) == ["Three"]
    compact = json.dumps(json.loads(path.read_text()))
    path.write_text(compact)
    assert texts(ask(Cassette(path), second)) == ["Three"]


def test_an_empty_list_of_recordings_is_a_cassette(path: Path) -> None:
    path.write_text('{"recordings": [], "fanfold_cassette": 1}')
    with pytest.raises(CassetteMissError, match="has no recordings"):
        ask(Cassette(path), request("x"))


# ---- faults ---------------------------------------------------------------------------------------------------------


def fault_of(path: Path) -> CorruptLogError:
    with pytest.raises(CorruptLogError) as raised:
        Cassette(path)
    assert str(path) in str(raised.value)
    assert "record anew" in str(raised.value.hint)
    return raised.value


def line_of(path: Path, part: str) -> int:
    return next(number for number, line in enumerate(path.read_text().split("\n"), 1) if part in line)


@pytest.mark.parametrize(
    ("old", "new", "where", "says"),
    [
        ('"model": "m"', '"model" "m"', '"model" "m"', "Expecting ':'"),
        ('"stop_reason": "tool_calls"', '"stop_reason": "tool_calls', '"stop_reason": "tool_calls', "Invalid control"),
        ('"stop_reason": "tool_calls"', '"stop_reason": "tired"', '"id": "', "Invalid enum value 'tired'"),
        ('"id": "call-1", "name": "read", "args"', '"name": "read", "args"', '"id": "', "missing required field `id`"),
        ('"reply": {"text"', '"answer": {"text"', '"after": ', "unknown field `answer`"),
        ('"reply": {"text": ["One", "Two"], "stop_reason": "stop"}', '"streamed": []', '"after": ', "or an error"),
        ('["One", "Two"]', '["One", 2]', '"after": ', "expected str instance, int found"),
        ('"system": "system-1",\n        "after"', '"system": "s-2", "after"', '"after"', "no system prompt 's-2'"),
        ('["read"]', '["write"]', '"id": "', "there is no tool 'write'"),
        ('"recordings": [', '"recordings": {', '"recordings"', "Expecting '['"),
        ('"recordings": [\n', '"recordings": [\n<<<<<<< ours\n', '<<<<<<<', "Expecting value"),
        ('"fanfold_cassette": 1', '"fanfold_cassette": 2', '{', "version 2 of the format is not known here"),
        ('"capabilities"', '"capacities"', '{', "unknown field `capacities`"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_line(path: Path, old: str, new: str, where: str, says: str) -> None:
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))
    error = fault_of(path)
    assert says in str(error)
    line = line_of(path, where)
    # A recording that is no recording is told where it begins: at its brace, a line or some before what is wrong.
    assert line - 6 <= error.line <= line
    assert path.read_text() == content.replace(old, new, 1)


def test_the_line_of_a_recording_is_where_it_begins(path: Path) -> None:
    content = path.read_text().replace('"stop_reason": "stop"', '"stop_reason": "tired"')
    path.write_text(content)
    second = line_of(path, '"after"') - 5
    assert content.split("\n")[second - 1] == "    {"
    assert fault_of(path).line == second


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"", 1), (b"{}", 1), (b"[]", 1), (b"\n\n{", 3), (b'{"a": 1}\n\nx', 3), (b'{\n"a\xff"', 2), (b"[" * 100_000, 1)],
)
def test_a_file_that_is_no_cassette_is_refused(tmp_path: Path, content: bytes, line: int) -> None:
    (tmp_path / "c.json").write_bytes(content)
    assert fault_of(tmp_path / "c.json").line == line


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_pipe_in_the_place_of_the_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(LogWriteError, match="it is not a regular file"):
        read_cassette(tmp_path / "pipe.json")


def test_deep_nesting_is_a_fault_and_no_crash(path: Path) -> None:
    path.write_text(path.read_text().replace('{"path": "a.py"}', '{"a":' * 100_000 + "1" + "}" * 100_000, 1))
    assert "nested too deeply" in str(fault_of(path))


@pytest.mark.parametrize("number", [1, 2])
def test_a_fault_in_the_middle_of_an_unfinished_recording_is_told_with_its_line(path: Path, number: int) -> None:
    part = part_path(path)
    cassette = Cassette(path, "auto", inner=ScriptedModel(["one", "two"]))
    with pytest.raises(AssertionError):
        ask_without_closing(cassette, request("a"), request("b"), request("c"))
    lines = part.read_bytes().split(b"\n")
    assert len(lines) == 4
    cassette.save()
    lines[number - 1] = b"{broken"
    part.write_bytes(b"\n".join(lines))
    with pytest.raises(CorruptLogError) as raised:
        Cassette(path, "auto")
    assert (raised.value.line, str(part) in str(raised.value)) == (number, True)
    assert part.read_bytes() == b"\n".join(lines)


def ask_without_closing(cassette: Cassette, *requests: ModelRequest) -> None:
    async def main() -> None:
        for each in requests:
            await cassette.generate(each)

    asyncio.run(main())


# ---- what is written is read ----------------------------------------------------------------------------------------

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(["a\nb\n", "\n", "\r\n", ""])
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=5,
)
_object = st.dictionaries(_text, _json, max_size=3)
_message = st.one_of(
    st.builds(lambda text: {"role": "user", "text": text}, _text),
    st.builds(lambda output: {"role": "tool", "call_id": "c", "name": "t", "ok": True, "output": output}, _text),
    st.builds(
        lambda text, args: {"role": "assistant", "text": text, "calls": [{"id": "c", "name": "t", "args": args}]},
        _text,
        _object,
    ),
)
_tool = st.builds(
    lambda name, description, parameters: {"name": name, "description": description, "parameters": parameters},
    _text,
    _text,
    _object,
)
_request = st.builds(
    RecordedRequest,
    model=_text,
    system=_text,
    messages=st.lists(_message, max_size=3).map(tuple),
    tools=st.lists(_tool, max_size=2).map(tuple),
    output_schema=st.none() | _object,
    max_output_tokens=st.none() | st.integers(0, 9),
    temperature=st.none() | st.floats(0, 2),
)
_reply = st.builds(
    ModelReply,
    text=_text,
    reasoning=_text,
    calls=st.lists(st.builds(ToolCall, _text, _text, _object | _text), max_size=2).map(tuple),
)
_piece = _text | st.builds(Piece, reasoning=_text) | st.just(Piece(restart=True))
_streamed = st.lists(_piece, max_size=3).map(tuple)
_recording = st.builds(Recording, request=_request, reply=_reply, streamed=_streamed) | st.builds(
    Recording,
    request=_request,
    error=st.builds(
        RecordedError,
        message=_text,
        kind=_text,
        retryable=st.booleans(),
        provider=_text,
        status=st.none() | st.integers(100, 599),
        retry_after_ms=st.none() | st.integers(0, 9),
        blocked_by=st.sampled_from([None, "auth", "quota"]),
        reset_ms=st.none() | st.integers(0, 2**53),
        hint=st.none() | _text,
    ),
    streamed=_streamed,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_recording, max_size=6))
def test_whatever_is_written_is_read_again_and_written_as_before(tmp_path: Path, recordings: list[Recording]) -> None:
    path = tmp_path / "c.json"
    write_cassette(path, ModelCapabilities(), recordings)
    content = read_cassette(path)
    assert content is not None
    found = [taken.recording for taken in content.taken]
    assert found == recordings
    assert [each.request.key() for each in found] == [each.request.key() for each in recordings]
    lines = path.read_text().split("\n")
    assert all(lines[taken.line - 1].lstrip().startswith("{") for taken in content.taken)
    written = path.read_bytes()
    write_cassette(path, ModelCapabilities(), found)
    assert path.read_bytes() == written
