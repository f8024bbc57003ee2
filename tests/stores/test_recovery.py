"""A power failure takes what was not synced: the thread files. The commit journal brings it back."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import CorruptLogError
from fanfold.stores.commit_journal import CommitJournal, RedoEntry, encode_batch, read_batches
from fanfold.stores.line_file import LineFile
from fanfold.stores.recovery import recover

from .logs import facts_in, lines_of, run, start_child

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills its child with a signal")

_NAMES = ("a", "b", "c")
_ROUNDS = 4

# Every batch has all threads in it, so the journal has every byte. Then the process dies with its journal.
_COMMIT_AND_DIE = f"""
import asyncio, os, signal, sys
from pathlib import Path
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.testing.conformance import said

async def main():
    log = JsonlFactLog(Path(sys.argv[1]))
    held = [await log.hold(name) for name in {_NAMES}]
    for number in range(1, {_ROUNDS} + 1):
        await asyncio.gather(*[thread.append([said(f"key-{{number}}")]) for thread in held])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """The directory of a process that died with all its commits in the journal only."""
    start_child(_COMMIT_AND_DIE, tmp_path).communicate(timeout=25)
    assert len(list((tmp_path / "commits").glob("*.redo"))) == 1
    return tmp_path


def _is_whole(directory: Path) -> bool:
    return all((directory / f"{name}.jsonl").read_bytes() == b"".join(lines_of(_ROUNDS)) for name in _NAMES)


def test_the_next_hold_restores_every_thread_wherever_its_file_was_cut(dead: Path) -> None:
    journal = next((dead / "commits").glob("*.redo"))
    content = journal.read_bytes()
    for cut in range(0, len(b"".join(lines_of(_ROUNDS))), 7):
        journal.write_bytes(content)
        for place, name in enumerate(_NAMES):
            os.truncate(dead / f"{name}.jsonl", max(0, cut - 50 * place))
        facts = run(facts_in(dead, "b"))
        assert [fact.key for fact in facts] == [f"key-{n}" for n in range(1, _ROUNDS + 1)]
        assert _is_whole(dead)
        assert list((dead / "commits").iterdir()) == []
    assert not list(dead.glob("*.torn-*"))


def test_a_block_of_nuls_is_filled_in(dead: Path) -> None:
    path = dead / "a.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes(len(content) - 40))
    recover(dead)
    assert _is_whole(dead)


def test_recovery_after_a_mere_kill_changes_nothing_and_removes_the_journal(dead: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in dead.glob("*.jsonl")}
    recover(dead)
    assert {path: path.stat().st_mtime_ns for path in dead.glob("*.jsonl")} == before
    assert list((dead / "commits").iterdir()) == []


def test_a_journal_whose_tail_is_torn_restores_what_is_whole_in_it(dead: Path) -> None:
    journal = next((dead / "commits").glob("*.redo"))
    os.truncate(journal, journal.stat().st_size - 1)
    for name in _NAMES:
        os.truncate(dead / f"{name}.jsonl", 0)
    for name in _NAMES:
        assert len(run(facts_in(dead, name))) == _ROUNDS - 1


def test_a_file_that_took_the_place_of_a_lost_one_is_left_alone(dead: Path) -> None:
    other = lines_of(1)[0].replace(b"hello", b"other")
    (dead / "a.jsonl").write_bytes(other)  # the same inode, other content
    (dead / "b.jsonl").unlink()
    recover(dead)
    assert (dead / "a.jsonl").read_bytes() == other
    assert not (dead / "b.jsonl").exists()
    assert (dead / "c.jsonl").read_bytes() == b"".join(lines_of(_ROUNDS))


