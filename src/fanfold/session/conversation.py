"""Conversation: one thread of facts, and the runs that drive it. Every kind of run goes through `start`."""

import asyncio
import functools
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from fanfold.contracts.events import AgentResult, event
from fanfold.contracts.facts import NewFact, RecordedCall
from fanfold.contracts.messages import NO_USAGE, Usage, UsageSum
from fanfold.contracts.runs import SpawnedRun
from fanfold.env import HostEnv
from fanfold.errors import (
    CheckpointNotFoundError,
    CorruptLogError,
    FanfoldError,
    MissingStoreError,
    ParkedError,
    RunCancelledError,
    SessionBusyError,
)
from fanfold.foreign import logger, stop_if_cancelled, tolerant
from fanfold.governance.budget import BudgetGate
from fanfold.governance.hooks import Hooks
from fanfold.kernel.call_ids import HOST_PREFIX
from fanfold.kernel.fold import fold
from fanfold.kernel.state import EMPTY, SessionState
from fanfold.options import SessionOptions
from fanfold.portal import complete
from fanfold.protocols import EventSink, FactLog, HeldThread
from fanfold.runs.operations import Operations
from fanfold.runs.runs import INTERRUPTED, Run, Runs
from fanfold.session.driver import Driver
from fanfold.session.effects import Effects
from fanfold.session.inbox import Inbox
from fanfold.session.notices import Notices, inside
from fanfold.session.run_watch import RunWatch
from fanfold.session.saved_session import SavedConversation
from fanfold.session.saving import take_up
from fanfold.session.setup import Composer
from fanfold.session.surroundings import Surroundings

OPENING_SECONDS = 0.5
"""How long a session that is opened, or wakes, waits for another process that has the thread: one that opens it too has
it only for a moment."""


class RunScope(msgspec.Struct, frozen=True):
    """What a run works with, while it holds the thread."""

    run: Run
    driver: Driver
    effects: Effects
    held: HeldThread


Begin = Callable[[RunScope], Awaitable[AgentResult | None]]
"""Records what the run starts from; a result ends it there, without the model."""
End = Callable[[RunScope], Awaitable[AgentResult]]


