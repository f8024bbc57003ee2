"""The laws of the `WorkflowFiles` seam as a pytest suite, for any implementation of it (needs pytest and hypothesis).

class TestMyFiles(DurableRunFilesConformance):
    def open_files(self, workspace: Path) -> WorkflowFiles:
        return MyFiles(workspace)

    def put_journal(self, workspace: Path, run_id: str, data: bytes | None) -> None: ...
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanfold.errors import (
    AlreadyActiveError,
    LifecycleError,
    LogWriteError,
    StoreConflictError,
    UsageError,
    WorkflowInputError,
)
from fanfold.protocols import HeldRun, JournalRead, RunLook, WorkflowFiles

if sys.platform == "win32":

    def _limit_file_size(size: int) -> None:
        raise NotImplementedError

else:
    import resource

    def _limit_file_size(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


RUN = "wf_audit_0123456789abcdef"
_OTHER = "wf_audit_0123456789abcdee"
_BAD_IDS = [
    "", "wf", "wf_a", "../wf_a_0123456789abcdef", "wf_a_0123456789abcdef/..", "wf_x_../../y", ".", "..",
    "wf_a_0123456789ABCDEF", "wf_a_0123456789abcde", "wf_a_0123456789abcdef\n", "wf_.a_0123456789abcdef",
    "wf_a b_0123456789abcdef", "wf_a\0_0123456789abcdef", "wf__0123456789abcdef", "WF_a_0123456789abcdef",
    "wf_" + "a" * 65 + "_0123456789abcdef", "wf_ü_0123456789abcdef", "/etc/passwd", "wf_../x_0123456789abcdef",
]  # fmt: skip
_ODD_SESSIONS = ["s", "S", "..", ".", "a/b", "nul", "a.", "x" * 300, "x" * 301, "ü", "日本", "a\0b", " ", "s.notices"]
_ODD_LINES = [b"", b"{}", b"\r", "\u2028 \u0085 \x1c".encode(), b"\0\xff", b"x" * 100_000]
_EVENT_BYTES = 8 * 2**20
"""About what the event file of a run keeps, of the newest; at least half of that."""
_LAW = settings(
    max_examples=15,
    deadline=None,  # a disk may be slow
    suppress_health_check=[HealthCheck.differing_executors],  # it is the point of a suite that several classes run it
)

_lines = st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=4)
_operations: st.SearchStrategy[list[tuple[Any, ...]]] = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _lines, st.booleans()),
        st.tuples(st.just("cut"), st.integers(0, 8)),
        st.tuples(st.just("events"), _lines),
        st.tuples(st.just("snapshot"), st.binary(max_size=20)),
        st.tuples(st.just("output"), st.binary(max_size=20)),
        st.tuples(st.just("blob"), st.binary(max_size=20)),
        st.tuples(st.just("next holder")),
    ),
    max_size=12,
)

_CHILD = """
import asyncio, importlib, sys
from pathlib import Path
suite = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
asyncio.run(getattr(suite, sys.argv[3])(suite.open_files(Path(sys.argv[4]))))
"""

R = TypeVar("R")
Use = Callable[[WorkflowFiles, WorkflowFiles], Awaitable[None]]


class RunFilesConformance:
    """What every implementation keeps; override both methods."""

    def open_files(self, workspace: Path) -> WorkflowFiles:
        """The runs of `workspace`. Called twice it gives what two processes have."""
        raise NotImplementedError

    def put_journal(self, workspace: Path, run_id: str, data: bytes | None) -> None:
        """Have the journal of a run consist of `data`, or not be there, as by damage from outside."""
        raise NotImplementedError

    def with_files(self, use: Use) -> None:
        """Run `use` with the files of one new workspace as two processes have them."""

        async def run(workspace: Path) -> None:
            await use(self.open_files(workspace), self.open_files(workspace))

        _in_workspace(run)

    # ---- ids ----

    @pytest.mark.parametrize("run_id", _BAD_IDS, ids=ascii)
    def test_what_is_no_run_id_is_refused_by_everything(self, run_id: str) -> None:
        async def use(files: WorkflowFiles, _: WorkflowFiles) -> None:
            calls: tuple[Awaitable[object], ...] = (
                files.create(run_id),
                files.hold(run_id),
                files.look(run_id),
                files.journal(run_id),
                files.blob(run_id, "0" * 64),
                files.output(run_id),
                files.script(run_id),
                files.events(run_id),
                files.request(run_id, b"stop"),
                files.put_notice("s", run_id, b"notice"),
                files.remove_notice("s", run_id),
                files.has_notice(run_id),
                files.remove_notices(run_id),
            )
            for call in calls:
                assert await _refusal(call) == "bad_run_id"
            with pytest.raises(WorkflowInputError):
                files.output_path(run_id)
            assert list(await files.run_ids()) == []

        self.with_files(use)

    def test_ids_that_differ_by_case_only_never_meet(self) -> None:
        lower, upper = "wf_audit_0123456789abcdef", "wf_AUDIT_0123456789abcdef"

        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            for first, second in ((lower, upper), ("wf_B_0123456789abcdef", "wf_b_0123456789abcdef")):
                held = await files.create(first)
                await held.append([b"one"])
                await held.write_output(b"output")
                for each in (files, other):
                    with pytest.raises(StoreConflictError):
                        await each.create(second)
                    assert await _refusal(each.hold(second)) == "run_not_found"
                    assert (await each.look(second), await each.journal(second), await each.output(second)) == (
                        None,
                        None,
                        None,
                    )
                await held.release()
                assert await _refusal(files.hold(second)) == "run_not_found"
                with pytest.raises(StoreConflictError):
                    await files.create(second)
                assert await files.journal(first) == JournalRead(lines=[b"one"])

        self.with_files(use)

    # ---- holding ----

    def test_a_created_run_is_held_by_its_creator_alone_until_it_is_released(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            for _ in range(3):
                assert held.run_id == RUN
                for each in (files, other):
                    with pytest.raises(AlreadyActiveError) as caught:
                        await each.hold(RUN)
                    assert caught.value.name == f"workflow-run/{RUN}"
                    assert (await _looked(each)).is_held
                await held.release()
                for each in (files, other):
                    assert not (await _looked(each)).is_held
                files, other = other, files
                held = await files.hold(RUN)
            await held.release()

        self.with_files(use)

    def test_a_run_is_created_once_and_nothing_of_it_is_overwritten(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            await held.append([b"one"])
            await held.write_snapshot(b"snapshot")
            for _ in range(2):
                for each in (files, other):
                    with pytest.raises(StoreConflictError) as caught:
                        await each.create(RUN)
                    assert caught.value.name == RUN
                assert await files.journal(RUN) == JournalRead(lines=[b"one"])
                assert (await _looked(files)).snapshot == b"snapshot"
                await held.release()
            await (await files.create(_OTHER)).release()

        self.with_files(use)

    def test_of_many_who_create_or_hold_at_once_one_does(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            def among(call: str) -> Awaitable[list[HeldRun | BaseException]]:
                calls = [getattr(each, call)(RUN) for each in (files, other) for _ in range(4)]
                return asyncio.gather(*calls, return_exceptions=True)

            for call, refusal in (("create", StoreConflictError), ("hold", AlreadyActiveError)):
                outcomes = await among(call)
                held = [each for each in outcomes if not isinstance(each, BaseException)]
                assert len(held) == 1
                assert sum(isinstance(each, refusal) for each in outcomes) == 7
                await held[0].release()

        self.with_files(use)

    def test_there_is_nothing_of_a_run_that_was_never_created(self) -> None:
        async def use(files: WorkflowFiles, _: WorkflowFiles) -> None:
            for _attempt in range(2):
                assert await _refusal(files.hold(RUN)) == "run_not_found"
                assert await _refusal(files.request(RUN, b"stop")) == "run_not_found"
                assert (await files.look(RUN), await files.journal(RUN)) == (None, None)
                assert (await files.output(RUN), await files.script(RUN)) == (None, None)
                assert await files.blob(RUN, "0" * 64) is None
                lines, position = await files.events(RUN)
                assert (list(lines), position, list(await files.run_ids())) == ([], 0, [])
            await (await files.create(RUN)).release()

        self.with_files(use)

    def test_whoever_looks_keeps_nobody_from_holding(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            await (await files.create(RUN)).release()
            is_over = False

            async def look() -> None:
                while not is_over:
                    await other.look(RUN)

            lookers = [asyncio.ensure_future(look()) for _ in range(3)]
            for _ in range(60):
                held = await files.hold(RUN)
                assert (await _looked(other)).is_held
                await held.release()
            is_over = True
            await asyncio.gather(*lookers)

        self.with_files(use)

    def test_a_released_run_does_nothing_more_and_is_released_twice(self) -> None:
        async def use(files: WorkflowFiles, _: WorkflowFiles) -> None:
            held = await files.create(RUN)
            await held.release()
            await held.release()
            newer = await files.hold(RUN)
            await held.release()
            assert (await _looked(files)).is_held
            calls: tuple[Awaitable[object], ...] = (
                held.append([b"late"]),
                held.append([b"late"], is_durable=False),
                held.read_journal(),
                held.has_journal(),
                held.cut_journal(0),
                held.put_blob(b"late"),
                held.blob("0" * 64),
                held.write_snapshot(b"late"),
                held.write_output(b"late"),
                held.write_script("late"),
                held.append_events([b"late"]),
                held.requested(),
                held.delete(),
            )
            for call in calls:
                with pytest.raises(LifecycleError, match=RUN):
                    await call
            assert await newer.read_journal() == JournalRead(lines=[])
            await newer.release()

        self.with_files(use)

    @pytest.mark.parametrize("turns", range(6))
    @pytest.mark.parametrize("call", ["create", "hold"])
    def test_a_run_is_not_lost_with_the_task_that_asked_for_it(self, call: str, turns: int) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            if call == "hold":
                await (await files.create(RUN)).release()
            held = await _cancel_after(turns, getattr(files, call)(RUN))
            if held is None and await files.look(RUN) is not None:
                held = await other.hold(RUN)
            if held is not None:
                await held.release()

        self.with_files(use)

    @pytest.mark.parametrize("turns", range(4))
    def test_a_release_ends_though_its_task_is_cancelled(self, turns: int) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            appends = [asyncio.ensure_future(held.append([b"%d" % number])) for number in range(20)]
            await asyncio.sleep(0)
            await _cancel_after(turns + 1, held.release())
            assert all(each.done() for each in appends)
            await (await other.hold(RUN)).release()
            assert await files.journal(RUN) == JournalRead(lines=[b"%d" % number for number in range(20)])

        self.with_files(use)

    def test_runs_are_listed_whoever_runs_them(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            ids = [f"wf_{name}_{number:016x}" for number, name in enumerate(["a", "B", "c.output", "d_e-f", "x" * 64])]
            for number, run_id in enumerate(ids):
                held = await files.create(run_id)
                if number % 2:
                    await held.write_snapshot(b"{}")
                    await held.write_output(b"{}")
                    await held.write_script("x")
                    await held.append_events([b"{}"])
                    await files.request(run_id, b"stop")
                    await held.release()
            assert sorted(await other.run_ids()) == sorted(ids)

        self.with_files(use)

    # ---- the journal ----

    @_LAW
    @given(_operations)
    def test_a_run_keeps_what_a_plain_model_keeps(self, operations: list[tuple[Any, ...]]) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            journal: list[bytes] = []
            events: list[bytes] = []
            snapshot: bytes | None = None
            output: bytes | None = None
            position = 0
            for operation in operations:
                match operation:
                    case ("append", lines, is_durable):
                        await held.append(lines, is_durable=is_durable)
                        journal += lines
                    case ("cut", count):
                        kept_in = await held.cut_journal(count)
                        assert (kept_in is None) == (count >= len(journal))
                        del journal[count:]
                    case ("events", lines):
                        await held.append_events(lines)
                        found, position = await other.events(RUN, position)
                        assert list(found) == lines
                        events += lines
                    case ("snapshot", data):
                        await held.write_snapshot(snapshot := data)
                    case ("output", data):
                        await held.write_output(output := data)
                    case ("blob", data):
                        name = await held.put_blob(data)
                        assert name == sha256(data).hexdigest()
                        assert (await held.blob(name), await other.blob(RUN, name)) == (data, data)
                    case _:
                        await held.release()
                        held = await other.hold(RUN)
                assert await held.read_journal() == await files.journal(RUN) == JournalRead(lines=journal)
                assert list((await files.events(RUN))[0]) == events
                assert await other.look(RUN) == RunLook(snapshot=snapshot, is_held=True)
                assert await other.output(RUN) == output
            await held.release()

        self.with_files(use)

    def test_lines_are_split_at_newlines_alone(self) -> None:
        async def use(files: WorkflowFiles, _: WorkflowFiles) -> None:
            held = await files.create(RUN)
            await held.append(_ODD_LINES)
            assert await held.read_journal() == JournalRead(lines=_ODD_LINES)
            await held.append_events(_ODD_LINES)
            lines, _position = await files.events(RUN)
            assert list(lines) == _ODD_LINES
            await held.release()

        self.with_files(use)

    @pytest.mark.parametrize("line", [b"a\nb", b"\n", "text", None], ids=repr)
    def test_what_is_no_line_is_refused_and_nothing_of_its_batch_is_written(self, line: Any) -> None:
        async def use(files: WorkflowFiles, _: WorkflowFiles) -> None:
            held = await files.create(RUN)
            for call in (
                held.append([b"good", line]),
                held.append([b"good", line], is_durable=False),
                held.append_events([b"good", line]),
            ):
                with pytest.raises(UsageError, match=RUN):
                    await call
            assert await held.read_journal() == JournalRead(lines=[])
            assert list((await files.events(RUN))[0]) == []
            await held.release()

        self.with_files(use)

    def test_a_new_run_has_a_journal_that_is_empty_and_stays(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            for _ in range(3):
                assert await held.has_journal()
                assert await held.read_journal() == await files.journal(RUN) == JournalRead(lines=[])
                assert await held.cut_journal(0) is None
                await held.append([])
                await held.release()
                held = await other.hold(RUN)
            await held.append([b"bad"])
            assert await held.cut_journal(0)
            await held.release()
            held = await files.hold(RUN)
            assert await held.has_journal()
            assert await held.read_journal() == JournalRead(lines=[])
            await held.release()

        self.with_files(use)

    def test_appends_of_many_tasks_are_each_whole(self) -> None:
        async def use(files: WorkflowFiles, _: WorkflowFiles) -> None:
            held = await files.create(RUN)
            batches = [[b"%d-%d" % (task, part) for part in range(3)] for task in range(20)]
            await asyncio.gather(*[held.append(each, is_durable=task % 3 > 0) for task, each in enumerate(batches)])
            assert await held.read_journal() == JournalRead(lines=[line for each in batches for line in each])
            await held.release()

        self.with_files(use)

    @pytest.mark.parametrize("turns", range(5))
    def test_a_cancelled_append_is_written_as_a_whole_or_not_at_all(self, turns: int) -> None:
        async def use(files: WorkflowFiles, _: WorkflowFiles) -> None:
            held = await files.create(RUN)
            await _cancel_after(turns, held.append([b"a", b"b"]))
            lines = list((await held.read_journal()).lines)
            assert lines in ([], [b"a", b"b"])
            await held.append([b"c"])
            assert await held.read_journal() == JournalRead(lines=[*lines, b"c"])
            await held.release()

        self.with_files(use)

    def test_what_is_under_way_is_done_before_a_release(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            work = [
                asyncio.ensure_future(each)
                for each in (held.append([b"a"]), held.write_snapshot(b"b"), held.write_output(b"c"))
            ]
            await asyncio.sleep(0)
            await held.release()
            assert all(each.done() for each in work)
            newer = await other.hold(RUN)
            assert await newer.read_journal() == JournalRead(lines=[b"a"])
            assert (await _looked(files)).snapshot == b"b"
            await newer.release()

        self.with_files(use)

    def test_a_torn_end_is_told_and_cut_and_never_written_behind(self) -> None:
        async def run(workspace: Path) -> None:
            files = self.open_files(workspace)
            held = await files.create(RUN)
            await held.append([b"one", b"two"])
            await held.release()
            self.put_journal(workspace, RUN, b"one\ntwo\nthr")
            torn = JournalRead(lines=[b"one", b"two"], has_torn_end=True)
            assert await files.journal(RUN) == torn
            held = await files.hold(RUN)
            assert await held.read_journal() == torn
            for is_durable in (True, False):
                with pytest.raises(LogWriteError, match="within a line"):
                    await held.append([b"three"], is_durable=is_durable)
            kept_in = await held.cut_journal(2)
            assert kept_in is not None
            assert kept_in.startswith(f"{RUN}.journal.jsonl.")
            await held.append([b"three"])
            assert await held.read_journal() == JournalRead(lines=[b"one", b"two", b"three"])
            again = await held.cut_journal(1)
            assert again not in (None, kept_in)
            assert await held.read_journal() == JournalRead(lines=[b"one"])
            await held.release()

        _in_workspace(run)

    def test_a_journal_that_has_gone_is_missed_and_never_begun_anew(self) -> None:
        async def run(workspace: Path) -> None:
            files = self.open_files(workspace)
            held = await files.create(RUN)
            await held.append([b"one"])
            await held.write_snapshot(b"{}")
            await held.release()
            self.put_journal(workspace, RUN, None)
            held = await files.hold(RUN)
            assert not await held.has_journal()
            assert await held.read_journal() == JournalRead(lines=())
            assert await held.cut_journal(0) is None
            with pytest.raises(LogWriteError, match="not there"):
                await held.append([b"two"])
            await held.release()
            assert await files.journal(RUN) is None
            with pytest.raises(StoreConflictError):
                await files.create(RUN)

        _in_workspace(run)

    # ---- whole files ----

    def test_whole_files_are_replaced_and_read_by_anybody(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            assert (await _looked(other)).snapshot is None
            for number in range(3):
                text = f"a = {number}\r\nb = '\u2028 ü'\n\tc"
                await held.write_snapshot(b"snapshot %d\n" % number)
                await held.write_output(b"output %d" % number)
                await held.write_script(text)
                assert (await _looked(other)).snapshot == b"snapshot %d\n" % number
                assert (await other.output(RUN), await other.script(RUN)) == (b"output %d" % number, text)
            with pytest.raises(UsageError, match=RUN):
                await held.write_script("\ud800")
            await held.release()
            assert other.output_path(RUN).startswith(other.directory)
            assert other.output_path(RUN) == files.output_path(RUN) != files.output_path(_OTHER)

        self.with_files(use)

    def test_of_writes_at_once_the_last_one_counts(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            await asyncio.gather(*[held.write_snapshot(b"%d" % number) for number in range(10)])
            assert (await _looked(other)).snapshot == b"9"
            await held.release()

        self.with_files(use)

    def test_blobs_are_kept_by_what_they_are_and_shared(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            first, second = await files.create(RUN), await other.create(_OTHER)
            data = [b"", b"x" * 400_000, b"\0\n"]
            names = await asyncio.gather(*[held.put_blob(each) for each in data for held in (first, second) * 3])
            assert len(set(names)) == 3
            for name, each in zip(names[::6], data, strict=True):
                assert name == sha256(each).hexdigest()
                assert await first.blob(name) == await second.blob(name) == await files.blob(_OTHER, name) == each
            for none in ("0" * 64, "", "..", "../" + RUN + ".json", names[0].upper(), names[0] + "\n", "a\0b"):
                assert (await first.blob(none), await files.blob(RUN, none)) == (None, None)
            for held in (first, second):
                await held.release()

        self.with_files(use)

    # ---- the end ----

    def test_of_a_deleted_run_nothing_is_left(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            for each in (files, other):
                held = await files.create(RUN)
                written = [b"j" * 1_000, b"s" * 2_000, b"o" * 3_000, b"p" * 4_000, b"e" * 5_000, b"r" * 6_000]
                await held.append([b"cut off", written[0]])
                await held.cut_journal(0)
                await held.append([written[0]])
                await held.write_snapshot(written[1])
                await held.write_output(written[2])
                await held.write_script(written[3].decode())
                await held.append_events([written[4]])
                await other.request(RUN, written[5])
                if each is other:
                    await held.release()
                    held = await other.hold(RUN)
                assert await held.delete() >= sum(map(len, written))
                await held.release()
                assert list(await files.run_ids()) == []
                assert (await other.look(RUN), await files.journal(RUN)) == (None, None)
                assert (await other.output(RUN), await files.script(RUN)) == (None, None)
                lines, position = await other.events(RUN)
                assert (list(lines), position) == ([], 0)
                for call in (files.hold(RUN), other.request(RUN, b"stop")):
                    assert await _refusal(cast(Awaitable[object], call)) == "run_not_found"
            newer = await other.create(RUN)
            assert (await newer.read_journal(), await newer.requested()) == (JournalRead(lines=[]), None)
            assert (await _looked(files)).snapshot is None
            await newer.release()

        self.with_files(use)

    def test_a_run_without_a_journal_is_deleted_too(self) -> None:
        async def run(workspace: Path) -> None:
            files = self.open_files(workspace)
            held = await files.create(RUN)
            await held.write_snapshot(b"snapshot")
            await held.release()
            self.put_journal(workspace, RUN, None)
            assert await (await files.hold(RUN)).delete() >= len(b"snapshot")
            assert list(await files.run_ids()) == []

        _in_workspace(run)

    def test_a_deletion_takes_nothing_of_a_run_whose_id_begins_alike(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            longer = f"{RUN}.json_0123456789abcdef"
            for run_id in (RUN, longer, _OTHER):
                held = await files.create(run_id)
                await held.append([run_id.encode()])
                await held.write_snapshot(b"snapshot")
                await held.write_output(b"output")
                await held.release()
            await (await other.hold(RUN)).delete()
            assert sorted(await files.run_ids()) == sorted([longer, _OTHER])
            for run_id in (longer, _OTHER):
                assert await files.journal(run_id) == JournalRead(lines=[run_id.encode()])
                assert await files.output(run_id) == b"output"
                assert await files.look(run_id) == RunLook(snapshot=b"snapshot", is_held=False)

        self.with_files(use)

    def test_what_is_under_way_is_done_before_a_deletion_and_nothing_comes_behind_it(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            work = [
                asyncio.ensure_future(each)
                for each in (held.append([b"a"]), held.write_snapshot(b"b"), held.write_output(b"c"))
            ]
            await asyncio.sleep(0)
            deletion = asyncio.ensure_future(held.delete())
            await asyncio.sleep(0)
            with pytest.raises(LifecycleError, match=RUN):
                await held.write_snapshot(b"late")
            await deletion
            await asyncio.gather(*work)
            assert (await other.look(RUN), list(await other.run_ids())) == (None, [])

        self.with_files(use)

    @pytest.mark.parametrize("turns", range(6))
    def test_a_cancelled_deletion_is_whole_or_was_not_begun(self, turns: int) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            await held.append([b"a"])
            await held.write_snapshot(b"b")
            await _cancel_after(turns, held.delete())
            await held.release()
            if await other.look(RUN) is None:
                assert list(await other.run_ids()) == []
            else:
                again = await other.hold(RUN)
                assert await again.read_journal() == JournalRead(lines=[b"a"])
                assert await again.delete() > 0

        self.with_files(use)

    def test_of_many_who_delete_a_run_at_once_one_does(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            await (await files.create(RUN)).release()

            async def delete(each: WorkflowFiles) -> int:
                return await (await each.hold(RUN)).delete()

            outcomes = await asyncio.gather(*[delete(each) for each in (files, other) * 4], return_exceptions=True)
            assert sum(not isinstance(each, BaseException) for each in outcomes) == 1
            assert list(await files.run_ids()) == []

        self.with_files(use)

    def test_blobs_go_once_no_journal_names_them(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            first, second = await files.create(RUN), await other.create(_OTHER)
            shared, own, lost = [await first.put_blob(each * 1_000) for each in (b"a", b"b", b"c")]
            assert await second.put_blob(b"a" * 1_000) == shared
            await first.append([f'{{"blob":"{shared}"}}'.encode(), f'{{"blob":"{own}"}}'.encode()])
            await second.append([f'{{"blob":"{shared}"}}'.encode()])
            await first.release()
            assert await files.sweep_blobs() == 0  # the other run is held, and may be about to name any
            await second.release()
            assert await files.sweep_blobs() == 1_000
            assert await other.blob(RUN, lost) is None
            await (await files.hold(RUN)).delete()
            assert await other.blob(_OTHER, own) is not None
            assert await other.sweep_blobs() == 1_000
            assert (await files.blob(_OTHER, own), await files.blob(_OTHER, shared)) == (None, b"a" * 1_000)
            await (await files.hold(_OTHER)).delete()
            assert (await files.sweep_blobs(), await files.sweep_blobs()) == (1_000, 0)
            newer = await files.create(RUN)
            assert await newer.blob(shared) is None
            assert await newer.put_blob(b"a" * 1_000) == shared
            assert await newer.blob(shared) == b"a" * 1_000
            await newer.release()

        self.with_files(use)

    # ---- events ----

    def test_events_keep_the_newest_and_who_follows_misses_nothing(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            written: list[bytes] = []
            followed: list[bytes] = []
            position = 0
            for number in range(200):
                lines = [b"%d-%d %b" % (number, part, b"x" * 20_000) for part in range(5)]
                await held.append_events(lines)
                written += lines
                found, position = await other.events(RUN, position)
                followed += found
                if number % 60 == 59:
                    await held.release()
                    held = await other.hold(RUN)
            assert followed == written
            kept, end = await files.events(RUN)
            assert end == position
            assert list(kept) == written[-len(kept) :]
            assert _EVENT_BYTES / 2 - 100_000 <= sum(map(len, kept)) <= _EVENT_BYTES + 100_000
            for lost in (-1, 1, position - 3, position + 1, position * 2):
                again, end = await files.events(RUN, lost)
                assert (list(again), end) == (list(kept), position)
            await held.release()

        self.with_files(use)

    def test_one_great_batch_of_events_keeps_its_end(self) -> None:
        async def use(files: WorkflowFiles, _: WorkflowFiles) -> None:
            held = await files.create(RUN)
            lines = [b"%06d %b" % (number, b"x" * 993) for number in range(20_000)]
            await held.append_events(lines)
            kept, end = await files.events(RUN)
            assert list(kept) == lines[-len(kept) :]
            assert _EVENT_BYTES / 2 <= sum(map(len, kept)) <= _EVENT_BYTES + 2_000
            assert list((await files.events(RUN, end - 2 * 1001))[0]) == lines[-2:]
            await held.release()

        self.with_files(use)

    # ---- requests ----

    def test_a_request_counts_for_who_held_the_run_when_it_was_left(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            for _ in range(3):
                assert await held.requested() is None
                await other.request(RUN, b"pause")
                assert await held.requested() == b"pause"
                await files.request(RUN, b"stop")
                await other.request(RUN, b"stop")
                for _ in range(2):
                    assert await held.requested() == b"stop"
                await held.release()
                await files.request(RUN, b"too late")
                held = await files.hold(RUN)
            await held.release()

        self.with_files(use)

    def test_requests_at_once_are_each_whole(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            held = await files.create(RUN)
            asked = [b"%d" % number * 1000 for number in range(8)]
            await asyncio.gather(*[each.request(RUN, data) for data in asked for each in (files, other)])
            assert await held.requested() in asked
            await held.release()

        self.with_files(use)

    # ---- notices ----

    def test_notices_are_told_in_order_until_they_are_removed(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            ids = [f"wf_{name}_0123456789abcdef" for name in "dbac"]
            for run_id in ids:
                await files.put_notice("s", run_id, b"old")
            for run_id in ids:
                await other.put_notice("s", run_id, run_id.encode() + b"\n\0")
            assert list(await other.notices("s")) == [(run_id, run_id.encode() + b"\n\0") for run_id in ids]
            await files.put_notice("s", ids[0], b"new")
            await other.remove_notice("s", ids[0], b"old")  # another one stands there by now
            await other.remove_notice("s", ids[1], ids[1].encode() + b"\n\0")
            await other.remove_notice("s", ids[1])
            left = [ids[2], ids[3], ids[0]]
            assert [run_id for run_id, _ in await files.notices("s")] == left
            for run_id in left:
                await files.remove_notice("s", run_id)
            assert list(await other.notices("s")) == []
            await files.put_notice("s", ids[1], b"again")
            assert list(await other.notices("s")) == [(ids[1], b"again")]

        self.with_files(use)

    def test_the_notices_of_a_run_are_found_whichever_session_is_to_be_told(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            await files.remove_notices(RUN)
            assert not await files.has_notice(RUN)
            for session in _ODD_SESSIONS:
                await files.put_notice(session, RUN, b"notice")
                await files.put_notice(session, _OTHER, b"other")
                assert await other.has_notice(RUN)
            await other.remove_notices(RUN)
            assert not await files.has_notice(RUN)
            for session in _ODD_SESSIONS:
                assert list(await files.notices(session)) == [(_OTHER, b"other")]
                await files.remove_notice(session, _OTHER)
            assert not await other.has_notice(_OTHER)

        self.with_files(use)

    def test_each_session_has_notices_of_its_own(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            for session in _ODD_SESSIONS:
                assert list(await files.notices(session)) == []
                await files.remove_notice(session, RUN)
                await files.put_notice(session, RUN, session.encode())
            for session in _ODD_SESSIONS:
                assert list(await other.notices(session)) == [(RUN, session.encode())]
            await files.remove_notice("S", RUN)
            assert [len(await files.notices(each)) for each in ("s", "S")] == [1, 0]
            for bad in ("", "\ud800"):
                for call in (files.put_notice(bad, RUN, b"x"), files.notices(bad), files.remove_notice(bad, RUN)):
                    with pytest.raises(UsageError, match="session id"):
                        await cast(Awaitable[object], call)
            assert list(await files.run_ids()) == []

        self.with_files(use)

    def test_notices_put_and_removed_at_once_are_not_lost(self) -> None:
        async def use(files: WorkflowFiles, other: WorkflowFiles) -> None:
            ids = [f"wf_a_{number:016x}" for number in range(12)]
            for run_id in ids[:6]:
                await files.put_notice("s", run_id, b"old")
            await asyncio.gather(
                *[other.remove_notice("s", run_id) for run_id in ids[:6]],
                *[each.put_notice("s", run_id, b"new") for run_id in ids[6:] for each in (files, other)],
            )
            assert sorted(await files.notices("s")) == [(run_id, b"new") for run_id in ids[6:]]

        self.with_files(use)


class DurableRunFilesConformance(RunFilesConformance):
    """What files that outlive their process keep as well.

    Other processes import the class by its name, so it must be one of a module.
    """

    @pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
    def test_kill_9_frees_the_run_and_keeps_all_that_was_reported(self) -> None:
        async def run(workspace: Path) -> None:
            files = self.open_files(workspace)
            reported = 0
            for kill_after in (1, 9, 30):
                child = self._start(workspace, "child_appends")
                assert child.stdout is not None
                reports = [child.stdout.readline() for _ in range(kill_after)]
                with pytest.raises(AlreadyActiveError) as caught:
                    await files.hold(RUN)
                if sys.platform == "linux":
                    assert caught.value.holder == f"process {child.pid}"
                assert (await _looked(files)).is_held
                os.kill(child.pid, signal.SIGKILL)
                rest, _ = child.communicate()
                reported = max(map(int, [*reports, *rest.splitlines()]))
                look = await _looked(files)
                assert not look.is_held
                assert look.snapshot is not None
                assert set(look.snapshot) <= set(b"s")
                assert len(look.snapshot) == 10_000
                held = await files.hold(RUN)
                found = await held.read_journal()
                assert len(found.lines) >= reported
                assert list(found.lines) == [_line(number) for number in range(1, len(found.lines) + 1)]
                await held.cut_journal(len(found.lines))
                events, _ = await files.events(RUN)
                assert list(events) == sorted(set(events))
                await held.release()

        _in_workspace(run)

    async def child_appends(self, files: WorkflowFiles) -> None:
        held = await (files.create(RUN) if await files.look(RUN) is None else files.hold(RUN))
        number = len((await held.read_journal()).lines)
        await held.write_snapshot(b"s" * 10_000)
        while True:
            await held.append([_line(number + 1)], is_durable=False)
            await held.append([_line(number + 2), _line(number + 3)])
            number += 3
            await held.append_events([b"%09d" % number])
            os.write(1, b"%d\n" % number)
            await held.write_snapshot(b"s" * 10_000)

    def test_processes_hold_a_run_in_turns(self) -> None:
        async def run(workspace: Path) -> None:
            files = self.open_files(workspace)
            await (await files.create(RUN)).release()
            children = [self._start(workspace, "child_takes_turns") for _ in range(2)]
            for child in children:
                _finish(child)
            found = await files.journal(RUN)
            assert found is not None
            assert list(found.lines) == [b"%d" % number for number in range(20)]
            assert (await _looked(files)).snapshot == b"19"

        _in_workspace(run)

    async def child_takes_turns(self, files: WorkflowFiles) -> None:
        for _ in range(10):
            while True:
                try:
                    held = await files.hold(RUN)
                    break
                except AlreadyActiveError:
                    continue
            number = b"%d" % len((await held.read_journal()).lines)
            await held.append([number])
            await held.write_snapshot(number)
            await held.release()

    @pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
    def test_what_a_full_disk_refuses_is_never_seen_and_the_run_goes_on(self) -> None:
        async def run(workspace: Path) -> None:
            reported = int(_finish(self._start(workspace, "child_fills_the_disk")))
            files = self.open_files(workspace)
            found = await files.journal(RUN)
            assert found == JournalRead(lines=[*[_line(number) for number in range(1, reported + 1)], b"last"])
            assert (await _looked(files)).snapshot == b"small again"
            assert await files.output(RUN) is None
            assert [run_id for run_id, _ in await files.notices("s")] == [_OTHER]

        _in_workspace(run)

    async def child_fills_the_disk(self, files: WorkflowFiles) -> None:
        held = await files.create(RUN)
        await held.write_snapshot(b"small")
        _limit_file_size(200_000)
        large = b"x" * 300_000
        for refused in (
            held.write_snapshot(large),
            held.write_output(large),
            held.put_blob(large),
            held.append([large]),
            held.append([large], is_durable=False),
            held.append_events([large]),
            files.request(RUN, large),
            files.put_notice("s", RUN, large),
        ):
            with pytest.raises(LogWriteError):
                await cast(Awaitable[object], refused)
        assert await held.blob(sha256(large).hexdigest()) is None
        assert await held.requested() is None
        number = 0
        try:
            while True:
                await held.append([_line(number + part) for part in range(1, 6)], is_durable=number % 2 == 0)
                number += 5
        except LogWriteError:
            pass
        assert len((await held.read_journal()).lines) == number
        _limit_file_size(-1)
        await held.append([b"last"])
        await held.append_events([b"event"])
        assert list((await files.events(RUN))[0]) == [b"event"]
        await held.write_snapshot(b"small again")
        await files.put_notice("s", _OTHER, b"notice")
        await held.release()
        print(number)  # noqa: T201

    def test_a_held_run_does_not_keep_its_process_from_ending(self) -> None:
        async def run(workspace: Path) -> None:
            _finish(self._start(workspace, "child_forgets"))
            files = self.open_files(workspace)
            assert await files.journal(RUN) == JournalRead(lines=[b"one"])
            await (await files.hold(RUN)).release()

        _in_workspace(run)

    async def child_forgets(self, files: WorkflowFiles) -> None:
        held = await files.create(RUN)
        await held.append([b"one"])
        sys.modules["kept"] = cast(Any, held)  # until the very end

    def _start(self, workspace: Path, task: str) -> "subprocess.Popen[str]":
        """A process that does what the method `task` says, with files of its own."""
        words = [sys.executable, "-c", _CHILD, type(self).__module__, type(self).__name__, task, str(workspace)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def _line(number: int) -> bytes:
    return b"%d %b" % (number, b"x" * 4_000)


def _finish(child: "subprocess.Popen[str]") -> str:
    """What a child that succeeded has printed."""
    output, _ = child.communicate(timeout=25)
    assert child.returncode == 0
    return output


async def _looked(files: WorkflowFiles) -> RunLook:
    look = await files.look(RUN)
    assert look is not None
    return look


async def _refusal(call: Awaitable[object]) -> str:
    with pytest.raises(WorkflowInputError) as caught:
        await call
    return caught.value.code


async def _cancel_after(turns: int, work: Coroutine[Any, Any, R]) -> R | None:
    """What `work` gave although it was cancelled after some turns of the loop; None when it gave in."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


def _in_workspace(work: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    # Not pytest's tmp_path, which Hypothesis would share among the examples of one law.
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(work(Path(name)))
