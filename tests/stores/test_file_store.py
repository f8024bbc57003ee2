"""What the file store promises beyond the seam: its files, and what it makes of damaged and foreign ones."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fanfold.errors import CorruptLogError, FencedError, LogWriteError, StoreConflictError, UsageError
from fanfold.protocols import Document
from fanfold.stores.file_store import FileSessionStore
from fanfold.stores.record_lines import decode_batches, encode_batch
from fanfold.stores.store_name import file_stem
from fanfold.testing.store_conformance import ODD_IDS

from .logs import run, run_child

_LOG = "wf/1"


def write_log(directory: Path, data: bytes) -> Path:
    path = directory / "wf" / "1.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


async def records_in(directory: Path) -> Sequence[bytes]:
    async with FileSessionStore(directory) as store:
        return await store.read(_LOG)


def test_a_record_costs_ten_bytes_and_lies_readable_in_a_file_of_its_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FileSessionStore(tmp_path) as store:
            await store.append("wf/wf-1", 0, [b'{"a": 1}', b'{"b": 2}'])

    run(scenario())
    data = (tmp_path / "wf" / "wf-1.jsonl").read_bytes()
    assert [line[9:] for line in data.splitlines()] == [b'{"a": 1}', b'{"b": 2}']
    assert len(data) == 2 * (8 + 10)
    assert [path.name for path in tmp_path.rglob("*")] == ["wf", "wf-1.jsonl"]


def test_of_a_torn_tail_at_any_byte_readers_see_whole_batches_and_the_next_writer_sets_it_aside(tmp_path: Path) -> None:
    batches = [[b"one"], [b"two", b"three"], [b"four"]]
    lines = [encode_batch(batch) for batch in batches]
    data = b"".join(lines)

    async def scenario() -> None:
        for size in range(len(data) + 1):
            whole = sum(1 for count in range(1, 4) if len(b"".join(lines[:count])) <= size)
            good = [record for batch in batches[:whole] for record in batch]
            directory = tmp_path / str(size)
            path = write_log(directory, data[:size])
            async with FileSessionStore(directory) as store:
                assert await store.read(_LOG) == good
                assert list(await store.logs("wf")) == (["1"] if good else [])
                with pytest.raises(StoreConflictError):
                    await store.append(_LOG, len(good) + 1, [b"new"])
                assert size == 0 or path.read_bytes() == data[:size]  # only who writes cuts
                await store.append(_LOG, len(good), [b"new"])
            assert await records_in(directory) == [*good, b"new"]
            torn = data[len(b"".join(lines[:whole])) : size]
            assert [each.read_bytes() for each in path.parent.glob("*.torn-*")] == ([torn] if torn else [])

    run(scenario())


@pytest.mark.parametrize("bad_line", [1, 3])
def test_a_bad_line_before_a_good_one_is_named_and_nothing_is_changed(tmp_path: Path, bad_line: int) -> None:
    lines = encode_batch([b"a"]), encode_batch([b"b"]), encode_batch([b"c"]), encode_batch([b"d"])
    data = b"".join(line.upper() if number == bad_line else line for number, line in enumerate(lines, 1))
    path = write_log(tmp_path, data)

    async def scenario() -> None:
        async with FileSessionStore(tmp_path) as store:
            for call in (store.read(_LOG), store.append(_LOG, 4, [b"e"])):
                with pytest.raises(CorruptLogError, match=f"log 'wf/1' is corrupt at line {bad_line}") as caught:
                    await call
                assert str(path) in str(caught.value.hint)
            assert path.read_bytes() == data
            await store.delete(_LOG)
            assert await store.append(_LOG, 0, [b"anew"]) == 1

    run(scenario())


def test_damage_behind_what_is_known_is_named_by_its_line_in_the_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FileSessionStore(tmp_path) as store:
            await store.append(_LOG, 0, [b"a", b"b"])
            with (tmp_path / "wf" / "1.jsonl").open("ab") as file:
                file.write(b"nonsense\n" + encode_batch([b"d"]))
            for after_seq in (0, 2):
                with pytest.raises(CorruptLogError, match="line 3"):
                    await store.read(_LOG, after_seq)

    run(scenario())


def test_a_damaged_document_or_lease_is_named_and_not_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FileSessionStore(tmp_path) as store:
            await store.compare_and_set("doc/1", 0, b"data")
            path = tmp_path / "doc" / "1.json"
            path.write_bytes(path.read_bytes().replace(b"data", b"Data"))
            for call in (store.load("doc/1"), store.compare_and_set("doc/1", 1, b"new")):
                with pytest.raises(CorruptLogError, match="document 'doc/1'"):
                    await call
            (tmp_path / "doc" / "1.lease").write_bytes(b"nonsense\n" + encode_batch([b"process 1"]))
            with pytest.raises(CorruptLogError, match="lease 'doc/1'"):
                await store.acquire("doc/1")

    run(scenario())


def test_an_append_sees_what_others_made_of_the_file_since(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FileSessionStore(tmp_path) as store:
            lease = await store.acquire(_LOG)
            await store.append(_LOG, 0, [b"a", b"b"], lease)
            path = write_log(tmp_path, encode_batch([b"a"]))  # cut
            with pytest.raises(StoreConflictError):
                await store.append(_LOG, 2, [b"c"], lease)
            path.unlink()
            with pytest.raises(StoreConflictError):
                await store.append(_LOG, 1, [b"c"], lease)
            other = path.with_name("other")
            other.write_bytes(encode_batch([b"x", b"y", b"z"]))
            other.replace(path)
            assert await store.append(_LOG, 3, [b"c"], lease) == 4

    run(scenario())


def test_who_lost_the_file_of_its_lease_is_fenced_and_does_not_harm_the_next_holder(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FileSessionStore(tmp_path) as first, FileSessionStore(tmp_path) as second:
            old = await first.acquire(_LOG)
            (tmp_path / "wf" / "1.lease").unlink()
            with pytest.raises(FencedError):
                await first.append(_LOG, 0, [b"stale"], old)
            new = await second.acquire(_LOG)
            with pytest.raises(FencedError):
                await first.append(_LOG, 0, [b"stale"], old)
            await first.release(old)
            assert await second.append(_LOG, 0, [b"a"], new) == 1

    run(scenario())


def test_ids_have_files_of_their_own_also_where_case_does_not_count() -> None:
    names = [file_stem(odd) + ".jsonl.torn-100" for odd in ODD_IDS]
    assert len({name.lower() for name in names}) == len(ODD_IDS)
    assert all(name.isascii() and name.isprintable() and not set(name) & set('/\\:*?"<>|') for name in names)
    assert max(map(len, names)) < 255


def test_files_that_are_nobodys_are_not_listed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FileSessionStore(tmp_path) as store:
            await store.append(_LOG, 0, [b"a"])
            long = "x" * 300
            await store.append(f"wf/{long}", 0, [b"a"])
            for name in ("Upper.jsonl", "%zz.jsonl", "1.jsonl.torn-1", "empty.jsonl", ".jsonl", "notes.txt"):
                (tmp_path / "wf" / name).write_bytes(b"" if name.startswith("empty") else encode_batch([b"a"]))
            assert list(await store.logs("wf")) == ["1", long]
            (tmp_path / "wf" / (file_stem(long) + ".id")).write_bytes(b"torn")
            assert list(await store.logs("wf")) == ["1"]

    run(scenario())


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links")
def test_symbolic_links_lead_nothing_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_bytes(b"secret")
    directory = tmp_path / "store"
    (directory / "file").mkdir(parents=True)
    (directory / "wf").symlink_to(elsewhere)
    for suffix in (".jsonl", ".json", ".lease"):
        (directory / "file" / f"1{suffix}").symlink_to(elsewhere / "secret")

    async def scenario() -> None:
        async with FileSessionStore(directory) as store:
            for name, error in (("wf/1", UsageError), ("file/1", LogWriteError)):
                for call in (
                    store.append(name, 0, [b"a"]),
                    store.read(name),
                    store.load(name),
                    store.compare_and_set(name, 0, b"a"),
                    store.acquire(name),
                ):
                    with pytest.raises(error, match="symbolic link"):
                        await call

    run(scenario())
    assert [path.name for path in elsewhere.iterdir()] == ["secret"]
    assert (elsewhere / "secret").read_bytes() == b"secret"


def test_nothing_is_created_by_looking(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FileSessionStore(tmp_path / "store") as store:
            assert await store.read(_LOG) == []
            assert await store.load(_LOG) is None
            assert not await store.delete(_LOG)
            assert list(await store.logs("wf")) == []
            assert list(await store.documents("wf")) == []

    run(scenario())
    assert not (tmp_path / "store").exists()


def test_a_half_written_replacement_of_a_document_is_of_no_account(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FileSessionStore(tmp_path) as store:
            await store.compare_and_set("doc/1", 0, b"old")
            (tmp_path / "doc" / "1.json.tmp").write_bytes(b"half of a longer text than the next one")
            assert await store.load("doc/1") == Document(1, b"old")
            assert list(await store.documents("doc")) == ["1"]
            await store.compare_and_set("doc/1", 1, b"new")
            assert await store.load("doc/1") == Document(2, b"new")

    run(scenario())
    assert [path.name for path in (tmp_path / "doc").iterdir()] == ["1.json"]


_FORK = """
import asyncio, os, sys
from fanfold.errors import FencedError
from fanfold.stores.file_store import FileSessionStore

