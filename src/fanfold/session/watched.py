"""Watched: what a session tells of its runs and children, and how those under way are steered."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.runs import RunControlReceipt, RunControlSnapshot, RunEventPage, RunSnapshot, SpawnedRun
from fanfold.contracts.tasks import SubagentTask
from fanfold.delegation.tracker import Tracker
from fanfold.errors import MissingStoreError, UsageError
from fanfold.kernel.plain_text import is_plain
from fanfold.portal import blocking, on_loop
from fanfold.runs.control_request import MAX_ID_BYTES, ControlRequest, parse_request
from fanfold.runs.run_control import RunControls
from fanfold.runs.run_events import MAX_PAGE
from fanfold.runs.run_inbox import RunInbox
from fanfold.runs.runs import Run, Runs
from fanfold.session.conversation import Conversation
from fanfold.session.fan_outs import FanOuts
from fanfold.session.prompting import Prompting
from fanfold.session.saved_session import SavedConversation


class Watched(FanOuts):
    """The runs of a session (notes 6), their control (notes 5), and its children (notes 5.6 of the orchestration)."""

    __slots__ = ("_conversation", "_prompting", "_run_controls", "_runs", "_saved", "_spawning", "_tracker")

    def __init__(
        self,
        *,
        conversation: Conversation,
        prompting: Prompting,
        runs: Runs,
        controls: RunControls,
        tracker: Tracker,
        saved: SavedConversation | None,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self._conversation = conversation
        self._prompting = prompting
        self._runs = runs
        self._run_controls = controls
        self._tracker = tracker
        self._saved = saved
        self._spawning = asyncio.Lock()

    # ---- runs ----

    @on_loop
    async def runs_async(self) -> list[RunSnapshot]:
        """All runs that are kept, oldest first."""
        return [run.snapshot() for run in self._runs.all()]

    runs = blocking(runs_async)

    @on_loop
    async def run_snapshot_async(self, run_id: str) -> RunSnapshot | None:
        """None for a run that is not known, or not any more."""
        run = self._known(run_id)
        return None if run is None else run.snapshot()

    run_snapshot = blocking(run_snapshot_async)

    @on_loop
    async def run_events_async(self, run_id: str) -> list[AgentEvent]:
        """What a run told, as far as it is kept; nothing for an unknown run."""
        run = self._known(run_id)
        return [] if run is None else run.events.all()

    run_events = blocking(run_events_async)

    @on_loop
    async def run_event_page_async(
        self, run_id: str, after_sequence: int | None = None, limit: int = 256
    ) -> RunEventPage | None:
        """At most `limit` events behind the one of `after_sequence`; None for an unknown run. Page after page, with
        `next_after_sequence` as the cursor, gives each event once, across a restart too."""
        _require_number("after_sequence", after_sequence, -1)
        _require_number("limit", limit, 1, MAX_PAGE)
        run = self._known(run_id)
        return None if run is None else run.events.page(after_sequence, limit)

    run_event_page = blocking(run_event_page_async)

    def _known(self, run_id: str) -> Run | None:
        _require_text("run_id", run_id)
        return self._runs.get(run_id)

    def current_run(self) -> RunSnapshot | None:
        """The run under way, or the last one: look at its status before you cancel it. None before the first."""
        run = self._runs.current
        return None if run is None else run.snapshot()

    def active_tools(self) -> list[dict[str, str]]:
        """`{"id", "name"}` of the tool calls under way."""
        run = self._runs.current
        return [] if run is None else run.active_tools()

    @on_loop
    async def cancel_run_async(self, run_id: str) -> bool:
        """Cancel that run, if it is the one under way, and wait until it has stopped; False for any other."""
        run = self._runs.active
        return run is not None and run.id == run_id and await run.stopped()

    cancel_run = blocking(cancel_run_async)

    @on_loop
    async def cancel_async(self) -> bool:
        """Cancel the run under way and wait until it has stopped; False when idle.

        Its answer is recorded as interrupted. `close` leaves it as it is, to be resumed.
        """
        run = self._runs.current
        return run is not None and await run.stopped()

    cancel = blocking(cancel_async)

    @on_loop
    async def spawn_run_with_id_async(self, run_id: str, prompt: str) -> SpawnedRun:
        """Start a run under an id of your own, detached; asked again with the same id and prompt, whatever became of
        it, it starts nothing and tells where it stands (`replayed`).

        Raises:
            RunIdentityError: the id stands for another prompt.
            SessionBusyError: another run is under way.
        """
        _require_id(run_id)
        _require_text("prompt", prompt)
        async with self._spawning:
            return await self._conversation.start_once(run_id, prompt, self._prompting.prompt(prompt, None))

    spawn_run_with_id = blocking(spawn_run_with_id_async)

    @on_loop
    async def spawn_recovery_with_run_id_async(self, checkpoint_run_id: str, run_id: str) -> SpawnedRun:
        """`resume_run(checkpoint_run_id)` as a detached run with an id of its own, replay-safe as `spawn_run_with_id`.

        Raises:
            MissingStoreError, CheckpointNotFoundError: there is no checkpoint to begin from.
        """
        _require_id(run_id)
        _require_text("checkpoint_run_id", checkpoint_run_id)
        async with self._spawning:  # of several that ask for one id at the same time, one looks and starts
            known = self._runs.known(run_id, f"<resume run={checkpoint_run_id}>")
            if known is not None:
                return SpawnedRun(snapshot=known.snapshot(), replayed=True)
            if self._saved is None:
                raise MissingStoreError("resume_run requires a session_store on this session")
            await self._saved.required_checkpoint(checkpoint_run_id)
            run = await self._conversation.resume(checkpoint_run_id, None, exact_id=run_id)
            return SpawnedRun(snapshot=run.snapshot(), replayed=False)

    spawn_recovery_with_run_id = blocking(spawn_recovery_with_run_id_async)

    # ---- control of the run under way ----

    @on_loop
    async def run_control_snapshot_async(self) -> RunControlSnapshot | None:
        """Where the run under way stands, for the guards of `steer` and `interrupt`; None when idle."""
        run = self._runs.active
        return None if run is None else run.inbox.snapshot()

    run_control_snapshot = blocking(run_control_snapshot_async)

    @on_loop
    async def steer_async(self, input: str, options: Mapping[str, Any] | None = None) -> RunControlReceipt:
        """Give the run under way a further instruction: at its next model call it is a message of the user.

        Options: `request_id` (asked again with the same one, the same receipt comes back as it stands now), `run_id`,
        `session_id`, `expected_turn_id`, `expected_turn_revision`, `deadline_ms`. Accepted is not applied: watch for
        `run_control_applied`.

        Raises:
            RunControlError: it was not accepted; `code` says why.
        """
        return await self._admitted(parse_request("steer", options, input=input))

    steer = blocking(steer_async)

    @on_loop
    async def interrupt_async(self, options: Mapping[str, Any] | None = None) -> RunControlReceipt:
        """Stop the run under way: its calls are cancelled and waited for, then it is `cancelled`. Options as `steer`,
        and `reason`."""
        return await self._admitted(parse_request("interrupt", options))

    interrupt = blocking(interrupt_async)

    @on_loop
    async def run_control_receipts_async(self, run_id: str) -> list[RunControlReceipt]:
        """The receipts of a run, oldest first, as they stand now."""
        run = self._known(run_id)
        return [] if run is None else run.inbox.receipts()

    run_control_receipts = blocking(run_control_receipts_async)

    async def _admitted(self, request: ControlRequest) -> RunControlReceipt:
        return await self._run_controls.admit(request, self._active_inbox, lambda: self._operations.is_closed)

    def _active_inbox(self) -> RunInbox | None:
        run = self._runs.active
        return None if run is None else run.inbox

    # ---- children ----

    def subagent_tasks(self) -> list[SubagentTask]:
        """The children of this session, in the order of their starts: running ones, and ended ones as far as kept."""
        return self._tracker.tasks()

    def subagent_task(self, task_id: str) -> SubagentTask | None:
        return self._tracker.task(task_id)

    def pending_subagent_tasks(self) -> Sequence[SubagentTask]:
        """Those that run."""
        return self._tracker.pending()

    @on_loop
    async def cancel_subagent_task_async(self, task_id: str) -> bool:
        """Cancel a child; True only when it was running."""
        _require_text("task_id", task_id)
        if not self._tracker.mark_cancelled(task_id):
            return False
        self.cancel_step(task_id)
        return True

    cancel_subagent_task = blocking(cancel_subagent_task_async)


def _require_number(name: str, value: Any, least: int, most: int | None = None) -> None:
    if value is None and name == "after_sequence":
        return
    if type(value) is not int or value < least or (most is not None and value > most):
        end = "" if most is None else f" to {most}"
        raise UsageError(f"{name} must be a whole number from {least}{end}, got {value!r}")


def _require_id(run_id: Any) -> None:
    _require_text("run_id", run_id)
    if not run_id.strip() or len(run_id.encode()) > MAX_ID_BYTES or not run_id.isprintable():
        raise UsageError(f"run_id must be printable text of 1 to {MAX_ID_BYTES} bytes, got {run_id!r}")


def _require_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not is_plain(value):
        raise UsageError(f"{name} must be text that can be written as UTF-8, got {value!r}")
