"""The laws of the `SessionStore` seam as a pytest suite, for any implementation of it (needs pytest and hypothesis).

class TestMyStore(DurableSessionStoreConformance):
    def open_store(self, directory: Path) -> SessionStore:
        return MyStore(directory)
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanfold.errors import (
    AlreadyActiveError,
    FencedError,
    LifecycleError,
    LogWriteError,
    StorageError,
    StoreConflictError,
    UsageError,
)
from fanfold.protocols import Document, Lease, SessionStore

if sys.platform == "win32":

    def _limit_file_size(size: int) -> None:
        raise NotImplementedError

else:
    import resource

    def _limit_file_size(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


_LOG = "wf/wf-1"
_DOCUMENT = "run/run-1"
_LEASE = "lead/wf-1"
ODD_IDS = [
    "a/b", "wf-1/0:name", "ü" * 100, "x" * 300, "x" * 301, "Case", "case", ".", "..", " ", "%41", "A", "nul", "s-4142",
    "a\0b", "a\nb", "日本",
]  # fmt: skip
"""Each is an id like any other, and no two share anything."""
_BAD_NAMES = ["", "wf", "wf/", "/id", "Wf/id", "w f/id", "../id", "wf1/id", "wf/\ud800"]
_LAW = settings(
    max_examples=15,
    deadline=None,  # a disk may be slow
    suppress_health_check=[HealthCheck.differing_executors],  # it is the point of a suite that several classes run it
)

_records = st.binary(max_size=30).filter(lambda record: b"\n" not in record)
_ids = st.sampled_from(["a", "A", "b/c"])
_operations: st.SearchStrategy[list[tuple[Any, ...]]] = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _ids, st.sampled_from([0, 0, 0, 1, -1]), st.lists(_records, max_size=3)),
        st.tuples(st.just("read"), _ids, st.integers(-1, 6)),
        st.tuples(st.just("delete"), _ids),
        st.tuples(st.just("set"), _ids, st.sampled_from([0, 0, 0, 1, -1]), st.none() | st.binary(max_size=30)),
        st.tuples(st.just("load"), _ids),
        st.tuples(st.just("list")),
    ),
    max_size=15,
)

_CHILD = """
import asyncio, importlib, sys
from pathlib import Path
suite = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
asyncio.run(getattr(suite, sys.argv[3])(suite.open_store(Path(sys.argv[4]))))
"""


class SessionStoreConformance:
    """What every store keeps; override `open_store`."""

    def open_store(self, directory: Path) -> SessionStore:
        """A store that keeps its files, if it has any, in `directory`; nothing is awaited to open it."""
        raise NotImplementedError

    def with_store(self, use: Callable[[SessionStore], Awaitable[None]]) -> None:
        async def run(directory: Path) -> None:
            store = self.open_store(directory)
            try:
                await use(store)
            finally:
                await store.close()

        _in_directory(run)

    @_LAW
    @given(_operations)
    def test_a_store_does_what_a_plain_model_does(self, operations: list[tuple[Any, ...]]) -> None:
        async def use(store: SessionStore) -> None:
            model = _Model()
            for operation in operations:
                assert await _outcome(_perform(store, operation, model)) == model.perform(*operation)

        self.with_store(use)

    def test_what_was_appended_is_read_in_order_and_behind_any_seq(self) -> None:
        async def use(store: SessionStore) -> None:
            records = [b"record %d" % number for number in range(7)]
            assert await store.append(_LOG, 0, records[:3]) == 3
            assert await store.append(_LOG, 3, records[3:4]) == 4
            assert await store.append(_LOG, 4, records[4:]) == 7
            for after_seq in range(9):
                assert list(await store.read(_LOG, after_seq)) == records[after_seq:]

        self.with_store(use)

    def test_a_reader_that_follows_a_log_misses_nothing(self) -> None:
        async def use(store: SessionStore) -> None:
            seen: list[bytes] = []
            for seq in range(10):
                await store.append(_LOG, seq, [b"%d" % seq])
                seen += await store.read(_LOG, len(seen))
            assert seen == [b"%d" % seq for seq in range(10)]

        self.with_store(use)

    @pytest.mark.parametrize("record", [b"", b" ", b"\0\xff\r", b"+", b"x" * 100_000], ids=range(5))
    def test_a_record_is_any_bytes_without_a_newline(self, record: bytes) -> None:
        async def use(store: SessionStore) -> None:
            await store.append(_LOG, 0, [record, record])
            assert list(await store.read(_LOG)) == [record, record]

        self.with_store(use)

    @pytest.mark.parametrize("record", [b"a\nb", b"\n", "text", None], ids=repr)
    def test_what_is_no_record_is_refused_and_nothing_of_its_batch_is_written(self, record: Any) -> None:
        async def use(store: SessionStore) -> None:
            with pytest.raises(UsageError, match=_LOG):
                await store.append(_LOG, 0, [b"good", record])
            assert list(await store.read(_LOG)) == []
            with pytest.raises(UsageError, match=_DOCUMENT):
                await store.compare_and_set(_DOCUMENT, 0, cast(bytes, "text"))

        self.with_store(use)

    @pytest.mark.parametrize("expected_seq", [-1, 0, 1, 3])
    def test_an_append_at_another_place_writes_nothing_and_names_the_right_one(self, expected_seq: int) -> None:
        async def use(store: SessionStore) -> None:
            await store.append(_LOG, 0, [b"a", b"b"])
            with pytest.raises(StoreConflictError) as caught:
                await store.append(_LOG, expected_seq, [b"c"])
            assert (caught.value.name, caught.value.expected, caught.value.actual) == (_LOG, expected_seq, 2)
            assert list(await store.read(_LOG)) == [b"a", b"b"]

        self.with_store(use)

    def test_an_empty_append_writes_nothing_but_asks_for_the_place(self) -> None:
        async def use(store: SessionStore) -> None:
            assert await store.append(_LOG, 0, []) == 0
            assert list(await store.logs("wf")) == []
            await store.append(_LOG, 0, [b"a"])
            assert await store.append(_LOG, 1, []) == 1
            with pytest.raises(StoreConflictError):
                await store.append(_LOG, 0, [])

        self.with_store(use)

    def test_a_deleted_log_is_gone_and_begins_anew(self) -> None:
        async def use(store: SessionStore) -> None:
            assert not await store.delete(_LOG)
            await store.append(_LOG, 0, [b"old"])
            assert await store.delete(_LOG)
            assert (list(await store.read(_LOG)), list(await store.logs("wf"))) == ([], [])
            assert not await store.delete(_LOG)
            assert await store.append(_LOG, 0, [b"new"]) == 1
            assert list(await store.read(_LOG)) == [b"new"]

        self.with_store(use)

    def test_documents_are_created_replaced_and_removed_by_those_who_know_them(self) -> None:
        async def use(store: SessionStore) -> None:
            assert await store.load(_DOCUMENT) is None
            assert await store.compare_and_set(_DOCUMENT, 0, b"one\n") == 1
            assert await store.compare_and_set(_DOCUMENT, 1, b"") == 2
            assert await store.load(_DOCUMENT) == Document(2, b"")
            for expected in (-1, 0, 1, 3):
                for data in (b"other", None):
                    with pytest.raises(StoreConflictError) as caught:
                        await store.compare_and_set(_DOCUMENT, expected, data)
                    assert caught.value.actual == 2
            assert await store.compare_and_set(_DOCUMENT, 2, None) == 0
            assert (await store.load(_DOCUMENT), list(await store.documents("run"))) == (None, [])
            assert await store.compare_and_set(_DOCUMENT, 0, None) == 0
            assert await store.compare_and_set(_DOCUMENT, 0, b"again") == 1

        self.with_store(use)

    def test_tasks_that_count_at_once_lose_no_count(self) -> None:
        async def use(store: SessionStore) -> None:
            await asyncio.gather(*[count_up(store, 5) for _ in range(8)])
            assert await store.load(_DOCUMENT) == Document(40, b"40")

        self.with_store(use)

    def test_one_store_serves_several_event_loops(self) -> None:
        async def use(store: SessionStore) -> None:
            threads = [threading.Thread(target=lambda: asyncio.run(count_up(store, 10))) for _ in range(3)]
            for thread in threads:
                thread.start()
            await count_up(store, 10)
            for thread in threads:
                await asyncio.to_thread(thread.join)
            assert await store.load(_DOCUMENT) == Document(40, b"40")

        self.with_store(use)

    def test_every_id_is_listed_as_it_is_and_shares_nothing(self) -> None:
        async def use(store: SessionStore) -> None:
            for odd in ODD_IDS:
                data = repr(odd).encode()
                await store.append(f"wf/{odd}", 0, [data])
                await store.compare_and_set(f"wf/{odd}", 0, data)
                await store.acquire(f"wf/{odd}")
            assert list(await store.logs("wf")) == sorted(ODD_IDS)
            assert list(await store.documents("wf")) == sorted(ODD_IDS)
            for odd in ODD_IDS:
                assert list(await store.read(f"wf/{odd}")) == [repr(odd).encode()]
                assert await store.load(f"wf/{odd}") == Document(1, repr(odd).encode())

        self.with_store(use)

    def test_kinds_share_nothing(self) -> None:
        async def use(store: SessionStore) -> None:
            for kind in ("wf", "w", "wf-x", "wfa", "-"):
                await store.append(f"{kind}/id", 0, [kind.encode()])
            assert list(await store.logs("wf")) == ["id"]
            assert list(await store.logs("other")) == []
            assert list(await store.documents("wf")) == []
            assert list(await store.read("wf/id")) == [b"wf"]

        self.with_store(use)

    @pytest.mark.parametrize("name", _BAD_NAMES, ids=ascii)
    def test_what_is_no_name_is_refused(self, name: str) -> None:
        async def use(store: SessionStore) -> None:
            calls = (
                store.append(name, 0, [b"a"]),
                store.read(name),
                store.delete(name),
                store.load(name),
                store.compare_and_set(name, 0, b"a"),
                store.acquire(name),
            )
            for call in calls:
                with pytest.raises(UsageError, match="invalid name"):
                    await call
            for listing in (store.logs("a/b"), store.documents("")):
                with pytest.raises(UsageError, match="invalid kind"):
                    await listing

        self.with_store(use)

    def test_a_lease_excludes_until_it_is_released_and_its_epochs_rise(self) -> None:
        async def use(store: SessionStore) -> None:
            for epoch in range(1, 4):
                lease = await store.acquire(_LEASE)
                assert lease == Lease(name=_LEASE, epoch=epoch)
                with pytest.raises(AlreadyActiveError, match="'wf-1' is already active") as caught:
                    await store.acquire(_LEASE)
                assert caught.value.name == _LEASE
                await store.release(lease)
                await store.release(lease)
            assert (await store.acquire("lead/other")).epoch == 1

        self.with_store(use)

    def test_a_lease_that_was_released_or_never_given_writes_nothing(self) -> None:
        async def use(store: SessionStore) -> None:
            await store.append(_LOG, 0, [b"a"])
            await store.compare_and_set(_DOCUMENT, 0, b"a")
            held = await store.acquire(_LEASE)
            await _require_fenced(store, Lease(name=_LEASE, epoch=held.epoch + 1))
            await _require_fenced(store, Lease(name="lead/nobody", epoch=1))
            assert await store.append(_LOG, 1, [b"b"], held) == 2
            assert await store.compare_and_set(_DOCUMENT, 1, b"b", held) == 2
            await store.release(held)
            await _require_fenced(store, held)
            newer = await store.acquire(_LEASE)
            await _require_fenced(store, held)
            await store.release(held)
            assert await store.append(_LOG, 2, [b"c"], newer) == 3
            assert await store.delete(_LOG, newer)

        self.with_store(use)

    def test_whoever_has_no_lease_is_not_kept_waiting_by_one(self) -> None:
        async def use(store: SessionStore) -> None:
            lease = await store.acquire(_LOG)
            await store.append(_LOG, 0, [b"a"], lease)
            assert await store.append(_LOG, 1, [b"b"]) == 2
            with pytest.raises(StoreConflictError):
                await store.append(_LOG, 1, [b"c"], lease)

        self.with_store(use)

    @pytest.mark.parametrize("turns", range(6))
    def test_a_cancelled_append_is_written_as_a_whole_or_not_at_all(self, turns: int) -> None:
        async def use(store: SessionStore) -> None:
            await _cancel_after(turns, store.append(_LOG, 0, [b"a", b"b"]))
            records = list(await store.read(_LOG))
            assert records in ([], [b"a", b"b"])
            await store.append(_LOG, len(records), [b"c"])

        self.with_store(use)

    @pytest.mark.parametrize("turns", range(6))
    def test_a_lease_is_not_lost_with_the_task_that_asked_for_it(self, turns: int) -> None:
        async def use(store: SessionStore) -> None:
            acquired = await _cancel_after(turns, store.acquire(_LEASE))
            if acquired is None:
                await store.acquire(_LEASE)

        self.with_store(use)

    def test_a_closed_store_does_nothing_more_and_is_closed_twice(self) -> None:
        async def run(directory: Path) -> None:
            store = self.open_store(directory)
            lease = await store.acquire(_LEASE)
            await store.close()
            await store.close()
            calls = (
                store.append(_LOG, 0, [b"a"]),
                store.append(_LOG, 0, [b"a"], lease),
                store.read(_LOG),
                store.delete(_LOG),
                store.logs("wf"),
                store.load(_DOCUMENT),
                store.compare_and_set(_DOCUMENT, 0, b"a"),
                store.documents("run"),
                store.acquire(_LEASE),
            )
            for call in calls:
                with pytest.raises(LifecycleError):
                    await call
            await store.release(lease)  # it went with the store

        _in_directory(run)


class DurableSessionStoreConformance(SessionStoreConformance):
    """What a store that outlives its object keeps as well: `open_store` of one directory gives one store.

    Other processes import the class by its name, so it must be one of a module.
    """

    damage_count = 100
    """How many damaged copies of the store's files are looked at, by each law about damage."""

    @_LAW
    @given(
        st.lists(st.lists(_records, min_size=1, max_size=3), max_size=5), st.lists(st.binary(max_size=30), max_size=5)
    )
    def test_a_reopened_store_has_all_that_was_reported(
        self, batches: list[list[bytes]], versions: list[bytes]
    ) -> None:
        async def run(directory: Path) -> None:
            expected: list[bytes] = []
            for batch in batches:
                async with self._opened(directory) as store:
                    await store.append(_LOG, len(expected), batch)
                expected += batch
            for revision, data in enumerate(versions):
                async with self._opened(directory) as store:
                    await store.compare_and_set(_DOCUMENT, revision, data)
            async with self._opened(directory) as store:
                assert list(await store.read(_LOG)) == expected
                found = await store.load(_DOCUMENT)
            assert found == (Document(len(versions), versions[-1]) if versions else None)

        _in_directory(run)

    def test_two_stores_over_one_place_see_each_others_writes_and_conflict_alike(self) -> None:
        async def run(directory: Path) -> None:
            stores = [self.open_store(directory), self.open_store(directory)]
            for number in range(8):
                mine, other = stores[number % 2], stores[1 - number % 2]
                await mine.append(_LOG, number, [b"%d" % number])
                await mine.compare_and_set(_DOCUMENT, number, b"%d" % number)
                with pytest.raises(StoreConflictError):
                    await other.append(_LOG, number, [b"late"])
                with pytest.raises(StoreConflictError):
                    await other.compare_and_set(_DOCUMENT, number, b"late")
                assert list(await other.read(_LOG, number)) == [b"%d" % number]
            assert await stores[0].delete(_LOG)
            assert list(await stores[1].read(_LOG)) == []
            assert await stores[1].append(_LOG, 0, [b"new"]) == 1
            for store in stores:
                await store.close()

        _in_directory(run)

    def test_a_lease_excludes_other_stores_and_ends_with_its_own(self) -> None:
        async def run(directory: Path) -> None:
            first, second = self.open_store(directory), self.open_store(directory)
            lease = await first.acquire(_LEASE)
            with pytest.raises(AlreadyActiveError):
                await second.acquire(_LEASE)
            await first.close()
            newer = await second.acquire(_LEASE)
            assert newer.epoch > lease.epoch
            await _require_fenced(second, lease)
            await second.release(newer)
            third = self.open_store(directory)
            assert (await third.acquire(_LEASE)).epoch > newer.epoch
            for store in (second, third):
                await store.close()

        _in_directory(run)

    def test_processes_that_count_at_once_lose_no_count(self) -> None:
        async def run(directory: Path) -> None:
            children = [self._start(directory, "child_counts") for _ in range(2)]
            for child in children:
                _finish(child)
            async with self._opened(directory) as store:
                assert await store.load(_DOCUMENT) == Document(20, b"20")

        _in_directory(run)

    async def child_counts(self, store: SessionStore) -> None:
        await count_up(store, 10)
        await store.close()

    def test_processes_that_take_a_lease_in_turns_write_under_rising_epochs(self) -> None:
        async def run(directory: Path) -> None:
            children = [self._start(directory, "child_takes_turns") for _ in range(2)]
            for child in children:
                _finish(child)
            async with self._opened(directory) as store:
                found = [int(record) for record in await store.read(_LOG)]
            assert found == sorted(set(found))
            assert len(found) == 16

        _in_directory(run)

    async def child_takes_turns(self, store: SessionStore) -> None:
        for _ in range(8):
            while True:
                try:
                    lease = await store.acquire(_LEASE)
                    break
                except AlreadyActiveError:
                    await asyncio.sleep(0.001)
            place = len(await store.read(_LOG))
            await store.append(_LOG, place, [b"%d" % lease.epoch], lease)
            await store.release(lease)
        await store.close()

    @pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
    def test_kill_9_of_its_holder_frees_a_lease_and_keeps_all_that_was_reported(self) -> None:
        async def run(directory: Path) -> None:
            child = self._start(directory, "child_holds")
            assert child.stdout is not None
            epoch = int(child.stdout.readline())
            reported = [int(child.stdout.readline()) for _ in range(5)][-1]
            store = self.open_store(directory)
            with pytest.raises(AlreadyActiveError) as caught:
                await store.acquire(_LEASE)
            if sys.platform == "linux":
                assert caught.value.holder == f"process {child.pid}"
            os.kill(child.pid, signal.SIGKILL)
            rest, _ = child.communicate()
            reported = max([reported, *map(int, rest.splitlines())])
            lease = await store.acquire(_LEASE)
            assert lease.epoch > epoch
            records = list(await store.read(_LOG))
            assert len(records) >= reported
            assert records == [b"%d" % (seq + 1) for seq in range(len(records))]
            await store.append(_LOG, len(records), [b"mine"], lease)
            await store.close()

        _in_directory(run)

    async def child_holds(self, store: SessionStore) -> None:
        lease = await store.acquire(_LEASE)
        os.write(1, b"%d\n" % lease.epoch)
        seq = 0
        while True:
            seq = await store.append(_LOG, seq, [b"%d" % (seq + 1), b"%d" % (seq + 2)], lease)
            os.write(1, b"%d\n" % seq)

    def test_an_open_store_does_not_keep_its_process_from_ending(self) -> None:
        async def run(directory: Path) -> None:
            _finish(self._start(directory, "child_forgets"))
            async with self._opened(directory) as store:
                assert (await store.acquire(_LEASE)).epoch == 2

        _in_directory(run)

    async def child_forgets(self, store: SessionStore) -> None:
        await store.acquire(_LEASE)
        sys.modules["kept"] = cast(Any, store)  # until the very end

    @pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
    def test_what_a_full_disk_refuses_is_never_seen_and_the_store_goes_on(self) -> None:
        async def run(directory: Path) -> None:
            reported = int(_finish(self._start(directory, "child_fills_the_disk")))
            async with self._opened(directory) as store:
                records = list(await store.read(_LOG))
                assert [record[:4] for record in records] == [b"%04d" % seq for seq in range(1, reported + 1)]
                assert await store.load(_DOCUMENT) == Document(2, b"small again")

        _in_directory(run)

    async def child_fills_the_disk(self, store: SessionStore) -> None:
        seq = await store.append(_LOG, 0, [b"0001"])
        await store.compare_and_set(_DOCUMENT, 0, b"small")
        _limit_file_size(200_000)
        with pytest.raises(LogWriteError):
            await store.compare_and_set(_DOCUMENT, 1, b"x" * 300_000)
        try:
            while True:
                batch = [b"%04d%b" % (seq + place, b"x" * 4_000) for place in range(1, 6)]
                seq = await store.append(_LOG, seq, batch)
        except LogWriteError:
            pass
        assert len(await store.read(_LOG)) == seq
        _limit_file_size(-1)
        seq = await store.append(_LOG, seq, [b"%04d" % (seq + 1)])
        await store.compare_and_set(_DOCUMENT, 1, b"small again")
        await store.close()
        print(seq)  # noqa: T201

    @pytest.mark.parametrize("damage", ["cut", "flip"])
    def test_from_damaged_files_come_a_prefix_or_an_error_and_never_a_wrong_record(self, damage: str) -> None:
        batches = [[b"one"], [b"two", b"three"], [b"four", b"five", b"six"]]
        good = [[record for batch in batches[:count] for record in batch] for count in range(len(batches) + 1)]

        async def run(directory: Path) -> None:
            whole = directory / "whole"
            async with self._opened(whole) as store:
                for count, batch in enumerate(batches):
                    await store.append(_LOG, len(good[count]), batch)
                await store.compare_and_set(_DOCUMENT, 0, b"the data")
            for number, damaged in enumerate(_damaged_copies(whole, directory, damage, self.damage_count)):
                records, document = await self._read_what_can_be_read(damaged)
                assert records is None or records in good, number
                assert document in (None, Document(1, b"the data")), number

        _in_directory(run)

    async def _read_what_can_be_read(self, directory: Path) -> tuple[list[bytes] | None, Document | None]:
        records: list[bytes] | None = None
        document: Document | None = None
        async with self._opened(directory) as store:
            try:
                records = list(await store.read(_LOG))
            except StorageError:
                pass
            try:
                document = await store.load(_DOCUMENT)
            except StorageError:
                pass
        return records, document

    @asynccontextmanager
    async def _opened(self, directory: Path) -> AsyncGenerator[SessionStore, None]:
        store = self.open_store(directory)
        try:
            yield store
        finally:
            await store.close()

    def _start(self, directory: Path, task: str) -> "subprocess.Popen[str]":
        """A process that does what the method `task` says, with a store of its own."""
        words = [sys.executable, "-c", _CHILD, type(self).__module__, type(self).__name__, task, str(directory)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def _finish(child: "subprocess.Popen[str]") -> str:
    """What a child that succeeded has printed."""
    output, _ = child.communicate(timeout=25)
    assert child.returncode == 0
    return output


async def count_up(store: SessionStore, times: int) -> None:
    """Add one to the number in a document, `times` times, whoever else does so."""
    for _ in range(times):
        while True:
            found = await store.load(_DOCUMENT)
            revision, count = (0, 0) if found is None else (found.revision, int(found.data))
            try:
                await store.compare_and_set(_DOCUMENT, revision, b"%d" % (count + 1))
                break
            except StoreConflictError:
                continue


class _Model:
    """What a store does, in a few lines: a dict of lists and a dict of revisions."""

    def __init__(self) -> None:
        self.logs: dict[str, list[bytes]] = {}
        self.documents: dict[str, Document] = {}

    def seq(self, known_as: str) -> int:
        return len(self.logs.get(known_as, []))

    def revision(self, known_as: str) -> int:
        return self.documents[known_as].revision if known_as in self.documents else 0

    def perform(self, what: str, known_as: str = "", *args: Any) -> object:
        match what:
            case "append":
                error, records = args
                if error:
                    return ("conflict", self.seq(known_as))
                if records:
                    self.logs.setdefault(known_as, []).extend(records)
                return self.seq(known_as)
            case "read":
                return self.logs.get(known_as, [])[max(args[0], 0) :]
            case "delete":
                return self.logs.pop(known_as, None) is not None
            case "set":
                error, data = args
                if error:
                    return ("conflict", self.revision(known_as))
                if data is None:
                    self.documents.pop(known_as, None)
                    return 0
                self.documents[known_as] = Document(self.revision(known_as) + 1, data)
                return self.revision(known_as)
            case "load":
                return self.documents.get(known_as)
            case _:
                return sorted(self.logs), sorted(self.documents)


async def _perform(store: SessionStore, operation: tuple[Any, ...], model: _Model) -> object:
    """The operation on the store, at the place that the model (which has not done it yet) knows."""
    match operation:
        case ("append", known_as, error, records):
            return await store.append(f"wf/{known_as}", model.seq(known_as) + error, records)
        case ("read", known_as, after_seq):
            return list(await store.read(f"wf/{known_as}", after_seq))
        case ("delete", known_as):
            return await store.delete(f"wf/{known_as}")
        case ("set", known_as, error, data):
            return await store.compare_and_set(f"wf/{known_as}", model.revision(known_as) + error, data)
        case ("load", known_as):
            return await store.load(f"wf/{known_as}")
        case _:
            return list(await store.logs("wf")), list(await store.documents("wf"))


async def _outcome(work: Awaitable[object]) -> object:
    try:
        return await work
    except StoreConflictError as error:
        return ("conflict", error.actual)


async def _require_fenced(store: SessionStore, lease: Lease) -> None:
    """Nothing can be changed under `lease`, and nothing was."""
    records, document = list(await store.read(_LOG)), await store.load(_DOCUMENT)
    revision = 0 if document is None else document.revision
    calls: Sequence[Awaitable[object]] = (
        store.append(_LOG, len(records), [b"stale"], lease),
        store.delete(_LOG, lease),
        store.compare_and_set(_DOCUMENT, revision, b"stale", lease),
        store.compare_and_set(_DOCUMENT, revision, None, lease),
    )
    for call in calls:
        with pytest.raises(FencedError) as caught:
            await call
        assert (caught.value.name, caught.value.epoch) == (lease.name, lease.epoch)
    assert (list(await store.read(_LOG)), await store.load(_DOCUMENT)) == (records, document)


async def _cancel_after(turns: int, work: Awaitable[Any]) -> Any:
    """What `work` gave although it was cancelled after some turns of the loop; None when it gave in."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


def _damaged_copies(whole: Path, room: Path, damage: str, count: int) -> Iterator[Path]:
    """Copies of the directory `whole` with one of its files cut, or one of its bytes flipped, at places all over it."""
    places = [(path, at) for path in sorted(whole.rglob("*")) if path.is_file() for at in range(path.stat().st_size)]
    for path, at in places[:: max(1, len(places) // count)]:
        copy = room / "damaged"
        shutil.copytree(whole, copy)
        target = copy / path.relative_to(whole)
        data = bytearray(target.read_bytes())
        if damage == "cut":
            del data[at:]
        else:
            data[at] ^= 1 << at % 8
        target.write_bytes(data)
        yield copy
        shutil.rmtree(copy)


def _in_directory(work: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    # Not pytest's tmp_path, which Hypothesis would share among the examples of one law.
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(work(Path(name)))
