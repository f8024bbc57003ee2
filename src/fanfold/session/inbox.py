"""The inbox: what waits for a person, of a session and of all its children."""

import asyncio
from typing import Any, Generic, TypeVar

import msgspec

from fanfold.contracts.facts import RecordedCall
from fanfold.contracts.messages import ASK_USER
from fanfold.contracts.record import JsonObject, Record

A = TypeVar("A")


class PendingConfirmation(Record, frozen=True, kw_only=True):
    tool_id: str
    """What `confirm_tool_use` takes. A child's call is named `<child session id>/<call id>`."""
    tool_name: str
    args: JsonObject | str
    session_id: str
    since_ms: int | None = None
    """When a run began to wait for it; None for what a log left parked, with no run that waits."""


class PendingQuestion(Record, frozen=True, kw_only=True):
    question_id: str
    question: str
    options: list[str]
    allow_free_text: bool
    session_id: str
    since_ms: int | None = None
    """As in `PendingConfirmation`."""


def is_question(call: RecordedCall) -> bool:
    return call.name == ASK_USER and isinstance(call.args, dict)


def question_of(call: RecordedCall, question_id: str, session_id: str, since_ms: int | None = None) -> PendingQuestion:
    """What a person is asked by a call of `ask_user`."""
    args: dict[str, Any] = call.args if isinstance(call.args, dict) else {}
    options = [str(each) for each in args.get("options", ())]
    return PendingQuestion(
        question_id=question_id,
        question=str(args.get("question", "")),
        options=options,
        allow_free_text=bool(args.get("allow_free_text", not options)),
        session_id=session_id,
        since_ms=since_ms,
    )


class Approval(msgspec.Struct, frozen=True):
    approved: bool
    reason: str = ""


class _Waiting(msgspec.Struct, Generic[A], frozen=True):
    item: Any
    answer: "asyncio.Future[A]"


class Inbox:
    def __init__(self) -> None:
        self._confirmations: dict[str, _Waiting[Approval]] = {}
        self._questions: dict[str, _Waiting[str]] = {}

    def free_id(self, wanted: str) -> str:
        """`wanted`, or with `#2`, `#3`, ... while another call waits under it (two fan-outs with equal task ids)."""
        id, number = wanted, 1
        while id in self._confirmations or id in self._questions:
            number += 1
            id = f"{wanted}#{number}"
        return id

    async def confirmation(self, item: PendingConfirmation) -> Approval:
        """Wait until somebody approves or denies `item`."""
        return await _wait(self._confirmations, item.tool_id, item)

    async def answer(self, item: PendingQuestion) -> str:
        """Wait until somebody answers `item`."""
        return await _wait(self._questions, item.question_id, item)

    def confirm(self, tool_id: str, approval: Approval) -> bool:
        """True when that call was waiting here; a second answer finds nothing and is False."""
        return _settle(self._confirmations, tool_id, approval)

    def reply(self, question_id: str, text: str) -> bool:
        return _settle(self._questions, question_id, text)

    # Read from any thread, and so in one step: while it is gone through, the loop may change it.

    def confirmations(self) -> list[PendingConfirmation]:
        return [waiting.item for waiting in list(self._confirmations.values())]

    def questions(self) -> list[PendingQuestion]:
        return [waiting.item for waiting in list(self._questions.values())]


async def _wait(waiting: dict[str, _Waiting[A]], key: str, item: object) -> A:
    future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
    waiting[key] = _Waiting(item, future)
    try:
        return await future
    finally:
        waiting.pop(key, None)


def _settle(waiting: dict[str, _Waiting[A]], key: str, answer: A) -> bool:
    found = waiting.pop(key, None)
    if found is None or found.answer.done():
        return False
    found.answer.set_result(answer)
    return True
