"""The work behind `fanfold map`: opens what is needed, runs the items, gathers their rows in input order."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from fanfold.agent import Agent
from fanfold.cli.console import Console
from fanfold.cli.items import Item
from fanfold.cli.opening import open_agent, open_session, open_store, require_models, require_roles
from fanfold.cli.progress import View
from fanfold.cli.results import Row, row_of
from fanfold.cli.serving import served
from fanfold.cli.tally import Tally
from fanfold.cli.waiting_note import WaitingNote
from fanfold.config.discovery import load
from fanfold.contracts.codec import encode_json
from fanfold.contracts.events import AgentEvent
from fanfold.kernel.step_identity import digest
from fanfold.options import SessionOptions
from fanfold.orchestration.checkpoints import delete_checkpoint
from fanfold.orchestration.map_plan import MapPlan, plan_map
from fanfold.orchestration.mapping import MapItem, MapRow, MapStep
from fanfold.protocols import EventSink
from fanfold.session.session import Session

_ID_CHARS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    items: Sequence[Item]
    steps: Sequence[MapStep]
    config: Path | None
    allow: Sequence[str]
    concurrency: int | None
    budget: int | None
    wait: bool
    """For approvals and answers from other processes."""
    is_fresh: bool

    def meant(self, default_model: str) -> list[MapStep]:
        """The steps, each with its model: it is part of what was asked."""
        return [replace(step, model=default_model) if step.model is None else step for step in self.steps]


async def run_job(job: Job, view: View, tally: Tally, console: Console, *, is_told: bool) -> list[Row]:
    """One row for each item, in their order. `view` is open, and hears everything, while the work goes on.

    Raises:
        UsageError, ConfigError, AlreadyActiveError: before any item has run.
        LogWriteError: a finished item could not be recorded; those before it are.
    """
    gathered = _Gathered(job.items, view)
    async with await open_agent(job.config) as agent:
        steps = job.meant(agent.settings.default_model)
        known_as = workflow_id(steps)
        async with (
            _opened(job, agent, steps) as session,
            served(session, console, known_as=known_as, is_needed=job.wait, is_told=is_told),
            view,
        ):
            note = WaitingNote(known_as, session.session_id) if job.wait and is_told else None
            tally.never_started = gathered.finish_unreadable()
            await session.map_async(
                gathered.runnable(),
                steps,
                workflow_id=known_as,
                budget_tokens=job.budget,
                events=view.event if note is None else _both(view.event, note),
                on_row=gathered.on_row,
            )
    return gathered.in_order()


async def plan_job(job: Job) -> MapPlan:
    """What `run_job` would do with the items that can be read. Of the configuration only the default model counts."""
    steps = _steps_of(job)
    items = [_as_map_item(item) for item in job.items if item.problem is None]
    async with open_store() as store:
        return await plan_map(store, items, steps, workflow_id(steps))


def workflow_id_of(job: Job) -> str:
    """What `run_job` records it as."""
    return workflow_id(_steps_of(job))


def _steps_of(job: Job) -> list[MapStep]:
    return job.meant(load(job.config, start=Path.cwd(), environ=os.environ).default_model)


def workflow_id(steps: Sequence[MapStep]) -> str:
    """What this chain of steps is recorded as; short, for people type it, and its places tell the steps as well."""
    return f"map-{digest(encode_json([step.to_dict() for step in steps]))[:_ID_CHARS]}"


@asynccontextmanager
async def _opened(job: Job, agent: Agent, steps: Sequence[MapStep]) -> AsyncGenerator[Session]:
    await require_models(
        agent, ((f"--then {number}" if number else "--model", step.model) for number, step in enumerate(steps))
    )
    async with open_store() as store:
        options = SessionOptions(
            model=steps[0].model,
            max_parallel_tasks=job.concurrency,
            approvals="park" if job.wait else "refuse",
            session_store=store,
        )
        async with await open_session(agent, job.allow, options) as session:
            named = ((f"--then {number}" if number else "--agent", step.agent) for number, step in enumerate(steps))
            require_roles(session, named)
            if job.is_fresh:  # last, when nothing else can be wrong with the command
                await delete_checkpoint(store, workflow_id(steps))
            yield session


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
        return [_as_map_item(self.items[index]) for index in self.indices]

    def on_row(self, position: int, row: MapRow) -> None:
        self._finish(self.indices[position], row_of(row.key, row.outcome, is_cached=row.is_cached))

    def _finish(self, index: int, row: Row) -> None:
        self.rows[index] = row
        self.view.finish(row)

    def in_order(self) -> list[Row]:
        return [self.rows[index] for index in range(len(self.items))]


def _both(first: EventSink, second: EventSink) -> EventSink:
    def hear(event: AgentEvent) -> None:
        first(event)
        second(event)

    return hear


def _as_map_item(item: Item) -> MapItem:
    return MapItem(key=item.key, fields=dict(item.fields))
