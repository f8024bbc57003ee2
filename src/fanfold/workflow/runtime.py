"""WorkflowRuntime: the workflows of one session: launch, resume, fork, plan, stop, look.

A run goes on as a task of the session, whoever asked for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypedDict, Unpack

from fanfold.contracts.workflow_runs import (
    RepeatDecision,
    RunSummary,
    RunVerb,
    WorkflowInfo,
    WorkflowLaunch,
    WorkflowLimits,
    WorkflowPlan,
    WorkflowResult,
    WorkflowSnapshot,
)
from fanfold.portal import Portal, blocking, on_loop, start_kept
from fanfold.protocols import EventSink, WorkflowFiles
from fanfold.workflow.attempt import Attempt
from fanfold.workflow.launching import Launcher, LaunchRequest
from fanfold.workflow.registry import Registry
from fanfold.workflow.runs import all_runs, checked_id, end_run, recorded_result, run_summary, until_free
from fanfold.workflow.upkeep import delete_run


class LaunchOptions(TypedDict, total=False):
    script: str | None
    """The text of an inline script instead of a name; it runs in the sandbox."""
    resume_from_run_id: str | None
    """The run to go on with: what it has recorded is not run again."""
    fork: bool
    """Begin a new run with the recorded results of that one, for other `args`."""
    only_failed: bool
    """Run what failed before, and nothing that is not recorded outside of those lanes."""
    strict: bool
    """Refuse to go on when the script has changed or the journal is damaged, or where the script asks something else
    than before though all answers so far are the same."""
    repeat: RepeatDecision | None
    """Whether calls run again, or are skipped, that were begun before, have no answer, and ask for this decision by
    their own `repeat="ask"`."""
    budget_tokens: int | None
    """Over all attempts. None: that of the run that is resumed, or no limit."""
    limits: WorkflowLimits | None
    """Instead of the session's."""
    events: EventSink | None
    """Hears the run, from its launch to its notification."""
    notify: bool
    """Tell the conversation of its end, as for a run that the model launched."""


Start = Callable[[Coroutine[Any, Any, WorkflowResult]], "asyncio.Task[WorkflowResult]"]
"""Starts work as a task of the session, which cancels it at its end and waits for it."""


