"""What waits for a person in a session, and the answers: given on the command line, or asked for while it runs."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from fanfold.cli.ask import ask, ask_yes_no
from fanfold.cli.call_text import call_text
from fanfold.cli.cells import one_line
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


async def settle_parked(session: Session, answers: Answers) -> int:
    """Give the answers to everything that waits in the session; how many there were."""
    settled = 0
    for call in session.pending_confirmations() if answers.approved is not None else ():
        settled += await session.confirm_tool_use_async(call.tool_id, bool(answers.approved))
    for question in session.pending_questions() if answers.text is not None else ():
        settled += await session.answer_question_async(question.question_id, answers.text or "")
    return settled


class Asking:
    """Puts what a run waits for to the person at this terminal, one thing after the other.

    Another process may answer first: then the question is taken back. Look after each event of the run.
    """

    def __init__(self, session: Session, console: Console) -> None:
        self._session = session
        self._console = console
        self._asked: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._run: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._run = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()
        if self._failure is not None:
            raise self._failure from None

    async def look(self) -> None:
        """Ask for what waits now, unless that is being asked for."""
        if not self._console.may_ask:
            return
        waiting = self._waiting()
        if self._task is not None and (self._task.done() or self._asked not in waiting):
            is_taken_back = not self._task.done()
            await self._stop()
            if is_taken_back:
                self._console.warn("\n(answered from elsewhere, or given up)")
        if waiting and self._task is None:
            self._task = asyncio.create_task(self._ask_all())
            self._task.add_done_callback(self._ended)

    def _waiting(self) -> dict[str, PendingConfirmation | PendingQuestion]:
        """Oldest first; only what the run itself waits for."""
        items: dict[str, PendingConfirmation | PendingQuestion] = {
            **{each.tool_id: each for each in self._session.pending_confirmations()},
            **{each.question_id: each for each in self._session.pending_questions()},
        }
        return {id: each for id, each in items.items() if each.since_ms is not None}

    async def _ask_all(self) -> None:
        while waiting := self._waiting():
            self._asked, item = next(iter(waiting.items()))
            await self._ask(item)

    async def _ask(self, item: PendingConfirmation | PendingQuestion) -> None:
        if isinstance(item, PendingConfirmation):
            approved = await ask_yes_no(self._console, f"\nAllow {call_text(item.tool_name, item.args)}?")
            await self._session.confirm_tool_use_async(item.tool_id, approved)
        else:
            await self._session.answer_question_async(item.question_id, await _answer(self._console, item))

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            if self._run is not None:
                self._run.cancel()  # it would wait for ever

    async def _stop(self) -> None:
        task, self._task, self._asked = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})


async def _answer(console: Console, question: PendingQuestion) -> str:
    options = "".join(f"\n  {number}. {one_line(option)}" for number, option in enumerate(question.options, 1))
    while True:
        typed = await ask(console, f"\n{question.question}{options}\n>")
        if typed.isdecimal() and 0 < int(typed) <= len(question.options):
            return question.options[int(typed) - 1]
        if question.allow_free_text or typed in question.options:
            return typed
        console.warn("please choose one of the options")
