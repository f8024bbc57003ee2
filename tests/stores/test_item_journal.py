"""Finished items of a map: durable, loaded again, held by one process."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fanfold.contracts.messages import Usage
from fanfold.contracts.steps import StepOutcome
from fanfold.errors import CorruptLogError, LifecycleError, LogWriteError, SessionBusyError, UsageError
from fanfold.stores.item_journal import JsonlItemJournal

from .logs import run, run_child, start_child


def _outcome(name: str) -> StepOutcome:
    return StepOutcome(
        task_id=name,
        session_id=f"task-run-{name}",
        agent="general",
        output="done",
        success=True,
        structured={"purpose": name},
        usage=Usage(prompt_tokens=1, total_tokens=1),
    )


async def _written(path: Path, *names: str) -> None:
    journal = await JsonlItemJournal.open(path)
    await asyncio.gather(*[journal.record(name, _outcome(name)) for name in names])
    await journal.close()


async def _finished(path: Path) -> dict[str, StepOutcome]:
    journal = await JsonlItemJournal.open(path)
    await journal.close()
    return dict(journal.finished)


def test_what_was_recorded_is_finished_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "map.jsonl"
    names = [f"item-{number}" for number in range(50)]
    run(_written(path, *names))
    assert run(_finished(path)) == {name: _outcome(name) for name in names}
    assert len(path.read_bytes().splitlines()) == 50


def test_the_later_record_of_an_item_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = await JsonlItemJournal.open(tmp_path / "map.jsonl")
        await journal.record("a", _outcome("first"))
        await journal.record("a", _outcome("second"))
        assert journal.finished["a"].task_id == "second"
        await journal.close()

    run(scenario())
    assert run(_finished(tmp_path / "map.jsonl"))["a"].task_id == "second"


def test_an_item_is_finished_only_once_it_is_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = await JsonlItemJournal.open(tmp_path / "map.jsonl")
        recording = asyncio.create_task(_record(journal, "a"))
        await asyncio.sleep(0)
        assert "a" not in journal.finished
        recording.cancel()
        await asyncio.wait([recording])
        assert recording.cancelled()
        assert "a" in journal.finished  # the write was under way and could not be called back
        await journal.close()

    run(scenario())
    assert set(run(_finished(tmp_path / "map.jsonl"))) == {"a"}


async def _record(journal: JsonlItemJournal, name: str) -> None:
    await journal.record(name, _outcome(name))


def test_a_second_opener_is_told_that_the_map_is_running(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "map.jsonl"
        journal = await JsonlItemJournal.open(path)
        with pytest.raises(SessionBusyError, match="which is running this map"):
            await JsonlItemJournal.open(path)
        await journal.close()
        await journal.close()
        await (await JsonlItemJournal.open(path)).close()
        with pytest.raises(LifecycleError):
            await journal.record("a", _outcome("a"))

    run(scenario())


def test_a_journal_in_which_nothing_was_recorded_leaves_no_file(tmp_path: Path) -> None:
    run(_written(tmp_path / "map.jsonl"))
    assert list(tmp_path.iterdir()) == []


def test_a_torn_tail_of_any_length_costs_only_its_own_item(tmp_path: Path) -> None:
    path = tmp_path / "map.jsonl"
    run(_written(path, "a", "b"))
    first, last = path.read_bytes().splitlines(keepends=True)
    for cut in range(1, len(last)):
        path.write_bytes(first + last[:cut])
        assert set(run(_finished(path))) == {"a"}
        assert path.read_bytes() == first
        torn = tmp_path / "map.jsonl.torn-1"
        assert torn.read_bytes() == last[:cut]
        torn.unlink()


@pytest.mark.parametrize("bad", [b"garbage\n", b'{"identity": "x"}\n'])
def test_a_bad_line_before_the_end_is_refused_and_left_alone(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "map.jsonl"
    run(_written(path, "a"))
    content = bad + path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(CorruptLogError, match="line 1"):
        run(_finished(path))
    assert path.read_bytes() == content


def test_an_outcome_that_could_not_be_read_back_is_refused_before_it_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = await JsonlItemJournal.open(tmp_path / "map.jsonl")
        good = _outcome("a")
        await journal.record("a", good)
        for odd in (
            msgspec.structs.replace(good, output=None),
            msgspec.structs.replace(good, output=b"bytes"),
            msgspec.structs.replace(good, output="\ud800"),
            msgspec.structs.replace(good, structured={"a": float("nan")}),
            msgspec.structs.replace(good, structured={1: 2}),
        ):
            with pytest.raises(UsageError, match="the outcome of item 'b' was not written"):
                await journal.record("b", odd)
        await journal.close()

    run(scenario())
    assert run(_finished(tmp_path / "map.jsonl")) == {"a": _outcome("a")}


def _cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [Path.unlink, _cut_to_nothing])
def test_a_record_in_a_journal_that_was_removed_or_cut_is_not_reported_as_done(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "map.jsonl"

    async def scenario() -> None:
        journal = await JsonlItemJournal.open(path)
        await journal.record("a", _outcome("a"))
        harm(path)
        for name in "bc":
            with pytest.raises(LogWriteError, match="while it was in use"):
                await journal.record(name, _outcome(name))
        assert set(journal.finished) == {"a"}
        await journal.close()

    run(scenario())


def test_closing_a_journal_leaves_the_one_that_took_its_name(tmp_path: Path) -> None:
    path = tmp_path / "map.jsonl"

    async def scenario() -> None:
        first = await JsonlItemJournal.open(path)
        path.unlink()
        second = await JsonlItemJournal.open(path)
        await second.record("a", _outcome("a"))
        await first.close()
        await second.close()

    run(scenario())
    assert set(run(_finished(path))) == {"a"}


@pytest.mark.parametrize("link", [".a3s", ".a3s/maps"])
def test_no_directory_of_a_journal_may_lead_out_of_the_workspace(tmp_path: Path, link: str) -> None:
    outside, path = tmp_path / "outside", tmp_path / "workspace" / link
    (outside / "maps").mkdir(parents=True)
    path.parent.mkdir(parents=True)
    path.symlink_to(outside, target_is_directory=True)
    with pytest.raises(UsageError, match=f"{link} is a symbolic link"):
        run(_finished(tmp_path / "workspace" / ".a3s" / "maps" / "map.jsonl"))
    assert [each.name for each in outside.rglob("*")] == ["maps"]


_PREAMBLE = """
import asyncio, os, sys
from pathlib import Path
from fanfold.contracts.steps import StepOutcome
from fanfold.errors import LogWriteError
from fanfold.stores.item_journal import JsonlItemJournal

