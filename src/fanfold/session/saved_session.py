"""SavedConversation: when a session is saved, what of it, and how it is taken up again.

A store that fails never ends a run: the run tells it (`persistence_failed`) and goes on, for its facts are in its log.
"""

from collections.abc import Awaitable, Callable

import msgspec

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.events import event
from fanfold.contracts.facts import Fact
from fanfold.contracts.messages import Usage
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunSnapshot
from fanfold.contracts.saved import (
    CHECKPOINT_VERSION,
    SESSION_VERSION,
    LoopCheckpoint,
    SavedControl,
    SavedFacts,
    SavedRun,
    SavedSession,
    SavedTags,
)
from fanfold.delegation.tracker import Tracker
from fanfold.env import HostEnv
from fanfold.errors import CheckpointNotFoundError, SessionNotFoundError, StoreConflictError
from fanfold.foreign import call_foreign, described, logger
from fanfold.kernel.state import SessionState
from fanfold.options import SessionOptions
from fanfold.protocols import HeldThread
from fanfold.runs.runs import Run, Runs
from fanfold.session.saving import SessionSaves

NOT_SAVED = frozenset(
    {
        *SavedTags.__struct_fields__,
        "session_id",
        "session_store",
        "host_env",
        "budget_guard",
        "budget_guard_timeout_ms",
        "agent_dirs",
        "allow_unsandboxed_bash",
    }
)
"""Options that are saved elsewhere, that are no data, or that each machine has to decide."""


class _EventLog(msgspec.Struct):
    """Where the store has the events of a run that is over."""

    name: str
    first: int
    """Sequence of its first event."""
    end: int
    """Sequence behind its last one."""


