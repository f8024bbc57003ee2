"""What the SQLite store promises beyond the seam: shared commits, and files that are no database of ours."""

import asyncio
import shutil
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from fanfold.errors import FencedError, LogWriteError, StorageError, StoreConflictError, UsageError
from fanfold.stores.sqlite_store import SqliteSessionStore
from fanfold.stores.sqlite_thread import SqliteThread

from .logs import run

_LOG = "wf/1"


@pytest.mark.parametrize("path", [":memory:", "", "file:store.db?mode=memory"])
def test_what_is_no_file_is_refused_with_the_store_to_take_instead(path: str) -> None:
    with pytest.raises(UsageError, match=r"MemorySessionStore\(\)"):
        SqliteSessionStore(path)


def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"not a database at all\n" * 100)

    async def scenario() -> None:
        async with SqliteSessionStore(path) as store:
            for call in (store.read(_LOG), store.append(_LOG, 0, [b"a"]), store.acquire(_LOG)):
                with pytest.raises(StorageError, match=r"notes\.txt"):
                    await call

    run(scenario())
    assert path.read_bytes() == b"not a database at all\n" * 100


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE leases SET epoch = 'x'",
        "PRAGMA writable_schema = ON; "
        "UPDATE sqlite_master SET sql = CAST(X'43ECFF' AS TEXT), name = CAST(X'43ECFF' AS TEXT) WHERE name = 'logs'",
    ],
)
def test_what_a_damaged_database_gives_is_told_as_its_damage(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        async with SqliteSessionStore(path) as store:
            await store.release(await store.acquire(_LOG))
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(damage)
            connection.commit()
        async with SqliteSessionStore(path) as store:
            with pytest.raises(StorageError, match=r"store\.db"):
                await store.acquire(_LOG)

    run(scenario())


@pytest.mark.parametrize(
    "script", ["CREATE TABLE theirs (a)", "PRAGMA application_id = 0x66616E66; PRAGMA user_version = 9"]
)
def test_a_database_of_another_program_or_a_newer_version_is_left_alone(tmp_path: Path, script: str) -> None:
    path = tmp_path / "their.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    before = path.read_bytes()

    async def scenario() -> None:
        async with SqliteSessionStore(path) as store:
            with pytest.raises(StorageError, match=r"their\.db"):
                await store.append(_LOG, 0, [b"a"])

    run(scenario())
    assert path.read_bytes() == before


def test_a_path_that_no_file_can_have_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    async def scenario() -> None:
        for path in (tmp_path, tmp_path / "file" / "store.db"):
            async with SqliteSessionStore(path) as store:
                with pytest.raises(LogWriteError, match=str(tmp_path)):
                    await store.append(_LOG, 0, [b"a"])

    run(scenario())


def test_of_those_who_write_at_once_only_who_conflicts_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteSessionStore(tmp_path / "store.db") as store:
            stale = await store.acquire("wf/stale")
            await store.release(stale)
            calls = [store.append(f"wf/{number}", number % 2, [b"a"]) for number in range(40)]
            calls.append(store.append("wf/fenced", 0, [b"a"], stale))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert outcomes[0:40:2] == [1] * 20
            assert all(isinstance(outcome, StoreConflictError) for outcome in outcomes[1:40:2])
            assert isinstance(outcomes[40], FencedError)
            assert list(await store.logs("wf")) == sorted(map(str, range(0, 40, 2)))

    run(scenario())


def _count_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])


