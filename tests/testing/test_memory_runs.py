"""MemoryRuns keeps the laws of workflow files, and fails when and how it is told to."""

import asyncio
from pathlib import Path

import pytest

from fanfold.errors import AlreadyActiveError, LogWriteError, StorageError
from fanfold.protocols import JournalRead, WorkflowFiles
from fanfold.testing.faulty_store import SimulatedCrashError
from fanfold.testing.memory_runs import Change, MemoryRuns
from fanfold.testing.run_files_conformance import RUN, RunFilesConformance
from fanfold.testing.virtual_loop import run_virtually

_disks: dict[Path, MemoryRuns] = {}
"""By workspace; each test has a new one."""


class TestMemoryRuns(RunFilesConformance):
    def open_files(self, workspace: Path) -> WorkflowFiles:
        return _disks.setdefault(workspace, MemoryRuns()).another_process()

    def put_journal(self, workspace: Path, run_id: str, data: bytes | None) -> None:
        _disks[workspace].put_journal(run_id, data)


def test_the_next_changes_fail_as_often_as_they_are_told_to_and_do_nothing() -> None:
    async def scenario() -> None:
        files = MemoryRuns()
        files.fail_next("create")
        with pytest.raises(LogWriteError, match="No space left"):
            await files.create(RUN)
        held = await files.create(RUN)
        files.fail_next("append", times=2)
        files.fail_next("write_snapshot", reason="Permission denied")
        for _ in range(2):
            with pytest.raises(LogWriteError):
                await held.append([b"lost"])
        with pytest.raises(LogWriteError, match="Permission denied"):
            await held.write_snapshot(b"lost")
        await held.append([b"kept"])
        looked = await files.look(RUN)
        assert looked is not None
        assert (looked.snapshot, files.journal_bytes(RUN)) == (None, b"kept\n")
        files.fail_next("request")
        await files.another_process().request(RUN, b"stop")  # the faults are one process's own
        assert await held.requested() == b"stop"
        await held.release()

    asyncio.run(scenario())


def test_a_crash_frees_what_its_process_held_and_loses_lines_that_need_not_be_durable() -> None:
    async def scenario() -> None:
        files = MemoryRuns()
        other = files.another_process()
        held, others = await files.create(RUN), await other.create("wf_b_0123456789abcdef")
        await held.append([b"undurable"], is_durable=False)
        await held.append([b"durable"])
        await held.append([b"lost"], is_durable=False)
        await others.append([b"kept"], is_durable=False)
        await held.write_snapshot(b"running")
        files.crash()
        for call in (held.append([b"late"]), held.requested(), held.write_snapshot(b"late")):
            with pytest.raises(SimulatedCrashError):
                await call
        assert isinstance(SimulatedCrashError(), StorageError)
        with pytest.raises(AlreadyActiveError, match="in another process"):
            await files.hold(others.run_id)
        for process in (files, other):
            again = await process.hold(RUN)
            assert await again.read_journal() == JournalRead(lines=[b"undurable", b"durable"])
            with pytest.raises(AlreadyActiveError, match="in this process"):
                await process.hold(RUN)
            await held.release()  # the one that died
            looked = await files.look(RUN)
            assert looked is not None
            assert (looked.snapshot, looked.is_held) == (b"running", True)
            await again.release()
        assert await others.read_journal() == JournalRead(lines=[b"kept"])
        await others.release()

    asyncio.run(scenario())


def test_what_was_under_way_when_its_process_died_is_not_done() -> None:
    async def scenario() -> None:
        is_reached, may_go = asyncio.Event(), asyncio.Event()

        async def wait(change: Change, run_id: str) -> None:
            if change == "append":
                assert run_id == RUN
                is_reached.set()
                await may_go.wait()

        files = MemoryRuns(before=wait)
        held = await files.create(RUN)
        append = asyncio.ensure_future(held.append([b"one"]))
        await is_reached.wait()
        files.crash()
        may_go.set()
        with pytest.raises(SimulatedCrashError):
            await append
        assert files.journal_bytes(RUN) == b""

    asyncio.run(scenario())


def test_a_release_waits_for_a_change_that_is_held_up() -> None:
    async def scenario() -> None:
        is_reached, may_go = asyncio.Event(), asyncio.Event()

        async def wait(change: Change, _: str) -> None:
            if change == "append":
                is_reached.set()
                await may_go.wait()

        files = MemoryRuns(before=wait)
        held = await files.create(RUN)
        append = asyncio.ensure_future(held.append([b"one"]))
        await is_reached.wait()
        release = asyncio.ensure_future(held.release())
        await asyncio.sleep(0)
        with pytest.raises(AlreadyActiveError):
            await files.another_process().hold(RUN)
        may_go.set()
        await asyncio.gather(append, release)
        assert files.journal_bytes(RUN) == b"one\n"
        await (await files.hold(RUN)).release()

    asyncio.run(scenario())


def test_it_runs_on_a_virtual_loop() -> None:
    async def scenario() -> None:
        files = MemoryRuns()
        held = await files.create(RUN)
        await held.append([b"one"])
        await held.release()
        assert list(await files.run_ids()) == [RUN]

    run_virtually(scenario())
