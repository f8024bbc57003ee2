"""Saving: what a session store has of one session, written so that each state of the store is one that was true.

Facts come first, then the document that counts on them: whoever dies in between leaves the document of before, which
does not count the facts that came too early. A writer holds the lease `session/<id>`; one who lost it writes nothing,
and one whose document somebody else has replaced meanwhile is told so and replaces nothing.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from fanfold.contracts.codec import decode_fact, decode_json, encode_fact, encode_json
from fanfold.contracts.facts import Fact, NewFact
from fanfold.contracts.saved import (
    CHECKPOINT_VERSION,
    SESSION_VERSION,
    LoopCheckpoint,
    SavedFacts,
    SavedSession,
)
from fanfold.errors import CorruptLogError, RunCheckpointRefusedError, StorageError, StoreConflictError
from fanfold.portal import complete
from fanfold.protocols import HeldThread, Lease, SessionStore

T = TypeVar("T")
SESSION, CHECKPOINT, FACTS, EVENTS = "session", "checkpoint", "facts", "run-events"


class SessionSaves:
    """The one place that knows how a session lies in its store."""

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self._store = store
        self._session_id = session_id
        self._lease: Lease | None = None
        self._facts: SavedFacts | None = None
        """The log that the thread's facts are in, as far as is known for sure."""
        self._lineage: object = None
        self._revisions: dict[str, int] = {}
        """Of the documents that what is written next builds upon."""
        self._unanswered: dict[str, bytes] = {}
        """Documents that were written, or not: nobody said."""
        self._own: set[str] = set()
        """Checkpoints that were put here."""

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
        known = self._facts if held.lineage is self._lineage else None
        self._facts = None  # until this has ended well
        if known is None:
            known = SavedFacts(*await self._continued(FACTS, self._session_id, [_line(f) for f in await held.read()]))
        new = await held.read(known.last_seq)
        if new:
            last_seq = await self._store.append(known.log, known.last_seq, [_line(fact) for fact in new], self._lease)
            known = SavedFacts(known.log, last_seq)
        self._facts, self._lineage = known, held.lineage
        return known

    async def read_facts(self, saved: SavedFacts, *, to_end: bool = False) -> list[Fact]:
        """Those that `saved` counts on; `to_end`: and those that came after them.

        Raises:
            CorruptLogError: there are fewer, or one cannot be read.
        """
        records = await self._store.read(saved.log)
        if not to_end:
            records = records[: saved.last_seq]
        if len(records) < saved.last_seq:
            raise _corrupt(saved, len(records) + 1, "the store has lost records")
        facts: list[Fact] = []
        for line, record in enumerate(records, start=1):
            try:
                facts.append(decode_fact(record))
            except ValueError as error:
                raise _corrupt(saved, line, str(error)) from error
        return facts

    # ---- the session ----

    async def load(self) -> SavedSession | None:
        """The last generation that was saved; `save` replaces this one and no other.

        Raises:
            StorageError: a later version of fanfold wrote it, or it cannot be read; it stays as it is.
        """
        name = f"{SESSION}/{self._session_id}"
        data = await self._read(name)
        if data is None:
            return None
        version = _version_of(name, data)
        if version > SESSION_VERSION:
            raise StorageError(
                f"saved session '{self._session_id}' has schema version {version} but this build supports at most "
                f"{SESSION_VERSION}; it was not touched"
            )
        return _decoded(name, data, SavedSession)

    async def save(self, session: SavedSession) -> None:
        """Replace the saved session; under `writing`. Raises StoreConflictError: another node has saved meanwhile."""
        await self._put(f"{SESSION}/{self._session_id}", session)

    async def put_events(self, run_id: str, events: Sequence[bytes]) -> str:
        """Keep all events of a run; the name of their log."""
        log, count = await self._continued(EVENTS, f"{self._session_id} {run_id}", events)
        await self.add_events(log, count, events[count:])
        return log

    async def add_events(self, log: str, after: int, events: Sequence[bytes]) -> None:
        if events:
            await self._store.append(log, after, events, self._lease)

    async def read_events(self, log: str) -> list[bytes]:
        return list(await self._store.read(log))

    async def forget_events(self, log: str) -> None:
        await self._store.delete(log, self._lease)

    # ---- checkpoints ----

    async def put_checkpoint(self, checkpoint: LoopCheckpoint) -> None:
        """Under `writing`. Raises RunCheckpointRefusedError: a run of another session has the same id."""
        name = f"{CHECKPOINT}/{checkpoint.run_id}"
        if name not in self._own:
            await self.checkpoint(checkpoint.run_id)
            self._own.add(name)
        await self._put(name, checkpoint)

    async def forget_checkpoint(self, run_id: str) -> None:
        """Remove what `put_checkpoint` has put."""
        name = f"{CHECKPOINT}/{run_id}"
        if name in self._own:
            self._own.remove(name)
            if await self._read(name) is not None:
                await self._store.compare_and_set(name, self._revisions[name], None, self._lease)

    async def checkpoint(self, run_id: str) -> LoopCheckpoint | None:
        """The checkpoint of that run, checked to be this session's.

        Raises:
            RunCheckpointRefusedError: it is another session's, another run's, or of a later version.
        """
        name = f"{CHECKPOINT}/{run_id}"
        data = await self._read(name)
        if data is None:
            return None
        version = _version_of(name, data)
        if version > CHECKPOINT_VERSION:
            raise RunCheckpointRefusedError(
                f"loop checkpoint for run {run_id} has schema version {version} but this build supports at most "
                f"{CHECKPOINT_VERSION}; refusing to resume from an incompatible future checkpoint"
            )
        found = _decoded(name, data, LoopCheckpoint)
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

    async def newest_checkpoint(self) -> str | None:
        """The run of this session that wrote the last one of all its checkpoints."""
        newest: LoopCheckpoint | None = None
        for run_id in await self._store.documents(CHECKPOINT):
            try:
                found = await self.checkpoint(run_id)
            except StorageError:
                continue  # another session's, or one that nobody here can read
            if found is not None and (newest is None or found.checkpoint_ms >= newest.checkpoint_ms):
                newest = found
        return None if newest is None else newest.run_id

    async def _continued(self, kind: str, known_as: str, records: Sequence[bytes]) -> tuple[str, int]:
        """The log that `records` continue, and how many of them it has: the first one that holds none but the first of
        them. One of another past stays as it is, for something may count on it, and the next one stands beside it."""
        log = f"{kind}/{known_as}"
        number = 1
        while (there := list(await self._store.read(log))) != list(records[: len(there)]):
            number += 1
            log = f"{kind}/{known_as}~{number}"
        return log, len(there)

    # ---- documents ----

    async def _read(self, name: str) -> bytes | None:
        document = await self._store.load(name)
        self._revisions[name] = 0 if document is None else document.revision
        return None if document is None else document.data

    async def _put(self, name: str, value: msgspec.Struct) -> None:
        try:
            data = encode_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise StorageError(f"'{name}' was not written: {error}") from error
        await self._settle_unanswered(name)
        self._unanswered[name] = data
        try:
            revision = await self._store.compare_and_set(name, self._revisions.get(name, 0), data, self._lease)
        except StoreConflictError as error:
            if error.actual == 0:  # it was removed, not overtaken: the next one is written anew
                self._revisions[name] = 0
            raise
        del self._unanswered[name]
        self._revisions[name] = revision

    async def _settle_unanswered(self, name: str) -> None:
        """A write of ours that came to be after all is no writing of somebody else's."""
        data = self._unanswered.pop(name, None)
        if data is not None:
            there = await self._store.load(name)
            if there is not None and there.data == data:
                self._revisions[name] = there.revision


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


class _Versioned(msgspec.Struct):
    schema_version: int = 0


def _version_of(name: str, data: bytes) -> int:
    """Told before anything else is read: a later version may have written it in another form."""
    return _decoded(name, data, _Versioned).schema_version


def _decoded(name: str, data: bytes, kind: type[T]) -> T:
    try:
        found: T = decode_json(data, kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise StorageError(f"'{name}' of the session store cannot be read: {error}; it was not touched") from error
    return found


def _line(fact: Fact) -> bytes:
    return encode_fact(fact).rstrip(b"\n")


def _corrupt(saved: SavedFacts, line: int, reason: str) -> CorruptLogError:
    error = CorruptLogError(thread=saved.log, line=line, reason=reason, what="saved facts")
    error.hint = "the session's own log, where there is one, is not concerned: open it without the store"
    return error