class Conversation:
    def __init__(
        self,
        *,
        session_id: str,
        workspace: str,
        options: SessionOptions,
        env: HostEnv,
        log: FactLog,
        composer: Composer,
        operations: Operations,
        inbox: Inbox,
        hooks: Hooks,
        budget: BudgetGate,
        runs: Runs,
        notices: Notices,
        saved: SavedConversation | None,
        finish: End,
        prepare: Callable[[RunScope], None],
    ) -> None:
        self.session_id = session_id
        self._workspace = workspace
        self._options = options
        self._env = env
        self._log = log
        self._composer = composer
        self._operations = operations
        self._inbox = inbox
        self._hooks = hooks
        self._budget = budget
        self._runs = runs
        self.notices = notices
        notices.belongs_to(self)
        self._saved = saved
        self._finish = finish
        self._prepare = prepare
        self._lineage: object = None
        self._memo: dict[str, Any] = {}
        self._beside = UsageSum()
        self._torn_tail: str | None = None
        """That was cut off, and of which no run has told yet."""
        self._is_greeted = False
        self._owner: Callable[[], object] = object
        self.state: SessionState = EMPTY

    def owned_by(self, owner: object) -> None:
        self._owner = weakref.ref(owner)

    # ---- runs ----

    def start(
        self,
        prompt: str,
        begin: Begin,
        *,
        run_id: str | None = None,
        listener: EventSink | None = None,
        approvals: str | None = None,
        takes_steers: bool = True,
        wait_seconds: float = 0.0,
    ) -> Run:
        """A run under way.

        Raises:
            SessionBusyError, SessionClosedError: nothing was started, nothing recorded.
        """
        self._operations.require(is_exclusive=True)
        run = self._runs.reserve(run_id, prompt, None if listener is None else tolerant(listener))
        if not takes_steers:
            run.inbox.refuse_steers()
        task = self._operations.start(self._run(run, begin, approvals, wait_seconds), is_exclusive=True)
        run.begin(task)
        self.keep_for(task)
        return run

    def keep_for(self, task: "asyncio.Task[Any]") -> None:
        """A session that nobody holds any more lives as long as its run does, and its work in the background."""
        task.add_done_callback(functools.partial(_let_go, self._owner()))

    @property
    def is_at_rest(self) -> bool:
        """Nothing of its last turn is left to do, and somebody still holds its session."""
        return self.state.phase in ("idle", "done") and self._owner() is not None

    @property
    def waits_for_person(self) -> bool:
        """The run under way does, with a call of its own or a question. Whoever has answered is not waited for."""
        asked = [(each.session_id, each.tool_id) for each in self._inbox.confirmations()]
        asked += [(each.session_id, each.question_id) for each in self._inbox.questions()]
        return any(who == self.session_id and not id.startswith(HOST_PREFIX) for who, id in asked)

    def wake(self, title: str, listener: EventSink | None) -> Run:
        """A run that tells of the notices that wait. They are no prompt: no hook is asked, no plan or goal made."""

        async def begin(scope: RunScope) -> AgentResult | None:
            if not self.is_at_rest:
                raise SessionBusyError(session_id=self.session_id).with_hint(
                    "another process has left its turn unfinished: resume_run() or the next prompt goes on"
                )
            if not await scope.driver.notify(begins_run=True):
                return AgentResult(text="", usage=NO_USAGE, tool_calls_count=0, stop_reason="stop", run_id=scope.run.id)
            self._prepare(scope)
            return None

        return self.start(title, begin, listener=listener, wait_seconds=OPENING_SECONDS)

    async def start_once(self, run_id: str, prompt: str, begin: Begin) -> SpawnedRun:
        """A run under an id that the caller chose; the one that there is, when it was started before.

        Raises:
            RunIdentityError: that id stands for another prompt.
        """
        known = self._runs.known(run_id, prompt)
        if known is not None:
            return SpawnedRun(snapshot=known.snapshot(), replayed=True)
        async with self.notices.held_off(is_prompt=True):
            return SpawnedRun(snapshot=self.start(prompt, begin, run_id=run_id).snapshot(), replayed=False)

    async def _run(self, run: Run, begin: Begin, approvals: str | None, wait_seconds: float) -> AgentResult:
        inside.set(run)
        effects = Effects(self._composer.for_session(), self._surroundings(run, approvals))
        is_over = True
        try:
            async with self._held(wait_seconds) as held:
                return await self._driven(self._scope(run, effects, held), begin)
        except ParkedError:
            is_over = False  # it may go on, here or elsewhere, when the person has spoken
            raise
        except asyncio.CancelledError:
            is_over = run.is_settled  # otherwise it was cut off, and may go on likewise
            raise
        except FanfoldError as error:
            if self._hooks.hears("on_error"):
                told = {"session_id": self.session_id, "code": error.code, "message": str(error)}
                await self._hooks.fire("on_error", told)
            raise
        finally:
            if self._saved is not None:
                await complete(self._saved.run_ended(run, is_over=is_over))

    async def _driven(self, scope: RunScope, begin: Begin) -> AgentResult:
        run = scope.run
        try:
            run.has_thread()
            await self._greet(scope.effects)
            run.emit(event("agent_start", prompt=run.prompt, run_id=run.id))
            if self._torn_tail is not None:
                run.emit(event("log_repaired", session_id=self.session_id, kept_in=self._torn_tail))
                self._torn_tail = None
            result = await begin(scope)
            if result is None:
                await scope.driver.drive()
                result = await self._finish(scope)
            stop_if_cancelled()  # a cancellation wins over the result that it raced with
            run.end(result)
        except ParkedError as error:
            run.end(error)
            await self._auto_save(scope.held, scope.driver.state, run)
            raise
        except asyncio.CancelledError:
            if run.is_stopping:
                await complete(self._interrupted(scope))
            raise
        finally:
            await self._leave(scope)
        await self._auto_save(scope.held, self.state, run)
        return result

    def _scope(self, run: Run, effects: Effects, held: HeldThread) -> RunScope:
        watch = RunWatch(run, effects, held, self._saved)
        notices = self.notices
        driver = Driver(self._composer.for_session(), effects, held, self.state, watch, run.inbox, notices)

        async def parked(state: SessionState) -> None:
            await watch.checkpoint(state)
            notices.changed()  # what it asks is in the inbox when they look, for nothing is awaited before

        effects.people.on_park = parked
        return RunScope(run, driver, effects, held)

    async def _leave(self, scope: RunScope) -> None:
        self.state = scope.driver.state
        await self._catch_up(scope.held)  # an append that was cancelled may have landed all the same

    async def _interrupted(self, scope: RunScope) -> None:
        """Settle the turn at a person's wish: its answer says that it was interrupted (notes 3.4)."""
        run = scope.run
        scope.driver.state = await self._caught_up(scope.held, scope.driver.state)
        if run.inbox.has_turn:  # what an earlier run left unfinished is not this one's to settle
            await scope.driver.interrupt(INTERRUPTED)
        if (waiting := run.inbox.next("interrupt")) is not None:
            run.inbox.applied(waiting[0])
        run.end(RunCancelledError(session_id=self.session_id))
        await self._auto_save(scope.held, scope.driver.state, run)

    async def _auto_save(self, held: HeldThread, state: SessionState, run: Run | None = None) -> None:
        if self._saved is not None and self._options.auto_save:
            await self._saved.auto_save(held, state.session_usage + self._beside.usage(), run)

    async def _greet(self, effects: Effects) -> None:
        if not self._is_greeted:
            self._is_greeted = True
            if self._hooks.hears("session_start"):
                await effects.telling.ask_hooks("session_start", workspace=self._workspace)

    def _surroundings(self, run: Run | None, approvals: str | None = None) -> Surroundings:
        return Surroundings(
            session_id=self.session_id,
            workspace=self._workspace,
            env=self._env,
            inbox=self._inbox,
            hooks=self._hooks,
            budget=self._budget,
            approvals="refuse" if approvals == "refuse" else self._options.approvals or "park",
            emit=None if run is None else run.emit,
            is_listened_to=run is not None and run.is_listened_to,
            streams_text=run is not None and run.is_listened_to,
            memo=self._memo,
            beside=self._beside,
        )

    def direct(self, listener: EventSink | None) -> Effects:
        """For calls that the host makes itself, beside any run."""
        around = self._surroundings(None)
        if listener is not None:
            around = msgspec.structs.replace(around, emit=listener, is_listened_to=True)
        return Effects(self._composer.for_host(), around)

    # ---- resuming ----

    async def resume(
        self, run_id: str | None, listener: EventSink | None, *, waits: bool = True, exact_id: str | None = None
    ) -> Run:
        """The run that goes on where `run_id` stopped: a new one, whose steps the folded facts decide (decisions 2.10).

        Raises:
            MissingStoreError, CheckpointNotFoundError: neither a checkpoint nor a fact to go on from.
            RunCheckpointRefusedError: the checkpoint is not this session's, or of a later version.
            AlreadyActiveError: another node is at work on this session.
        """
        async with self.notices.held_off():
            return await self._resume(run_id, listener, waits=waits, exact_id=exact_id)

    async def _resume(
        self, run_id: str | None, listener: EventSink | None, *, waits: bool, exact_id: str | None
    ) -> Run:
        self._operations.require(is_exclusive=True)
        saved = self._saved
        checkpoint = None if saved is None or run_id is None else await saved.checkpoint_to_resume(run_id)
        if checkpoint is None and not self.state.facts:
            await self._operations.run(self.load(), is_exclusive=True)
            if saved is not None and run_id is None and not self.state.facts:
                checkpoint = await saved.newest_checkpoint()
            if checkpoint is None:
                self._require_facts(run_id)

        async def begin(scope: RunScope) -> None:
            if saved is not None and checkpoint is not None:
                facts = await saved.facts_of(checkpoint)
                await take_up(scope.held, facts)
                scope.driver.state = self.state = await self._caught_up(scope.held, scope.driver.state)
                if len(facts) == checkpoint.facts.last_seq:
                    # What no fact tells of goes on too: plans and goals that were made before.
                    scope.effects.model.extra_usage += checkpoint.total_usage - fold(facts).usage
            self._require_facts(run_id)
            self._prepare(scope)
            self.notices.expect()
            scope.run.inbox.turn_began(scope.driver.state.turn)

        return self.start(
            f"<resume run={run_id or self.session_id}>",
            begin,
            run_id=exact_id,
            listener=listener,
            approvals=None if waits else "refuse",
        )

    def _require_facts(self, run_id: str | None) -> None:
        if self.state.facts:
            return
        if self._saved is None:
            raise MissingStoreError("resume_run requires a session_store on this session").with_hint(
                "the session's own log is empty: open it with the store that the run wrote its checkpoints to"
            )
        raise CheckpointNotFoundError(run_id=run_id or self.session_id)

    @property
    def usage(self) -> Usage:
        """Of all runs together; of calls beside the conversation, such as plans, those of this process."""
        return self.state.session_usage + self._beside.usage()

    # ---- people ----

    def parked_calls(self) -> list[RecordedCall]:
        return [call for call in self.state.pending if call.id not in self.state.approved]

    async def record_answer(self, waits: Callable[[RecordedCall], bool], make: Callable[[int], NewFact]) -> bool:
        """Record the answer to a parked call for `resume_run`; False when by now the log has no call that waits."""
        async with self._held() as held:
            if not any(waits(call) for call in self.parked_calls()):
                return False
            self.state = fold(await held.append([make(held.last_seq)]), self.state)
            await self._auto_save(held, self.state)
            return True

    # ---- the thread ----

    async def load(self) -> None:
        """Fold what the log holds."""
        async with self._held(OPENING_SECONDS):
            pass

    async def restore(self) -> None:
        """Be the conversation that was saved under this id."""
        if self._saved is not None:
            async with self._held() as held:
                facts, usage = await self._saved.restore()
                await take_up(held, facts)
                self._beside.add(usage - fold(facts).session_usage)
                await self._catch_up(held)

    async def save(self) -> None:
        """Raises AlreadyActiveError, StorageError."""
        if self._saved is not None:
            async with self._held() as held:
                await self._saved.save(held, self.usage)

    @asynccontextmanager
    async def _held(self, wait_seconds: float = 0.0) -> AsyncGenerator[HeldThread]:
        """The thread for one operation, with everything in it folded."""
        held = await self._log.hold(self.session_id, wait_seconds=wait_seconds)
        try:
            if held.torn_tail is not None:
                self._torn_tail = held.torn_tail
                logger.warning("session %s: the torn end of its log was put into %s", self.session_id, held.torn_tail)
            await self._catch_up(held)
            yield held
        finally:
            await complete(held.release())

    async def _catch_up(self, held: HeldThread) -> None:
        self.state = await self._caught_up(held, self.state)

    async def _caught_up(self, held: HeldThread, state: SessionState) -> SessionState:
        # What was folded counts only for the log that it came from: one that was cut or replaced is folded anew.
        known = state if held.lineage is self._lineage else EMPTY
        try:
            state = fold(await held.read(known.last_seq), known)
        except CorruptLogError as error:
            raise CorruptLogError(thread=self.session_id, line=error.line, reason=error.reason) from None
        self._lineage = held.lineage
        return state


def _let_go(_owner: object, _task: "asyncio.Task[AgentResult]") -> None:
    """Its arguments were what had to live on."""
