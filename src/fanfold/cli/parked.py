"""What waits for a person in a session, and the answers: given on the command line, or asked for."""

from dataclasses import dataclass

from fanfold.cli.ask import ask, ask_yes_no
from fanfold.cli.call_text import call_text
from fanfold.cli.console import Console
from fanfold.session.inbox import PendingConfirmation, PendingQuestion
from fanfold.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the command line says; None where it says nothing."""

    approved: bool | None = None
    text: str | None = None

    @property
    def is_given(self) -> bool:
        return self.approved is not None or self.text is not None


async def settle_parked(session: Session, console: Console, answers: Answers) -> int:
    """Answer everything that waits in the session; how many answers there were."""
    settled = 0
    for call in session.pending_confirmations():
        approved = answers.approved
        if approved is None and console.may_ask:
            approved = await ask_yes_no(console, _call_text(call))
        if approved is not None:
            settled += await session.confirm_tool_use_async(call.tool_id, approved)
    for question in session.pending_questions():
        text = answers.text
        if text is None and console.may_ask:
            text = await _ask(console, question)
        if text is not None:
            settled += await session.answer_question_async(question.question_id, text)
    return settled


def _call_text(call: PendingConfirmation) -> str:
    return f"\nAllow {call_text(call.tool_name, call.args)}?"


async def _ask(console: Console, question: PendingQuestion) -> str:
    options = "".join(f"\n  {number}. {option}" for number, option in enumerate(question.options, 1))
    while True:
        typed = await ask(console, f"\n{question.question}{options}\n>")
        if typed.isdecimal() and 0 < int(typed) <= len(question.options):
            return question.options[int(typed) - 1]
        if question.allow_free_text or typed in question.options:
            return typed
        console.warn("please choose one of the options")