@pytest.mark.parametrize("then", [[], ["key-1"], ["key-1", "key-2", "key-3", "key-4", "key-5"]])
def test_what_was_set_aside_does_not_come_back(tmp_path: Path, then: list[str]) -> None:
    after = f"await held[0].set_aside(); [await held[0].append([said(key)]) for key in {then}]; os.kill"
    start_child(_COMMIT_AND_DIE.replace("os.kill", after), tmp_path).communicate(timeout=25)
    assert len(list((tmp_path / "commits").glob("*.redo"))) == 1
    assert [fact.key for fact in run(facts_in(tmp_path, "a"))] == then
    assert (tmp_path / "a.jsonl.aside-1").read_bytes() == b"".join(lines_of(_ROUNDS))
    assert (tmp_path / "b.jsonl").read_bytes() == b"".join(lines_of(_ROUNDS))


def test_a_journal_stays_until_the_holder_of_an_incomplete_thread_lets_it_go(dead: Path) -> None:
    os.truncate(dead / "a.jsonl", 0)
    held = LineFile.try_open(dead / "b.jsonl")
    assert held is not None
    held.size = 0
    held.take_back()
    recover(dead)
    assert len(list((dead / "commits").glob("*.redo"))) == 1
    assert (dead / "a.jsonl").read_bytes() == b"".join(lines_of(_ROUNDS))
    held.write(lines_of(1)[0])
    held.keep(len(lines_of(1)[0]))
    held.close()
    recover(dead)
    assert _is_whole(dead)
    assert list((dead / "commits").iterdir()) == []


def test_a_living_process_keeps_its_journal(tmp_path: Path) -> None:
    file = LineFile.try_open(tmp_path / "t.jsonl")
    assert file is not None
    data = lines_of(1)[0]
    file.write(data)
    journal = CommitJournal(tmp_path)
    journal.commit(encode_batch([(file, data)]), [file.name])
    file.keep(len(data))
    recover(tmp_path)
    assert len(list((tmp_path / "commits").glob("*.redo"))) == 1
    journal.close()
    assert list((tmp_path / "commits").iterdir()) == []
    file.close()


def test_a_journal_starts_anew_when_it_has_grown_large(tmp_path: Path) -> None:
    file = LineFile.try_open(tmp_path / "t.jsonl")
    assert file is not None
    journal = CommitJournal(tmp_path)
    data = b"x" * (10 * 2**20)
    sizes: list[int] = []
    for _ in range(4):
        file.write(data)
        journal.commit(encode_batch([(file, data)]), [file.name])
        file.keep(len(data))
        sizes.append(next((tmp_path / "commits").glob("*.redo")).stat().st_size // len(data))
    assert sizes == [1, 2, 1, 2]
    journal.close()
    file.close()


@given(st.lists(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=3), max_size=4), st.data())
def test_a_cut_journal_gives_the_batches_before_the_cut(batches: list[list[bytes]], data: st.DataObject) -> None:
    file = LineFile(Path("t.jsonl"), -1, inode=7, size=11)
    encoded = [encode_batch([(file, piece) for piece in batch]) for batch in batches]
    whole = b"".join(encoded)
    cut = data.draw(st.integers(0, len(whole)))
    kept = [batch for n, batch in enumerate(batches, 1) if len(b"".join(encoded[:n])) <= cut]
    assert list(read_batches(whole[:cut])) == [RedoEntry("t.jsonl", 7, 11, piece) for batch in kept for piece in batch]


def test_a_journal_cannot_lead_out_of_its_directory(tmp_path: Path) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_bytes(b"")
    (tmp_path / "log" / "commits").mkdir(parents=True)
    evil = LineFile(Path("t.jsonl"), -1, inode=outside.stat().st_ino, size=0)
    evil.name = "../outside.jsonl"
    (tmp_path / "log" / "commits" / "1-1.redo").write_bytes(encode_batch([(evil, lines_of(1)[0])]))
    recover(tmp_path / "log")
    assert outside.read_bytes() == b""


def test_a_thread_without_its_journal_is_only_what_its_file_says(dead: Path) -> None:
    next((dead / "commits").glob("*.redo")).unlink()
    (dead / "a.jsonl").write_bytes(b"".join(lines_of(2)) + bytes(30) + b"\n" + lines_of(1, first=4)[0])
    with pytest.raises(CorruptLogError):
        run(facts_in(dead, "a"))
