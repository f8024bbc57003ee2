"""What a script may know of an error that it caught: the same here and in the sandbox, whose errors are only text."""

from fanfold.contracts.record import JsonObject
from fanfold.errors import WorkflowAgentError
from fanfold.kernel.plain_text import plain
from fanfold.workflow.scripts import clipped, fault_code, fault_text


def failure_of(error: BaseException) -> JsonObject:
    """`code`, `message`, and of an agent that failed `agent_code`, `label`, `where`, which are None otherwise."""
    failure = _failure(fault_code(error), fault_text(error))
    if isinstance(error, WorkflowAgentError):
        agent_code = None if error.agent_code is None else plain(error.agent_code)
        failure |= {"agent_code": agent_code, "label": plain(error.label), "where": error.where}
    return failure


def failure_of_script(error_type: str, text: str) -> JsonObject:
    """Of what a script in the sandbox raised itself: the name of its class, and what it says."""
    return _failure(error_type, clipped(f"{error_type}: {text}" if text else error_type))


def _failure(code: str, message: str) -> JsonObject:
    return {"code": code, "message": message, "agent_code": None, "label": None, "where": None}
