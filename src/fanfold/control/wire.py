"""The wire: what is asked of the live sessions of another process, and what comes back; a line of JSON each.

Every line has its version in `v`. A request may have `MAX_REQUEST_BYTES`, a reply `MAX_REPLY_BYTES`.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from fanfold.contracts.codec import encode_json, read_json
from fanfold.contracts.runs import RunControlReceipt
from fanfold.control.waiting import Waiting
from fanfold.errors import ControlError

VERSION = 1
MAX_REQUEST_BYTES = 1024 * 1024
MAX_REPLY_BYTES = 16 * 1024 * 1024
MAX_WAITING_BYTES = 1024 * 1024
"""Of one thing that waits, in a list of them: beyond it its arguments are left out."""
_CUT_TEXT = 4_096
"""Characters of a question that is too long."""


# ---- requests ----


class _Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    v: int = VERSION


class Look(_Request, frozen=True, kw_only=True, tag="look"):
    """Which sessions are served, and what waits in them."""


class Confirm(_Request, frozen=True, kw_only=True, tag="confirm"):
    session: str
    """As it is served: the name in `LiveSession`."""
    call_id: str
    approved: bool
    reason: str = ""


class Answer(_Request, frozen=True, kw_only=True, tag="answer"):
    session: str
    call_id: str
    text: str


class Steer(_Request, frozen=True, kw_only=True, tag="steer"):
    session: str
    text: str
    request_id: str | None = None
    """Asked again with the same one, the same receipt comes back, and nothing is sent twice."""


class Cancel(_Request, frozen=True, kw_only=True, tag="cancel"):
    session: str
    step: str | None = None
    """The task id of one step; absent: the run under way, or else the fan-outs."""
    reason: str = ""


Request = Look | Confirm | Answer | Steer | Cancel


# ---- replies ----


class _Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", omit_defaults=True):
    v: int


class LiveSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    """Its id, or what its host serves it as (a workflow's id)."""
    session_id: str
    run_id: str | None = None
    """Of the run under way."""


class Seen(_Reply, frozen=True, kw_only=True, tag="seen"):
    process: int
    sessions: list[LiveSession]
    waiting: list[Waiting]
    """In each session oldest first."""
    left_out: int = 0
    """How many more wait than a reply can hold."""
    answered: dict[str, str] = {}
    """Ids of what was answered through this server, and how and by whom."""


class Done(_Reply, frozen=True, kw_only=True, tag="done"):
    goes_on: bool = False
    """A run was waiting for this and goes on; otherwise the answer was recorded for the next one."""
    receipt: RunControlReceipt | None = None
    """Of a steer, or of an interrupt."""
    cancelled: int = 0
    """Fan-outs, or steps of that id."""


class Refused(_Reply, frozen=True, kw_only=True, tag="refused"):
    code: str
    message: str


Reply = Seen | Done | Refused


# ---- lines ----


class _Head(msgspec.Struct, frozen=True):
    v: int


# Made when they are needed: a start is to be short.
@cache
def _requests() -> "msgspec.json.Decoder[Request]":
    return msgspec.json.Decoder(Request)


@cache
def _replies() -> "msgspec.json.Decoder[Reply]":
    return msgspec.json.Decoder(Reply)


@cache
def _heads() -> "msgspec.json.Decoder[_Head]":
    return msgspec.json.Decoder(_Head)


def encode_line(message: Request | Reply) -> bytes:
    """Its line, newline included."""
    return encode_json(message) + b"\n"


def decode_request(line: bytes) -> Request:
    """Raises ControlError: `INVALID_REQUEST`, `UNSUPPORTED_VERSION`."""
    try:
        _require_version(line)
        return read_json(line, _requests())
    except ValueError as error:
        raise ControlError("INVALID_REQUEST", f"no request of the control wire: {error}") from None


def decode_reply(line: bytes) -> Reply:
    """Raises ControlError: `CONTROL_UNREACHABLE`, `UNSUPPORTED_VERSION`."""
    try:
        _require_version(line)
        return read_json(line, _replies())
    except ValueError as error:
        raise ControlError("CONTROL_UNREACHABLE", f"no reply of the control wire: {error}") from None


def _require_version(line: bytes) -> None:
    version = read_json(line, _heads()).v
    if version != VERSION:
        raise ControlError(
            "UNSUPPORTED_VERSION",
            f"the other process speaks version {version} of the control wire and this one version {VERSION}: "
            "use the same fanfold for both",
        )


def seen(
    process: int,
    sessions: list[LiveSession],
    waiting: list[Waiting],
    answered: Mapping[str, str] = MappingProxyType({}),
) -> Seen:
    """The reply to `Look`, cut to what a line may hold."""
    told = dict(answered)
    room = MAX_REPLY_BYTES - len(encode_json((sessions, told))) - _CUT_TEXT
    shown: list[Waiting] = []
    for each in waiting:
        size = len(encode_json(each))
        if size > min(MAX_WAITING_BYTES, room):
            each = _without_long_parts(each)
            size = len(encode_json(each))
        if size > room:
            continue
        room -= size + 1
        shown.append(each)
    return Seen(
        v=VERSION, process=process, sessions=sessions, waiting=shown, left_out=len(waiting) - len(shown), answered=told
    )


def _without_long_parts(waiting: Waiting) -> Waiting:
    question = None if waiting.question is None else waiting.question[:_CUT_TEXT]
    about = None if waiting.about is None else waiting.about[:_CUT_TEXT]
    return replace(waiting, args=None, options=None, question=question, about=about, is_cut=True)
