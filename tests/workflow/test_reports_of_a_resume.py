"""What a resume passes over or finds changed is told to whoever watches (spec-workflow 5.4, 5.5)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.testing.memory_runs import MemoryRuns
from fanfold.workflow.scripts import text_sha
from tests.workflow.rig import Rig
from tests.workflow.test_launch import SCRIPT


async def three(ctx: Any, args: Any) -> Any:
    return await ctx.parallel([lambda each=each: ctx.agent(each) for each in ("a", "b", "c")])


def told(rig: Rig) -> list[str]:
    return [each["message"] for each in rig.progress("workflow_log")]


async def resumed(rig: Rig, run_id: str, **more: Any) -> Any:
    rig.events.clear()
    return await rig.workflows.run_async(resume_from_run_id=run_id, events=rig.events.append, **more)


@pytest.mark.parametrize("fork", [False, True])
def test_lines_of_the_journal_that_are_passed_over_are_told_by_number(fork: bool) -> None:
    async def main() -> None:
        files = MemoryRuns()
        rig = Rig(Path(), files=files)
        first = await rig.run(three)
        journal = files.journal_bytes(first.run_id) or b""
        lines = journal.split(b"\n")
        (damaged,) = [number for number, line in enumerate(lines, 1) if b'"re: b"' in line]
        files.put_journal(first.run_id, journal.replace(b'"re: b"', b'"re: x"'))
        again = await resumed(rig, first.run_id, fork=fork)
        assert (again.value, again.counts.launched) == (first.value, 1)
        (message,) = told(rig)
        assert "the journal is damaged" in message
        assert f"line {damaged}; " in message

    asyncio.run(main())


def test_of_a_journal_full_of_damage_some_lines_are_told_and_the_others_counted() -> None:
    async def main() -> None:
        files = MemoryRuns()
        rig = Rig(Path(), files=files)
        first = await rig.run(three)
        journal = files.journal_bytes(first.run_id) or b""
        files.put_journal(first.run_id, b"damaged\n" * 1000 + journal)
        again = await resumed(rig, first.run_id)
        assert again.counts.cached == 3
        (message,) = told(rig)
        assert "and 980 more" in message
        assert len(message) < 500

    asyncio.run(main())


@pytest.mark.parametrize("end", [b'{"t":"res', b'{"t":"result","crc":"00000000"}\n', b"\0" * 512])
def test_a_torn_end_is_told_with_the_file_that_has_it_now(tmp_path: Path, end: bytes) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        first = await rig.run(three)
        journal = Path(rig.files.directory, f"{first.run_id}.journal.jsonl")
        journal.write_bytes(journal.read_bytes() + end)
        await resumed(rig, first.run_id)
        (message,) = told(rig)
        (torn,) = Path(rig.files.directory).glob("*.torn-*")
        assert torn.name in message
        assert torn.read_bytes() == end
        await resumed(rig, first.run_id)
        assert told(rig) == []

    asyncio.run(main())


def test_a_changed_script_is_told_once_with_what_it_was_and_what_it_is() -> None:
    async def main() -> None:
        rig = Rig(Path(), files=MemoryRuns())
        edited = SCRIPT + "\n# edited\n"
        rig.folder.scripts["a.py"] = SCRIPT
        rig.workflows.approve("filed")
        first = await rig.workflows.run_async("filed")
        rig.folder.scripts["a.py"] = edited
        rig.workflows.approve("filed")
        assert (await resumed(rig, first.run_id)).counts.cached == 1
        (message,) = told(rig)
        assert -1 < message.find(text_sha(SCRIPT)) < message.find(text_sha(edited))
        await resumed(rig, first.run_id)
        assert told(rig) == []

    asyncio.run(main())


def test_a_resume_of_what_is_whole_has_nothing_to_tell() -> None:
    async def main() -> None:
        rig = Rig(Path(), files=MemoryRuns())
        first = await rig.run(three)
        await resumed(rig, first.run_id)
        assert told(rig) == []

    asyncio.run(main())
