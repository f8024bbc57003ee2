"""RunJournal: the journal of a run that is held, and the fold of it, kept in step.

A result counts when it is durable; until then nobody is given its value. That an agent was started is worth no sync of
its own: it goes along with the next record, or by itself when none comes for a moment.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from fanfold.contracts.codec import encode_fact
from fanfold.contracts.facts import Fact
from fanfold.contracts.run_journal import AttemptEnd, Header, Moved, Result, RunRecord, Started, Turns
from fanfold.errors import StorageError
from fanfold.kernel.run_journal import encode_line
from fanfold.kernel.run_view import RunJournalView
from fanfold.orchestration.append_queue import AppendQueue, Line
from fanfold.protocols import HeldRun

NEWS_SECONDS = 0.2
"""After this long what was started is in the file, if nothing carried it there before."""


class RunJournal:
    def __init__(self, held: HeldRun, view: RunJournalView) -> None:
        self.view = view
        self._held = held
        self._queue = AppendQueue(held.append)
        self._news: list[Started | Moved] = []
        self._nudge: asyncio.TimerHandle | None = None

    async def put_blob(self, data: bytes) -> str:
        """Raises StorageError."""
        return await self._held.put_blob(data)

    async def open_attempt(self, header: Header, copied: Sequence[RunRecord] = ()) -> None:
        """Begin an attempt. Durable when it returns. Raises StorageError."""
        records = [header, *copied]
        await self._held.append([encode_line(record) for record in records])
        for record in records:
            self.view.take(record)

    def note(self, record: Started | Moved) -> None:
        """Have it written, before whatever is written later."""
        self.view.take(record)
        self._news.append(record)
        if self._nudge is None:
            self._nudge = asyncio.get_running_loop().call_later(NEWS_SECONDS, self._tell_news)

    def _tell_news(self) -> None:
        self._nudge = None
        news = self._taken_news()
        try:
            while news:
                self._queue.submit(_Line(news[0], None))
                del news[0]
        except StorageError:
            self._news = news  # whoever appends next takes it along, and is told if that fails too

    def _taken_news(self) -> list[Started | Moved]:
        # The nudge comes all the same: to take one back and set another for each agent cost as much as its record.
        news, self._news = self._news, []
        return news

    def result(self, record: Result) -> Coroutine[Any, Any, None]:
        """Durable when it returns, also when the caller is cancelled meanwhile. Raises StorageError."""
        return self._append(record)

    async def submit(self, line: Line) -> None:
        """Have it written behind what was noted; returns when there is room for more. Raises StorageError."""
        self._bring_news()
        self._queue.submit(line)
        if self._queue.is_crowded:
            await self._queue.idle()

    async def turns(self, seq: int, facts: Sequence[Fact]) -> None:
        """Keep turns of an agent under way. Raises StorageError."""
        lines = tuple(msgspec.Raw(encode_fact(fact)[:-1]) for fact in facts)
        await self._append(Turns(seq=seq, facts=lines))

    async def close_attempt(self, end: AttemptEnd) -> None:
        """Raises StorageError."""
        if self._nudge is not None:
            self._nudge.cancel()
            self._nudge = None
        await self._append(end)

    def _append(self, record: RunRecord) -> Coroutine[Any, Any, None]:
        self._bring_news()
        return self._queue.append(_Line(record, self.view))

    def _bring_news(self) -> None:
        if self._news:
            self._queue.precede(*map(encode_line, self._taken_news()))

    async def flush(self) -> None:
        """Raises StorageError."""
        await self._queue.flush()


class _Line(msgspec.Struct, frozen=True):
    """A record on its way into the file, and from there into the view."""

    record: RunRecord
    view: RunJournalView | None
    """None: it has taken it already."""

    def encode(self) -> bytes:
        return encode_line(self.record)

    def written(self) -> None:
        if self.view is not None:
            self.view.take(self.record)
