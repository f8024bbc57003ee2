"""A journal that ends anywhere, a bit that is flipped, a process that dies (spec-workflow 7.30, 7.32, 7.37, 7.41).

`FANFOLD_CRASH_SAMPLES`: how many positions are drawn, besides the ends of all lines.
"""

import asyncio
import gc
import itertools
import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import Usage
from fanfold.contracts.run_journal import Header, Moved, Result, Started, Turns
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowMeta, WorkflowResult
from fanfold.errors import StorageError, WorkflowInputError
from fanfold.kernel.call_identity import CallMeaning, call_identity
from fanfold.kernel.run_journal import decode_line, encode_line, read_run_journal
from fanfold.protocols import WorkflowFiles
from fanfold.stores.run_files import open_run_files
from fanfold.testing.faulty_store import SimulatedCrashError
from fanfold.testing.memory_runs import Change, MemoryRuns
from fanfold.testing.virtual_loop import VirtualLoop, virtual_env
from fanfold.workflow.runs import run_summary, snapshot_of
from tests.workflow.rig import META, TOKENS, Rig, Team
from tests.workflow.workers import (
    ALL,
    Asked,
    Workers,
    edition,
    finished_run,
    gone_on,
    inner,
    journal_of,
    opened,
    recorded,
    tags,
    whoever,
)

SAMPLES = int(os.environ.get("FANFOLD_CRASH_SAMPLES", "100"))


def positions(journal: bytes, samples: int) -> list[int]:
    """The ends of all lines and what is next to them, and some more."""
    ends = [at + 1 for at, byte in enumerate(journal) if byte == 0x0A]
    near = {at + by for at in (0, *ends) for by in (-1, 0, 1)}
    drawn = random.Random(1).sample(range(len(journal)), min(samples, len(journal)))
    return sorted(at for at in {*near, *drawn} if 0 <= at <= len(journal))


async def check_cut(before: WorkflowResult, journal: bytes, place: Path, files: WorkflowFiles | None) -> None:
    """It goes on behind what is left of its journal: what is whole there is not done again, and is used."""
    turns, answers = recorded(journal, before.run_id)
    again, workers = await gone_on(place, before.run_id, "c", files, strict=True)  # no end is taken for damage
    assert workers.turns == ALL - turns, len(journal)
    assert again.status == "completed", (len(journal), again)
    assert whoever(encode_json(again.value).decode()) == whoever(encode_json(before.value).decode()), len(journal)
    assert set(answers) <= tags(again.value), len(journal)


def test_a_journal_that_ends_at_any_byte_is_gone_on_with_and_repeats_nothing_whole(tmp_path: Path) -> None:
    async def main() -> None:
        files = MemoryRuns()
        before = await finished_run(tmp_path, files)
        journal = files.journal_bytes(before.run_id)
        assert journal is not None
        assert {type(decode_line(line)) for line in journal.split(b"\n")[:-1]} >= {Header, Turns, Moved, Result}
        cuts = positions(journal, SAMPLES)
        for cut in cuts:
            files.put_journal(before.run_id, journal[:cut])
            await check_cut(before, journal[:cut], tmp_path, files)
        print(f"{len(cuts)} of {len(journal)} positions")

    asyncio.run(main())


