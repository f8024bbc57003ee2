"""SavedConversation: when a session is saved, what of it, and how it is taken up again.

A store that fails never ends a run: the run tells it (`persistence_failed`) and goes on, for its facts are in its log.
"""

from collections.abc import Callable

import msgspec

from fanfold.contracts.events import event
from fanfold.contracts.facts import Fact
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
    SavedSettings,
    SavedTags,
)
from fanfold.env import HostEnv
from fanfold.errors import FanfoldError
from fanfold.foreign import logger
from fanfold.kernel.state import SessionState
from fanfold.options import SessionOptions
from fanfold.protocols import HeldThread
from fanfold.session.run_control import ControlRequest
from fanfold.session.runs import Run, Runs
from fanfold.session.saving import SessionSaves
from fanfold.session.tracker import Tracker


class SavedConversation:
    def __init__(
        self,
        *,
        saves: SessionSaves,
        session_id: str,
        workspace: str,
        options: SessionOptions,
        model: Callable[[], str],
        runs: Runs,
        tracker: Tracker,
        env: HostEnv,
    ) -> None:
        self._saves = saves
        self._session_id = session_id
        self._workspace = workspace
        self._options = options
        self._model = model
        self._runs = runs
        self._tracker = tracker
        self._env = env
        self._created_at_ms: int | None = None
        self._event_logs: dict[str, tuple[str, int]] = {}
        """Of runs whose events are in the store: the log, and the sequence of its first one."""

    # ---- checkpoints ----

    async def checkpoint(self, run: Run, held: HeldThread, state: SessionState, rounds: int) -> None:
        """Say how far the run has come; a failure is told, and the run goes on."""
        try:
            await self._saves.take()  # until the run ends: nobody else may take the session up meanwhile
            facts = await self._saves.put_facts(held)
            await self._saves.put_checkpoint(
                LoopCheckpoint(
                    schema_version=CHECKPOINT_VERSION,
                    run_id=run.id,
                    session_id=self._session_id,
                    turn=rounds,
                    facts=facts,
                    total_usage=state.usage,
                    tool_calls_count=state.tool_results,
                    checkpoint_ms=self._env.clock.now_ms(),
                )
            )
        except FanfoldError as error:
            self._failed(run, "checkpoint", error)

    async def run_ended(self, run: Run, *, is_over: bool) -> None:
        """A run that is over needs no checkpoint; one that was cut off keeps it, for whoever goes on."""
        try:
            if is_over:
                await self._saves.forget_checkpoint(run.id)
        except FanfoldError as error:
            self._failed(run, "checkpoint", error)
        finally:
            await self._saves.let_go()

    async def checkpoint_to_resume(self, run_id: str) -> LoopCheckpoint | None:
        return await self._saves.checkpoint(run_id)

    async def required_checkpoint(self, run_id: str) -> LoopCheckpoint:
        """Raises CheckpointNotFoundError."""
        return await self._saves.required(run_id)

    async def facts_of(self, checkpoint: LoopCheckpoint) -> list[Fact]:
        """Also takes the right to write, which the run keeps to its end. Raises AlreadyActiveError."""
        await self._saves.take()
        return await self._saves.read_facts(checkpoint.facts)

    # ---- the whole session ----

    async def save(self, held: HeldThread, state: SessionState) -> None:
        """One new generation in the store.

        Raises:
            AlreadyActiveError: another node is at work on this session.
            StoreConflictError: another node has saved it meanwhile.
            StorageError: the store refuses.
        """
        async with self._saves.writing():
            before = await self._saves.load()
            facts = await self._saves.put_facts(held)
            await self._saves.save(await self._generation(facts, state, before))
            await self._drop_events()

    async def auto_save(self, run: Run, held: HeldThread, state: SessionState) -> None:
        try:
            await self.save(held, state)
        except FanfoldError as error:
            self._failed(run, "auto_save", error)

    async def _generation(self, facts: SavedFacts, state: SessionState, before: SavedSession | None) -> SavedSession:
        now, options = self._env.clock.now_ms(), self._options
        if self._created_at_ms is None:
            self._created_at_ms = now if before is None else before.created_at_ms
        return SavedSession(
            schema_version=SESSION_VERSION,
            session_id=self._session_id,
            workspace=self._workspace,
            created_at_ms=self._created_at_ms,
            updated_at_ms=now,
            tags=msgspec.convert(options, SavedTags, from_attributes=True),
            settings=msgspec.structs.replace(
                msgspec.convert(options, SavedSettings, from_attributes=True), model=self._model()
            ),
            facts=facts,
            total_usage=state.session_usage,
            runs=tuple([await self._saved_run(run) for run in self._runs.all()]),
            tasks=tuple(self._tracker.tasks()),
        )

    async def _saved_run(self, run: Run) -> SavedRun:
        controls = tuple(
            SavedControl(request=_plain(request), receipt=receipt) for request, receipt in run.inbox.saved()
        )
        if run.is_terminal and run.id not in self._event_logs:
            first, events = run.events.saved()
            self._event_logs[run.id] = (await self._saves.put_events(run.id, events), first)
        log, first = self._event_logs.get(run.id, (None, 0))
        return SavedRun(snapshot=run.snapshot(), events=log, first_sequence=first, controls=controls)

    async def _drop_events(self) -> None:
        """Of runs that the session does not keep any more, once no generation counts on them."""
        for run_id in [each for each in self._event_logs if self._runs.get(each) is None]:
            log, _ = self._event_logs.pop(run_id)
            await self._saves.forget_events(log)

    async def restore(self, saved: SavedSession) -> list[Fact]:
        """Take up the runs and the children of a saved generation; its facts, for the caller to take up."""
        self._created_at_ms = saved.created_at_ms
        self._tracker.restore(saved.tasks)
        events = {each.snapshot.id: await self._events_of(each) for each in saved.runs}

        def filled(each: SavedRun) -> tuple[RunSnapshot, Callable[[Run], None]]:
            def fill(run: Run) -> None:
                run.events.restore(each.first_sequence, events[run.id], each.snapshot.updated_at_ms)
                controls = [(msgspec.convert(one.request, ControlRequest), one.receipt) for one in each.controls]
                run.inbox.restore(controls)

            return each.snapshot, fill

        self._runs.restore(filled(each) for each in saved.runs)
        return await self._saves.read_facts(saved.facts)

    async def _events_of(self, run: SavedRun) -> list[bytes]:
        if run.events is None:
            return []
        self._event_logs[run.snapshot.id] = (run.events, run.first_sequence)
        return await self._saves.read_events(run.events)

    def _failed(self, run: Run, operation: str, error: FanfoldError) -> None:
        logger.warning("session %s: %s failed: %s", self._session_id, operation, error)
        run.emit(event("persistence_failed", session_id=self._session_id, operation=operation, error=str(error)))


def _plain(request: ControlRequest) -> JsonObject:
    plain: JsonObject = msgspec.to_builtins(request)
    return plain
