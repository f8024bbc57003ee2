"""What a user may do about a run that ended without an answer."""

import shlex

from fanfold.cli.call_text import call_text
from fanfold.cli.cells import cut
from fanfold.contracts.messages import ASK_USER
from fanfold.errors import ParkedError, ProviderError, RunError, StepLimitError

_LONGEST_CALL = 400


def command_for(session_id: str) -> str:
    """The beginning of the command that goes on in the session."""
    return f"fanfold run --session {shlex.quote(session_id)}"


def how_to_go_on(error: RunError, session_id: str) -> str | None:
    again = command_for(session_id)
    match error:
        case ParkedError() if error.tool_name == ASK_USER:
            return f"answer it with: {again} --answer TEXT"
        case ParkedError():
            tool = error.tool_name
            return (
                f"it would do: {cut(call_text(tool, error.args_of_call), _LONGEST_CALL)}\n"
                f"let it run with: {again} --approve (or --deny); "
                f"allow it from the start with --allow {tool}, or --allow '{tool}(pattern)'"
            )
        case StepLimitError():
            return f"go on with a further prompt: {again} PROMPT"
        case ProviderError() if error.retryable:
            kept = f"the session is kept; later go on with: {again} --resume"
            return f"{error.hint}\n{kept}" if error.hint else kept
        case _:
            return error.hint
