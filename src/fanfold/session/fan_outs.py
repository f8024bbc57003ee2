"""FanOuts: the orchestration face of a session. The grammar stands below; here it meets the session's executor."""

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fanfold.contracts.steps import ParallelResult, StepOutcome
from fanfold.contracts.workflow import CheckpointSummary, ResumePlan, WorkflowCheckpoint
from fanfold.env import HostEnv
from fanfold.errors import AlreadyActiveError, MissingStoreError
from fanfold.foreign import logger
from fanfold.orchestration import checkpoints
from fanfold.orchestration.control import FanOutControl
from fanfold.orchestration.journal import WorkflowJournal
from fanfold.orchestration.ledger import TokenLedger
from fanfold.orchestration.mapping import MapItem, MapResult, MapRow, MapStep, execute_map
from fanfold.orchestration.parallel import execute_steps_parallel
from fanfold.orchestration.pipeline import STAGE_TIMEOUT_MS, Stage, StepSink, execute_pipeline
from fanfold.orchestration.plan import plan_resume
from fanfold.orchestration.resumable import execute_steps_parallel_resumable
from fanfold.orchestration.specs import SpecLike, parse_specs
from fanfold.orchestration.workflow import Workflow
from fanfold.portal import Portal, blocking, on_loop
from fanfold.protocols import AgentExecutor, EventSink, SessionStore
from fanfold.runs.operations import Operations
from fanfold.session.child import TaskExecutor
from fanfold.session.closing import close_all


