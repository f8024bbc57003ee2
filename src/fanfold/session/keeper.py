"""Keeper: has the facts of a child kept by a resumable call, so that the step can go on from its last turn."""

from collections.abc import Sequence

from fanfold.contracts.facts import Fact, NewFact, QuestionTurn, ToolTurn
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.kernel.decide import Limits, StopAtLimit, decide
from fanfold.kernel.fold import fold
from fanfold.kernel.state import SessionState
from fanfold.protocols import HeldThread, StepFacts


class Keeper:
    """Facts are kept from the first tool round on (decisions 3.7): a step that is answered in one turn then costs no
    append but that of its outcome."""

    def __init__(self, kept: StepFacts) -> None:
        self._kept = kept
        self._unkept: list[Fact] = []
        self._is_keeping = False
        self.carried: Usage = NO_USAGE
        """What the facts that were taken up add to the usage of this attempt."""

    async def take_up(self, held: HeldThread, limits: Limits) -> Sequence[Fact]:
        """The facts to go on from, which `held` has then; none for a step that begins anew."""
        facts = facts_to_go_on(self._kept, limits)
        if not facts:
            return ()
        self._is_keeping = True
        self.carried = self._kept.go_on()
        return await held.append([NewFact(fact.key, fact.cause, fact.payload) for fact in facts])

    async def appended(self, facts: Sequence[Fact], state: SessionState) -> None:
        """Keep them, durable when it returns, once there is something to keep."""
        self._unkept += facts
        self._is_keeping = self._is_keeping or any(isinstance(fact.payload, ToolTurn | QuestionTurn) for fact in facts)
        if self._is_keeping:
            unkept, self._unkept = self._unkept, []
            await self._kept.record(unkept)


def facts_to_go_on(kept: StepFacts, limits: Limits) -> Sequence[Fact]:
    """What is recorded of a step that goes on from there; nothing for one that begins anew.

    A step that was cut off goes on. One whose attempt failed goes on where another try may help, that is in the middle
    of a turn; a turn that was over, or that used up its steps, is begun anew.
    """
    facts = kept.recorded
    return () if facts and kept.has_failed and not _can_go_on(fold(facts), limits) else facts


def _can_go_on(state: SessionState, limits: Limits) -> bool:
    return state.phase != "done" and not isinstance(decide(state, limits), StopAtLimit)
