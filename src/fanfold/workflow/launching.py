"""Launching: everything between the wish for a run and an attempt that can be started (spec-workflow 5.1).

In this order: the workflow is looked up, its script checked, its arguments, the permissions, what a resume needs; then
a run that is resumed is taken, the script's module executed, and only then something is written. Whatever is refused is
refused before that.
"""

import hashlib
import os
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from fanfold.contracts.codec import encode_json
from fanfold.contracts.record import JsonObject, own_copy
from fanfold.contracts.run_journal import Header, RunRecord
from fanfold.contracts.workflow_runs import RepeatDecision, WorkflowLimits, WorkflowPlan, WorkflowSnapshot
from fanfold.env import HostEnv
from fanfold.errors import (
    AlreadyActiveError,
    LogWriteError,
    StorageError,
    StoreConflictError,
    UsageError,
    WorkflowInputError,
)
from fanfold.kernel.run_journal import copied_records, forked_view, read_run_journal
from fanfold.kernel.run_view import RunJournalView
from fanfold.kernel.workflow_meta import parse_args, run_id_of, task_id_of
from fanfold.orchestration.ledger import TokenLedger
from fanfold.portal import complete
from fanfold.protocols import AgentExecutor, EventSink, HeldRun, WorkflowFiles
from fanfold.release import VERSION
from fanfold.workflow.agents import LiveAgents
from fanfold.workflow.attempt import Attempt, Notices, heard_by
from fanfold.workflow.beginning import Beginning
from fanfold.workflow.event_file import EventFile
from fanfold.workflow.host import Profiles, RunHost
from fanfold.workflow.journal import RunJournal
from fanfold.workflow.lanes import Lane
from fanfold.workflow.only_failed import failed_lanes
from fanfold.workflow.plan import plan_resume
from fanfold.workflow.playing import Nested, ReadyScript, play_script, ready
from fanfold.workflow.progress import Progress
from fanfold.workflow.registry import LaunchGate, Registry, require_admission, require_permission
from fanfold.workflow.relaunch import find_new, find_resumed
from fanfold.workflow.remarks import remarks
from fanfold.workflow.runs import read_view, snapshot_of
from fanfold.workflow.scripts import Script, read_script, text_sha

INLINE = "inline"
"""By this name the permissions know a script of no name."""
MAX_ID_TRIES = 32
_ABSENT = object()


class LaunchRequest(msgspec.Struct, kw_only=True):
    """What a launch asks for; see `WorkflowRuntime.launch_async`."""

    name: object = None
    args: object = None
    script: object = None
    resume_from_run_id: object = None
    fork: bool = False
    only_failed: bool = False
    strict: bool = False
    repeat: RepeatDecision | None = None
    budget_tokens: int | None = None
    limits: WorkflowLimits | None = None
    events: EventSink | None = None
    notify: bool = False
    key: str | None = None
    """Of a launch that may be made again after a crash."""
    run_id: str | None = None
    """That its key gives a new run."""

    def __post_init__(self) -> None:
        """Raises UsageError: what is not held against the workflow is found wrong here, before anything is done."""
        TokenLedger(self.budget_tokens)
        if self.events is not None and not callable(self.events):
            raise UsageError(f"events must be a function that is called with each event, got {self.events!r}")
        if self.repeat not in (None, "rerun", "skip"):
            raise UsageError(f'repeat must be "rerun" or "skip", got {self.repeat!r}')
        if self.limits is None:
            return
        try:
            msgspec.convert(msgspec.structs.asdict(self.limits), WorkflowLimits)  # one made by hand was not checked
        except (TypeError, msgspec.ValidationError) as error:
            raise UsageError(f"limits: {error}") from None


class _Source(msgspec.Struct, kw_only=True):
    """What is to be run, and where it goes on from."""

    script: Script
    args: JsonObject
    before: WorkflowSnapshot | None = None
    """Of the run that is resumed or forked."""
    parent: RunJournalView | None = None
    """Of the run that is forked."""


