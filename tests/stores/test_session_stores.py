"""Every session store keeps the laws of its seam."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.errors import FencedError, LifecycleError
from fanfold.protocols import SessionStore
from fanfold.stores.file_store import FileSessionStore
from fanfold.stores.memory_store import MemorySessionStore
from fanfold.stores.sqlite_store import SqliteSessionStore
from fanfold.testing.store_conformance import DurableSessionStoreConformance, SessionStoreConformance

from .logs import run


class TestFileSessionStore(DurableSessionStoreConformance):
    def open_store(self, directory: Path) -> SessionStore:
        return FileSessionStore(directory)


class TestSqliteSessionStore(DurableSessionStoreConformance):
    def open_store(self, directory: Path) -> SessionStore:
        return SqliteSessionStore(directory / "store.db")


class TestMemorySessionStore(SessionStoreConformance):
    def open_store(self, directory: Path) -> SessionStore:
        return MemorySessionStore()


_Store = FileSessionStore | SqliteSessionStore | MemorySessionStore
_OPENERS: dict[str, Callable[[Path], _Store]] = {
    "file": FileSessionStore,
    "sqlite": lambda directory: SqliteSessionStore(directory / "store.db"),
    "memory": lambda directory: MemorySessionStore(),
}
each_store = pytest.mark.parametrize("open_store", _OPENERS.values(), ids=_OPENERS.keys())


@each_store
def test_leaving_a_with_block_closes_the_store(tmp_path: Path, open_store: Callable[[Path], _Store]) -> None:
    async def scenario() -> None:
        async with open_store(tmp_path) as store:
            await store.append("wf/1", 0, [b"a"])
        with pytest.raises(LifecycleError):
            await store.read("wf/1")
        with open_store(tmp_path) as store:
            await store.append("wf/2", 0, [b"a"])
        with pytest.raises(LifecycleError):
            store.__enter__()

    run(scenario())


@each_store
def test_a_store_that_is_dropped_with_a_lease_says_so_and_lets_go(
    tmp_path: Path, open_store: Callable[[Path], _Store]
) -> None:
    def drop() -> None:
        store = open_store(tmp_path)
        run(store.acquire("lead/1"))
        del store
        gc.collect()

    with pytest.warns(ResourceWarning, match="dropped with the lease of 'lead/1'"):
        drop()
    with open_store(tmp_path) as store:
        run(store.acquire("lead/1"))


@each_store
def test_a_store_that_is_dropped_without_a_lease_is_silent(
    tmp_path: Path, open_store: Callable[[Path], _Store]
) -> None:
    run(open_store(tmp_path).append("wf/1", 0, [b"a"]))
    gc.collect()


def test_breaking_the_leases_of_a_store_in_memory_stands_for_the_end_of_their_holders() -> None:
    async def scenario() -> None:
        async with MemorySessionStore() as store:
            old = await store.acquire("wf/1")
            await store.append("wf/1", 0, [b"a"], old)
            store.break_leases()
            with pytest.raises(FencedError):
                await store.append("wf/1", 1, [b"b"], old)
            new = await store.acquire("wf/1")
            assert new.epoch > old.epoch
            await store.release(old)
            assert await store.append("wf/1", 1, [b"b"], new) == 2

    run(scenario())
