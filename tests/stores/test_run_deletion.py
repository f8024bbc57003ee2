"""The end of a run's files: whoever dies while it removes them leaves a run that can be removed again, or none."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from fanfold.errors import LogWriteError, WorkflowInputError
from fanfold.stores.run_blobs import put_blob
from fanfold.stores.run_files import open_run_files
from fanfold.stores.run_lock import lock_known
from fanfold.stores.run_place import RunPlace
from fanfold.stores.run_request import leave_request
from fanfold.stores.run_sweep import sweep_blobs
from fanfold.testing.run_files_conformance import RUN

from .logs import run
from .test_run_files import OTHER, at, contents, names_in, runs_of, write_everything

DIES = """
import asyncio, os, sys
from pathlib import Path
from fanfold.stores.run_files import open_run_files

left = int(sys.argv[3])

def see(event, arguments):
    global left
    if event in ("os.remove", "os.truncate"):
        left -= 1
        if left < 0:
            os._exit(9)

async def delete():
    files = open_run_files(Path(sys.argv[1]))
    held = await files.hold(sys.argv[2])
    sys.addaudithook(see)
    await held.delete()
    await files.sweep_blobs()

asyncio.run(delete())
"""
_CHANGES = 12
"""That `DIES` may die in front of, at least."""


async def write_all_that_may_be_left(workspace: Path) -> None:
    files, directory = open_run_files(workspace), runs_of(workspace)
    name = await write_everything(files)
    held = await files.hold(RUN)
    await held.cut_journal(1)
    await held.append([json.dumps({"blob": name}).encode()])
    await held.release()
    for left in ("json.tmp", "output.json.tmp", "request.tmp", "request.lock", "events.1.jsonl"):
        (directory / f"{RUN}.{left}").write_bytes(b"left")


def test_a_deletion_leaves_no_file_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path)
        await write_all_that_may_be_left(tmp_path)
        sizes = {path: len(data) for path, (_, _, data) in contents(directory).items()}
        held = await files.hold(RUN)
        freed = await held.delete()
        assert freed == sum(size for path, size in sizes.items() if path != f"{RUN}.lock" and "blobs" not in path)
        assert await files.sweep_blobs() == len(b"blob")
        assert contents(directory) == {}

    run(scenario())


@pytest.mark.skipif(sys.platform == "win32", reason="an open file stays there")
@pytest.mark.parametrize("kill_at", [*range(_CHANGES), None])
def test_a_deletion_that_was_killed_anywhere_is_begun_again_and_done(tmp_path: Path, kill_at: int | None) -> None:
    async def begin() -> None:
        await write_all_that_may_be_left(tmp_path)
        await write_everything(open_run_files(tmp_path), OTHER)

    async def end() -> None:
        files = open_run_files(tmp_path)
        look = await files.look(RUN)
        assert (look is not None) == (RUN in await files.run_ids())
        if look is not None:
            assert not look.is_held
            assert (look.snapshot is not None) == (kill_at == 0)  # nobody goes on with a part of a run
            await (await files.hold(RUN)).delete()
        elif kill_at is None:
            assert [name for name in contents(runs_of(tmp_path)) if name.startswith(RUN)] == []
        assert (await files.output(OTHER), list(await files.run_ids())) == (b"output", [OTHER])
        await (await files.hold(OTHER)).delete()
        await files.sweep_blobs()

    run(begin())
    words = [sys.executable, "-c", DIES, str(tmp_path), RUN, str(1_000 if kill_at is None else kill_at)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(words, env=environment, check=False).returncode == (0 if kill_at is None else 9)
    run(end())
    assert [name for name in contents(runs_of(tmp_path)) if not name.endswith(".lock")] == []


def test_what_cannot_be_removed_is_told_and_the_run_is_let_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path)
        await write_everything(files)
        (directory / f"{RUN}.events.1.jsonl").mkdir()
        with pytest.raises(LogWriteError, match=r"events\.1\.jsonl"):
            await (await files.hold(RUN)).delete()
        assert list(await files.run_ids()) == [RUN]
        (directory / f"{RUN}.events.1.jsonl").rmdir()
        await (await files.hold(RUN)).delete()
        assert names_in(directory) == ["blobs"]

    run(scenario())


def test_who_waited_for_a_run_that_was_deleted_has_nothing(tmp_path: Path) -> None:
    files, place = open_run_files(tmp_path), RunPlace(runs_of(tmp_path), RUN)

    async def delete() -> None:
        await (await files.hold(RUN)).delete()

    run(write_everything(files))
    # Behind the look whether there is such a run, before the lock is tried.
    with at("return", "__init__", lambda: run(delete())), pytest.raises(WorkflowInputError, match="no workflow run"):
        lock_known(place)
    assert names_in(place.directory) == ["blobs"]


def test_a_request_for_a_run_that_is_deleted_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    files, place = open_run_files(tmp_path), RunPlace(runs_of(tmp_path), RUN)

    def gone() -> None:
        for path in (place.snapshot, place.journal):
            path.unlink()

    run(write_everything(files))
    with at("call", "leave_request", gone), pytest.raises(WorkflowInputError, match="no workflow run"):
        run(files.request(RUN, b"stop"))
    assert not place.request.exists()


def test_a_request_that_is_left_while_its_run_is_being_deleted_goes_with_it(tmp_path: Path) -> None:
    files, place = open_run_files(tmp_path), RunPlace(runs_of(tmp_path), RUN)

    async def delete() -> None:
        await (await files.hold(RUN)).delete()

    run(write_everything(files))
    with at("return", "_remove_requests", lambda: leave_request(place.request, b"stop")):  # its journal is there yet
        run(delete())
    assert names_in(place.directory) == ["blobs"]


def test_a_blob_that_is_put_again_while_others_are_swept_stays(tmp_path: Path) -> None:
    directory, blobs = runs_of(tmp_path), runs_of(tmp_path) / "blobs"
    name = sha256(b"blob").hexdigest()
    put_blob(blobs, b"blob")
    later = (blobs / name).stat().st_mtime_ns + 3600 * 10**9
    os.utime(blobs / name, ns=(later, later))  # by a clock that went wrong

    async def whole_run() -> None:
        held = await open_run_files(tmp_path).create(RUN)
        assert await held.put_blob(b"blob") == name
        await held.append([f'"{name}"'.encode()])
        await held.release()

    with at("return", "run_ids_in", lambda: run(whole_run())):  # none is held, and no journal is read any more
        assert sweep_blobs(directory, blobs) == 0
    assert (blobs / name).read_bytes() == b"blob"


def test_what_a_killed_writer_of_a_blob_has_left_is_swept_and_nothing_else_is(tmp_path: Path) -> None:
    directory, blobs = runs_of(tmp_path), runs_of(tmp_path) / "blobs"
    blobs.mkdir(parents=True)
    for name in ("0" * 64, "0" * 64 + ".tmp", "mine", "0" * 63):
        (blobs / name).write_bytes(b"12345")
    assert sweep_blobs(directory, blobs) == 10
    assert names_in(blobs) == ["0" * 63, "mine"]


def test_where_a_journal_cannot_be_read_no_blob_is_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path)
        name = await write_everything(files)
        journal = directory / f"{RUN}.journal.jsonl"
        journal.unlink()
        journal.mkdir()
        with pytest.raises(LogWriteError):
            await files.sweep_blobs()
        assert (directory / "blobs" / name).exists()

    run(scenario())


def test_a_file_that_vanishes_while_runs_are_listed_hides_no_run_and_costs_no_blob(tmp_path: Path) -> None:
    files, directory = open_run_files(tmp_path), runs_of(tmp_path)
    name = run(write_everything(files))
    journal, replaced = directory / f"{RUN}.journal.jsonl", directory / f"{OTHER}.json.tmp"
    journal.write_bytes(b'{"blob":"' + name.encode() + b'"}\n')
    for work in (files.run_ids, files.sweep_blobs):
        replaced.touch()
        with at("call", "_status_of", replaced.unlink):
            found = run(work())
        assert found in ([RUN], 0)
        assert run(files.blob(RUN, name)) == b"blob"
