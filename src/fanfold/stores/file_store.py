"""A session store in a directory, for any number of processes of one machine.

    <dir>/<kind>/<id>.jsonl    a log: records framed by `record_lines`
                <id>.json      a document: see `document_file`; `<id>.json.lock` while it is being replaced
                <id>.lease     locked by whoever has the lease; the log of who took it, whose last seq is the epoch
                <id>.id        the whole id where the name holds only the beginning of it (see `store_name`)

A log is locked for an append only, not for as long as a lease is held: a writer without a lease is told where the log
is, not kept waiting. What the last look at a log told is remembered, so an append reads nothing again.
"""

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fanfold.protocols import Document, Lease
from fanfold.stores.directory import make_directory, refuse_links
from fanfold.stores.document_file import read_document, write_document
from fanfold.stores.durable_file import remove_file
from fanfold.stores.held_leases import HeldLeases
from fanfold.stores.kept_ids import ids_in, keep_id
from fanfold.stores.landing import in_worker
from fanfold.stores.line_file import LineFile
from fanfold.stores.record_file import KnownLog, LockedLog, has_records, read_log, remove_log, wait_for_file
from fanfold.stores.store_life import StoreLife
from fanfold.stores.store_name import file_stem, require_kind, split_name
from fanfold.stores.store_rules import require_data, require_place, require_records

_LOG = ".jsonl"
_DOCUMENT = ".json"
_LEASE = ".lease"
_LOCK = ".lock"
_REMEMBERED_LOGS = 256
_INLINE_BYTES = 64 * 1024
"""More than this is read in a worker thread; less takes less than the way there."""


class FileSessionStore(StoreLife):
    """Nothing is created before the first write. A lease counts in the object that acquired it, and ends with it or
    its process; file locks bind only processes of one machine, so do not share `dir` over a network."""

    def __init__(self, dir: str | Path) -> None:
        self._directory = Path(dir)
        self._leases = HeldLeases()
        self._known: dict[str, KnownLog] = {}
        self._turn = threading.Lock()
        """For `_known`."""
        self._is_closed = False

    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        require_records(log, records)
        path = self._path(log, _LOG)
        return await in_worker(partial(self._append, log, path, expected_seq, records, lease))

    async def read(self, log: str, after_seq: int = 0) -> Sequence[bytes]:
        path = self._path(log, _LOG)
        if _is_small(path):
            return self._read(log, path, after_seq)
        return await in_worker(partial(self._read, log, path, after_seq))

    async def delete(self, log: str, lease: Lease | None = None) -> bool:
        path = self._path(log, _LOG)
        return await in_worker(partial(self._delete, path, lease))

    async def logs(self, kind: str) -> Sequence[str]:
        return await self._ids(kind, _LOG, has_records)

    async def load(self, document: str) -> Document | None:
        path = self._path(document, _DOCUMENT)
        return await in_worker(partial(read_document, document, path))

    async def compare_and_set(
        self, document: str, expected_revision: int, data: bytes | None, lease: Lease | None = None
    ) -> int:
        require_data(document, data)
        path = self._path(document, _DOCUMENT)
        return await in_worker(partial(self._compare_and_set, document, path, expected_revision, data, lease))

    async def documents(self, kind: str) -> Sequence[str]:
        return await self._ids(kind, _DOCUMENT, lambda path: True)

    async def acquire(self, name: str) -> Lease:
        path = self._path(name, _LEASE)
        return await self._leases.take_in_worker(partial(self._acquire, name, path))

    async def release(self, lease: Lease) -> None:
        self._leases.release(lease)  # no disk is waited for

    async def close(self) -> None:
        await in_worker(self._close_now)

    def _close_now(self) -> None:
        self._is_closed = True
        self._leases.close()

    def _leases_held(self) -> list[str]:
        return self._leases.names()

    def _path(self, name: str, suffix: str) -> Path:
        """Where `name` lies, on a way without links."""
        kind, known_as = split_name(name)
        self._require_open()
        refuse_links(self._directory, kind)
        return self._directory / kind / (file_stem(known_as) + suffix)

    def _append(self, log: str, path: Path, expected_seq: int, records: Sequence[bytes], lease: Lease | None) -> int:
        with self._leases.using(lease):
            _make_directory(path.parent)
            file = wait_for_file(path)
            try:
                found = LockedLog(log, file, self._known.get(log))
                require_place(log, expected_seq, found.last_seq)
                if records:
                    if not found.is_named:
                        keep_id(path, split_name(log)[1])
                    found.append(records)
                self._remember(log, found.known())
                return found.last_seq
            finally:
                file.close()

    def _read(self, log: str, path: Path, after_seq: int) -> list[bytes]:
        records, known = read_log(log, path, after_seq, self._known.get(log))
        self._remember(log, known)
        return records

    def _delete(self, path: Path, lease: Lease | None) -> bool:
        with self._leases.using(lease):
            return remove_log(path)

    def _compare_and_set(
        self, document: str, path: Path, expected_revision: int, data: bytes | None, lease: Lease | None
    ) -> int:
        with self._leases.using(lease):
            _make_directory(path.parent)
            lock = wait_for_file(path.with_name(path.name + _LOCK))
            try:
                found = read_document(document, path)
                require_place(document, expected_revision, 0 if found is None else found.revision)
                if data is None:
                    remove_file(path)
                    return 0
                if found is None:
                    keep_id(path, split_name(document)[1])
                write_document(path, Document(expected_revision + 1, data))
                return expected_revision + 1
            finally:
                lock.close()

    def _acquire(self, name: str, path: Path) -> Lease:
        _make_directory(path.parent)
        return self._leases.take(name, path, partial(_next_epoch, name))

    async def _ids(self, kind: str, suffix: str, is_there: Callable[[Path], bool]) -> list[str]:
        require_kind(kind)
        self._require_open()
        refuse_links(self._directory, kind)
        return await in_worker(partial(ids_in, self._directory / kind, suffix, is_there))

    def _remember(self, log: str, known: KnownLog | None) -> None:
        with self._turn:
            self._known.pop(log, None)
            if known is not None:
                self._known[log] = known
            if len(self._known) > _REMEMBERED_LOGS:
                del self._known[next(iter(self._known))]


def _is_small(path: Path) -> bool:
    try:
        return path.stat().st_size <= _INLINE_BYTES
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _make_directory(directory: Path) -> None:
    if not directory.is_dir():
        make_directory(directory)


def _next_epoch(name: str, file: LineFile, after: int) -> int:
    """A lease file is a log of who took the lease, and the seq of a record its epoch."""
    log = LockedLog(name, file, None, "lease")
    log.append([b"process %d" % os.getpid()] * max(1, after + 1 - log.last_seq))
    return log.last_seq
