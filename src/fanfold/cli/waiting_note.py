"""A note on stderr whenever a run begins to wait for a person, with the command that answers from another terminal."""

import sys

from fanfold.cli.safe_text import printable
from fanfold.cli.waiting_text import what_text
from fanfold.contracts.events import AgentEvent
from fanfold.control.waiting import Waiting, of_confirmation, of_question
from fanfold.session.inbox import PendingConfirmation, PendingQuestion


class WaitingNote:
    """Hears the events of the session `session_id`, which is served as `owner`."""

    def __init__(self, owner: str, session_id: str) -> None:
        self._owner = owner
        self._session_id = session_id

    def __call__(self, event: AgentEvent) -> None:
        waiting = self._waiting(event)
        if waiting is not None:
            # Not the console's `err`: while a live view is up, `sys.stderr` is what prints above it.
            print(printable(what_text(waiting)), file=sys.stderr, flush=True)

    def _waiting(self, event: AgentEvent) -> Waiting | None:
        told = event.payload
        match event.type:
            case "confirmation_required":
                call = PendingConfirmation(
                    tool_id=told["tool_id"],
                    tool_name=told["tool_name"],
                    args=told["args"],
                    session_id=self._session_id,
                )
                return of_confirmation(call, self._owner, session_id=self._session_id)
            case "user_question":
                question = PendingQuestion(
                    question_id=told["question_id"],
                    question=told["question"],
                    options=told["options"],
                    allow_free_text=told["allow_free_text"],
                    session_id=self._session_id,
                )
                return of_question(question, self._owner, session_id=self._session_id)
            case _:
                return None
