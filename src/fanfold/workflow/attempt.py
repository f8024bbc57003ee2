"""Attempt: one attempt of a run, from its first event to its one notification.

At its end, in this order: what runs has ended and is recorded, the output stands, the snapshot says how it ended, the
conversation's notice is kept, the run is let go, and only then anybody is told.
"""

import asyncio
import os
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from fanfold.contracts.codec import encode_json
from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonValue
from fanfold.contracts.run_journal import AttemptEnd
from fanfold.contracts.workflow_runs import RunBudget, RunFault, RunStatus, WorkflowResult, WorkflowSnapshot
from fanfold.env import HostEnv
from fanfold.errors import BudgetExhaustedError, StorageError
from fanfold.foreign import logger, tolerant
from fanfold.kernel.plain_text import plain
from fanfold.kernel.workflow_meta import json_fault
from fanfold.orchestration.ledger import TokenLedger
from fanfold.portal import complete
from fanfold.protocols import HeldRun
from fanfold.workflow.agents import LiveAgents
from fanfold.workflow.event_file import EventFile
from fanfold.workflow.journal import RunJournal
from fanfold.workflow.progress import Progress
from fanfold.workflow.refusals import Halt
from fanfold.workflow.script_host import RunHaltedError
from fanfold.workflow.scripts import Script, fault_of

GRACE_SECONDS = 5.0
"""How long a script may take to end after its run was stopped; then its task is cancelled."""
LOOK_SECONDS = 0.25
"""How often a run looks whether another process has asked something of it."""
SNAPSHOT_SECONDS = 1.0
"""How often the snapshot follows the progress."""


class Notices(Protocol):
    async def begin(self, snapshot: WorkflowSnapshot) -> bytes | None:
        """Keep that the conversation is to be told of the attempt; what was kept of an earlier one. Raises
        StorageError."""
        ...

    async def take_back(self, snapshot: WorkflowSnapshot, earlier: bytes | None) -> None:
        """Undo `begin`, which gave `earlier`. Raises StorageError."""
        ...

    async def keep(self, snapshot: WorkflowSnapshot, result: WorkflowResult) -> None:
        """Keep what the conversation is to be told. Raises StorageError."""
        ...

    def tell(self, snapshot: WorkflowSnapshot) -> None:
        """Have it told now."""
        ...


class Launched(Protocol):
    """What a launch has written."""

    async def take_back(self, *, is_told: bool = False) -> None: ...


class _End(msgspec.Struct, frozen=True):
    status: RunStatus
    value: JsonValue = None
    reason: str | None = None
    reset_ms: int | None = None
    error: RunFault | None = None