def outcome(name, output="done"):
    return StepOutcome(task_id=name, session_id=name, agent="general", output=output, success=True)
"""

_RECORD_AND_REPORT = (
    _PREAMBLE
    + """
async def main():
    journal = await JsonlItemJournal.open(Path(sys.argv[1]))
    async def write(writer):
        for number in range(1_000_000):
            await journal.record(f"{writer}-{number}", outcome("x"))
            os.write(1, f"{writer}-{number}\\n".encode())
    await asyncio.gather(*[write(writer) for writer in range(8)])

asyncio.run(main())
"""
)


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_every_item_that_was_reported_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "map.jsonl"
    child = start_child(_RECORD_AND_REPORT, path)
    assert child.stdout is not None
    reports = [child.stdout.readline().strip() for _ in range(100)]
    os.kill(child.pid, signal.SIGKILL)
    rest, _ = child.communicate()
    assert {*reports, *rest.split()} <= set(run(_finished(path)))


_FULL_DISK = (
    _PREAMBLE
    + """
import resource

async def main():
    path = Path(sys.argv[1])
    journal = await JsonlItemJournal.open(path)
    await journal.record("a", outcome("a"))
    size = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 500, resource.RLIM_INFINITY))
    results = await asyncio.gather(
        *[journal.record(name, outcome(name, "x" * 400)) for name in "bc"], return_exceptions=True
    )
    assert all(isinstance(each, LogWriteError) for each in results), results
    assert results[0] is not results[1]
    assert (path.stat().st_size, set(journal.finished)) == (size, {"a"})
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await journal.record("d", outcome("d"))
    await journal.close()

asyncio.run(main())
"""
)


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_what_a_full_disk_refused_is_not_finished_and_the_next_record_works(tmp_path: Path) -> None:
    run_child(_FULL_DISK, tmp_path / "map.jsonl")
    assert set(run(_finished(tmp_path / "map.jsonl"))) == {"a", "d"}
