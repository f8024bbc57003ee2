"""A forked child has nothing of the runs of its parent, and a create that the disk refuses leaves nothing behind."""

import sys
from pathlib import Path

import pytest

from fanfold.protocols import JournalRead
from fanfold.stores.run_files import open_run_files
from fanfold.testing.run_files_conformance import RUN

from .logs import run, run_child, start_child

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork, and no limit for files")

_PREAMBLE = f"""
import asyncio, os, resource, sys
from pathlib import Path
from fanfold.errors import AlreadyActiveError, FanfoldError, LifecycleError, LogWriteError
from fanfold.stores.run_files import open_run_files

RUN = {RUN!r}
workspace = Path(sys.argv[1])
"""

_USE_AN_INHERITED_RUN = (
    _PREAMBLE
    + """
async def use(held):
    calls = [held.append([b"child"]), held.append([b"child"], is_durable=False), held.cut_journal(0),
        held.write_snapshot(b"child"), held.write_output(b"child"), held.write_script("child"),
        held.append_events([b"child"]), held.put_blob(b"child"), held.requested(), held.read_journal()]
    for call in calls:
        try:
            await call
        except LifecycleError:
            continue
        return False
    await held.release()
    try:
        await open_run_files(workspace).hold(RUN)
    except AlreadyActiveError:
        return True
    return False

def in_child(held):
    # As a child does that goes on by itself: with a loop of its own.
    asyncio.events._set_running_loop(None)
    loop = asyncio.new_event_loop()
    os._exit(0 if loop.run_until_complete(use(held)) else 1)

async def main():
    held = await open_run_files(workspace).create(RUN)
    await held.append([b"one"])
    await held.append_events([b"event"])
    if os.fork() == 0:
        in_child(held)
    _, status = os.wait()
    assert status == 0, status
    await held.append([b"two"])
    await held.append_events([b"event"])
    await held.release()

asyncio.run(main())
"""
)


def test_a_child_of_a_fork_cannot_use_or_free_the_run_of_its_parent(tmp_path: Path) -> None:
    run_child(_USE_AN_INHERITED_RUN, tmp_path)
    files = open_run_files(tmp_path)
    assert run(files.journal(RUN)) == JournalRead(lines=[b"one", b"two"])
    assert run(files.events(RUN))[0] == [b"event", b"event"]


_FORK_AND_DIE = (
    _PREAMBLE
    + """
async def main():
    held = await open_run_files(workspace).create(RUN)
    await held.append([b"one"])
    if os.fork() == 0:
        sys.stdin.read()
    os._exit(0)

asyncio.run(main())
"""
)


def test_a_child_of_a_fork_does_not_keep_the_run_of_a_dead_parent(tmp_path: Path) -> None:
    parent = start_child(_FORK_AND_DIE, tmp_path)
    parent.wait(timeout=25)

    async def scenario() -> None:
        files = open_run_files(tmp_path)
        looked = await files.look(RUN)  # the child still waits for the end of its input
        assert looked is not None
        assert not looked.is_held
        held = await files.hold(RUN)
        await held.append([b"two"])
        await held.release()

    run(scenario())
    parent.communicate()


_LOOK_AND_FORK = (
    _PREAMBLE
    + """
async def main():
    files = open_run_files(workspace)
    await (await files.create(RUN)).release()
    await files.look(RUN)
    other = os.open(sys.executable, os.O_RDONLY)  # has the number that the lock had
    inode = os.fstat(other).st_ino
    if os.fork() == 0:
        os._exit(0 if os.fstat(other).st_ino == inode else 1)
    _, status = os.wait()
    assert status == 0, status

asyncio.run(main())
"""
)


def test_a_look_is_over_when_it_is_over(tmp_path: Path) -> None:
    run_child(_LOOK_AND_FORK, tmp_path)


_CREATE_WITHOUT_ROOM_FOR_FILES = (
    _PREAMBLE
    + """
async def main():
    files = open_run_files(workspace)
    await (await files.create(RUN.replace("audit", "first"))).release()  # and the worker thread is there
    os.remove(files.directory + "/" + RUN.replace("audit", "first") + ".lock")
    os.remove(files.directory + "/" + RUN.replace("audit", "first") + ".journal.jsonl")
    free = os.dup(0)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))  # for the lock, and then none for the journal
    try:
        await files.create(RUN)
    except LogWriteError as error:
        assert "journal" in str(error), error
    else:
        raise SystemExit("it was created")
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert os.listdir(files.directory) == [], os.listdir(files.directory)
    await (await files.create(RUN)).release()

asyncio.run(main())
"""
)


def test_a_create_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    run_child(_CREATE_WITHOUT_ROOM_FOR_FILES, tmp_path)


_CREATE_ON_A_FULL_DISK = (
    _PREAMBLE
    + """
async def main():
    files = open_run_files(workspace)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        await files.create(RUN)
    except LogWriteError:
        pass
    else:
        raise SystemExit("it was created")
    assert os.listdir(files.directory) == [], os.listdir(files.directory)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    held = await files.create(RUN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        await held.append([b"header"])
    except LogWriteError:
        pass
    await held.release()

asyncio.run(main())
"""
)


def test_a_create_that_the_disk_refuses_leaves_the_id_free_and_a_journal_without_a_line_stays(tmp_path: Path) -> None:
    run_child(_CREATE_ON_A_FULL_DISK, tmp_path)
    assert run(open_run_files(tmp_path).journal(RUN)) == JournalRead(lines=[])
