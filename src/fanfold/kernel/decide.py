"""decide: what a session does next, as a value. The shell performs it and records what happened.

phase    condition, first that holds                          action
-------  ---------------------------------------------------  ----------------------------------
idle     -                                                    Idle
done     -                                                    Finish
infer    steps >= limit                                       StopAtLimit
         context over its threshold, turn not yet compacted   Compact
         -                                                    CallModel (no tools after max rounds)
calls    first call is ask_user                               AwaitAnswer
         tool budget spent, or a round beyond the cap         Deny
         first call needs an approval it does not have        AwaitConfirmation
         steps >= limit                                       StopAtLimit
         -                                                    RunTools (the calls up to the next park)
"""

import msgspec

from fanfold.contracts.facts import RecordedCall
from fanfold.contracts.messages import ASK_USER, AssistantMessage
from fanfold.kernel.state import SessionState
from fanfold.kernel.transcript import messages_to_keep

MAX_STEPS_PER_RUN = 32
TOOL_BUDGET_PER_TURN = 8
COMPACT_AT = 0.8
"""Share of the context window at which the transcript is compacted."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    steps: int = MAX_STEPS_PER_RUN
    tool_budget: int = TOOL_BUDGET_PER_TURN
    max_rounds: int | None = None
    context_tokens: int | None = None
    """Size of the model's context window; None: unknown, nothing is compacted by itself."""
    compacts: bool = True
    compact_at: float = COMPACT_AT
    """Share of the context window at which the transcript is compacted."""

    @classmethod
    def of(cls, max_tool_rounds: int | None, context_tokens: int | None = None) -> "Limits":
        """Limits of a run whose tool rounds are capped at `max_tool_rounds` (decisions 2.6)."""
        n = max_tool_rounds or 0
        return cls(
            steps=max(MAX_STEPS_PER_RUN, 4 * n),
            tool_budget=max(TOOL_BUDGET_PER_TURN, n),
            max_rounds=max_tool_rounds,
            context_tokens=context_tokens,
        )


class Idle(msgspec.Struct, frozen=True):
    """Nothing was asked."""


class CallModel(msgspec.Struct, frozen=True):
    with_tools: bool


class RunTools(msgspec.Struct, frozen=True):
    calls: tuple[RecordedCall, ...]


class AwaitConfirmation(msgspec.Struct, frozen=True):
    call: RecordedCall


class AwaitAnswer(msgspec.Struct, frozen=True):
    call: RecordedCall


class Compact(msgspec.Struct, frozen=True):
    kept_messages: int


class Deny(msgspec.Struct, frozen=True):
    call: RecordedCall


class Finish(msgspec.Struct, frozen=True):
    text: str
    stop_reason: str


class StopAtLimit(msgspec.Struct, frozen=True):
    limit: int


Action = Idle | CallModel | RunTools | AwaitConfirmation | AwaitAnswer | Compact | Deny | Finish | StopAtLimit


def decide(state: SessionState, limits: Limits) -> Action:
    """The one action that `state` enables. Total and pure; the table above is its whole content."""
    match state.phase:
        case "idle":
            return Idle()
        case "done":
            return Finish(state.text, state.stop_reason)
        case "infer":
            return _before_model(state, limits)
        case "calls":
            return _with_calls(state, limits)


def _before_model(state: SessionState, limits: Limits) -> Action:
    if state.steps >= limits.steps:
        return StopAtLimit(limits.steps)
    may_compact = limits.compacts and state.compacted_turn != state.turn
    if may_compact and limits.context_tokens is not None and state.transcript is not None:
        threshold = int(limits.context_tokens * limits.compact_at)
        if state.context_tokens >= threshold:
            kept = messages_to_keep(state.transcript, threshold // 4)
            if kept < state.transcript.length:
                return Compact(kept)
    return CallModel(with_tools=limits.max_rounds is None or state.rounds < limits.max_rounds)


def _with_calls(state: SessionState, limits: Limits) -> Action:
    first = state.pending[0]
    if first.name == ASK_USER and isinstance(first.args, dict):
        return AwaitAnswer(first)
    is_new_round = limits.max_rounds is not None and state.rounds > limits.max_rounds
    if is_new_round or (state.successes >= limits.tool_budget and not _is_under_way(state)):
        return Deny(first)
    if _needs_person(state, first):
        return AwaitConfirmation(first)
    if state.steps >= limits.steps:
        return StopAtLimit(limits.steps)
    runnable: list[RecordedCall] = []
    for call in state.pending[: limits.steps - state.steps]:
        if _needs_person(state, call) or call.name == ASK_USER:
            break
        runnable.append(call)
    return RunTools(tuple(runnable) or (first,))


def _needs_person(state: SessionState, call: RecordedCall) -> bool:
    return call.needs_confirmation and call.id not in state.approved


def _is_under_way(state: SessionState) -> bool:
    """Some calls of this response have run: the budget refuses a further request, it never cuts one in half."""
    return state.transcript is not None and not isinstance(state.transcript.message, AssistantMessage)
