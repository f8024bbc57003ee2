"""KeptThread: a child's thread whose facts a resumable call keeps as well, so that it can go on from its last turn."""

from collections.abc import Sequence

from fanfold.contracts.facts import Fact, NewFact, QuestionTurn, ToolTurn
from fanfold.contracts.messages import NO_USAGE
from fanfold.kernel.decide import Limits, StopAtLimit, decide
from fanfold.kernel.fold import fold
from fanfold.kernel.state import SessionState
from fanfold.protocols import HeldThread, StepFacts


class KeptThread:
    """A `HeldThread` over another one, which has the same facts.

    Facts are kept from the first tool round on (decisions 3.7): a step that is answered in one turn then costs no
    append but that of its outcome. What is kept is durable before the append returns, so before any tool starts.
    """

    def __init__(self, inner: HeldThread, kept: StepFacts) -> None:
        self._inner = inner
        self._kept = kept
        self._unkept: list[Fact] = []
        self._is_keeping = False
        self.carried = NO_USAGE
        """What the facts that were taken up add to the usage of this attempt."""

    async def take_up(self, limits: Limits) -> Sequence[Fact]:
        """The facts to go on from, which the thread has now; none for a step that begins anew.

        A step that was cut off goes on. One whose attempt failed goes on where another try may help, that is in the
        middle of a turn; a turn that was over, or that used up its steps, is begun anew.
        """
        facts = self._kept.recorded
        if not facts or (self._kept.has_failed and not _can_go_on(fold(facts), limits)):
            return ()
        self._is_keeping = True
        self.carried = self._kept.go_on()
        return await self._inner.append([NewFact(fact.key, fact.cause, fact.payload) for fact in facts])

    @property
    def last_seq(self) -> int:
        return self._inner.last_seq

    @property
    def lineage(self) -> object:
        return self._inner.lineage

    async def read(self, after_seq: int = 0) -> Sequence[Fact]:
        return await self._inner.read(after_seq)

    async def append(self, facts: Sequence[NewFact]) -> Sequence[Fact]:
        added = await self._inner.append(facts)
        self._unkept += added
        for fact in added:
            if isinstance(fact.payload, ToolTurn | QuestionTurn):
                self._is_keeping = True
        if self._is_keeping:
            unkept, self._unkept = self._unkept, []
            await self._kept.record(unkept)
        return added

    async def release(self) -> None:
        await self._inner.release()


def _can_go_on(state: SessionState, limits: Limits) -> bool:
    return state.phase != "done" and not isinstance(decide(state, limits), StopAtLimit)
