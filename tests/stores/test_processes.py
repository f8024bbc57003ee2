"""Several processes, killed processes, full disks: never a duplicate seq, never a reported fact lost."""

import os
import signal
import sys
from pathlib import Path

import pytest

from fanfold.errors import SessionBusyError
from fanfold.stores.jsonl import JsonlFactLog

from .logs import facts_in, lines_of, run, run_child, start_child, write_log

_PREAMBLE = """
import asyncio, os, sys
from pathlib import Path
from fanfold.errors import LogWriteError
from fanfold.stores.jsonl import JsonlFactLog
from fanfold.testing.conformance import append_to, read_all, said

directory = Path(sys.argv[1])
"""

_HOLD_UNTIL_TOLD = (
    _PREAMBLE
    + """
async def main():
    log = JsonlFactLog(directory)
    thread = await log.hold("t")
    print("held", flush=True)
    sys.stdin.readline()
    await thread.append([said("from-the-child")])
    await thread.release()
    await log.close()

asyncio.run(main())
"""
)


def test_a_thread_that_another_process_holds_is_refused_by_pid_and_given_to_who_waits(tmp_path: Path) -> None:
    child = start_child(_HOLD_UNTIL_TOLD, tmp_path)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    tell = child.stdin

    async def scenario() -> None:
        log = JsonlFactLog(tmp_path)
        with pytest.raises(SessionBusyError) as caught:
            await log.hold("t")
        if sys.platform == "linux":
            assert caught.value.holder == f"process {child.pid}"
        tell.write("go\n")
        tell.flush()
        thread = await log.hold("t", wait_seconds=20)
        assert [fact.key for fact in await thread.read()] == ["from-the-child"]
        await thread.release()
        await log.close()

    run(scenario())
    child.communicate()
    assert child.returncode == 0


_APPEND_IN_TURNS = (
    _PREAMBLE
    + """
async def main():
    log = JsonlFactLog(directory)
    for number in range(20):
        thread = await log.hold("t", wait_seconds=20)
        await thread.append([said(f"{os.getpid()}-{number}-a"), said(f"{os.getpid()}-{number}-b")])
        await thread.release()
    await log.close()

asyncio.run(main())
"""
)


def test_processes_that_append_in_turns_never_share_a_seq(tmp_path: Path) -> None:
    children = [start_child(_APPEND_IN_TURNS, tmp_path) for _ in range(3)]
    for child in children:
        child.communicate(timeout=25)
        assert child.returncode == 0
    facts = run(facts_in(tmp_path))
    assert [fact.seq for fact in facts] == list(range(1, 121))
    for child in children:
        mine = [fact.key for fact in facts if fact.key.startswith(f"{child.pid}-")]
        assert mine == [f"{child.pid}-{number}-{part}" for number in range(20) for part in "ab"]


_APPEND_AND_REPORT = (
    _PREAMBLE
    + """
async def write(log, name):
    thread = await log.hold(name)
    while True:
        facts = await thread.append([said(f"key-{thread.last_seq}"), said(f"key-{thread.last_seq}b")])
        os.write(1, f"{name} {facts[-1].seq}\\n".encode())

async def main():
    log = JsonlFactLog(directory)
    await asyncio.gather(*[write(log, name) for name in sys.argv[2:]])

asyncio.run(main())
"""
)


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
@pytest.mark.parametrize("names", [["t"], ["t", "u", "v"]], ids=["one thread", "threads that share commits"])
def test_every_fact_that_was_reported_survives_kill_9_again_and_again(tmp_path: Path, names: list[str]) -> None:
    for kill_after in (1, 17, 40):
        child = start_child(_APPEND_AND_REPORT, tmp_path, *names)
        assert child.stdout is not None
        reports = [child.stdout.readline() for _ in range(kill_after)]
        os.kill(child.pid, signal.SIGKILL)
        rest, _ = child.communicate()
        reported = dict.fromkeys(names, 0)
        for report in [*reports, *rest.splitlines()]:
            name, seq = report.split()
            reported[name] = int(seq)
        for name in names:
            facts = run(facts_in(tmp_path, name))
            assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))
            assert len(facts) >= reported[name]


_FULL_DISK = (
    _PREAMBLE
    + """
import resource

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def size_of(name):
    return (directory / name).stat().st_size

async def must_fail(thread, key):
    try:
        await thread.append([said(key, "x" * 1000), said(key + "b", "y" * 1000)])
    except LogWriteError as error:
        assert "File too large" in str(error), error
    else:
        raise AssertionError("the append was reported as done")

async def one_thread(log):
    thread = await log.hold("alone")
    await thread.append([said("a")])
    before = size_of("alone.jsonl")
    limit(before + 1500)                # the first fact fits, the batch does not
    await must_fail(thread, "b")
    assert (thread.last_seq, size_of("alone.jsonl")) == (1, before)
    limit(resource.RLIM_INFINITY)
    await thread.append([said("b")])
    await thread.release()

async def shared_commit(log):
    held = [await log.hold(name) for name in ("u", "v", "w")]
    await asyncio.gather(*[thread.append([said("a")]) for thread in held])
    [journal] = (directory / "commits").glob("*.redo")
    before = journal.stat().st_size
    limit(before + 2500)                # each thread's own file has room, the journal has not
    await asyncio.gather(*[must_fail(thread, "b") for thread in held])
    assert journal.stat().st_size == before
    limit(resource.RLIM_INFINITY)
    await asyncio.gather(*[thread.append([said("b")]) for thread in held])
    for thread in held:
        await thread.release()

async def main():
    log = JsonlFactLog(directory)
    await one_thread(log)
    await shared_commit(log)
    await log.close()

asyncio.run(main())
"""
)


_TORN_ON_A_FULL_DISK = (
    _PREAMBLE
    + """
import resource

async def main():
    with (directory / "t.jsonl").open("ab") as file:
        file.write(b"{" * 9000)
    before = (directory / "t.jsonl").read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
    log = JsonlFactLog(directory)
    for _ in range(3):
        try:
            await log.hold("t")
        except LogWriteError:
            continue
        raise AssertionError("the torn tail was set aside")
    assert [path.name for path in directory.iterdir() if path.is_file()] == ["t.jsonl"]
    assert (directory / "t.jsonl").read_bytes() == before
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await append_to(log, "t", [said("b")])
    await log.close()

asyncio.run(main())
"""
)


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_torn_tail_that_a_full_disk_does_not_take_stays_where_it_is_and_leaves_no_files(tmp_path: Path) -> None:
    path = write_log(tmp_path, lines_of(1))
    run_child(_TORN_ON_A_FULL_DISK, tmp_path)
    assert path.read_bytes().count(b"\n") == 2
    assert (tmp_path / "t.jsonl.torn-1").read_bytes() == b"{" * 9000


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_what_a_full_disk_refused_is_never_seen_and_the_next_append_works(tmp_path: Path) -> None:
    run_child(_FULL_DISK, tmp_path)
    for name in ("alone", "u", "v", "w"):
        assert [(fact.seq, fact.key) for fact in run(facts_in(tmp_path, name))] == [(1, "a"), (2, "b")]
    assert not list(tmp_path.glob("*.torn-*"))