class Launcher:
    def __init__(
        self,
        *,
        session_id: str,
        files: Callable[[], WorkflowFiles],
        registry: Registry,
        gate: LaunchGate,
        executor: AgentExecutor,
        profiles: Profiles,
        env: HostEnv,
        limits: WorkflowLimits,
        takes_inline: bool,
        notices: Notices,
        model: Callable[[], str | None],
    ) -> None:
        """`model` tells the session's, for the snapshot."""
        self._session_id = session_id
        self._files = files
        self._registry = registry
        self._gate = gate
        self._executor = executor
        self._profiles = profiles
        self._env = env
        self._limits = limits
        self.takes_inline = takes_inline
        self._notices = notices
        self._model = model

    async def attempt(self, request: LaunchRequest) -> Attempt:
        """An attempt whose run is held and whose first records are written; it is the caller's to start.

        Raises:
            WorkflowInputError: nothing was written.
        """
        try:
            source = await self._resolved(request)
            is_new = source.before is None or request.fork
            if source.before is not None and request.fork:
                source.parent = await read_view(self._files(), source.before.run_id, strict=request.strict)
            # Code of the script runs behind all that may refuse it, and before a new run leaves its first trace.
            what = await ready(source.script) if is_new else None
            held, view, copied = await self._held(request, source)
            try:
                what = what or await ready(source.script)
                return await self._attempt(request, source, what, held, view, copied)
            except BaseException:
                await held.release()
                raise
        except LogWriteError as error:
            raise WorkflowInputError("store_unwritable", str(error)) from error

    async def begun_before(self, request: LaunchRequest) -> WorkflowSnapshot | LaunchRequest:
        """What launches of this key have begun and needs no other one; else the launch that is left to do.

        Raises:
            WorkflowInputError: as `attempt`.
        """
        if request.key is None:
            return request
        try:
            return await self._begun_before(request, request.key)
        except LogWriteError as error:
            raise WorkflowInputError("store_unwritable", str(error)) from error

    async def _begun_before(self, request: LaunchRequest, key: str) -> WorkflowSnapshot | LaunchRequest:
        if request.resume_from_run_id is not None:
            resumed = await find_resumed(self._files(), self._session_id, request.resume_from_run_id, key)
            return request if resumed is None or resumed.snapshot is None or not resumed.is_done else resumed.snapshot
        source = await self._resolved(request)
        found = await find_new(self._files(), self._session_id, source.script.meta.name, source.args, key)
        if found.snapshot is None:
            return replace(request, run_id=found.run_id)
        return found.snapshot if found.is_done else replace(request, resume_from_run_id=found.run_id, args=None)

    async def plan(self, request: LaunchRequest) -> WorkflowPlan:
        """Raises WorkflowInputError, as `attempt`."""
        source = await self._resolved(request)
        if source.before is None:
            raise WorkflowInputError("bad_run_id", "a plan is of a run that is to be resumed: give its id")
        files, run_id = self._files(), source.before.run_id
        return await plan_resume(
            await ready(source.script),
            source.args,
            await read_view(files, run_id),
            read_blob=lambda blob: files.blob(run_id, blob),
            profiles=self._profiles,
            limits=self._limits,
            nested=Nested(self._registry, self._gate, self._limits),
            script_changed=source.script.sha256 != source.before.script_sha256,
            is_fork=request.fork,
            only_failed=request.only_failed,
            repeat=request.repeat,
        )

    async def _resolved(self, request: LaunchRequest) -> _Source:
        before: WorkflowSnapshot | None = None
        if request.resume_from_run_id is not None:
            before = await snapshot_of(self._files(), request.resume_from_run_id)
        elif request.fork or request.only_failed or request.repeat:
            raise WorkflowInputError(
                "bad_run_id", "fork, only_failed and repeat need the run to go on from: resume_from_run_id"
            )
        script = await self._script(request, before)
        if before is not None and request.args is None:
            args = before.args
        else:
            args = parse_args(request.args, script.meta, (request.limits or self._limits).max_args_bytes)
        self._require_admission(script)
        if before is not None:
            _require_same(request, script, args, before)
        return _Source(script=script, args=args, before=before)

    def _require_admission(self, script: Script) -> None:
        if script.kind == "inline":
            for known_as in (script.meta.name, INLINE):
                require_permission(self._gate, known_as, was_asked=True)
        else:
            require_admission(self._registry, self._gate, script, was_asked=True)

    async def _script(self, request: LaunchRequest, before: WorkflowSnapshot | None) -> Script:
        text = request.script
        if text is None and request.name is None and before is not None and before.kind == "inline":
            text = await self._files().script(before.run_id)
        if text is None:
            name = before.workflow if request.name is None and before is not None else request.name
            if name is None:
                reason = "which workflow? Give its name, the script of one, or a run to go on with (resume_from_run_id)"
                raise WorkflowInputError("unknown_workflow", reason)
            return self._registry.script(name)
        if request.name is not None:
            raise WorkflowInputError("bad_script", "give the name of a workflow, or the script of one, not both")
        if not self.takes_inline:
            reason = "inline scripts are off here; the host turns them on with the session option inline_workflows"
            raise WorkflowInputError("denied", reason)
        if not isinstance(text, str):
            raise WorkflowInputError("bad_script", f"script must be text, got {type(text).__name__}")
        return read_script(text, "inline")

    async def _held(self, request: LaunchRequest, source: _Source) -> tuple[HeldRun, RunJournalView, list[RunRecord]]:
        """The files of the run, its journal, and what is to be copied into it."""
        files, before = self._files(), source.before
        try:
            if before is None:
                return await self._new(source.script.meta.name, request.run_id)
            if (parent := source.parent) is not None:
                held = await self._created(source.script.meta.name)
                return held, forked_view(parent, held.run_id), copied_records(parent)
            held = await files.hold(before.run_id)
        except AlreadyActiveError as error:
            holder = f" in {error.holder}" if error.holder else ""
            raise WorkflowInputError("already_active", f"run {error.name} is running{holder}") from None
        try:
            source.before = await snapshot_of(files, held.run_id)  # somebody may have gone on with it meanwhile
            if not await held.has_journal():
                reason = f"the journal of run {held.run_id} is gone, so nothing of it can be gone on with"
                raise WorkflowInputError("journal_missing", reason)
            view = await _view_of(held, strict=request.strict)
        except BaseException:
            await held.release()
            raise
        return held, view, []

    async def _new(self, name: str, run_id: str | None) -> tuple[HeldRun, RunJournalView, list[RunRecord]]:
        held = None if run_id is None else await self._begun(run_id)
        if held is None:
            held = await self._created(name)
            return held, read_run_journal((), held.run_id), []
        try:
            return held, await _view_of(held, strict=False), []
        except BaseException:
            await held.release()
            raise

    async def _begun(self, run_id: str) -> HeldRun | None:
        """The run of that id, which has no snapshot yet; None for one that cannot be had."""
        try:
            return await self._files().create(run_id)
        except StoreConflictError:
            pass
        try:
            return await self._files().hold(run_id)
        except WorkflowInputError:
            return None  # it has no more than its lock: nobody knows of it

    async def _created(self, name: str) -> HeldRun:
        for _ in range(MAX_ID_TRIES):
            drawn = hashlib.sha256(self._env.ids.new_id().encode()).hexdigest()[:16]
            try:
                return await self._files().create(run_id_of(name, drawn))
            except StoreConflictError:
                continue
        raise WorkflowInputError("store_unwritable", f"no unused run id for workflow '{name}' was found")

    async def _attempt(
        self,
        request: LaunchRequest,
        source: _Source,
        what: ReadyScript,
        held: HeldRun,
        view: RunJournalView,
        copied: list[RunRecord],
    ) -> Attempt:
        """The next attempt of the run that is held, with its first records written."""
        script, before, now_ms = source.script, source.before, int(self._env.clock.now_ms())
        limits = request.limits or self._limits
        is_new = before is None or request.fork
        # A journal may tell of an attempt that was cut off before its snapshot.
        run_id, number = held.run_id, max(view.attempts, 0 if is_new or before is None else before.attempt) + 1
        budget = request.budget_tokens
        if budget is None and before is not None and before.budget is not None and not request.fork:
            budget = before.budget.limit_tokens
        ledger = TokenLedger(budget)
        ledger.carry_over(view.usage)
        snapshot = WorkflowSnapshot(
            run_id=run_id,
            task_id=task_id_of(run_id),
            workflow=script.meta.name,
            kind=script.kind,
            path=script.path,
            script_sha256=script.sha256,
            args=source.args,
            status="running",
            attempt=number,
            parent_run_id=None if before is None else before.run_id if request.fork else before.parent_run_id,
            launch_key=request.key,
            # Whoever forks a run asks for one of his own: the conversation of the first one is not told of it.
            session_id=self._session_id if request.notify else None if is_new or before is None else before.session_id,
            model=self._model(),
            limits=limits,
            usage=view.usage,
            cost_usd=view.cost,
            tool_uses=view.tool_uses,
            started_ms=now_ms if is_new or before is None else before.started_ms,
            updated_ms=now_ms,
            process=os.getpid(),
        )
        header = Header(
            run_id=run_id,
            workflow=script.meta.name,
            script_sha=script.sha256,
            meta=script.meta,
            args_sha=text_sha(encode_json(source.args).decode()),
            attempt=number,
            runtime=VERSION,
            at_ms=now_ms,
            seed=view.seed or run_id,
            first_ms=view.first_ms or snapshot.started_ms,
            parent=snapshot.parent_run_id,
        )
        journal = RunJournal(held, view)
        events = EventFile(held)
        progress = Progress(run_id, snapshot.task_id, heard_by(events, request.events), self._env.clock.now_ms)
        only = failed_lanes(source.parent or view) if request.only_failed else None
        agents = LiveAgents(
            run_id=run_id,
            attempt=number,
            executor=self._executor,
            journal=journal,
            progress=progress,
            ledger=ledger,
            limits=limits,
            clock=self._env.clock,
            is_listened_to=request.events is not None,
            may_launch=only,
        )
        host = RunHost(
            view=view,
            read_blob=held.blob,
            progress=progress,
            profiles=self._profiles,
            limits=limits,
            ask=agents,
            play_nested=Nested(self._registry, self._gate, limits),
            budget=lambda: (budget, ledger.snapshot().consumed_tokens),
            moved=journal.note,
            may_run=only,
            is_strict=request.strict and not request.fork,  # other args may well ask something else
            repeat=request.repeat,
        )
        launched = Beginning(held, self._notices, snapshot, None if is_new else before)
        try:
            await complete(launched.write(journal, header, copied, script))
        except BaseException as error:
            await complete(launched.take_back())
            if isinstance(error, StorageError):
                raise WorkflowInputError("store_unwritable", str(error)) from error
            raise
        return Attempt(
            snapshot=snapshot,
            script=script,
            held=held,
            launched=launched,
            journal=journal,
            agents=agents,
            progress=progress,
            ledger=ledger,
            events=events,
            output_file=self._files().output_path(run_id),
            env=self._env,
            play=lambda: play_script(what, own_copy(source.args), host, Lane()),  # a script may change its own
            notices=self._notices,
            remarks=remarks(source.before, script, source.parent or view, launched.torn),
        )


async def _view_of(held: HeldRun, *, strict: bool) -> RunJournalView:
    read = await held.read_journal()
    return read_run_journal(read.lines, held.run_id, has_torn_end=read.has_torn_end, strict=strict)


def _require_same(request: LaunchRequest, script: Script, args: JsonObject, before: WorkflowSnapshot) -> None:
    """Raises WorkflowInputError: it is not what the run `before` can go on with."""
    if script.meta.name != before.workflow:
        reason = f"run {before.run_id} is one of workflow '{before.workflow}', not of '{script.meta.name}'"
        raise WorkflowInputError("wrong_workflow", reason)
    if request.strict and script.sha256 != before.script_sha256:
        raise WorkflowInputError("script_changed", f"the script of run {before.run_id} has changed since it ran")
    if request.fork or args == before.args:
        return
    keys = sorted({*args, *before.args})
    changed = [key for key in keys if args.get(key, _ABSENT) != before.args.get(key, _ABSENT)]
    raise WorkflowInputError(
        "args_mismatch",
        f"args differ from those of run {before.run_id} in: {', '.join(changed)}; leave them out to go on with it, "
        "or fork it: a new run that keeps what is recorded",
    )
