"""Workflow runs in files: the laws of their seam, and what is on the disk."""

import os
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fanfold.errors import FanfoldError, LogWriteError, StoreConflictError, WorkflowInputError
from fanfold.protocols import HeldRun, JournalRead, RunLook, WorkflowFiles
from fanfold.stores.line_file import LineFile
from fanfold.stores.run_events import FULL_BYTES, EventFile, read_events
from fanfold.stores.run_files import open_run_files
from fanfold.stores.run_place import RunPlace
from fanfold.stores.run_request import leave_request
from fanfold.testing.run_files_conformance import RUN, DurableRunFilesConformance

from .logs import run

OTHER = "wf_audit_0123456789abcdee"
links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")


class TestRunFiles(DurableRunFilesConformance):
    def open_files(self, workspace: Path) -> WorkflowFiles:
        return open_run_files(workspace)

    def put_journal(self, workspace: Path, run_id: str, data: bytes | None) -> None:
        path = runs_of(workspace) / f"{run_id}.journal.jsonl"
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)


def runs_of(workspace: Path) -> Path:
    return workspace / ".a3s" / "workflow-runs"


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def contents(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below `directory` with its inode, its time of change and its bytes."""
    return {
        str(path.relative_to(directory)): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


async def write_everything(files: WorkflowFiles, run_id: str = RUN) -> str:
    """A run that has one of each file, and is over; returns the name of its blob."""
    held = await files.create(run_id)
    await held.append([b"one", b"two"])
    await held.write_snapshot(b"snapshot")
    await held.write_output(b"output")
    await held.write_script("script")
    await held.append_events([b"event"])
    name = await held.put_blob(b"blob")
    await files.request(run_id, b"stop")
    await held.release()
    return name


@contextmanager
def at(event: str, name: str, *actions: Callable[[], object]) -> Generator[None, None, None]:
    """Have `actions` done by whoever calls a function of that name, or returns from it: one each time."""
    left = list(actions)

    def see(frame: FrameType, happened: str, _: Any) -> None:
        if happened == event and frame.f_code.co_name == name and "fanfold" in frame.f_code.co_filename and left:
            left.pop(0)()

    threading.setprofile(see)  # of the worker threads that begin now
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert not left


def let_go(files: list[LineFile | None]) -> None:
    file = files[0]
    assert file is not None
    file.close()


def test_each_file_of_a_run_has_the_name_that_people_are_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = open_run_files(tmp_path)
        directory = runs_of(tmp_path)
        assert not directory.exists()
        name = await write_everything(files)
        assert {path: data for path, (_, _, data) in contents(directory).items()} == {
            f"{RUN}.json": b"snapshot",
            f"{RUN}.output.json": b"output",
            f"{RUN}.journal.jsonl": b"one\ntwo\n",
            f"{RUN}.script.py": b"script",
            f"{RUN}.events.jsonl": b'{"from":0}\nevent\n',
            f"{RUN}.request": b"stop",
            f"{RUN}.lock": RUN.encode() + b"\n",
            f"blobs/{name}": b"blob",
        }
        assert files.directory == str(directory)
        assert files.output_path(RUN) == str(directory / f"{RUN}.output.json")
        await files.put_notice("s", RUN, b"notice")
        assert (directory / "outbox" / "s.notices" / f"{RUN}.json").read_bytes() == b"notice"
        await files.remove_notice("s", RUN)
        assert names_in(directory / "outbox") == []

    run(scenario())


def test_the_directory_stays_where_it_is_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_run_files(Path("here")).directory == str(runs_of(tmp_path / "here"))


def test_a_refused_hold_or_create_changes_no_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, other = open_run_files(tmp_path), open_run_files(tmp_path)
        await write_everything(files)
        before = contents(tmp_path)
        held = await files.hold(RUN)
        calls: list[Awaitable[object]] = [
            other.hold(RUN),
            other.create(RUN),
            other.hold(OTHER),
            other.hold(RUN.replace("audit", "Audit")),
            other.create(RUN.replace("audit", "Audit")),
        ]
        for call in calls:
            with pytest.raises(FanfoldError):
                await call
        assert contents(tmp_path) == before
        await held.release()
        assert contents(tmp_path) == before

    run(scenario())


def test_an_empty_journal_is_the_same_after_a_hold_that_wrote_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = open_run_files(tmp_path)
        await (await files.create(RUN)).release()
        before = contents(tmp_path)
        held = await files.hold(RUN)
        await held.read_journal()
        await held.release()
        assert contents(tmp_path) == before

    run(scenario())


@pytest.mark.parametrize("name", ["json", "output.json", "journal.jsonl", "script.py", "events.jsonl"])
def test_whatever_is_left_of_a_run_keeps_its_id_taken(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path)
        directory.mkdir(parents=True)
        (directory / f"{RUN}.{name}").write_bytes(b"left")
        with pytest.raises(StoreConflictError):
            await files.create(RUN)
        assert names_in(directory) == [f"{RUN}.{name}"]

    run(scenario())


def test_a_run_that_was_cut_off_while_it_was_created_is_no_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path)
        directory.mkdir(parents=True)
        (directory / f"{OTHER}.lock").write_bytes(OTHER.encode() + b"\n")
        (directory / f"{RUN}.lock").write_bytes(b"")
        for run_id in (RUN, OTHER):
            assert await files.look(run_id) is None
            with pytest.raises(WorkflowInputError, match="no workflow run"):
                await files.hold(run_id)
        assert list(await files.run_ids()) == []
        for run_id in (RUN, OTHER):
            await (await files.create(run_id)).release()
            assert (directory / f"{run_id}.lock").read_bytes() == run_id.encode() + b"\n"

    run(scenario())


def test_a_lock_that_was_left_by_another_run_keeps_its_name_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        directory = runs_of(tmp_path)
        directory.mkdir(parents=True)
        (directory / f"{RUN}.lock").write_bytes(RUN.replace("audit", "AUDIT").encode() + b"\n")
        with pytest.raises(StoreConflictError):
            await open_run_files(tmp_path).create(RUN)

    run(scenario())


def test_a_run_whose_lock_file_was_not_copied_along_is_held_all_the_same(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path)
        await write_everything(files)
        (directory / f"{RUN}.lock").unlink()
        looked = await files.look(RUN)
        assert looked is not None
        assert not looked.is_held
        held = await files.hold(RUN)
        await held.append([b"three"])
        await held.release()
        assert await files.journal(RUN) == JournalRead(lines=[b"one", b"two", b"three"])
        assert not (directory / f"{RUN}.lock").exists()

    run(scenario())


@pytest.mark.skipif(sys.platform == "win32", reason="names differ by case there for no file")
def test_where_case_makes_no_other_name_a_run_is_found_by_its_own_id_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory, other = open_run_files(tmp_path), runs_of(tmp_path), RUN.replace("audit", "AUDIT")
        name = await write_everything(files)
        for path in list(directory.glob(f"{RUN}.*")):  # as such a disk answers
            if path.suffix != ".lock" and not (directory / path.name.replace("audit", "AUDIT")).exists():
                os.link(path, directory / path.name.replace("audit", "AUDIT"))
        before = contents(tmp_path)
        assert (await files.look(other), await files.journal(other), await files.blob(other, name)) == (None,) * 3
        assert (await files.output(other), await files.script(other)) == (None, None)
        assert await files.events(other) == ((), 0)
        for call in (files.hold(other), files.request(other, b"stop")):
            with pytest.raises(WorkflowInputError, match="no workflow run"):
                await call
        with pytest.raises(StoreConflictError):
            await files.create(other)
        assert contents(tmp_path) == before

    run(scenario())


def test_who_only_looks_does_not_seem_to_have_the_run(tmp_path: Path) -> None:
    lock = RunPlace(runs_of(tmp_path), RUN).lock
    looking: list[LineFile | None] = []

    async def scenario() -> None:
        held = await open_run_files(tmp_path).hold(RUN)
        await held.release()

    run(write_everything(open_run_files(tmp_path)))
    with at("call", "try_open", lambda: looking.append(LineFile.try_open(lock)), lambda: let_go(looking)):
        run(scenario())


def test_a_run_that_ends_in_order_never_looks_as_if_its_owner_had_died(tmp_path: Path) -> None:
    place = RunPlace(runs_of(tmp_path), RUN)
    run(write_everything(open_run_files(tmp_path)))
    place.snapshot.write_bytes(b"running")
    holder = [LineFile.try_open(place.lock)]

    def end_in_order() -> None:
        place.snapshot.write_bytes(b"paused")
        let_go(holder)

    with at("call", "is_locked", end_in_order):
        assert run(open_run_files(tmp_path).look(RUN)) == RunLook(snapshot=b"paused", is_held=False)


def test_who_sees_that_a_run_is_held_may_ask_at_once(tmp_path: Path) -> None:
    place = RunPlace(runs_of(tmp_path), RUN)
    run(write_everything(open_run_files(tmp_path)))  # which leaves a request that nobody answers

    async def scenario() -> None:
        held = await open_run_files(tmp_path).hold(RUN)
        assert await held.requested() == b"pause"
        await held.release()

    with at("return", "try_open", lambda: leave_request(place.request, b"pause")):
        run(scenario())


def test_what_is_cut_off_a_journal_is_kept_byte_by_byte(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path)
        await write_everything(files)
        journal = directory / f"{RUN}.journal.jsonl"
        journal.write_bytes(b"one\ntwo\n\x00thr")
        held = await files.hold(RUN)
        assert await held.cut_journal(2) == f"{RUN}.journal.jsonl.torn-1"
        assert await held.cut_journal(1) == f"{RUN}.journal.jsonl.torn-2"
        assert await held.cut_journal(1) is None
        await held.append([b"again"])
        await held.release()
        assert journal.read_bytes() == b"one\nagain\n"
        assert (directory / f"{RUN}.journal.jsonl.torn-1").read_bytes() == b"\x00thr"
        assert (directory / f"{RUN}.journal.jsonl.torn-2").read_bytes() == b"two\n"

    run(scenario())


def test_a_damaged_blob_is_none_until_it_is_put_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = open_run_files(tmp_path)
        name = await write_everything(files)
        path = runs_of(tmp_path) / "blobs" / name
        path.write_bytes(b"blub")
        held = await files.hold(RUN)
        assert (await held.blob(name), await files.blob(RUN, name)) == (None, None)
        assert await held.put_blob(b"blob") == name
        inode = path.stat().st_ino
        assert await held.put_blob(b"blob") == name
        assert path.stat().st_ino == inode
        assert (await held.blob(name), names_in(path.parent)) == (b"blob", [name])
        await held.release()

    run(scenario())


_CHANGES: dict[str, Callable[[HeldRun], Awaitable[object]]] = {
    "append": lambda held: held.append([b"late"]),
    "undurable append": lambda held: held.append([b"late"], is_durable=False),
    "cut": lambda held: held.cut_journal(0),
    "snapshot": lambda held: held.write_snapshot(b"late"),
    "output": lambda held: held.write_output(b"late"),
    "script": lambda held: held.write_script("late"),
    "events": lambda held: held.append_events([b"late"]),
    "blob": lambda held: held.put_blob(b"late"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
@pytest.mark.parametrize("change", _CHANGES)
def test_a_holder_whose_lock_somebody_removed_writes_no_more(tmp_path: Path, change: str) -> None:
    async def scenario() -> None:
        files = open_run_files(tmp_path)
        await write_everything(files)
        stale = await files.hold(RUN)
        (runs_of(tmp_path) / f"{RUN}.lock").unlink()
        held = await files.hold(RUN)
        before = contents(tmp_path)
        with pytest.raises(LogWriteError):
            await _CHANGES[change](stale)
        assert contents(tmp_path) == before
        await stale.release()
        looked = await files.look(RUN)
        assert looked is not None
        assert looked.is_held
        await held.release()

    run(scenario())


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
def test_a_journal_has_one_writer_whatever_becomes_of_the_lock(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = open_run_files(tmp_path)
        first = await files.create(RUN)
        await first.append([b"one"])
        (runs_of(tmp_path) / f"{RUN}.lock").unlink()
        second = await files.hold(RUN)
        with pytest.raises(LogWriteError, match="another process writes to it"):
            await second.append([b"two"])
        await first.release()
        await second.append([b"two"])
        await second.release()
        assert await files.journal(RUN) == JournalRead(lines=[b"one", b"two"])

    run(scenario())


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
@pytest.mark.parametrize("is_durable", [True, False])
def test_lines_that_no_reader_would_find_are_not_reported_as_written(tmp_path: Path, is_durable: bool) -> None:
    async def scenario() -> None:
        held = await open_run_files(tmp_path).create(RUN)
        await held.append([b"one"])
        (runs_of(tmp_path) / f"{RUN}.journal.jsonl").unlink()
        for _ in range(2):
            with pytest.raises(LogWriteError, match="it was removed"):
                await held.append([b"two"], is_durable=is_durable)
        await held.release()

    run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="each system has another call")
def test_a_durable_append_is_synced_and_another_is_not(tmp_path: Path) -> None:
    calls: list[str] = []

    def see(_: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__name__", "") in ("fsync", "fdatasync"):
            calls.append(called.__name__)

    async def scenario() -> None:
        held = await open_run_files(tmp_path).create(RUN)
        calls.clear()
        await held.append([b"one"], is_durable=False)
        await held.append_events([b"event"])
        assert calls == []
        await held.append([b"two"])
        assert calls == ["fsync", "fdatasync"]  # the name of the new file, and its bytes
        await held.append([b"three"])
        assert calls == ["fsync", "fdatasync", "fdatasync"]
        await held.release()

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        run(scenario())
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


# ---- events ----


def test_half_an_event_of_a_killed_writer_is_set_aside(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path)
        await write_everything(files)
        path = directory / f"{RUN}.events.jsonl"
        path.write_bytes(path.read_bytes() + b"half")
        lines, position = await files.events(RUN)
        assert (list(lines), position) == ([b"event"], 6)
        held = await files.hold(RUN)
        await held.append_events([b"whole"])
        assert await files.events(RUN, position) == ([b"whole"], 12)
        await held.release()
        assert (directory / f"{RUN}.events.jsonl.torn-1").read_bytes() == b"half"
        for torn_head in (b"", b'{"fro', b'{"from":0}'):
            path.write_bytes(torn_head)
            assert await files.events(RUN) == ([], 0)
            held = await files.hold(RUN)
            await held.append_events([b"new"])
            await held.release()
            assert await files.events(RUN) == ([b"new"], 4)

    run(scenario())


def test_events_go_on_when_a_rotation_was_cut_off_or_their_file_is_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path)
        path, old_path = (directory / f"{RUN}.events{end}" for end in (".jsonl", ".1.jsonl"))
        await write_everything(files)
        path.rename(old_path)
        assert await files.events(RUN) == ([b"event"], 6)
        assert await files.events(RUN, 6) == ([], 6)
        held = await files.hold(RUN)
        await held.append_events([b"two"])
        assert await files.events(RUN) == ([b"event", b"two"], 10)
        assert await files.events(RUN, 6) == ([b"two"], 10)
        if sys.platform != "win32":
            path.unlink()
            old_path.unlink()
            with pytest.raises(LogWriteError, match="removed"):
                await held.append_events([b"lost"])
            await held.append_events([b"three"])
            assert path.read_bytes() == b'{"from":10}\nthree\n'
            assert await files.events(RUN, 10) == ([b"three"], 16)
        await held.release()

    run(scenario())


def test_who_follows_from_another_thread_sees_each_event_once_whatever_is_rotated(tmp_path: Path) -> None:
    count = 6_000
    seen: list[int] = []
    is_there = threading.Event()

    async def follow() -> None:
        files, position = open_run_files(tmp_path), 0
        while len(seen) < count:
            lines, position = await files.events(RUN, position)
            seen.extend(int(line[:6]) for line in lines)

    async def write() -> None:
        held = await open_run_files(tmp_path).create(RUN)
        is_there.set()
        number = 0
        while number < count:
            if number - len(seen) < 1_000:  # 4 MiB: what the file keeps in any case
                await held.append_events([b"%06d %b" % (number, b"x" * 4_000)])
                number += 1
        await held.release()

    follower = threading.Thread(target=lambda: is_there.wait() and run(follow()), daemon=True)
    follower.start()
    run(write())
    follower.join()
    assert seen == list(range(count))


def test_a_reader_that_meets_a_rotation_sees_no_gap_and_no_event_twice(tmp_path: Path) -> None:
    paths = tmp_path / "events", tmp_path / "old"
    file, lines = EventFile(*paths), [b"%d %b" % (number, b"x" * FULL_BYTES) for number in range(3)]

    def rotate() -> None:
        file.append([lines.pop(0)])

    written = list(lines)
    rotate()
    rotate()
    assert read_events(*paths, 0)[0] == written[:2]
    with at("call", "read", lambda: None, rotate):  # behind the newer of the two files, before the older
        assert read_events(*paths, 0)[0] == written[1:]
    end, seen = read_events(*paths, 0)[1], list[object]()
    with at("call", "_write", lambda: seen.append(read_events(*paths, end))):  # into a file that is empty still
        file.append([b"last"])
    assert seen == [([], end)]
    assert read_events(*paths, end)[0] == [b"last"]
    file.close()


# ---- lists ----


def test_runs_are_listed_newest_first_and_nothing_else_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path)
        ids = [f"wf_{name}_{number:016x}" for number, name in enumerate("cADb")]
        for age, run_id in enumerate(ids):
            await (await files.create(run_id)).release()
            os.utime(directory / f"{run_id.lower()}.lock", ns=(age * 10**9, age * 10**9))
        held = await files.hold(ids[0])
        await held.write_snapshot(b"{}")  # a resume makes no run a new one
        await held.release()
        (directory / f"{ids[1].lower()}.lock").unlink()  # then it is as new as its files
        for junk in ("x.json", "wf_a.json", f"{OTHER}.json.tmp", f"{OTHER}.output.json", f"{OTHER}.lock"):
            (directory / junk).write_bytes(b"")
        (directory / f"{OTHER}.json").mkdir()
        if sys.platform != "win32":
            (directory / f"{OTHER}.journal.jsonl").symlink_to(directory / f"{ids[0]}.journal.jsonl")
        assert list(await files.run_ids()) == [ids[1], ids[3], ids[2], ids[0]]

    run(scenario())


def test_a_notice_is_the_newest_whatever_the_clock_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path) / "outbox" / "s.notices"
        await files.put_notice("s", RUN, b"first")
        later = (directory / f"{RUN}.json").stat().st_mtime_ns + 3600 * 10**9
        os.utime(directory / f"{RUN}.json", ns=(later, later))
        for run_id in (OTHER, "wf_a_0123456789abcdef"):
            await files.put_notice("s", run_id, b"next")
        assert [run_id for run_id, _ in await files.notices("s")] == [RUN, OTHER, "wf_a_0123456789abcdef"]

    run(scenario())


def test_what_lies_among_the_notices_and_is_none_is_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, directory = open_run_files(tmp_path), runs_of(tmp_path) / "outbox" / "s.notices"
        await files.put_notice("s", RUN, b"notice")
        for junk in (f"{OTHER}.json.tmp", "x.json", OTHER):
            (directory / junk).write_bytes(b"x")
        if sys.platform != "win32":
            (tmp_path / "secret").write_bytes(b"secret")
            (directory / f"{OTHER}.json").symlink_to(tmp_path / "secret")
        assert list(await files.notices("s")) == [(RUN, b"notice")]

    run(scenario())


# ---- links ----


@links
@pytest.mark.parametrize("link", [".a3s", ".a3s/workflow-runs"])
def test_a_store_that_is_a_link_is_refused(tmp_path: Path, link: str) -> None:
    workspace, elsewhere = tmp_path / "workspace", tmp_path / "elsewhere"
    run(write_everything(open_run_files(elsewhere)))
    run(open_run_files(elsewhere).put_notice("s", RUN, b"notice"))
    (workspace / link).parent.mkdir(parents=True)
    (workspace / link).symlink_to(elsewhere / link)
    before = contents(elsewhere)

    async def scenario() -> None:
        files = open_run_files(workspace)
        calls: tuple[Awaitable[object], ...] = (
            files.create(OTHER),
            files.hold(RUN),
            files.look(RUN),
            files.journal(RUN),
            files.output(RUN),
            files.run_ids(),
            files.request(RUN, b"stop"),
            files.put_notice("s", RUN, b"x"),
            files.notices("s"),
            files.remove_notice("s", RUN),
        )
        for call in calls:
            with pytest.raises(WorkflowInputError, match="symbolic link") as caught:
                await call
            assert caught.value.code == "store_unwritable"

    run(scenario())
    assert contents(elsewhere) == before


@links
def test_a_workspace_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    run(write_everything(open_run_files(tmp_path / "link")))
    assert runs_of(tmp_path / "real").is_dir()


@links
@pytest.mark.parametrize("folder", ["blobs", "outbox", "outbox/s.notices"])
def test_a_folder_of_the_store_that_is_a_link_is_refused(tmp_path: Path, folder: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    async def scenario() -> None:
        files, link = open_run_files(tmp_path), runs_of(tmp_path) / folder
        held = await files.create(RUN)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(elsewhere)
        name = "0" * 64
        calls: tuple[Awaitable[object], ...] = (
            (held.put_blob(b"x"), held.blob(name), files.blob(RUN, name))
            if folder == "blobs"
            else (files.put_notice("s", RUN, b"x"), files.notices("s"), files.remove_notice("s", RUN))
        )
        for call in calls:
            if folder == "outbox":
                (elsewhere / "s.notices").mkdir(exist_ok=True)
            with pytest.raises(WorkflowInputError, match="symbolic link"):
                await call
        await held.release()
        assert [path for path in elsewhere.rglob("*") if path.is_file()] == []

    run(scenario())


@links
@pytest.mark.parametrize(
    "name", ["json", "output.json", "journal.jsonl", "script.py", "events.jsonl", "request", "lock"]
)
def test_a_file_that_is_a_link_is_neither_read_nor_written_through(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"

    async def scenario() -> None:
        files, path = open_run_files(tmp_path), runs_of(tmp_path) / f"{RUN}.{name}"
        await write_everything(files)
        secret.write_bytes(b"secret")
        path.unlink()
        path.symlink_to(secret)
        found: list[object] = []

        async def attempt(call: Awaitable[object]) -> None:
            try:
                found.append(await call)
            except LogWriteError as error:
                found.append(error)

        for read in (files.look(RUN), files.journal(RUN), files.output(RUN), files.script(RUN), files.events(RUN)):
            await attempt(read)
        try:
            held = await files.hold(RUN)
        except LogWriteError:
            assert name == "lock"
        else:
            await attempt(held.requested())
            await attempt(held.read_journal())
            for change in _CHANGES.values():
                await attempt(change(held))
            await held.release()
        assert "secret" not in repr([each for each in found if not isinstance(each, LogWriteError)])
        assert all("symbolic link" in str(each) for each in found if isinstance(each, LogWriteError))

    run(scenario())
    assert secret.read_bytes() == b"secret"
