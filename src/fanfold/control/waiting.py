"""Waiting: one thing that waits for a person, in whichever session, step or process of a workspace."""

from collections.abc import Sequence
from typing import Literal

from fanfold.contracts.facts import RecordedCall
from fanfold.contracts.record import JsonObject, Record
from fanfold.contracts.steps import child_session_id
from fanfold.kernel.workflow_meta import is_run_id
from fanfold.session.inbox import PendingConfirmation, PendingQuestion, is_question, question_of

_CHILD_PREFIX = child_session_id("")


Source = Literal["live", "session", "workflow", "run"]


class Waiting(Record, frozen=True, kw_only=True):
    id: str
    """What the commands take, or an end of it that no other one has: `<session or workflow>/<call id>`, with the step
    between them where it is a step's."""
    kind: Literal["approval", "question"]
    source: Source
    """`live`: its run waits, and goes on with the answer. The others are parked: nobody runs them, the answer is
    recorded, and the next run goes on from it. `workflow`: of a resumable fan-out; `run`: a workflow run."""
    owner: str
    """The session, the workflow or the workflow run."""
    call_id: str
    """What its owner knows it as."""
    step: str | None = None
    """The task id, or in a workflow the place, of the step that waits; absent for a session's own call."""
    about: str | None = None
    """What that step is about, in its caller's words: its description, else the beginning of its prompt."""
    tool: str | None = None
    args: JsonObject | str | None = None
    question: str | None = None
    options: list[str] | None = None
    allow_free_text: bool | None = None
    since_ms: int | None = None
    process: int | None = None
    """That runs it just now."""
    is_cut: bool | None = None
    """True: the arguments or the question were too long for the wire, and are not all here."""


def of_confirmation(
    pending: PendingConfirmation, owner: str, *, session_id: str, source: Source = "live", process: int | None = None
) -> Waiting:
    """A call of the session `session_id`, or of one of its children."""
    return Waiting(
        id=waiting_id(owner, pending.tool_id),
        kind="approval",
        source=source,
        owner=owner,
        call_id=pending.tool_id,
        step=_step_of(pending.session_id, session_id),
        tool=pending.tool_name,
        args=pending.args,
        since_ms=pending.since_ms,
        process=process,
    )


def of_question(
    pending: PendingQuestion, owner: str, *, session_id: str, source: Source = "live", process: int | None = None
) -> Waiting:
    return Waiting(
        id=waiting_id(owner, pending.question_id),
        kind="question",
        source=source,
        owner=owner,
        call_id=pending.question_id,
        step=_step_of(pending.session_id, session_id),
        question=pending.question,
        options=pending.options,
        allow_free_text=pending.allow_free_text,
        since_ms=pending.since_ms,
        process=process,
    )


def of_parked_call(
    call: RecordedCall,
    source: Source,
    owner: str,
    *,
    since_ms: int | None,
    step: str | None = None,
    about: str | None = None,
) -> Waiting:
    """A call that a log has left parked."""
    asked = question_of(call, call.id, owner) if is_question(call) else None
    return Waiting(
        id=waiting_id(owner, call.id if step is None else f"{step}/{call.id}"),
        kind="approval" if asked is None else "question",
        source=source,
        owner=owner,
        call_id=call.id,
        step=step,
        about=about,
        tool=call.name if asked is None else None,
        args=call.args if asked is None else None,
        question=None if asked is None else asked.question,
        options=None if asked is None else asked.options,
        allow_free_text=None if asked is None else asked.allow_free_text,
        since_ms=since_ms,
    )


def matching(waiting: Sequence[Waiting], typed: str) -> list[Waiting]:
    """Those that `typed` may mean: the one of that id, else all whose id ends with it at a `/`, else at a `-`, for what
    tells the agents of one run apart is the end of their long task ids."""
    exact = [each for each in waiting if each.id == typed or typed.removeprefix(_CHILD_PREFIX) in _other_names(each)]
    whole = exact or [each for each in waiting if each.id.endswith(f"/{typed}")]
    return whole or [each for each in waiting if each.id.endswith(f"-{typed}")]


def waiting_id(owner: str, call_id: str) -> str:
    """The id of what its owner knows as `call_id`.

    The task ids of the agents of a workflow run begin with the id of the run: that is not said twice.
    """
    own = call_id.removeprefix(_CHILD_PREFIX)
    return f"{owner}/{own.removeprefix(f'{owner}-') if is_run_id(owner) else own}"


def _other_names(waiting: Waiting) -> tuple[str, ...]:
    """As good as the id: that in the message of a step that was parked, and what the events of a workflow run say,
    whatever it is served as."""
    if waiting.step is None:
        return ()
    own = f"{waiting.step}/{waiting.call_id.rpartition('/')[2]}"
    run_id = waiting.step.rsplit("-", 2)[0]
    return (own, waiting_id(run_id, own)) if is_run_id(run_id) else (own,)


def _step_of(session_id: str, own_session_id: str) -> str | None:
    return None if session_id == own_session_id else session_id.removeprefix(_CHILD_PREFIX)