class Attempt:
    def __init__(
        self,
        *,
        snapshot: WorkflowSnapshot,
        script: Script,
        held: HeldRun,
        launched: Launched,
        journal: RunJournal,
        agents: LiveAgents,
        progress: Progress,
        ledger: TokenLedger,
        events: EventFile,
        output_file: str,
        env: HostEnv,
        play: Callable[[], Awaitable[JsonValue]],
        notices: Notices,
        remarks: Sequence[str],
    ) -> None:
        """`remarks`: what whoever watches is to know of what this attempt goes on from."""
        self.snapshot = snapshot
        self._script = script
        self._held = held
        self._launched = launched
        self._journal = journal
        self._agents = agents
        self._progress = progress
        self._ledger = ledger
        self._events = events
        self._output_file = output_file
        self._env = env
        self._play = play
        self._notices = notices
        self._remarks = remarks
        self._begun_ms = env.clock.monotonic_ms()
        self._earlier_usage = journal.view.usage
        self._earlier_cost = journal.view.cost
        self._earlier_tools = journal.view.tool_uses
        self.task: asyncio.Task[WorkflowResult] | None = None
        self.has_begun = False

    # ---- control ----

    def stop(self, status: RunStatus, reason: str = "requested") -> None:
        """End it: nothing is launched any more, what runs is cancelled. Doing it twice changes nothing."""
        self._agents.stop(Halt(status, reason))

    def skip(self, where: str) -> bool:
        return self._agents.skip(where)

    async def abandon(self, *, is_told: bool) -> None:
        """Let the run go that was never started: its session has been closed. `is_told`: its launch was answered."""
        try:
            await self._launched.take_back(is_told=is_told)
        finally:
            await self._held.release()

    # ---- the run ----

    async def run(self) -> WorkflowResult:
        self.has_begun = True
        meta, snapshot = self._script.meta, self.snapshot
        self._progress.tell("async_launched", workflow=meta.name)
        self._progress.tell(
            "task_started",
            workflow=meta.name,
            phases=None if meta.phases is None else list(meta.phases),
            attempt=snapshot.attempt,
            is_resume=snapshot.attempt > 1,
            budget=self._budget().to_dict(),
            started_ms=snapshot.started_ms,
        )
        for remark in self._remarks:
            self._progress.log(remark)
        watch = asyncio.create_task(self._watch())
        try:
            try:
                end = await self._played()
            finally:
                watch.cancel()
            return await complete(self._finish(end))
        except BaseException:
            try:
                await self._events.close()
            finally:
                await self._held.release()  # whatever this is, the next attempt is not to wait for it
            raise

    async def _played(self) -> _End:
        script = asyncio.ensure_future(self._play())
        try:
            await self._until_done(script)
        except asyncio.CancelledError:  # the session closes, and with it what runs in it
            self.stop("stopped", "closed")
            with suppress(asyncio.CancelledError):  # once more, say by the end of its loop: it is ending already
                await complete(self._until_done(script))
        finally:
            self._progress.is_over = True
        return self._judged(script)

    async def _until_done(self, script: "asyncio.Future[JsonValue]") -> None:
        """Return when the script has ended, or would not end though its run is halted."""
        halted = asyncio.ensure_future(self._agents.halted.wait())
        either: set[asyncio.Future[Any]] = {script, halted}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            while self._agents.running and not self._agents.is_stopping and not script.done():
                await asyncio.wait({script}, timeout=LOOK_SECONDS)  # they end by themselves, and are recorded
        finally:
            halted.cancel()
        if not script.done():
            await asyncio.wait({script}, timeout=GRACE_SECONDS)
        if not script.done():
            script.cancel()
            await asyncio.wait({script}, timeout=GRACE_SECONDS)
        if not script.done():
            logger.warning("run %s: something in its script does not end and is left behind", self.snapshot.run_id)
            script.add_done_callback(_seen)

    def _judged(self, script: "asyncio.Future[JsonValue]") -> _End:
        is_cancelled = not script.done() or script.cancelled()
        error = asyncio.CancelledError() if is_cancelled else script.exception()
        halt = self._agents.halt
        if halt is not None:
            fault = None
            if halt.status == "failed":
                fault = halt.error or RunFault(code=halt.reason, message=halt.reason)
            return _End(halt.status, reason=halt.reason, reset_ms=halt.reset_ms, error=fault)
        if isinstance(error, BudgetExhaustedError):
            return _End("paused", reason="budget_exhausted", error=self._fault(error))
        if self._progress.parked:
            return _End("paused", reason="parked")
        if error is not None:
            return _End("failed", error=self._fault(error))
        return self._returned(script.result())

    def _returned(self, value: JsonValue) -> _End:
        fault = json_fault(value)
        if fault is not None:
            reason = f"what the script returned is not JSON: {fault}"
            return _End("failed", error=RunFault(code="not_serialisable", message=reason))
        progress = self._progress
        if not progress.has_failures:
            return _End("completed", value)
        if progress.done + progress.cached + progress.skipped == 0 and progress.failed:
            which = (
                "its only agent failed" if progress.failed == 1 else f"all {progress.failed} agents failed; the first"
            )
            return self._none_succeeded(which, value)
        if progress.null_results == progress.slots > 0:
            one = progress.slots == 1
            which = "its only branch failed" if one else f"of {progress.slots} branches none succeeded; the first"
            return self._none_succeeded(which, value)
        return _End("completed_with_failures", value)

    def _none_succeeded(self, which: str, value: JsonValue) -> _End:
        first = self._progress.failures[0]
        return _End("failed", value, error=RunFault(code=first.code, message=f"{which}: {first.message}"))

    def _fault(self, error: BaseException) -> RunFault:
        if isinstance(error, asyncio.CancelledError | RunHaltedError):
            return RunFault(code="cancelled", message="the script was cancelled")
        trace = plain("".join(traceback.format_exception(error))[-8_000:])
        return msgspec.structs.replace(fault_of(error, self._script.file_name), trace=trace)

    # ---- its end ----

    async def _finish(self, end: _End) -> WorkflowResult:
        await self._agents.end(GRACE_SECONDS)
        try:
            await self._journal.close_attempt(
                AttemptEnd(attempt=self.snapshot.attempt, status=end.status, at_ms=int(self._env.clock.now_ms()))
            )
        except StorageError as error:
            end = _stored_badly(end, error)
        refusal = await self._refused(self._held.write_output(_output(end)))
        if refusal is not None:
            end = _stored_badly(end, refusal)
        end = await self._told_by_files(end)
        result = self._result(end)
        self._progress.tell(
            "task_notification",
            workflow=self.snapshot.workflow,
            status=end.status,
            reason=end.reason,
            reset_ms=end.reset_ms,
            counts=result.counts.to_dict(),
            usage=result.usage.to_dict(),
            total_tokens=result.total_usage.total_tokens,
            tool_uses=self._progress.tool_uses,
            cost_usd=result.cost_usd,
            duration_ms=result.duration_ms,
            output_file=self._output_file,
            error=None if end.error is None else end.error.to_dict(),
            failures=[failure.to_dict() for failure in result.failures],
        )
        await self._events.close()
        await self._held.release()
        self._notices.tell(self.snapshot)
        return result

    async def _told_by_files(self, end: _End) -> _End:
        """Have the snapshot and the outbox tell the end. What they cannot be told makes it a failure, which they are
        told as far as there is room for that."""
        for is_last in (False, True):
            self.snapshot = self.standing(end)
            refusals = [
                await self._refused(self._held.write_snapshot(encode_json(self.snapshot))),
                await self._refused(self._notices.keep(self.snapshot, self._result(end))),
            ]
            refusal = next(filter(None, refusals), None)
            if refusal is None or is_last:
                break
            end = _stored_badly(end, refusal)
        return end

    async def _refused(self, write: Awaitable[None]) -> StorageError | None:
        try:
            await write
        except StorageError as error:
            logger.error("run %s: its end could not be written: %s", self.snapshot.run_id, error)
            return error
        return None

    def _result(self, end: _End) -> WorkflowResult:
        snapshot = self.snapshot
        return WorkflowResult(
            run_id=snapshot.run_id,
            workflow=snapshot.workflow,
            status=end.status,
            value=end.value,
            counts=snapshot.counts,
            failures=snapshot.failures,
            usage=snapshot.attempt_usage,
            total_usage=snapshot.usage,
            cost_usd=snapshot.cost_usd,
            duration_ms=snapshot.duration_ms,
            output_file=self._output_file,
            reason=end.reason,
            reset_ms=end.reset_ms,
            error=end.error,
        )

    def standing(self, end: _End | None = None) -> WorkflowSnapshot:
        """The snapshot as of now."""
        progress, view = self._progress, self._journal.view
        usage = progress.usage.usage()
        costs = [cost for cost in (self._earlier_cost, progress.cost_usd) if cost is not None]
        more: dict[str, Any] = {}
        if end is not None:
            more = {"status": end.status, "reason": end.reason, "reset_ms": end.reset_ms, "error": end.error}
        return replace(
            self.snapshot,
            counts=progress.counts(unclaimed=0 if end is None else len(view.unclaimed()), rejected=view.rejected),
            failures=tuple(progress.failures),
            usage=self._earlier_usage + usage,
            attempt_usage=usage,
            cost_usd=sum(costs) if costs else None,
            tool_uses=self._earlier_tools + progress.tool_uses,
            budget=self._budget(),
            phase=progress.phase,
            updated_ms=int(self._env.clock.now_ms()),
            duration_ms=self._env.clock.monotonic_ms() - self._begun_ms,
            process=os.getpid(),
            **more,
        )

    def _budget(self) -> RunBudget:
        standing = self._ledger.snapshot()
        return RunBudget(spent_tokens=standing.consumed_tokens, limit_tokens=standing.limit_tokens)

    # ---- meanwhile ----

    async def _watch(self) -> None:
        """Obey what other processes ask, and let the snapshot follow."""
        written, last = self.snapshot, self._env.clock.monotonic_ms()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                asked = await self._held.requested()
                if asked is not None:
                    self.stop("paused" if asked == b"pause" else "stopped")
                now = self._env.clock.monotonic_ms()
                if now - last >= SNAPSHOT_SECONDS * 1000 and self._progress.launched + self._progress.cached:
                    standing = self.standing()
                    if standing.counts != written.counts or standing.phase != written.phase:
                        await self._held.write_snapshot(encode_json(standing))
                        written = standing
                    last = now
            except StorageError as error:
                logger.warning("run %s: %s", self.snapshot.run_id, error)


def _seen(script: "asyncio.Future[JsonValue]") -> None:
    if not script.cancelled():
        script.exception()


def _stored_badly(end: _End, error: StorageError) -> _End:
    return _End("failed", end.value, error=RunFault(code=error.code, message=str(error)))


def _output(end: _End) -> bytes:
    if end.status in ("completed", "completed_with_failures"):
        return encode_json({"result": end.value})
    fault = end.error or RunFault(code=end.reason or end.status, message=f"the run is {end.status}: {end.reason}")
    return encode_json({"error": fault.to_dict(), "result": end.value})


def heard_by(events: EventFile, listener: Callable[[AgentEvent], None] | None) -> Callable[[AgentEvent], None]:
    """Both the file and a listener hear a run."""
    if listener is None:
        return events

    told = tolerant(listener)

    def hear(item: AgentEvent) -> None:
        events(item)
        told(item)

    return hear
