"""RunWatch: what has to happen whenever a run has recorded something."""

from collections.abc import Sequence

from fanfold.contracts.facts import Fact, QuestionTurn, TextTurn, ToolTurn
from fanfold.kernel.state import SessionState
from fanfold.protocols import HeldThread
from fanfold.session.runs import Run
from fanfold.session.saved_session import SavedConversation


class RunWatch:
    """Counts turns for the run's controls, and has a checkpoint written at the end of each round of tools."""

    def __init__(self, run: Run, held: HeldThread, saved: SavedConversation | None) -> None:
        self._run = run
        self._held = held
        self._saved = saved
        self._rounds = 0
        self._place: tuple[int, int] | None = None
        """(turn, cycle) of the fold."""

    async def appended(self, facts: Sequence[Fact], state: SessionState) -> None:
        for fact in facts:
            if isinstance(fact.payload, TextTurn | ToolTurn | QuestionTurn):
                self._run.inbox.revise()
        self._run.inbox.turn_began(state.turn)
        place, before = (state.turn, state.cycle), self._place
        self._place = place
        if before is not None and before[0] == place[0] and place[1] > before[1]:
            self._rounds += 1
            await self._checkpoint(state)

    async def parked(self, state: SessionState) -> None:
        """The run is about to wait for a person: another node should find what it waits for."""
        await self._checkpoint(state)

    async def _checkpoint(self, state: SessionState) -> None:
        if self._saved is not None:
            await self._saved.checkpoint(self._run, self._held, state, self._rounds)
