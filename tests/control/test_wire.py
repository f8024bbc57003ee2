"""The wire: what is sent arrives, what is no request is refused with a reason, and nothing grows without bound."""

import pytest

from fanfold.contracts.codec import encode_json
from fanfold.contracts.runs import RunControlReceipt
from fanfold.control.waiting import Waiting, matching
from fanfold.control.wire import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    VERSION,
    Answer,
    Cancel,
    Confirm,
    Done,
    LiveSession,
    Look,
    Refused,
    Reply,
    Request,
    Seen,
    Steer,
    decode_reply,
    decode_request,
    encode_line,
    seen,
)
from fanfold.errors import ControlError
from fanfold.runs.control_request import MAX_STEER_BYTES


def waiting(call_id: str, owner: str = "s", **more: object) -> Waiting:
    fields: dict[str, object] = {"tool": "write", "args": {"a": 1}, **more}
    return Waiting(id=f"{owner}/{call_id}", kind="approval", source="live", owner=owner, call_id=call_id, **fields)  # type: ignore[arg-type]


RECEIPT = RunControlReceipt(
    request_id="q",
    session_id="s",
    run_id="r",
    operation="steer",
    state="accepted",
    sequence=1,
    turn_revision=2,
    accepted_at_ms=3,
)


@pytest.mark.parametrize(
    "request_",
    [
        Look(),
        Confirm(session="s/1", call_id="task-run-a/call_1#2", approved=False, reason="not \n now"),
        Answer(session="s", call_id="c", text="\u202e ü \x00"),
        Steer(session="s", text="go on", request_id="q"),
        Steer(session="s", text="go on"),
        Cancel(session="s", step="a/b", reason="because"),
        Cancel(session="s"),
    ],
)
def test_a_request_arrives_as_it_was_sent_on_one_line(request_: Request) -> None:
    line = encode_line(request_)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_request(line) == request_


@pytest.mark.parametrize(
    "reply",
    [
        Seen(
            v=VERSION, process=7, sessions=[LiveSession(name="n", session_id="s", run_id="r")], waiting=[waiting("c")]
        ),
        Done(v=VERSION, goes_on=True),
        Done(v=VERSION, receipt=RECEIPT, cancelled=3),
        Refused(v=VERSION, code="NO_ACTIVE_RUN", message="there is none"),
    ],
)
def test_a_reply_arrives_as_it_was_sent_on_one_line(reply: Reply) -> None:
    line = encode_line(reply)
    assert line.count(b"\n") == 1
    assert decode_reply(line) == reply


def test_the_longest_steer_fits_a_request_whatever_it_is_made_of() -> None:
    assert len(encode_line(Steer(session="s", text="\x01" * MAX_STEER_BYTES))) < MAX_REQUEST_BYTES


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n",
        b"{\n",
        b"[" * 100_000,
        b"null\n",
        b'"look"\n',
        b'{"op":"look"}\n',
        b'{"v":1}\n',
        b'{"v":1,"op":"delete"}\n',
        b'{"v":1,"op":"look","also":1}\n',
        b'{"v":"1","op":"look"}\n',
        b'{"v":1,"op":"confirm","session":"s","call_id":"c","approved":1}\n',
        b'{"v":1,"op":"confirm","session":"s","call_id":"c"}\n',
        b'{"v":1,"op":"answer","session":"s","call_id":"c","text":null}\n',
        b'{"v":1,"op":"answer","session":"s","call_id":"c","text":"\xff"}\n',
        b'{"v":1,"op":"answer","session":"s","call_id":"c","text":"\\ud800"}\n',
        bytes(range(256)) + b"\n",
    ],
)
def test_what_is_no_request_is_refused_with_a_reason(line: bytes) -> None:
    with pytest.raises(ControlError, match=r"no request of the control wire: \S") as caught:
        decode_request(line)
    assert caught.value.code == "INVALID_REQUEST"


def test_another_version_is_named_before_anything_else_is_looked_at() -> None:
    with pytest.raises(ControlError, match=r"version 2 .* this one version 1") as caught:
        decode_request(b'{"v":2,"op":"teleport"}\n')
    assert caught.value.code == "UNSUPPORTED_VERSION"
    with pytest.raises(ControlError, match="version 2") as caught:
        decode_reply(b'{"v":2,"reply":"maybe"}\n')
    assert caught.value.code == "UNSUPPORTED_VERSION"


def test_a_long_call_is_listed_without_its_arguments_and_says_so() -> None:
    long = waiting("long", args={"content": "x" * 2_000_000})
    reply = seen(7, [], [long, waiting("short")])
    assert [(each.id, each.is_cut, each.args) for each in reply.waiting] == [
        ("s/long", True, None),
        ("s/short", None, {"a": 1}),
    ]
    assert reply.left_out == 0


def test_a_list_is_never_longer_than_a_reply_may_be() -> None:
    items = [waiting(f"call-{number}", args={"content": "x" * 900_000}) for number in range(40)]
    items.append(waiting("y" * MAX_REPLY_BYTES))
    reply = seen(7, [LiveSession(name="s", session_id="s")], items)
    assert len(encode_line(reply)) <= MAX_REPLY_BYTES
    assert (len(reply.waiting), reply.left_out) == (40, 1)
    assert [each.is_cut for each in reply.waiting][:2] == [None, None]
    assert reply.waiting[-1].is_cut
    assert len(encode_json(reply.waiting[-1])) < 1_000


def test_an_id_may_be_typed_from_any_part_on_and_the_whole_of_one_wins() -> None:
    items = [
        waiting("call_1", "s1"),
        waiting("a/call_1", "s2"),
        waiting("call_2", "s1"),
        waiting("x", "call_2"),
    ]
    found = {
        typed: [each.id for each in matching(items, typed)] for typed in ("call_1", "a/call_1", "call_2/x", "ll_2")
    }
    assert found == {
        "call_1": ["s1/call_1", "s2/a/call_1"],
        "a/call_1": ["s2/a/call_1"],
        "call_2/x": ["call_2/x"],
        "ll_2": [],
    }
    assert [each.id for each in matching(items, "call_2")] == ["s1/call_2"]
    assert [each.id for each in matching([*items, waiting("call_2/x", "z")], "call_2/x")] == ["call_2/x"]
