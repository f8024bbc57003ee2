"""A session store in memory: the same laws, no disk, no thread and no clock, so a simulator's loop can run it too."""

import threading
from collections.abc import Sequence

from fanfold.errors import AlreadyActiveError, FencedError
from fanfold.protocols import Document, Lease
from fanfold.stores.store_life import StoreLife
from fanfold.stores.store_name import require_kind, split_name
from fanfold.stores.store_rules import require_data, require_place, require_records


class MemorySessionStore(StoreLife):
    """Lives and dies with its process. Sessions and agents that are to meet in it are given the same object, on any
    number of event loops."""

    def __init__(self) -> None:
        self._logs: dict[str, list[bytes]] = {}
        self._documents: dict[str, Document] = {}
        self._epochs: dict[str, int] = {}
        self._held: set[str] = set()
        self._turn = threading.Lock()  # two loops are two threads; nothing waits while it is held
        self._is_closed = False

    async def append(self, log: str, expected_seq: int, records: Sequence[bytes], lease: Lease | None = None) -> int:
        split_name(log)
        require_records(log, records)
        with self._turn:
            self._require_in_force(lease)
            known = self._logs.get(log, [])
            require_place(log, expected_seq, len(known))
            if records:
                known.extend(records)
                self._logs[log] = known
            return len(known)

    async def read(self, log: str, after_seq: int = 0) -> Sequence[bytes]:
        split_name(log)
        with self._turn:
            self._require_open()
            return self._logs.get(log, [])[max(after_seq, 0) :]

    async def delete(self, log: str, lease: Lease | None = None) -> bool:
        split_name(log)
        with self._turn:
            self._require_in_force(lease)
            return self._logs.pop(log, None) is not None

    async def logs(self, kind: str) -> Sequence[str]:
        return self._ids_of(kind, self._logs)

    async def load(self, document: str) -> Document | None:
        split_name(document)
        with self._turn:
            self._require_open()
            return self._documents.get(document)

    async def compare_and_set(
        self, document: str, expected_revision: int, data: bytes | None, lease: Lease | None = None
    ) -> int:
        split_name(document)
        require_data(document, data)
        with self._turn:
            self._require_in_force(lease)
            found = self._documents.get(document)
            require_place(document, expected_revision, 0 if found is None else found.revision)
            if data is None:
                self._documents.pop(document, None)
                return 0
            self._documents[document] = Document(expected_revision + 1, data)
            return expected_revision + 1

    async def documents(self, kind: str) -> Sequence[str]:
        return self._ids_of(kind, self._documents)

    async def acquire(self, name: str) -> Lease:
        split_name(name)
        with self._turn:
            self._require_open()
            if name in self._held:
                raise AlreadyActiveError(name=name, holder="this process")
            self._held.add(name)
            epoch = self._epochs[name] = self._epochs.get(name, 0) + 1
            return Lease(name=name, epoch=epoch)

    async def release(self, lease: Lease) -> None:
        with self._turn:
            if self._epochs.get(lease.name) == lease.epoch:
                self._held.discard(lease.name)

    async def close(self) -> None:
        self._close_now()

    def break_leases(self) -> None:
        """As if every holder's process had ended: the leases are free again, and whoever had one is fenced."""
        with self._turn:
            self._held.clear()

    def _close_now(self) -> None:
        self._is_closed = True
        self._held.clear()

    def _leases_held(self) -> list[str]:
        return sorted(self._held)

    def _require_in_force(self, lease: Lease | None) -> None:
        self._require_open()
        if lease is not None and not (lease.name in self._held and self._epochs[lease.name] == lease.epoch):
            raise FencedError(name=lease.name, epoch=lease.epoch)

    def _ids_of(self, kind: str, names: dict[str, list[bytes]] | dict[str, Document]) -> list[str]:
        require_kind(kind)
        with self._turn:
            self._require_open()
            return sorted(name[len(kind) + 1 :] for name in names if name.startswith(f"{kind}/"))
