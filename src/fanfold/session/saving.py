"""Saving: what a session store has of one session, written so that each state of the store is one that was true.

Facts come first, then the document that counts on them: whoever dies in between leaves the document of before, which
does not count the facts that came too early. A writer holds the lease `session/<id>`; one who lost it writes nothing.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from fanfold.contracts.codec import decode_fact, encode_fact, encode_json
from fanfold.contracts.facts import Fact, NewFact
from fanfold.contracts.saved import (
    CHECKPOINT_VERSION,
    SESSION_VERSION,
    LoopCheckpoint,
    SavedFacts,
    SavedSession,
)
from fanfold.errors import CheckpointNotFoundError, CorruptLogError, RunCheckpointRefusedError, StorageError
from fanfold.portal import complete
from fanfold.protocols import HeldThread, Lease, SessionStore

T = TypeVar("T")
SESSION, CHECKPOINT, FACTS, EVENTS = "session", "checkpoint", "facts", "run-events"
MAX_EVENT_BATCH = 1_000


class SessionSaves:
    """The one place that knows how a session lies in its store."""

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self._store = store
        self._session_id = session_id
        self._lease: Lease | None = None
        self._facts: SavedFacts | None = None
        """As far as this process has written or compared them."""
        self._lineage: object = None
        self._revisions: dict[str, int] = {}

    # ---- the right to write ----

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        """Hold the lease, unless it is held already.

        Raises:
            AlreadyActiveError: another node, or process, is at work on this session.
        """
        if self._lease is not None:
            yield
            return
        await self.take()
        try:
            yield
        finally:
            await complete(self.let_go())

    async def take(self) -> None:
        """Hold the lease until `let_go`. Raises AlreadyActiveError."""
        if self._lease is None:
            self._lease = await self._store.acquire(f"{SESSION}/{self._session_id}")

    async def let_go(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await self._store.release(lease)

    # ---- facts ----

    async def put_facts(self, held: HeldThread) -> SavedFacts:
        """Bring the store's facts up to those of the thread; under `writing`."""
        known = self._facts
        if known is None or held.lineage is not self._lineage:
            known = await self._compared(held)
        new = await held.read(known.last_seq)
        if new:
            last = await self._store.append(known.log, known.last_seq, [_line(fact) for fact in new], self._lease)
            known = SavedFacts(known.log, last)
        self._facts, self._lineage = known, held.lineage
        return known

    async def _compared(self, held: HeldThread) -> SavedFacts:
        """The log of the store that this thread continues: the one there is, when its facts are the first of the
        thread's; a new one beside it otherwise, since nothing that was saved is overwritten."""
        saved = await self.load()
        local = [_line(fact) for fact in await held.read()]
        base = f"{FACTS}/{self._session_id}"
        log, number = base if saved is None else saved.facts.log, 1
        while True:
            there = await self._store.read(log)
            if len(there) <= len(local) and there == local[: len(there)]:
                return SavedFacts(log, len(there))
            number += 1
            log = f"{base}~{number}"

    async def read_facts(self, saved: SavedFacts) -> list[Fact]:
        records = (await self._store.read(saved.log))[: saved.last_seq]
        if len(records) < saved.last_seq:
            raise CorruptLogError(
                thread=saved.log, line=len(records) + 1, reason="the store has lost records", what="saved facts"
            )
        facts: list[Fact] = []
        for line, record in enumerate(records, start=1):
            try:
                facts.append(decode_fact(record))
            except ValueError as error:
                raise CorruptLogError(thread=saved.log, line=line, reason=str(error), what="saved facts") from error
        return facts

    # ---- the session ----

    async def load(self) -> SavedSession | None:
        """The last generation that was saved.

        Raises:
            StorageError: a later version of fanfold wrote it, or it cannot be read; it stays as it is.
        """
        saved = await self._load(f"{SESSION}/{self._session_id}", SavedSession)
        if saved is not None and saved.schema_version > SESSION_VERSION:
            raise StorageError(
                f"saved session '{self._session_id}' has schema version {saved.schema_version} but this build supports "
                f"at most {SESSION_VERSION}; it was not touched"
            )
        return saved

    async def save(self, session: SavedSession) -> None:
        """Replace the saved session; under `writing`. Raises StoreConflictError: another node has saved meanwhile."""
        await self._put(f"{SESSION}/{self._session_id}", session)

    async def put_events(self, run_id: str, events: Sequence[bytes]) -> str:
        """Keep the events of a run that is over; the name of their log."""
        log = f"{EVENTS}/{self._session_id} {run_id}"
        there = len(await self._store.read(log))
        for begin in range(there, len(events), MAX_EVENT_BATCH):
            await self._store.append(log, begin, events[begin : begin + MAX_EVENT_BATCH], self._lease)
        return log

    async def read_events(self, log: str) -> list[bytes]:
        return list(await self._store.read(log))

    async def forget_events(self, log: str) -> None:
        await self._store.delete(log, self._lease)

    # ---- checkpoints ----

    async def put_checkpoint(self, checkpoint: LoopCheckpoint) -> None:
        """Under `writing`."""
        await self._put(f"{CHECKPOINT}/{checkpoint.run_id}", checkpoint)

    async def forget_checkpoint(self, run_id: str) -> None:
        """Its run has ended here."""
        name = f"{CHECKPOINT}/{run_id}"
        if name in self._revisions:
            await self._store.compare_and_set(name, self._revisions.pop(name), None, self._lease)

    async def checkpoint(self, run_id: str) -> LoopCheckpoint | None:
        """The checkpoint of that run, checked to be this session's.

        Raises:
            RunCheckpointRefusedError: it is another session's, another run's, or of a later version.
        """
        found = await self._load(f"{CHECKPOINT}/{run_id}", LoopCheckpoint)
        if found is None:
            return None
        if found.schema_version > CHECKPOINT_VERSION:
            raise RunCheckpointRefusedError(
                f"loop checkpoint for run {run_id} has schema version {found.schema_version} but this build supports "
                f"at most {CHECKPOINT_VERSION}; refusing to resume from an incompatible future checkpoint"
            )
        if found.run_id != run_id:
            raise RunCheckpointRefusedError(
                f"loop checkpoint key mismatch: requested run '{run_id}', payload belongs to '{found.run_id}'"
            )
        if found.session_id != self._session_id:
            raise RunCheckpointRefusedError(
                f"refusing to resume checkpoint '{run_id}': loop checkpoint ownership mismatch for run \"{run_id}\": "
                f'current session is "{self._session_id}", payload belongs to "{found.session_id}"'
            )
        return found

    async def required(self, run_id: str) -> LoopCheckpoint:
        found = await self.checkpoint(run_id)
        if found is None:
            raise CheckpointNotFoundError(run_id=run_id)
        return found

    # ---- documents ----

    async def _load(self, name: str, kind: type[T]) -> T | None:
        document = await self._store.load(name)
        if document is None:
            return None
        self._revisions[name] = document.revision
        try:
            return msgspec.json.decode(document.data, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StorageError(f"'{name}' of the session store cannot be read: {error}; it was not touched") from error

    async def _put(self, name: str, value: msgspec.Struct) -> None:
        if name not in self._revisions:
            document = await self._store.load(name)
            self._revisions[name] = 0 if document is None else document.revision
        revision = self._revisions[name]
        self._revisions[name] = await self._store.compare_and_set(name, revision, encode_json(value), self._lease)


def _line(fact: Fact) -> bytes:
    return encode_fact(fact).rstrip(b"\n")


async def take_up(held: HeldThread, facts: Sequence[Fact]) -> None:
    """Make the thread one that continues `facts`. Its own log wins if it contains them; what it lacks is appended, and
    a log that went another way is set aside, under a name of its own (decisions 2.10)."""
    local = await held.read()
    shared = min(len(local), len(facts))
    if [_line(fact) for fact in local[:shared]] != [_line(fact) for fact in facts[:shared]]:
        await held.set_aside()
        shared = 0
    missing = facts[shared:]
    if missing:
        await held.append([NewFact(fact.key, fact.cause, fact.payload) for fact in missing])
