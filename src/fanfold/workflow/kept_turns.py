"""KeptTurns: the turns of one agent, kept in the run's journal, so that it goes on from its last one after a crash."""

from collections.abc import Sequence

from fanfold.contracts.facts import Fact, ToolResulted
from fanfold.contracts.messages import NO_USAGE, Usage
from fanfold.errors import StorageError
from fanfold.kernel.journal import usage_of
from fanfold.kernel.run_entries import Claim
from fanfold.kernel.run_journal import facts_of
from fanfold.workflow.journal import RunJournal


class KeptTurns:
    __slots__ = (
        "_error",
        "_has_failed",
        "_is_counted",
        "_journal",
        "_seq",
        "has_ended",
        "has_news",
        "key",
        "recorded",
        "tools",
    )

    def __init__(self, journal: RunJournal, seq: int, claim: Claim) -> None:
        self.key = claim.key
        self.recorded = facts_of(claim)
        self.has_ended = False
        self.has_news = False
        self.tools = 0
        self._journal = journal
        self._seq = seq
        self._is_counted = claim.has_ended
        self._has_failed = claim.has_ended and not claim.has_been_answered
        self._error: StorageError | None = None

    @property
    def has_failed(self) -> bool:
        return self.has_ended or self._has_failed

    def go_on(self) -> Usage:
        return NO_USAGE if self.has_ended or self._is_counted else usage_of(self.recorded)

    async def record(self, facts: Sequence[Fact]) -> None:
        self.has_news = True
        self.tools += sum(isinstance(fact.payload, ToolResulted) for fact in facts)
        try:
            await self._journal.turns(self._seq, facts)
        except StorageError as error:
            self._error = error  # an executor may take it for a failure of its step
            raise

    async def land(self) -> None:
        if self._error is not None:
            raise self._error
        await self._journal.flush()
