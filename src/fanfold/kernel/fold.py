"""The fold: facts in, state out. Nothing else changes a session."""

from collections.abc import Iterable

from msgspec.structs import replace

from fanfold.contracts.facts import (
    BudgetDenied,
    Compacted,
    ConfirmationAnswered,
    Fact,
    ModelTurn,
    Note,
    QuestionAnswered,
    QuestionTurn,
    RecordedCall,
    TextTurn,
    ToolResulted,
    ToolTurn,
    UserMessaged,
)
from fanfold.contracts.messages import (
    ASK_USER,
    NO_USAGE,
    AssistantMessage,
    Attachment,
    Entry,
    Message,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    append,
)
from fanfold.errors import CorruptLogError
from fanfold.kernel.state import EMPTY, SessionState

IMAGE_TOKENS = 1_500

STEER_PREFIX = "steer:"
"""A `user.message` whose key starts so continues the run; any other begins a new one."""
NOTICE_PREFIX = "notice-"
"""A `user.message` whose key starts so tells of work in the background that has ended. One that came while a run was
under way names that turn as its cause and continues the run; one without a cause begins a run."""
ASIDE_PREFIXES = ("aside-", "m-hist-")
"""A `user.message` whose key starts so is no part of the session's own history (seed 002)."""


def fold(facts: Iterable[Fact], state: SessionState = EMPTY) -> SessionState:
    """The state after `facts`, starting from `state`."""
    for fact in facts:
        state = evolve(state, fact)
    return state


def evolve(state: SessionState, fact: Fact) -> SessionState:
    """The state after `fact`, in O(1) whatever the length of the log.

    Pure: the same state and fact give the same answer on any node, which is what lets another node resume a log that
    it did not write.

    Raises:
        CorruptLogError: `fact` is not one that the log can hold next.
    """
    if fact.seq != state.last_seq + 1:
        raise _corrupt(fact, f"expected seq {state.last_seq + 1}")
    payload = fact.payload
    if isinstance(payload, Note):
        return replace(state, last_seq=fact.seq)
    return replace(_apply(state, fact), last_seq=fact.seq, facts=state.facts + 1)


def _apply(state: SessionState, fact: Fact) -> SessionState:
    match fact.payload:
        case UserMessaged():
            return _user_messaged(state, fact.payload, fact)
        case TextTurn() | ToolTurn() | QuestionTurn():
            return _model_turned(state, fact, fact.payload)
        case ToolResulted():
            return _tool_resulted(state, fact, fact.payload)
        case ConfirmationAnswered():
            return _confirmation_answered(state, fact.payload)
        case QuestionAnswered():
            return _question_answered(state, fact.payload)
        case Compacted():
            return _compacted(state, fact.payload)
        case BudgetDenied():
            return _end_turn(state, "tool_budget", "not run: the tool budget of this turn is spent")
        case Note():
            return state


def _user_messaged(state: SessionState, payload: UserMessaged, fact: Fact) -> SessionState:
    is_notice = fact.key.startswith(NOTICE_PREFIX)
    continues_run = fact.key.startswith(STEER_PREFIX) or (is_notice and fact.cause is not None)
    if not continues_run and (is_aside := fact.key.startswith(ASIDE_PREFIXES)) != state.is_aside:
        state = replace(state, is_aside=is_aside)
    # The driver records what becomes of unfinished calls (decisions 2.5); a log that lacks it still folds to a
    # transcript that every provider accepts.
    state = _with(
        _close_pending(state, "abandoned: a new message came first"), UserMessage(payload.text, payload.attachments)
    )
    state = replace(
        state,
        phase="infer",
        turn=state.turn + 1,
        is_notice=is_notice,
        cycle=0,
        rounds=0,
        successes=0,
        text="",
        reasoning="",
        stop_reason="stop",
    )
    return state if continues_run else replace(state, steps=0, usage=NO_USAGE, tool_results=0, questions=0)


def _model_turned(state: SessionState, fact: Fact, payload: ModelTurn) -> SessionState:
    if state.phase != "infer":
        raise _corrupt(fact, f"a model turn cannot come in phase '{state.phase}'")
    calls = _recorded_calls(payload)
    state = _with(state, AssistantMessage(payload.text, tuple(call.as_call() for call in calls)))
    usage = payload.usage
    state = replace(
        state,
        steps=state.steps + 1,
        text=payload.text or state.text,
        usage=_sum(state.usage, usage),
        session_usage=_sum(state.session_usage, usage),
        context_tokens=state.context_tokens if usage is None else usage.total_tokens,
    )
    if isinstance(payload, TextTurn):
        return replace(
            state,
            phase="done",
            text=payload.text,
            reasoning=payload.reasoning,
            stop_reason=payload.stop_reason,
            history=state.history if state.is_aside else state.shown,
        )
    return replace(state, phase="calls", pending=calls, approved=frozenset(), rounds=state.rounds + 1)


def _sum(before: Usage, more: Usage | None) -> Usage:
    if more is None:
        return before
    return more if before is NO_USAGE else before + more  # most children make one call