def test_jobs_that_queue_up_share_a_transaction_and_a_broken_one_takes_nobody_with_it(tmp_path: Path) -> None:
    path = tmp_path / "t.db"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("CREATE TABLE IF NOT EXISTS t (a)")
        return connection

    def write(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO t VALUES (1)")
        with closing(sqlite3.connect(path)) as other:
            return _count_of(other)  # of what is committed

    def break_down(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES ('half')")
        raise ValueError("broken")

    thread = SqliteThread(path, connect)
    go = threading.Event()
    first = thread.submit(lambda connection: go.wait(), writes=False)
    together = [thread.submit(write, writes=True) for _ in range(3)]
    go.set()
    assert first.result()
    assert [job.result() for job in together] == [0, 0, 0]
    go.clear()
    first = thread.submit(lambda connection: go.wait(), writes=False)
    good, bad, also_good = (
        thread.submit(write, writes=True),
        thread.submit(break_down, writes=True),
        thread.submit(write, writes=True),
    )
    go.set()
    assert (good.result(), also_good.result()) == (3, 4)
    with pytest.raises(ValueError, match="broken"):
        bad.result()
    assert thread.submit(_count_of, writes=False).result() == 5
    thread.end()
    thread.join()


def test_of_a_write_ahead_log_that_is_cut_anywhere_come_whole_batches(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    batches = [[b"one"], [b"two", b"three"], [b"four"]]
    good = [[record for batch in batches[:count] for record in batch] for count in range(4)]

    async def scenario() -> None:
        async with SqliteSessionStore(whole / "store.db") as store:
            for count, batch in enumerate(batches):
                await store.append(_LOG, len(good[count]), batch)
            size = (whole / "store.db-wal").stat().st_size
            seen: list[list[bytes]] = []
            for cut in range(0, size + 1, 1031):
                copy = tmp_path / str(cut)
                shutil.copytree(whole, copy, ignore=shutil.ignore_patterns("*-shm"))
                with (copy / "store.db-wal").open("r+b") as file:
                    file.truncate(cut)
                async with SqliteSessionStore(copy / "store.db") as damaged:
                    seen.append(list(await damaged.read(_LOG)))
            assert all(records in good for records in seen)
            assert sorted(map(len, seen)) == [len(records) for records in seen]

    run(scenario())


def test_a_lease_of_which_the_database_knows_a_newer_one_is_fenced(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        async with SqliteSessionStore(path) as store:
            lease = await store.acquire(_LOG)
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("UPDATE leases SET epoch = epoch + 1")
            with pytest.raises(FencedError):
                await store.append(_LOG, 0, [b"stale"], lease)
            await store.release(lease)
            assert (await store.acquire(_LOG)).epoch == lease.epoch + 2

    run(scenario())


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed")
def test_a_database_that_lost_its_name_reports_nothing_as_done(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        async with SqliteSessionStore(path) as store:
            await store.append(_LOG, 0, [b"a"])
            for each in tmp_path.glob("store.db*"):
                each.unlink()
            with pytest.raises(LogWriteError, match="removed or replaced"):
                await store.append(_LOG, 1, [b"b"])
            assert await store.append(_LOG, 0, [b"anew"]) == 1
        async with SqliteSessionStore(path) as store:
            assert await store.read(_LOG) == [b"anew"]

    run(scenario())


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links")
def test_symbolic_links_lead_nothing_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link.db").symlink_to(elsewhere / "store.db")
    (tmp_path / "store.db.leases").symlink_to(elsewhere)

    async def scenario() -> None:
        async with SqliteSessionStore(tmp_path / "link.db") as store:
            with pytest.raises(UsageError, match="symbolic link"):
                await store.append(_LOG, 0, [b"a"])
        async with SqliteSessionStore(tmp_path / "store.db") as store:
            with pytest.raises(UsageError, match="symbolic link"):
                await store.acquire(_LOG)

    run(scenario())
    assert list(elsewhere.iterdir()) == []


def test_stores_that_make_one_database_at_once_all_know_it_for_theirs(tmp_path: Path) -> None:
    async def main() -> None:
        for number in range(40):
            stores = [SqliteSessionStore(tmp_path / f"{number}.db") for _ in range(4)]
            assert await asyncio.gather(*(store.load("kind/id") for store in stores)) == [None] * 4
            for store in stores:
                await store.close()

    asyncio.run(main())