class WorkflowRuntime:
    """`session.workflows`. Every operation exists as `x_async` and as blocking `x`."""

    def __init__(
        self,
        *,
        portal: Portal,
        files: Callable[[], WorkflowFiles],
        registry: Registry,
        launcher: Launcher,
        start: Start,
        now_ms: Callable[[], int],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` hears that there are other workflows now."""
        self.portal = portal
        self._files = files
        self._registry = registry
        self._launcher = launcher
        self._start = start
        self._now_ms = now_ms
        self._on_change = on_change
        self._attempts: dict[str, Attempt] = {}
        """Those under way here, by run id."""

    # ---- what there is ----

    def register(self, meta: Mapping[str, Any], script: Callable[..., Awaitable[Any]]) -> WorkflowInfo:
        """Make `async def script(ctx, args)` known under `meta["name"]`, for this session.

        Raises:
            WorkflowInputError: `bad_meta`, `bad_script`.
        """
        info = self._registry.register(meta, script)
        self._on_change()
        return info

    def add_file(self, path: str, text: str) -> WorkflowInfo:
        """Make a script file from outside of the project known by the name in its META; it runs as that text, once that
        is approved.

        Raises:
            WorkflowInputError: `bad_script`, `bad_meta`.
        """
        info = self._registry.add_file(path, text)
        self._on_change()
        return info

    def available(self) -> list[WorkflowInfo]:
        """Those that can be launched by name, and those that cannot with the reason."""
        return self._registry.all()

    def show(self, name: str) -> WorkflowInfo:
        """Raises WorkflowInputError, `unknown_workflow`."""
        return self._registry.info(name)

    def source(self, name: str) -> str | None:
        """The text of a workflow; None for a registered function."""
        return self._registry.script(name).text

    def approve(self, name: str) -> WorkflowInfo:
        """Vouch for a project file as it stands now: a person has looked at it."""
        return self._registry.approve(name)

    @property
    def takes_inline(self) -> bool:
        return self._launcher.takes_inline

    @property
    def is_busy(self) -> bool:
        return bool(self._attempts)

    # ---- launch ----

    @on_loop
    async def launch_async(
        self, name: str | None = None, args: Mapping[str, Any] | None = None, **options: Unpack[LaunchOptions]
    ) -> WorkflowLaunch:
        """Start a run, or go on with one, in the background; see `run_async` for one that is waited for.

        Args:
            name: of a registered, project or shipped workflow; not needed for a resume.
            options: see `LaunchOptions`.

        Raises:
            WorkflowInputError: nothing was started; `code` says why.
            UsageError: nor was it, for an option that is none: a budget, limits or a listener.
        """
        return (await self.begin(LaunchRequest(name=name, args=args, **options)))[0]

    launch = blocking(launch_async)

    @on_loop
    async def launch_once_async(
        self,
        key: str | None,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[LaunchOptions],
    ) -> WorkflowLaunch:
        """`launch_async`, for a call that may be made again after a crash: what an earlier launch of the same `key` has
        begun is gone on with, and no second run is begun."""
        standing = await self._launcher.begun_before(LaunchRequest(name=name, args=args, key=key, **options))
        if isinstance(standing, LaunchRequest):
            return (await self.begin(standing))[0]
        return _launch_of(standing)

    @on_loop
    async def run_async(
        self, name: str | None = None, args: Mapping[str, Any] | None = None, **options: Unpack[LaunchOptions]
    ) -> WorkflowResult:
        """`launch_async`, and wait for the end. A script that fails is a result with status `failed`, not an exception.
        Cancelling the wait does not end the run; `stop` does."""
        _, task = await self.begin(LaunchRequest(name=name, args=args, **options))
        return await asyncio.shield(task)

    run = blocking(run_async)

    async def begin(self, request: LaunchRequest) -> tuple[WorkflowLaunch, "asyncio.Task[WorkflowResult]"]:
        """As `launch_async`, with the task that runs it."""
        attempt = await self._launcher.attempt(request)
        snapshot = attempt.snapshot
        work = attempt.run()
        try:
            task = attempt.task = self._start(work)
        except BaseException:  # the session has been closed meanwhile
            await attempt.abandon(is_told=False)
            raise
        self._attempts[snapshot.run_id] = attempt
        task.add_done_callback(lambda _: self._ended_here(attempt))
        return _launch_of(snapshot), task

    # ---- looking ----

    @on_loop
    async def wait_async(self, run_id: str) -> WorkflowResult:
        """The result of a run: at its end, of one that runs here or elsewhere; at once, of one that has ended.

        Raises:
            WorkflowInputError: `bad_run_id`, `run_not_found`; `wrong_moment` for one that was cut off.
        """
        attempt = self._here(run_id)
        if attempt is not None and attempt.task is not None:
            return await asyncio.shield(attempt.task)
        return await recorded_result(self._files(), await until_free(self._files(), run_id))

    wait = blocking(wait_async)

    @on_loop
    async def status_async(self, run_id: str) -> RunSummary:
        """How a run stands, wherever it runs. Raises WorkflowInputError: `bad_run_id`, `run_not_found`."""
        attempt = self._here(run_id)
        if attempt is not None:
            return RunSummary(run_id=run_id, snapshot=attempt.standing(), is_alive=True)
        return await run_summary(self._files(), run_id)

    status = blocking(status_async)

    @on_loop
    async def runs_async(self) -> list[RunSummary]:
        """All runs of the workspace, newest first."""
        return await all_runs(self._files())

    runs = blocking(runs_async)

    @on_loop
    async def plan_async(
        self,
        run_id: str,
        *,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        script: str | None = None,
        fork: bool = False,
        only_failed: bool = False,
        repeat: RepeatDecision | None = None,
    ) -> WorkflowPlan:
        """What a resume of `run_id` would answer from its journal and what it would run, and why. The script is run for
        it, and no agent.

        Args:
            fork, only_failed, repeat: as of the resume, see `LaunchOptions`.

        Raises:
            WorkflowInputError: as a resume.
        """
        request = LaunchRequest(
            name=name,
            args=args,
            script=script,
            resume_from_run_id=run_id,
            fork=fork,
            only_failed=only_failed,
            repeat=repeat,
        )
        return await self._launcher.plan(request)

    plan = blocking(plan_async)

    # ---- control ----

    @on_loop
    async def stop_async(self, run_id: str) -> RunSummary:
        """End a run, here or in another process, and return when it has ended: what was finished stays recorded. One
        that does not run is marked as stopped."""
        return await self._ended(run_id, "stop")

    stop = blocking(stop_async)

    @on_loop
    async def pause_async(self, run_id: str) -> RunSummary:
        """The same, for a run that is to go on later."""
        return await self._ended(run_id, "pause")

    pause = blocking(pause_async)

    @on_loop
    async def delete_async(self, run_id: str, *, untold: bool = False) -> int:
        """Forget a run that nobody runs any more: its journal, output, events and whatever no other run needs; returns
        how many bytes that has freed. It is done as a whole, or can be done again where it was cut off.

        Args:
            untold: also one that was launched by a conversation which has not been told of its end, and will not be.

        Raises:
            WorkflowInputError: `bad_run_id`, `run_not_found`; `already_active`, also in another process; `untold`.
            LogWriteError: the file system refuses.
        """
        return await delete_run(self._files(), run_id, untold=untold)

    delete = blocking(delete_async)

    @on_loop
    async def skip_async(self, run_id: str, where: str) -> bool:
        """End the agent at `where` of a run that runs here, with None as its answer; False when none runs there."""
        attempt = self._here(run_id)
        return attempt is not None and attempt.skip(where)

    skip = blocking(skip_async)

    # ---- inside ----

    def _here(self, run_id: str) -> Attempt | None:
        """Raises WorkflowInputError: `bad_run_id`."""
        return self._attempts.get(checked_id(run_id))

    def _ended_here(self, attempt: Attempt) -> None:
        run_id = attempt.snapshot.run_id
        if self._attempts.get(run_id) is attempt:  # and not the next one of that run, which may be under way by now
            del self._attempts[run_id]
        if not attempt.has_begun:  # its task was cancelled before its first step, so nothing of it lets the run go
            start_kept(attempt.abandon(is_told=True))

    async def _ended(self, run_id: str, verb: RunVerb) -> RunSummary:
        attempt = self._here(run_id)
        if attempt is None or attempt.task is None:
            return await end_run(self._files(), run_id, verb, self._now_ms())
        attempt.stop("paused" if verb == "pause" else "stopped")
        await asyncio.wait({attempt.task})
        return await run_summary(self._files(), run_id)


def _launch_of(snapshot: WorkflowSnapshot) -> WorkflowLaunch:
    return WorkflowLaunch(
        task_id=snapshot.task_id,
        run_id=snapshot.run_id,
        workflow_name=snapshot.workflow,
        attempt=snapshot.attempt,
    )