def test_so_it_is_with_files(tmp_path: Path) -> None:
    async def main() -> None:
        whole = tmp_path / "whole"
        before = await finished_run(whole)
        journal = journal_of(whole, before.run_id).read_bytes()
        cuts = positions(journal, SAMPLES)
        for number, cut in enumerate(random.Random(2).sample(cuts, SAMPLES // 8)):
            place = tmp_path / f"cut-{number}"
            shutil.copytree(whole, place)
            journal_of(place, before.run_id).write_bytes(journal[:cut])
            await check_cut(before, journal[:cut], place, None)
            torn = [path.read_bytes() for path in place.rglob("*.torn-*")]
            assert b"".join(torn) == journal[journal[:cut].rfind(b"\n") + 1 : cut]  # nothing is lost for good

    asyncio.run(main())


def flipped(journal: bytes, dice: random.Random, samples: int) -> list[bytes]:
    """Copies of it, each with one other bit: the ends of all lines, and some more places."""
    ends = [at for at, byte in enumerate(journal) if byte == 0x0A]
    places = [*ends, *dice.sample(range(len(journal)), min(samples, len(journal)))]
    copies: list[bytes] = []
    for at in places:
        copy = bytearray(journal)
        copy[at] ^= 1 << dice.randrange(8)
        copies.append(bytes(copy))
    return copies


def test_a_flipped_bit_costs_calls_and_never_gives_another_value(tmp_path: Path) -> None:
    async def main() -> None:
        files = MemoryRuns()
        before = await finished_run(tmp_path, files)
        journal = files.journal_bytes(before.run_id)
        assert journal is not None
        known = tags(before.value) | set(recorded(journal, before.run_id)[1])
        refused, codes = 0, set[str]()
        damaged = flipped(journal, random.Random(3), SAMPLES)
        for number, each in enumerate(damaged):
            files.put_journal(before.run_id, each)
            try:
                again, workers = await gone_on(tmp_path, before.run_id, "c", files, strict=True)
            except WorkflowInputError as error:
                codes.add(error.code)
                assert files.journal_bytes(before.run_id) == each
                refused += 1
                again, workers = await gone_on(tmp_path, before.run_id, "c", files)
            assert again.status == "completed", (number, again)
            assert whoever(encode_json(again.value).decode()) == whoever(encode_json(before.value).decode())
            assert {tag for tag in tags(again.value) if not tag.startswith("|c")} <= known
            assert workers.turns <= ALL
            once_more, idle = await gone_on(tmp_path, before.run_id, "d", files)
            assert (once_more.value, idle.turns.total()) == (again.value, 0), number
        assert codes == {"journal_refused"}
        assert 0 < refused < len(damaged)  # at its end it might be a write that was cut off
        print(f"{len(damaged)} flips, {refused} of them refused where it is strict")

    asyncio.run(main())


# ---- a process that dies --------------------------------------------------------------------------------------------


class Mortal:
    """A process that dies before its `number`th change of the disk: neither that one nor any other is done."""

    def __init__(self, disk: MemoryRuns, number: int) -> None:
        self.files = disk.another_process(before=self)
        self.number = number
        self.came = 0

    @property
    def is_dead(self) -> bool:
        return self.came >= self.number

    async def __call__(self, change: Change, run_id: str) -> None:
        self.came += 1
        if self.came == self.number:
            self.files.crash()
        if self.is_dead:
            raise SimulatedCrashError

    async def live(self, life: str, run_id: str | None) -> Workers:
        workers = Workers(life, pace=0.3)
        rig = Rig(Path(), workers, files=self.files, limits=WorkflowLimits(concurrency=4), env=virtual_env(life))
        rig.register(edition(2))
        rig.register(inner, name="inner")
        name = META["name"] if run_id is None else None
        try:
            await rig.workflows.launch_async(name, resume_from_run_id=run_id, strict=run_id is not None, notify=True)
        except (StorageError, WorkflowInputError):
            assert self.is_dead
        if rig.tasks:
            await asyncio.wait(rig.tasks)
        return workers


async def dies_until_done(dice: random.Random, first: int) -> int:
    """The lives that it took; the first one dies at its change number `first`, the others at some."""
    disk = MemoryRuns()
    told: list[str] = []
    run_id: str | None = None
    for number in itertools.count(1):
        mortal = Mortal(disk, first if number == 1 else dice.randint(1, dice.choice([6, 30])))
        before = Counter[Asked]() if run_id is None else recorded(disk.journal_bytes(run_id) or b"", run_id)[0]
        workers = await mortal.live(f"l{number}", run_id)
        assert workers.turns <= ALL - before
        calm = opened(Path(), Workers("x"), files=disk.another_process())
        summaries = [await run_summary(calm.files, each) for each in await calm.files.run_ids()]
        assert not any(summary.is_alive for summary in summaries)
        begun = [summary for summary in summaries if summary.snapshot is not None]
        assert len(begun) <= 1
        for summary in begun:
            run_id = summary.run_id
            assert summary.status in ("interrupted", "completed")
        for notice in await calm.notices.pending():
            told.append(notice.id)
            assert f"<status>{begun[0].status}</status>" in notice.text
            await calm.notices.delivered(notice.id)
        if begun and begun[0].status == "completed":
            assert run_id is not None
            journal = disk.journal_bytes(run_id) or b""
            assert recorded(journal, run_id)[0] == ALL
            headers = [each for line in journal.split(b"\n")[:-1] if isinstance(each := decode_line(line), Header)]
            attempts = [each.attempt for each in headers]
            assert attempts == sorted(set(attempts))  # also of those that died before they had a snapshot
            assert len(set(told)) == len(told)
            return number
    raise AssertionError


def test_a_process_may_die_before_any_change_of_the_disk() -> None:
    lives = 0
    for first in range(1, 60):
        loop = VirtualLoop(first)
        try:
            lives += loop.run_until_complete(dies_until_done(random.Random(first), first))
            assert loop.unhandled == []
        except BaseException as error:
            error.add_note(f"it died first at change {first}")
            raise
        finally:
            loop.wind_down()
    print(f"{lives} lives")


# ---- a long one -----------------------------------------------------------------------------------------------------

LONG = 50_000


def long_journal(run_id: str, meta: WorkflowMeta) -> bytes:
    """Of one lane with so many agents."""
    header = Header(run_id=run_id, workflow=meta.name, meta=meta, args_sha="", attempt=1, runtime="0", at_ms=1)
    lines = [encode_line(header)]
    usage = Usage(prompt_tokens=TOKENS, total_tokens=TOKENS)
    for seq in range(1, LONG + 1):
        identity, call = call_identity(CallMeaning(prompt=f"look at place {seq}", agent="general", model="test/one"))
        path, value = f"/0.{seq - 1}#0", encode_json(f"what stands at place {seq} is " + 20 * "good and ")
        started = Started(
            seq=seq, id=identity, path=path, label="look", key=f"{run_id}:{seq}:0", attempt=1, call=msgspec.Raw(call)
        )
        result = Result(seq=seq, id=identity, path=path, status="ok", value=msgspec.Raw(value), usage=usage, ms=5)
        lines += [encode_line(started), encode_line(result)]
    return b"\n".join(lines) + b"\n"


def resident_bytes() -> int:
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


def test_a_journal_of_fifty_thousand_answers_is_gone_on_with(tmp_path: Path) -> None:
    async def main() -> None:
        first = await opened(tmp_path, Workers("a")).workflows.run_async(META["name"])
        snapshot = await snapshot_of(opened(tmp_path, Team()).files, first.run_id)
        path = journal_of(tmp_path, first.run_id)
        journal = long_journal(first.run_id, WorkflowMeta(name=snapshot.workflow, description="long"))
        path.write_bytes(journal)
        gc.collect()
        before, begun = resident_bytes(), time.process_time()
        read = await open_run_files(tmp_path).journal(first.run_id)
        assert read is not None
        view = read_run_journal(read.lines, first.run_id, has_torn_end=read.has_torn_end, strict=True)
        took, grown = time.process_time() - begun, resident_bytes() - before
        print(
            f"{len(view.entries)} entries, {len(journal) / 2**20:.0f} MiB: {took:.2f} s of CPU, {grown / 2**20:.0f} MiB"
        )
        assert len(view.unclaimed()) == LONG
        assert view.usage.total_tokens == LONG * TOKENS
        del read, view
        again, workers = await gone_on(tmp_path, first.run_id, "b")
        assert (again.status, workers.turns, again.counts.unclaimed) == ("completed", ALL, LONG)
        assert again.total_usage.total_tokens == LONG * TOKENS + again.usage.total_tokens
        assert Path(opened(tmp_path, Team()).files.directory, f"{first.run_id}.json").stat().st_size < 10_000

    asyncio.run(main())