class FanOuts:
    """What a session can do with steps. Every operation exists as `x_async` and as blocking `x`."""

    # Slots: there are more attributes than dictionaries share the keys of, and a host may hold thousands of sessions.
    __slots__ = (
        "__weakref__",
        "_controls",
        "_env",
        "_executor",
        "_is_named",
        "_operations",
        "_session_id",
        "_store",
        "_workflows",
        "portal",
    )

    def __init__(
        self,
        *,
        portal: Portal,
        session_id: str,
        executor: TaskExecutor,
        is_named: bool,
        store: SessionStore | None,
        env: HostEnv,
        operations: Operations,
        fan_outs: "weakref.WeakSet[FanOutControl]",
    ) -> None:
        self.portal = portal
        self._session_id = session_id
        self._executor = executor
        self._is_named = is_named
        """Its id was chosen, so a later session may have it too."""
        self._store = store
        self._env = env
        self._operations = operations
        self._controls = fan_outs
        self._workflows: set[Workflow] = set()
        """Those that are not closed, as far as is known: one that was dropped open still has its lease."""

    @property
    def session_id(self) -> str:
        return self._session_id

    def agent_executor(self) -> AgentExecutor:
        """The built-in executor: steps as children of this session."""
        return self._executor

    def session_store(self) -> SessionStore | None:
        """The store that was given as the option of this name."""
        return self._store

    # ---- plain ----

    @on_loop
    async def parallel_async(
        self,
        specs: Sequence[SpecLike],
        budget_tokens: int | None = None,
        *,
        executor: AgentExecutor | None = None,
        events: EventSink | None = None,
        control: FanOutControl | None = None,
    ) -> Any:
        """Fan out; the outcomes in input order. With `budget_tokens` a `ParallelResult` of `outcomes` and `budget`,
        all steps drawing on one ledger (seed 000)."""
        ledger = None if budget_tokens is None else TokenLedger(budget_tokens)
        outcomes = await self._operations.run(
            execute_steps_parallel(
                self._charging(executor, ledger),
                specs,
                events=events,
                ledger=None if executor is None else ledger,
                control=self._watched(control),
            ),
            is_exclusive=False,
        )
        return outcomes if ledger is None else ParallelResult(outcomes=outcomes, budget=ledger.snapshot())

    parallel = blocking(parallel_async)

    @on_loop
    async def pipeline_async(
        self,
        items: Sequence[Any],
        stages: Sequence[Stage],
        *,
        executor: AgentExecutor | None = None,
        timeout_ms: int = STAGE_TIMEOUT_MS,
        events: EventSink | None = None,
        on_step: StepSink | None = None,
        control: FanOutControl | None = None,
    ) -> list[StepOutcome | None]:
        """Each item through the stages, without a barrier between them; see `execute_pipeline`."""
        work = execute_pipeline(
            self._charging(executor, None),
            items,
            stages,
            timeout_ms=timeout_ms,
            events=events,
            on_step=on_step,
            control=self._watched(control),
        )
        return await self._operations.run(work, is_exclusive=False)

    pipeline = blocking(pipeline_async)

    @on_loop
    async def map_async(
        self,
        items: Sequence[MapItem | Mapping[str, Any]],
        steps: Sequence[MapStep | Mapping[str, Any]],
        *,
        workflow_id: str | None = None,
        budget_tokens: int | None = None,
        executor: AgentExecutor | None = None,
        events: EventSink | None = None,
        on_row: Callable[[int, MapRow], None] | None = None,
        control: FanOutControl | None = None,
    ) -> MapResult:
        """A chain of steps over many items; see `execute_map`. With a `workflow_id` each finished step is recorded in
        the session store, and stays recorded: the next map of that id answers from it whatever it knows."""
        ledger = None if budget_tokens is None else TokenLedger(budget_tokens)
        work = self._map(
            items,
            steps,
            workflow_id,
            executor=self._charging(executor, ledger),
            ledger=None if executor is None else ledger,
            events=events,
            on_row=on_row,
            control=self._watched(control),
        )
        return await self._operations.run(work, is_exclusive=False)

    map = blocking(map_async)

    async def _map(
        self,
        items: Sequence[MapItem | Mapping[str, Any]],
        steps: Sequence[MapStep | Mapping[str, Any]],
        workflow_id: str | None,
        *,
        executor: AgentExecutor,
        **rest: Any,
    ) -> MapResult:
        if workflow_id is None:
            return await execute_map(executor, items, steps, **rest)
        journal = await WorkflowJournal.open(self._require_store("map"), workflow_id, self._env)
        try:
            return await execute_map(executor, items, steps, journal=journal, **rest)
        finally:
            await asyncio.shield(journal.close())

    # ---- resumable ----

    @on_loop
    async def parallel_resumable_async(
        self,
        specs: Sequence[SpecLike],
        workflow_id: str,
        *,
        executor: AgentExecutor | None = None,
        strict: bool = False,
        budget_tokens: int | None = None,
        events: EventSink | None = None,
        control: FanOutControl | None = None,
    ) -> Any:
        """`parallel` with a journal in the session store: called again with the same `workflow_id`, it runs only what
        is not finished (seeds 000 and 001); see `execute_steps_parallel_resumable`. With `budget_tokens`, which
        covers earlier calls too, a `ParallelResult`.

        Raises:
            MissingStoreError: the session was opened without a `session_store`.
            AlreadyActiveError: somebody runs this workflow just now.
        """
        if self._store is None:
            parse_specs(specs)  # its errors come first
        ledger = None if budget_tokens is None else TokenLedger(budget_tokens)
        work = execute_steps_parallel_resumable(
            self._charging(executor, ledger),
            specs,
            workflow_id,
            self._require_store("parallel_resumable"),
            strict=strict,
            events=events,
            ledger=ledger,
            charges_ledger=executor is None,
            control=self._watched(control),
            env=self._env,
        )
        outcomes = await self._operations.run(work, is_exclusive=False)
        return outcomes if ledger is None else ParallelResult(outcomes=outcomes, budget=ledger.snapshot())

    parallel_resumable = blocking(parallel_resumable_async)

    @on_loop
    async def plan_resume_async(self, specs: Sequence[SpecLike], workflow_id: str) -> ResumePlan:
        """What `parallel_resumable(specs, workflow_id)` would run, and why. Costs nothing, changes nothing."""
        return await plan_resume(self._require_store("plan_resume"), specs, workflow_id)

    plan_resume = blocking(plan_resume_async)

    @on_loop
    async def workflow_async(
        self,
        token_budget: int | None = None,
        *,
        workflow_id: str | None = None,
        executor: AgentExecutor | None = None,
        events: EventSink | None = None,
        control: FanOutControl | None = None,
    ) -> Workflow:
        """Several fan-outs on one ledger; recorded in the session store, if there is one.

        `workflow_id` None: `wf-<session id>`. The budget covers earlier runs of the same workflow too.

        Raises:
            AlreadyActiveError: somebody runs this workflow just now.
            CheckpointRefusedError: its journal cannot be trusted.
        """
        name = f"wf-{self._session_id}" if workflow_id is None else workflow_id
        if self._store is not None and workflow_id is None and not self._is_named:
            logger.warning(
                "workflow '%s' is recorded under an id of chance, so no later run finds it: give the session a "
                "session_id or the workflow a workflow_id",
                name,
            )
        ledger = TokenLedger(token_budget)
        journal = (
            None
            if self._store is None
            else await self._operations.run(
                self._open(self._store, name, is_named=workflow_id is not None), is_exclusive=False
            )
        )
        if journal is not None:
            ledger.carry_over(journal.view.spent)
        workflow = Workflow(
            portal=self.portal,
            workflow_id=name,
            executor=self._charging(executor, ledger),
            ledger=ledger,
            runner_ledger=None if executor is None else ledger,
            journal=journal,
            events=events,
            control=self._watched(control),
            run=self._run_beside,
        )
        self._workflows = {each for each in self._workflows if not each.is_closed()} | {workflow}
        return workflow

    workflow = blocking(workflow_async)

    # ---- cancelling ----

    def cancel_step(self, task_id: str) -> bool:
        """Cancel the running step of that id, in whichever fan-out of this session; False when none runs."""
        running = [control for control in self._all_controls() if control.is_running(task_id)]
        for control in running:
            control.cancel_running(task_id)
        return bool(running)

    def cancel_fan_outs(self) -> int:
        """Cancel every fan-out that has steps under way, as its `FanOutControl` does; how many there were."""
        running = [control for control in self._all_controls() if control.has_running]
        for control in running:
            control.cancel()
        return len(running)

    def _all_controls(self) -> list[FanOutControl]:
        while True:
            try:
                return list(self._controls)
            except RuntimeError:  # this is any thread, and on the loop another fan-out has begun
                continue

    # ---- checkpoints ----

    @on_loop
    async def checkpoints_async(self) -> list[CheckpointSummary]:
        """The workflows that the session store has something of, sorted by id."""
        return await checkpoints.list_checkpoints(self._require_store("checkpoints"))

    checkpoints = blocking(checkpoints_async)

    @on_loop
    async def checkpoint_async(self, workflow_id: str) -> WorkflowCheckpoint | None:
        """What a workflow has finished so far; None where nothing is recorded."""
        return await checkpoints.load_checkpoint(self._require_store("checkpoint"), workflow_id)

    checkpoint = blocking(checkpoint_async)

    @on_loop
    async def delete_checkpoint_async(self, workflow_id: str) -> bool:
        """Forget all that a workflow has finished; False where nothing is recorded. Refused while it runs."""
        return await checkpoints.delete_checkpoint(self._require_store("delete_checkpoint"), workflow_id)

    delete_checkpoint = blocking(delete_checkpoint_async)

    # ---- inside ----

    async def abandon_workflows(self) -> None:
        """Let go of the workflows that are still open; what they finished stays recorded."""
        await close_all([workflow.abandon for workflow in self._workflows])

    def _charging(self, executor: AgentExecutor | None, ledger: TokenLedger | None) -> AgentExecutor:
        return self._executor.charging(ledger) if executor is None else executor

    def _watched(self, control: FanOutControl | None) -> FanOutControl:
        control = FanOutControl() if control is None else control
        self._controls.add(control)
        return control

    def _require_store(self, operation: str) -> SessionStore:
        if self._store is None:
            raise MissingStoreError(f"{operation} requires a session_store on the session").with_hint(
                "open the session with session_store=FileSessionStore('./.a3s/sessions')"
            )
        return self._store

    async def _open(self, store: SessionStore, name: str, *, is_named: bool) -> WorkflowJournal:
        try:
            return await WorkflowJournal.open(store, name, self._env)
        except AlreadyActiveError as error:
            if is_named:
                raise
            raise error.with_hint("a second workflow of one session needs a workflow_id of its own") from None

    async def _run_beside(self, work: Any) -> Any:
        return await self._operations.run(work, is_exclusive=False)
