"""What a user may do about a run that ended without an answer."""

import shlex

from fanfold.cli.call_text import call_text
from fanfold.cli.cells import cut
from fanfold.cli.endings import WaitingError
from fanfold.cli.waiting_text import commands_for, waiting_json
from fanfold.contracts.messages import ASK_USER
from fanfold.control.waiting import Waiting, of_confirmation, of_question
from fanfold.errors import ParkedError, ProviderError, RunCancelledError, RunError, StepLimitError
from fanfold.session.session import Session

_LONGEST_CALL = 400


def command_for(session_id: str) -> str:
    """The beginning of the command that goes on in the session."""
    return f"fanfold run --session {shlex.quote(session_id)}"


def how_to_go_on(error: RunError, session_id: str) -> str | None:
    again = command_for(session_id)
    match error:
        case StepLimitError():
            return f"go on with a further prompt: {again} PROMPT"
        case ProviderError() if error.retryable:
            kept = f"the session is kept; later go on with: {again} --resume"
            return f"{error.hint}\n{kept}" if error.hint else kept
        case RunCancelledError():
            return f"somebody has cancelled it; the session is kept: {again} PROMPT"
        case _:
            return error.hint


def parked_run(error: ParkedError, session: Session) -> WaitingError:
    """The end of a run that nobody can be asked for: what waits in `session`, and the commands that go on."""
    waiting = _waiting_in(session)
    details = {
        "session_id": session.session_id,
        "waiting": [waiting_json(each) for each in waiting],
        "next_command": f"{command_for(session.session_id)} --resume",
    }
    parked = WaitingError(str(error), details)
    return parked.with_hint("\n".join([*_at_once(error, session.session_id), *_from_anywhere(waiting, session)]))


def _waiting_in(session: Session) -> list[Waiting]:
    id = session.session_id
    calls = [of_confirmation(each, id, session_id=id, source="session") for each in session.pending_confirmations()]
    questions = [of_question(each, id, session_id=id, source="session") for each in session.pending_questions()]
    return calls + questions


def _at_once(error: ParkedError, session_id: str) -> list[str]:
    again, tool = command_for(session_id), error.tool_name
    if tool == ASK_USER:
        return [f"answer it with: {again} --answer TEXT"]
    return [
        f"it would do: {cut(call_text(tool, error.args_of_call), _LONGEST_CALL)}",
        f"let it run with: {again} --approve (or --deny); "
        f"allow it from the start with --allow {tool}, or --allow '{tool}(pattern)'",
    ]


def _from_anywhere(waiting: list[Waiting], session: Session) -> list[str]:
    answers = [" or ".join(commands_for(each)) for each in waiting]
    return [*(f"or: {each}" for each in answers), f"then: {command_for(session.session_id)} --resume"]
