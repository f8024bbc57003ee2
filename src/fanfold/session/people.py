"""People: what a run asks of them: approvals of tool calls, and answers to the model's questions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fanfold.contracts.codec import encode_json
from fanfold.contracts.facts import ConfirmationAnswered, NewFact, QuestionAnswered, RecordedCall
from fanfold.contracts.governance import Blocked, Proceed, RetryLater, Skipped
from fanfold.contracts.messages import ToolOutput
from fanfold.contracts.record import JsonObject, own_copy
from fanfold.errors import ParkedError
from fanfold.foreign import logger
from fanfold.kernel.state import SessionState
from fanfold.orchestration.fanout import stand_in
from fanfold.session.gate import Gate
from fanfold.session.inbox import Approval, PendingConfirmation, question_of
from fanfold.session.setup import AgentSetup
from fanfold.session.surroundings import Surroundings, Telling
from fanfold.session.tool_calls import result_fact

MAX_QUESTIONS_PER_RUN = 3
SHOWN_ARGUMENTS = 200
"""Characters of a call's arguments in the message of a parked run."""


class People:
    def __init__(self, setup: AgentSetup, around: Surroundings, telling: Telling, gate: Gate) -> None:
        self._setup = setup
        self._around = around
        self._telling = telling
        self._gate = gate
        self.on_park: Callable[[SessionState], Awaitable[None]] | None = None
        """Told before the run waits for a person: what is folded so far should be found elsewhere too."""

    async def await_confirmation(self, state: SessionState, call: RecordedCall, length: int) -> NewFact:
        if not self._gate.record(call.as_call()).needs_confirmation:
            return confirmation_fact(call.id, Approval(True, "a rule allows it by now"), length)
        return confirmation_fact(call.id, await self.approval(state, call), length)

    async def approval(self, state: SessionState, call: RecordedCall) -> Approval:
        if (decided := await self._hooked_approval(call)) is not None:
            return decided
        await self._tell_parked(state)
        policy = self._setup.confirmation
        tool_id = self._around.inbox.free_id(self._around.id_prefix + call.id)
        timeout_ms = policy.timeout_ms or 0
        self._telling.tell(
            "confirmation_required", tool_id=tool_id, tool_name=call.name, args=call.args, timeout_ms=timeout_ms
        )
        item = PendingConfirmation(
            tool_id=tool_id,
            tool_name=call.name,
            args=own_copy(call.args),  # who shows them may change them: what was approved is what runs
            session_id=self._around.session_id,
            since_ms=self._around.env.clock.now_ms(),
        )
        self._refuse_if_nobody_answers(tool_id, call, f"approval of {call.name}({_excerpt(call.args)})")
        self._warn_if_nobody_listens(f"approval of {call.name}: session.confirm_tool_use({tool_id!r}, True)")
        approval: Approval | None = await self._parked(
            _in_time(self._around.inbox.confirmation(item), policy.timeout_ms)
        )
        if approval is None:
            self._telling.tell("confirmation_timeout", tool_id=tool_id, action_taken=policy.timeout_action)
            return Approval(policy.timeout_action == "auto_approve", f"nobody answered within {timeout_ms} ms")
        self._telling.tell("confirmation_received", tool_id=tool_id, approved=approval.approved, reason=approval.reason)
        if self._around.hooks.hears("on_confirmation"):
            await self._telling.ask_hooks(
                "on_confirmation", tool_id=tool_id, tool=call.name, approved=approval.approved
            )
        return approval

    async def _hooked_approval(self, call: RecordedCall) -> Approval | None:
        """What a hook at `permission_request` decides in a person's stead: it denies by blocking, and approves with
        `{"action": "continue", "modified": {"approved": True}}`."""
        if not self._around.hooks.hears("permission_request"):
            return None
        payload = {"session_id": self._around.session_id, "tool": call.name, "args": call.args}
        verdict = await self._around.hooks.fire("permission_request", payload)
        match verdict:
            case Proceed():
                return Approval(True, "by a hook") if (verdict.modified or {}).get("approved") is True else None
            case Blocked():
                return Approval(False, verdict.reason)
            case Skipped() | RetryLater():
                return Approval(False, "put off by a hook")

    async def _tell_parked(self, state: SessionState) -> None:
        # Before the event that asks: whoever hears it may answer at once, and is to find the question in the inbox.
        if self.on_park is not None:
            await self.on_park(state)

    async def await_answer(self, state: SessionState, call: RecordedCall, length: int) -> NewFact:
        refusal = self._gate.fault(call)
        if state.questions >= MAX_QUESTIONS_PER_RUN:
            refusal = "ask_user question cap exceeded"
        if refusal is not None:
            return result_fact(state, call, ToolOutput(output=refusal, exit_code=1))
        await self._tell_parked(state)
        question_id = self._around.inbox.free_id(self._around.id_prefix + call.id)
        item = question_of(call, question_id, self._around.session_id, self._around.env.clock.now_ms())
        self._telling.tell(
            "user_question",
            question_id=question_id,
            question=item.question,
            options=item.options,
            allow_free_text=item.allow_free_text,
        )
        self._refuse_if_nobody_answers(question_id, call, f"an answer to: {item.question}")
        self._warn_if_nobody_listens(f"an answer: session.answer_question({question_id!r}, text)")
        text = await self._parked(self._around.inbox.answer(item))
        self._telling.tell("question_answered", question_id=question_id, text=text)
        return answer_fact(call.id, text, length)

    def _refuse_if_nobody_answers(self, item_id: str, call: RecordedCall, what: str) -> None:
        if self._around.approvals == "refuse":
            raise ParkedError(tool_id=item_id, tool_name=call.name, what=what, args_of_call=call.args)

    def _warn_if_nobody_listens(self, what: str) -> None:
        # A run that waits and says nothing looks like one that hangs.
        if self._telling.hear is None or not self._around.is_listened_to:
            logger.warning("session %s waits for %s", self._around.session_id, what)

    async def _parked(self, waiting: Any) -> Any:
        if self._around.slot is None:
            return await waiting
        async with self._around.slot.given_back():
            stand_in.get()()
            return await waiting


async def _in_time(waiting: Awaitable[Approval], timeout_ms: int | None) -> Approval | None:
    """None when it takes longer; told by a value, for a step whose wait ends so goes on and wants its place back."""
    limit = asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000)
    try:
        async with limit:
            return await waiting
    except TimeoutError:
        if not limit.expired():
            raise
        return None


def _excerpt(args: JsonObject | str) -> str:
    """What a person has to know of a call's arguments, on one line."""
    text = args if isinstance(args, str) else encode_json(args).decode()
    return text if len(text) <= SHOWN_ARGUMENTS else f"{text[:SHOWN_ARGUMENTS]}…"


def confirmation_fact(call_id: str, approval: Approval, length: int) -> NewFact:
    payload = ConfirmationAnswered(tool_call_id=call_id, approved=approval.approved, reason=approval.reason)
    return NewFact(f"c-{length}", None, payload)


def answer_fact(call_id: str, text: str, length: int) -> NewFact:
    return NewFact(f"a-{length}", None, QuestionAnswered(question_id=call_id, text=text))