def _recorded_calls(payload: ModelTurn) -> tuple[RecordedCall, ...]:
    match payload:
        case TextTurn():
            return ()
        case ToolTurn():
            return payload.calls
        case QuestionTurn():
            args = {
                "question": payload.question,
                "options": list(payload.options),
                "allow_free_text": payload.allow_free_text,
            }
            return (RecordedCall(id=payload.question_id, name=ASK_USER, args=args),)


def _tool_resulted(state: SessionState, fact: Fact, payload: ToolResulted) -> SessionState:
    call = _pending_call(state, payload.tool_call_id)
    if call is None:
        raise _corrupt(fact, f"no call '{payload.tool_call_id}' waits for a result")
    message = ToolMessage(call.id, call.name, payload.ok, payload.output)
    state = replace(
        _with(state, message),
        steps=state.steps + 1,
        successes=state.successes + payload.ok,
        tool_results=state.tool_results + 1,
    )
    return _settled(state, call)


def _confirmation_answered(state: SessionState, payload: ConfirmationAnswered) -> SessionState:
    call = _pending_call(state, payload.tool_call_id)
    if call is None:
        return state  # an answer that came too late changes nothing (notes 4.5)
    if payload.approved:
        return replace(state, approved=state.approved | {call.id})
    return _end_turn(state, "denied", denial_text(payload.reason))


def _question_answered(state: SessionState, payload: QuestionAnswered) -> SessionState:
    call = _pending_call(state, payload.question_id)
    if call is None:
        return state
    state = replace(state, questions=state.questions + 1)
    return _settled(_with(state, ToolMessage(call.id, call.name, True, payload.text)), call)


def _compacted(state: SessionState, payload: Compacted) -> SessionState:
    kept = list(state.transcript)[-payload.kept_messages :] if state.transcript and payload.kept_messages else []
    transcript = append(None, UserMessage(payload.summary)) if payload.summary else None
    for message in kept:
        transcript = append(transcript, message)
    return replace(
        state,
        transcript=transcript,
        shown=transcript,
        history=transcript if state.phase in ("idle", "done") else state.history,
        context_tokens=sum(estimated_tokens(message) for message in transcript or ()),
        compacted_turn=state.turn,
        steps=state.steps + 1,
        usage=_sum(state.usage, payload.usage),
        session_usage=_sum(state.session_usage, payload.usage),
    )


def denial_text(reason: str) -> str:
    """What the model reads of a call that a person denied."""
    return f"denied by the user: {reason}" if reason else "denied by the user"


def tokens_after(state: SessionState, payload: Compacted) -> int:
    """What the next model call would carry after that compaction."""
    return _compacted(state, payload).context_tokens


def _settled(state: SessionState, call: RecordedCall) -> SessionState:
    left = tuple(each for each in state.pending if each is not call)
    if left:
        return replace(state, pending=left)
    return replace(state, pending=(), approved=frozenset(), phase="infer", cycle=state.cycle + 1)


def _end_turn(state: SessionState, stop_reason: str, why_not_run: str) -> SessionState:
    state = _close_pending(state, why_not_run)
    history = state.history if state.is_aside else state.shown
    return replace(state, phase="done", stop_reason=stop_reason, history=history)


def _close_pending(state: SessionState, why: str) -> SessionState:
    """Give each unfinished call a result, since no provider takes a transcript with an unanswered call."""
    for call in state.pending:
        state = _with(state, ToolMessage(call.id, call.name, False, why))
    return replace(state, pending=(), approved=frozenset()) if state.pending else state


def _pending_call(state: SessionState, call_id: str) -> RecordedCall | None:
    return next((call for call in state.pending if call.id == call_id), None)


def _with(state: SessionState, message: Message) -> SessionState:
    entry: Entry = append(state.transcript, message)
    shown = state.shown
    if not state.is_aside:
        shown = entry if shown is state.transcript else append(shown, message)
    tokens = state.context_tokens + estimated_tokens(message)
    return replace(state, transcript=entry, shown=shown, context_tokens=tokens)


def estimated_tokens(message: Message) -> int:
    """Bytes / 4, the usual rule of thumb, plus a little for the message's frame."""
    match message:
        case UserMessage():
            size = len(message.text)
            for attachment in message.attachments:
                size += _attachment_size(attachment)
        case AssistantMessage():
            size = len(message.text) + sum(_call_size(call) for call in message.calls)
        case ToolMessage():
            size = len(message.output)
    return 4 + size // 4


def _attachment_size(attachment: Attachment) -> int:
    # A picture costs by its pixels, not by its bytes; this is what providers charge for a middle-sized one.
    return len(attachment.data) if attachment.media_type.startswith("text/") else 4 * IMAGE_TOKENS


def _call_size(call: ToolCall) -> int:
    return len(call.name) + len(str(call.args))


def _corrupt(fact: Fact, reason: str) -> CorruptLogError:
    return CorruptLogError(thread="", line=fact.seq, reason=f"fact '{fact.key}': {reason}")