async def in_child(store, lease):
    try:
        await store.append("wf/1", 0, [b"stale"], lease)
    except FencedError:
        return 0
    return 1

store = FileSessionStore(sys.argv[1])
lease = asyncio.run(store.acquire("wf/1"))
child = os.fork()
if child == 0:
    os._exit(asyncio.run(in_child(store, lease)))
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(store.append("wf/1", 0, [b"a"], lease)) == 1
asyncio.run(store.close())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_has_no_lease_of_its_parent(tmp_path: Path) -> None:
    run_child(_FORK, tmp_path)


def test_lines_that_were_put_together_otherwise_are_no_records() -> None:
    good = encode_batch([b"a", b"b"])
    for data in (good[:11], good[11:] + b"00000000\n", b"00000000\n", b"\n\n", b"0000000\n", good.replace(b"+", b"-")):
        assert decode_batches(data).records in ([], [b"b"])
    assert decode_batches(good).records == [b"a", b"b"]


def test_a_lease_whose_file_was_removed_is_no_lease_of_the_next_holder(tmp_path: Path) -> None:
    async def main() -> None:
        async with FileSessionStore(tmp_path) as store:
            first = await store.acquire("workflow/w")
            [lease_file] = tmp_path.rglob("*.lease")
            lease_file.unlink()
            second = await store.acquire("workflow/w")
            assert second.epoch > first.epoch
            with pytest.raises(FencedError):
                await store.append("workflow/w", 0, [b"a"], first)
            await store.append("workflow/w", 0, [b"b"], second)
            await store.release(first)  # ignored
            await store.append("workflow/w", 1, [b"c"], second)

    asyncio.run(main())


def test_a_damaged_last_line_is_told_and_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with FileSessionStore(tmp_path) as store:
            await store.append("workflow/w", 0, [b"first", b"second"])
            [log] = tmp_path.rglob("*.jsonl")
            log.write_bytes(log.read_bytes().replace(b"second", b"sekond"))
            assert await store.logs("workflow") == ["w"]
            with pytest.raises(CorruptLogError, match="line 2"):
                await store.read("workflow/w")
            assert await store.delete("workflow/w")

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
def test_what_is_no_file_is_listed_and_told_and_in_the_way_of_nothing_else(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with FileSessionStore(tmp_path) as store:
            await store.append("workflow/good", 0, [b"a"])
            odd = tmp_path / "workflow" / "odd.jsonl"
            if kind == "directory":
                odd.mkdir()
            elif kind == "pipe":
                os.mkfifo(odd)
            else:
                odd.symlink_to("good.jsonl")
            assert await store.logs("workflow") == ["good", "odd"]
            with pytest.raises(LogWriteError, match="cannot read"):
                await store.read("workflow/odd")
            assert await store.delete("workflow/good")

    asyncio.run(main())
