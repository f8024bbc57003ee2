"""RunWatch: what has to happen whenever a run has recorded something."""

from collections.abc import Sequence

from fanfold.contracts.facts import (
    ConfirmationAnswered,
    Fact,
    QuestionAnswered,
    QuestionTurn,
    TextTurn,
    ToolResulted,
    ToolTurn,
)
from fanfold.kernel.state import SessionState
from fanfold.protocols import HeldThread
from fanfold.runs.runs import Run
from fanfold.session.effects import Effects
from fanfold.session.saved_session import SavedConversation


class RunWatch:
    """Counts turns and tokens of the run, and has a checkpoint written at the end of each round of tools, when the run
    is about to wait for a person, and when the person has spoken."""

    def __init__(self, run: Run, effects: Effects, held: HeldThread, saved: SavedConversation | None) -> None:
        self._run = run
        self._effects = effects
        self._held = held
        self._saved = saved

    async def appended(self, facts: Sequence[Fact], state: SessionState) -> None:
        for fact in facts:
            if isinstance(fact.payload, TextTurn | ToolTurn | QuestionTurn):
                self._run.inbox.revise()
        self._run.inbox.turn_began(state.turn)
        self._run.usage = state.usage + self._effects.model.extra_usage
        if self._saved is not None and _is_worth_keeping(facts[-1], state):
            await self.checkpoint(state)

    async def checkpoint(self, state: SessionState) -> None:
        if self._saved is not None:
            await self._saved.checkpoint(self._run, self._held, state, self._effects.model.extra_usage)


def _is_worth_keeping(last: Fact, state: SessionState) -> bool:
    match last.payload:
        case ToolResulted() | QuestionAnswered():
            return state.phase == "infer"  # it was the last one of its round
        case ConfirmationAnswered():
            return state.phase == "calls"
        case _:
            return False
