"""A session store in one SQLite database, for any number of processes of one machine.

The database has the epochs of the leases; whether a holder lives is told by its lock on a file in `<path>.leases/`.
Every record and document has a checksum of its own, for SQLite takes a flipped bit in a row for what was written.
"""

import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from zlib import crc32

from fanfold.errors import CorruptLogError, FencedError, StorageError, UsageError
from fanfold.protocols import Document, Lease
from fanfold.stores.directory import make_directory, refuse_links
from fanfold.stores.disk_sync import sync_directory
from fanfold.stores.held_leases import HeldLeases
from fanfold.stores.landing import in_worker
from fanfold.stores.sqlite_thread import SqliteThread
from fanfold.stores.store_life import StoreLife
from fanfold.stores.store_name import file_stem, require_kind, split_name
from fanfold.stores.store_rules import require_data, require_place, require_records

_APPLICATION = 0x66616E66
"""Marks the database as ours ("fanf")."""
_VERSION = 1
_PATIENCE_SECONDS = 10.0
"""How long another process may keep the database to itself."""
_POLL_SECONDS = 0.005

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS logs (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, last_seq INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS records (
    log INTEGER NOT NULL, seq INTEGER NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (log, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS documents (
    name TEXT PRIMARY KEY, revision INTEGER NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
COMMIT;
"""


class SqliteSessionStore(StoreLife):
    """Nothing is created before the first operation. A lease counts in the object that acquired it, and ends with it
    or its process; neither SQLite's locks nor ours are to be trusted over a network, so keep `path` on this machine."""

    def __init__(self, path: str | Path) -> None:
        if str(path) == ":memory:" or str(path).startswith("file:") or not str(path):
            raise UsageError(f"{str(path)!r} is no file; for a store in memory use MemorySessionStore()")
        self._path = Path(path)
        self._leases = HeldLeases()
        self._thread = SqliteThread(self._path, partial(_connect, self._path))
        self._is_closed = False

    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        split_name(log)
        require_records(log, records)
        return await self._thread.do(
            lambda connection: self._append(connection, log, expected_seq, records, lease), writes=True
        )

    async def read(self, log: str, after_seq: int = 0) -> Sequence[bytes]:
        split_name(log)
        return await self._thread.do(lambda connection: self._read(connection, log, after_seq), writes=False)

    async def delete(self, log: str, lease: Lease | None = None) -> bool:
        split_name(log)
        return await self._thread.do(lambda connection: self._delete(connection, log, lease), writes=True)

    async def logs(self, kind: str) -> Sequence[str]:
        return await self._ids(kind, "SELECT name FROM logs WHERE name >= ? AND name < ?")

    async def load(self, document: str) -> Document | None:
        split_name(document)
        return await self._thread.do(lambda connection: self._load(connection, document), writes=False)

    async def compare_and_set(
        self, document: str, expected_revision: int, data: bytes | None, lease: Lease | None = None
    ) -> int:
        split_name(document)
        require_data(document, data)
        return await self._thread.do(
            lambda connection: self._compare_and_set(connection, document, expected_revision, data, lease), writes=True
        )

    async def documents(self, kind: str) -> Sequence[str]:
        return await self._ids(kind, "SELECT name FROM documents WHERE name >= ? AND name < ?")

    async def acquire(self, name: str) -> Lease:
        kind, known_as = split_name(name)
        self._require_open()
        path = self._lease_directory / f"{kind}.{file_stem(known_as)}.lock"
        return await self._leases.take_in_worker(partial(self._acquire, name, path))

    async def release(self, lease: Lease) -> None:
        await in_worker(partial(self._leases.release, lease))

    async def close(self) -> None:
        await in_worker(self._close_now)

    def _close_now(self) -> None:
        self._let_go()
        self._thread.join()

    def _let_go(self) -> None:
        self._is_closed = True
        self._thread.end()
        self._leases.close()

    def _leases_held(self) -> list[str]:
        return self._leases.names()

    @property
    def _lease_directory(self) -> Path:
        return self._path.with_name(self._path.name + ".leases")

    def _append(
        self,
        connection: sqlite3.Connection,
        log: str,
        expected_seq: int,
        records: Sequence[bytes],
        lease: Lease | None,
    ) -> int:
        self._require_in_force(connection, lease)
        known = self._find(connection, log)
        require_place(log, expected_seq, 0 if known is None else known[1])
        if not records:
            return expected_seq
        last_seq = expected_seq + len(records)
        if known is None:
            key = connection.execute("INSERT INTO logs (name, last_seq) VALUES (?, ?)", (log, last_seq)).lastrowid
        else:
            key = known[0]
            connection.execute("UPDATE logs SET last_seq = ? WHERE id = ?", (last_seq, key))
        seed = crc32(log.encode())
        connection.executemany(
            "INSERT INTO records VALUES (?, ?, ?, ?)",
            [(key, seq, data, _checksum(data, seq, seed)) for seq, data in enumerate(records, expected_seq + 1)],
        )
        return last_seq

    def _read(self, connection: sqlite3.Connection, log: str, after_seq: int) -> list[bytes]:
        known = self._find(connection, log)
        if known is None or after_seq >= known[1]:
            return []
        key, last_seq = known
        first_seq = max(after_seq, 0) + 1
        rows = connection.execute(
            "SELECT data, checksum FROM records WHERE log = ? AND seq >= ? ORDER BY seq", (key, first_seq)
        ).fetchall()
        seed = crc32(log.encode())
        for seq, (data, checksum) in enumerate(rows, first_seq):
            if not isinstance(data, bytes) or checksum != _checksum(data, seq, seed):
                raise self._corrupt("log", log, seq, "the record does not have the checksum that is kept with it")
        if len(rows) != last_seq - first_seq + 1:
            raise self._corrupt("log", log, first_seq + len(rows), f"it should have {last_seq} records")
        return [data for data, _ in rows]

    def _delete(self, connection: sqlite3.Connection, log: str, lease: Lease | None) -> bool:
        self._require_in_force(connection, lease)
        known = self._find(connection, log)
        if known is None:
            return False
        connection.execute("DELETE FROM records WHERE log = ?", (known[0],))
        connection.execute("DELETE FROM logs WHERE id = ?", (known[0],))
        return True

    def _load(self, connection: sqlite3.Connection, document: str) -> Document | None:
        row = connection.execute(
            "SELECT revision, data, checksum FROM documents WHERE name = ?", (document,)
        ).fetchone()
        if row is None:
            return None
        revision, data, checksum = row
        if not isinstance(data, bytes) or checksum != _checksum(data, revision, crc32(document.encode())):
            raise self._corrupt("document", document, 1, "it does not have the checksum that is kept with it")
        return Document(revision, data)

    def _compare_and_set(
        self,
        connection: sqlite3.Connection,
        document: str,
        expected_revision: int,
        data: bytes | None,
        lease: Lease | None,
    ) -> int:
        self._require_in_force(connection, lease)
        found = self._load(connection, document)
        require_place(document, expected_revision, 0 if found is None else found.revision)
        if data is None:
            connection.execute("DELETE FROM documents WHERE name = ?", (document,))
            return 0
        revision = expected_revision + 1
        checksum = _checksum(data, revision, crc32(document.encode()))
        connection.execute("REPLACE INTO documents VALUES (?, ?, ?, ?)", (document, revision, data, checksum))
        return revision

    async def _ids(self, kind: str, query: str) -> list[str]:
        require_kind(kind)
        after_slash = f"{kind}{chr(ord('/') + 1)}"
        rows = await self._thread.do(
            lambda connection: connection.execute(query, (f"{kind}/", after_slash)).fetchall(), writes=False
        )
        return sorted(name.partition("/")[2] for (name,) in rows)

    def _acquire(self, name: str, path: Path) -> Lease:
        refuse_links(path.parent.parent, path.parent.name)
        make_directory(path.parent)
        return self._leases.take(name, path, lambda _file, _after: self._next_epoch(name))

    def _next_epoch(self, name: str) -> int:
        return self._thread.submit(lambda connection: _raise_epoch(connection, name), writes=True).result()

    def _require_in_force(self, connection: sqlite3.Connection, lease: Lease | None) -> None:
        if lease is None:
            return
        # Until the commit nobody else can have a newer one: its epoch comes from a transaction behind this one.
        with self._leases.using(lease):
            if _epoch_of(connection, lease.name) != lease.epoch:
                raise FencedError(name=lease.name, epoch=lease.epoch)

    def _find(self, connection: sqlite3.Connection, log: str) -> tuple[int, int] | None:
        """Key and last seq of a log that has records."""
        row = connection.execute("SELECT id, last_seq FROM logs WHERE name = ?", (log,)).fetchone()
        if row is None:
            return None
        key, last_seq = row
        if not isinstance(last_seq, int):
            raise self._corrupt("log", log, 1, "the number of its records is none")
        return key, last_seq

    def _corrupt(self, what: str, name: str, line: int, reason: str) -> CorruptLogError:
        error = CorruptLogError(thread=name, line=line, reason=reason, what=what)
        error.hint = f"put a good copy of {self._path} in its place, or delete that {what}"
        return error


def _epoch_of(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT epoch FROM leases WHERE name = ?", (name,)).fetchone()
    if row is None:
        return 0
    if not isinstance(row[0], int):
        raise sqlite3.DatabaseError(f"the lease '{name}' has no number")
    return row[0]


def _raise_epoch(connection: sqlite3.Connection, name: str) -> int:
    epoch = _epoch_of(connection, name) + 1
    connection.execute("REPLACE INTO leases VALUES (?, ?)", (name, epoch))
    return epoch


def _checksum(data: bytes, place: int, seed: int) -> int:
    """Of the bytes at one place only: a row that came to lie elsewhere does not have it."""
    return crc32(data, crc32(b"%d " % place, seed))


def _connect(path: Path) -> sqlite3.Connection:
    """A connection to our database, created if need be."""
    refuse_links(path.parent, path.name)
    make_directory(path.parent)
    connection = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE_SECONDS)
    try:
        _require_ours(connection, path)
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
        if _number(connection, "user_version") == 0:
            connection.executescript(_SCHEMA)
            sync_directory(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_ours(connection: sqlite3.Connection, path: Path) -> None:
    # In this order: whoever makes it at the same time gives it tables and number together.
    is_empty = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    application, version = _number(connection, "application_id"), _number(connection, "user_version")
    if application != _APPLICATION and not is_empty:
        raise StorageError(f"{path} is the database of another program").with_hint("give the store a file of its own")
    if version > _VERSION:
        raise StorageError(f"{path} was written by a newer fanfold").with_hint(
            "upgrade, or give the store another file"
        )


def _use_wal(connection: sqlite3.Connection) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:  # two that change the mode at once are refused, not kept waiting
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)  # in the database's thread


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
