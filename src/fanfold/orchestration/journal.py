"""A workflow's journal: what is finished is recorded once, durably, and never run again.

One log of a `SessionStore`, `workflow/<id>`, written under the lease of the same name; the fold of it is a
`JournalView` (kernel). Every finished step is one record, and the turns of a step that uses tools go there too, so that
one group commit makes the news of all steps durable.
"""

from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from fanfold.contracts.facts import Fact
from fanfold.contracts.messages import Usage
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.env import HostEnv
from fanfold.errors import CheckpointRefusedError, CorruptLogError, StorageError, UsageError
from fanfold.kernel.journal import JournalView, Recorded, asking
from fanfold.kernel.plain_text import is_plain
from fanfold.orchestration.append_queue import AppendQueue
from fanfold.protocols import Lease, SessionStore

KIND = "workflow"


def log_name(workflow_id: str) -> str:
    """Raises UsageError for an id that can name no workflow."""
    if not isinstance(workflow_id, str) or not workflow_id.strip() or not is_plain(workflow_id):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a workflow id must be text that is not blank, got {workflow_id!r}")
    return f"{KIND}/{workflow_id}"


async def read_journal(store: SessionStore, workflow_id: str) -> JournalView:
    """The fold of what is recorded, without a lease: a look that changes nothing and may be had at any time.

    Raises:
        CheckpointRefusedError: no run may build on it.
    """
    return (await _read(store, workflow_id))[0]


async def _read(store: SessionStore, workflow_id: str) -> tuple[JournalView, int]:
    view = JournalView(workflow_id)
    try:
        records = await store.read(log_name(workflow_id))
    except CorruptLogError as error:
        raise CheckpointRefusedError(workflow_id=workflow_id, reason=str(error)) from error
    view.absorb(records)
    return view, len(records)


class WorkflowJournal:
    """Held exclusively from `open` until `close`."""

    def __init__(self, store: SessionStore, lease: Lease, view: JournalView, last_seq: int, env: HostEnv) -> None:
        self.view = view
        self._store = store
        self._lease = lease
        self._env = env
        self._last_seq = last_seq
        self._queue = AppendQueue(self._append, view.begin_batch)
        self._is_closed = False
        self.asked_for: set[str] = set()
        """Places that steps were asked for since it was opened."""
        if view.opened is None:
            self._queue.precede(view.opening(int(env.clock.now_ms())))

    @classmethod
    async def open(cls, store: SessionStore, workflow_id: str, env: HostEnv) -> Self:
        """Take the workflow and fold what it has.

        Raises:
            AlreadyActiveError: somebody runs it, here or in another process.
            CheckpointRefusedError: its journal is of a later version, of another workflow, changed or damaged.
        """
        lease = await store.acquire(log_name(workflow_id))
        try:
            view, last_seq = await _read(store, workflow_id)
            return cls(store, lease, view, last_seq, env)
        except BaseException:
            await store.release(lease)
            raise

    async def _append(self, records: list[bytes]) -> None:
        self._last_seq = await self._store.append(self._lease.name, self._last_seq, records, self._lease)

    def finished(self, place: str, identity: str) -> StepOutcome | None:
        """The recorded success of that very step."""
        known = self.view.succeeded.get(place)
        return None if known is None or known.identity != identity else known.outcome

    def ask(self, scope: str, specs: Sequence[AgentStepSpec]) -> None:
        """Note what is going to run. It goes along with the next record: on its own it is worth no sync."""
        self._queue.precede(*asking(scope, specs))

    def record(self, step: "EndedStep") -> bool:
        """Have a finished step recorded. False when there should be `room` before more is brought.

        Raises as `AppendQueue.submit`.
        """
        self._queue.submit(step)
        return not self._queue.is_crowded

    def now_ms(self) -> int:
        return int(self._env.clock.now_ms())

    async def room(self) -> None:
        """Return when there is room for more."""
        await self._queue.idle()

    async def flush(self) -> None:
        """Durable, all of it, when it returns."""
        await self._queue.flush()

    async def record_facts(self, place: str, identity: str, facts: Sequence[Fact]) -> None:
        """Keep turns of a step under way. Durable when it returns."""
        await self._queue.append(_Turns(self.view, place, identity, facts))

    @property
    def holds_more(self) -> bool:
        """Something is recorded that nobody asked for since it was opened."""
        return not self.view.places <= self.asked_for

    async def close(self, *, is_over: bool = False) -> None:
        """Let the workflow go, after all that was submitted is written. `is_over`: its journal has served its purpose
        and is removed."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            try:
                await self._queue.flush()
            except StorageError:
                if is_over:
                    raise
                # Told already to those who recorded something; this was one more try for what is waiting.
            if is_over:
                await self._store.delete(self._lease.name, self._lease)
        finally:
            await self._store.release(self._lease)


class _Turns(msgspec.Struct, frozen=True):
    """Of one step, on their way into the journal."""

    view: JournalView
    place: str
    identity: str
    facts: Sequence[Fact]

    def encode(self) -> bytes:
        return self.view.living(self.place, self.identity, self.facts)

    def written(self) -> None:
        self.view.seal_batch()
        self.view.take_facts(self.place, self.identity, self.facts)


class EndedStep(msgspec.Struct):
    """A step on its way into the journal. (A Struct: what there is one of for each step has to be made fast.)"""

    journal: WorkflowJournal
    place: str
    identity: str
    outcome: StepOutcome
    counts: Callable[[StepOutcome], None]
    """Hears the outcome as soon as it is durable."""
    spent: Usage | None = None
    """See `Recorded`."""
    cost_usd: float | None = None
    end: Recorded | None = None
    """Its record, once that was made."""

    def encode(self) -> bytes:
        now_ms = self.journal.now_ms()
        self.end = Recorded(self.place, self.identity, self.outcome, now_ms, self.spent, self.cost_usd)
        return self.journal.view.ending(self.end)

    def written(self) -> None:
        if self.end is not None:
            self.journal.view.seal_batch()
            self.journal.view.take_end(self.end)
            self.counts(self.outcome)