class SavedConversation:
    def __init__(
        self,
        *,
        saves: SessionSaves,
        session_id: str,
        workspace: str,
        options: SessionOptions,
        role: AgentDefinition | None,
        model: Callable[[], str],
        runs: Runs,
        tracker: Tracker,
        env: HostEnv,
    ) -> None:
        self._saves = saves
        self._session_id = session_id
        self._workspace = workspace
        self._options = options
        self._role = role
        self._model = model
        self._runs = runs
        self._tracker = tracker
        self._env = env
        self._created_at_ms: int | None = None
        """None until it is known whether the store has an earlier generation."""
        self._event_logs: dict[str, _EventLog] = {}
        """By run id."""
        self._kept_logs: set[str] = set()
        """All event logs that the store has of this session, as far as is known."""

    # ---- checkpoints ----

    async def checkpoint(self, run: Run, held: HeldThread, state: SessionState, extra_usage: Usage) -> None:
        """Say how far the run has come; a failure is told, and the run goes on."""
        await self._tried(run, "checkpoint", self._checkpoint(run, held, state, extra_usage))

    async def _checkpoint(self, run: Run, held: HeldThread, state: SessionState, extra_usage: Usage) -> None:
        await self._saves.take()  # until the run ends: nobody else may take the session up meanwhile
        facts = await self._saves.put_facts(held)
        await self._saves.put_checkpoint(
            LoopCheckpoint(
                schema_version=CHECKPOINT_VERSION,
                run_id=run.id,
                session_id=self._session_id,
                turn=state.cycle,
                facts=facts,
                total_usage=state.usage + extra_usage,
                tool_calls_count=state.tool_results,
                checkpoint_ms=self._env.clock.now_ms(),
            )
        )

    async def run_ended(self, run: Run, *, is_over: bool) -> None:
        """A run that is over needs no checkpoint; one that was cut off keeps it, for whoever goes on."""
        if is_over:
            await self._tried(run, "checkpoint", self._saves.forget_checkpoint(run.id))
        await self._tried(run, "checkpoint", self._saves.let_go())

    async def checkpoint_to_resume(self, run_id: str) -> LoopCheckpoint | None:
        """Raises RunCheckpointRefusedError."""
        return await self._saves.checkpoint(run_id)

    async def newest_checkpoint(self) -> LoopCheckpoint | None:
        """Of this session, whichever run wrote it."""
        run_id = await self._saves.newest_checkpoint()
        return None if run_id is None else await self._saves.checkpoint(run_id)

    async def required_checkpoint(self, run_id: str) -> LoopCheckpoint:
        """Raises CheckpointNotFoundError, RunCheckpointRefusedError."""
        found = await self._saves.checkpoint(run_id)
        if found is None:
            raise CheckpointNotFoundError(run_id=run_id)
        return found

    async def facts_of(self, checkpoint: LoopCheckpoint) -> list[Fact]:
        """All that the store has of the session's facts: where they go on behind the checkpoint, another run has gone
        on from it. Also takes the right to write, which the run keeps to its end. Raises AlreadyActiveError."""
        await self._saves.take()
        return await self._saves.read_facts(checkpoint.facts, to_end=True)

    # ---- the whole session ----

    async def save(self, held: HeldThread, usage: Usage) -> None:
        """One new generation in the store; `usage` is that of all runs together.

        Raises:
            AlreadyActiveError: another node is at work on this session.
            StoreConflictError: another node has saved it meanwhile.
            StorageError: the store refuses.
        """
        async with self._saves.writing():
            if self._created_at_ms is None:
                await self._begin()
            generation = await self._saved(held, usage)
            await self._drop_events({run.events for run in generation.runs})

    async def _saved(self, held: HeldThread, usage: Usage) -> SavedSession:
        while True:
            try:
                facts = await self._saves.put_facts(held)
                generation = await self._generation(facts, usage)
                await self._saves.save(generation)
                return generation
            except StoreConflictError as error:
                self._event_logs.clear()  # what the store has is not known for sure any more
                if error.actual > 0:
                    raise
                # Nobody was faster: the store has been emptied. All of it is written anew.

    async def auto_save(self, held: HeldThread, usage: Usage, run: Run | None = None) -> None:
        """`save`, at the end of a run if one is given; a failure is told."""
        await self._tried(run, "auto_save", self.save(held, usage))

    async def _begin(self) -> None:
        """Before the first save: whoever replaces what was saved under this id keeps the runs and children of it."""
        before = await self._saves.load()
        if before is not None:
            await self._take_up(before)
        else:
            self._created_at_ms = self._env.clock.now_ms()

    async def _generation(self, facts: SavedFacts, usage: Usage) -> SavedSession:
        now, options = self._env.clock.now_ms(), self._options
        runs = [await self._saved_run(run) for run in self._runs.all()]
        return SavedSession(
            schema_version=SESSION_VERSION,
            session_id=self._session_id,
            workspace=self._workspace,
            created_at_ms=now if self._created_at_ms is None else self._created_at_ms,
            updated_at_ms=now,
            tags=msgspec.convert(options, SavedTags, from_attributes=True),
            options=_saved_options(options, self._model()),
            role=self._role,
            facts=facts,
            total_usage=usage,
            runs=tuple(runs),
            tasks=tuple(self._tracker.tasks()),
        )

    async def _saved_run(self, run: Run) -> SavedRun:
        log = self._event_logs.pop(run.id, None)  # until it is known for sure what the store has
        if log is None or log.end < run.events.count:  # it is new, or a child that outlived it has told more
            snapshot, log = await self._events_put(run, log)
        else:
            snapshot = run.snapshot()
        self._event_logs[run.id] = log
        return SavedRun(
            snapshot=snapshot,
            events=log.name,
            first_sequence=log.first,
            controls=tuple(SavedControl(fingerprint=each, receipt=receipt) for each, receipt in run.inbox.saved()),
        )

    async def _events_put(self, run: Run, log: _EventLog | None) -> tuple[RunSnapshot, _EventLog]:
        snapshot, first, events = run.saved()
        end = first + len(events)
        if log is None or log.end < first:
            log = _EventLog(await self._saves.put_events(run.id, events), first, end)
            self._kept_logs.add(log.name)
            return snapshot, log
        await self._saves.add_events(log.name, log.end - log.first, events[log.end - first :])
        return snapshot, _EventLog(log.name, log.first, end)

    async def _drop_events(self, counted: set[str]) -> None:
        """Forget those on which no generation counts any more: of runs that are not kept."""
        self._event_logs = {run_id: log for run_id, log in self._event_logs.items() if log.name in counted}
        for log in sorted(self._kept_logs - counted):
            await self._saves.forget_events(log)
            self._kept_logs.remove(log)

    # ---- taking up ----

    async def restore(self) -> tuple[list[Fact], Usage]:
        """Take up the runs and the children of what was saved; its facts and its usage, for the caller to take up.

        Raises:
            SessionNotFoundError: nothing was saved under this id.
        """
        saved = await self._saves.load()
        if saved is None:
            raise SessionNotFoundError(session_id=self._session_id)
        facts = await self._saves.read_facts(saved.facts)
        await self._take_up(saved)
        return facts, saved.total_usage

    async def _take_up(self, saved: SavedSession) -> None:
        runs = [each for each in saved.runs if self._runs.get(each.snapshot.id) is None]
        events = {each.snapshot.id: await self._events_of(each) for each in runs}

        def filled(each: SavedRun) -> tuple[RunSnapshot, Callable[[Run], None]]:
            def fill(run: Run) -> None:
                run.events.restore(each.first_sequence, events[run.id], each.snapshot.updated_at_ms)
                run.inbox.restore((one.fingerprint, one.receipt) for one in each.controls)

            return each.snapshot, fill

        self._runs.restore(filled(each) for each in runs)
        self._kept_logs |= {each.events for each in saved.runs}
        self._tracker.restore(saved.tasks)
        self._created_at_ms = saved.created_at_ms

    async def _events_of(self, run: SavedRun) -> list[bytes]:
        events = await self._saves.read_events(run.events)
        first = run.first_sequence
        self._event_logs[run.snapshot.id] = _EventLog(run.events, first, first + len(events))
        return events

    # ---- failures ----

    async def _tried(self, run: Run | None, operation: str, work: Awaitable[None]) -> None:
        def failed(error: BaseException) -> None:
            text = described(error)
            logger.warning("session %s: %s failed: %s", self._session_id, operation, text)
            if run is not None:
                run.emit(event("persistence_failed", session_id=self._session_id, operation=operation, error=text))

        await call_foreign(work, failed)


def own_options(saved: SavedSession) -> JsonObject:
    """The saved options, whoever wrote them, without those that are not for a store to decide."""
    return {name: value for name, value in saved.options.items() if name not in NOT_SAVED}


def _saved_options(options: SessionOptions, model: str) -> JsonObject:
    names = [name for name in SessionOptions.__struct_fields__ if name not in NOT_SAVED]
    values = {name: getattr(options, name) for name in names} | {"model": model}
    plain: JsonObject = msgspec.to_builtins({name: value for name, value in values.items() if value is not None})
    return plain
