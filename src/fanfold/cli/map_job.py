"""The work behind `fanfold map`: opens what is needed, runs the items, gathers their rows in input order."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from fanfold.agent import Agent
from fanfold.cli.items import Item
from fanfold.cli.map_journal import open_journal
from fanfold.cli.opening import open_agent, open_session, require_models
from fanfold.cli.progress import View
from fanfold.cli.results import Row, row_of
from fanfold.cli.tally import Tally
from fanfold.options import SessionOptions
from fanfold.orchestration.mapping import MapItem, MapRow, MapStep
from fanfold.protocols import ItemJournal
from fanfold.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    items: Sequence[Item]
    steps: Sequence[MapStep]
    config: Path | None
    allow: Sequence[str]
    concurrency: int | None
    budget: int | None
    is_fresh: bool


async def run_job(job: Job, view: View, tally: Tally) -> list[Row]:
    """One row for each item, in their order. `view` is open, and hears everything, while the work goes on.

    Raises:
        UsageError, ConfigError, SessionBusyError: before any item has run.
        LogWriteError: a finished item could not be recorded; those before it are.
    """
    gathered = _Gathered(job.items, view)
    async with await open_agent(job.config) as agent:
        default = agent.settings.default_model
        steps = [replace(step, model=default if step.model is None else step.model) for step in job.steps]
        async with _opened(job, agent, steps) as (session, journal), view:
            tally.never_started = gathered.finish_unreadable()
            await session.map_async(
                gathered.runnable(),
                steps,
                journal=journal,
                budget_tokens=job.budget,
                events=view.event,
                on_row=gathered.on_row,
            )
    return gathered.in_order()


@asynccontextmanager
async def _opened(job: Job, agent: Agent, steps: Sequence[MapStep]) -> AsyncGenerator[tuple[Session, ItemJournal]]:
    await require_models(
        agent, ((f"--then {number}" if number else "--model", step.model) for number, step in enumerate(steps))
    )
    options = SessionOptions(model=steps[0].model, max_parallel_tasks=job.concurrency, approvals="refuse")
    async with await open_session(agent, job.allow, options) as session:
        journal = await open_journal(steps, is_fresh=job.is_fresh)
        try:
            yield session, journal
        finally:
            await journal.close()


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Rows by the index of their item; the library only sees the items that can run."""

    items: Sequence[Item]
    view: View
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    indices: list[int] = field(default_factory=list[int])
    """Of the items that can run."""

    def finish_unreadable(self) -> int:
        for index, item in enumerate(self.items):
            if item.problem is None:
                self.indices.append(index)
            else:
                self._finish(index, Row(item=item.key, success=False, output=item.problem))
        return len(self.rows)

    def runnable(self) -> list[MapItem]:
        return [MapItem(key=self.items[index].key, fields=dict(self.items[index].fields)) for index in self.indices]

    def on_row(self, position: int, row: MapRow) -> None:
        self._finish(self.indices[position], row_of(row.key, row.outcome, is_cached=row.is_cached))

    def _finish(self, index: int, row: Row) -> None:
        self.rows[index] = row
        self.view.finish(row)

    def in_order(self) -> list[Row]:
        return [self.rows[index] for index in range(len(self.items))]
