"""Crashes in process: a journal that ends anywhere, a bit that is flipped, a disk that refuses (spec-workflow 7.30-41).

`FANFOLD_CRASH_SAMPLES`: how many positions are drawn, besides the ends of all lines.
"""

import asyncio
import gc
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.contracts.codec import encode_json
from fanfold.contracts.facts import Fact, UserMessaged
from fanfold.contracts.messages import Usage
from fanfold.contracts.run_journal import Header, Moved, Result, Started, Turns
from fanfold.contracts.steps import AgentStepSpec, StepOutcome
from fanfold.contracts.workflow_runs import WorkflowLimits, WorkflowMeta, WorkflowResult
from fanfold.errors import FanfoldError, LogWriteError, WorkflowInputError
from fanfold.kernel.call_identity import CallMeaning, call_identity
from fanfold.kernel.run_journal import decode_line, encode_line, read_run_journal
from fanfold.protocols import AgentExecutor, EventSink, StepFacts, WorkflowFiles
from fanfold.stores.run_files import open_run_files
from fanfold.testing.memory_runs import Change, MemoryRuns
from fanfold.testing.virtual_loop import VirtualLoop, virtual_env
from fanfold.workflow.agents import BLOB_BYTES
from fanfold.workflow.runs import run_summary, snapshot_of
from tests.workflow.rig import META, TOKENS, Rig, Team, failure

SAMPLES = int(os.environ.get("FANFOLD_CRASH_SAMPLES", "100"))
ROUNDS = 2
"""Turns of a worker before the one that answers."""

Script = Callable[[Any, Any], Awaitable[Any]]
Asked = tuple[str, int]
"""A prompt, as it is whoever answered before it, and which turn of its agent."""


class Workers(Team):
    """An executor whose answers tell in which life they were given; prompts that begin with `work` take more turns,
    each of which is kept."""

    def __init__(self, life: str, fails: Callable[[str], bool] = lambda prompt: False, pace: float = 0) -> None:
        super().__init__()
        self.life = life
        self.pace = pace
        self.turns: Counter[Asked] = Counter()
        self._fails = fails

    def within(self, facts: StepFacts) -> AgentExecutor:
        return _Kept(self, facts)

    async def answered(self, spec: AgentStepSpec, kept: StepFacts | None) -> StepOutcome:
        prompt, known = whoever(spec.prompt), 0
        rounds = ROUNDS if prompt.startswith("work") else 0
        if kept is not None and kept.recorded and not kept.has_failed:
            kept.go_on()
            known = len(kept.recorded)
        for turn in range(known, rounds):
            self.turns[prompt, turn] += 1
            await asyncio.sleep(self.pace)
            assert kept is not None
            await kept.record([Fact(turn + 1, f"m-{turn}", None, UserMessaged(f"turn {turn} of {prompt}"))])
        self.turns[prompt, rounds] += 1
        if self._fails(prompt):
            return failure(spec)
        tag = f"|{self.life}.{self.turns.total()}"
        text = "x" * (BLOB_BYTES if prompt == "long" else 0) + spec.prompt + tag
        usage = Usage(prompt_tokens=TOKENS, total_tokens=TOKENS)
        structured = None if spec.output_schema is None else {"text": text}
        return StepOutcome(
            task_id=spec.task_id, agent=spec.agent, output=text, success=True, structured=structured, usage=usage
        )


class _Kept:
    def __init__(self, workers: Workers, facts: StepFacts) -> None:
        self._workers = workers
        self._facts = facts

    def concurrency_hint(self) -> int:
        return self._workers.hint

    async def execute_step(self, spec: AgentStepSpec, events: EventSink | None = None) -> StepOutcome:
        try:
            return await self._workers.answered(spec, self._facts)
        except FanfoldError as error:  # as a session's executor does: its caller has to know better
            return failure(spec, str(error), error_code=error.code)


def whoever(text: str) -> str:
    return re.sub(r"\|\w+\.\d+", "", text)


# ---- the run --------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "required": ["text"]}


async def inner(ctx: Any, args: Any) -> Any:
    def side(name: str) -> Callable[[], Awaitable[Any]]:
        return lambda: ctx.pipeline(
            [1, 2],
            lambda place: ctx.agent(f"work {name} {place}"),
            lambda found, place: ctx.agent(f"check {place}: {found}", schema=SCHEMA),
        )

    return await ctx.parallel([side("left"), side("right")])


def edition(number: int) -> Script:
    """In the second one everything stands at another place."""

    async def outer(ctx: Any, args: Any) -> Any:
        if number == 2:
            await ctx.parallel([])
        seen = await ctx.workflow("inner", {})
        votes = await ctx.parallel([lambda: ctx.agent("vote")] * 3)
        long = await ctx.agent("long")
        return {
            "seen": seen,
            "votes": votes,
            "long": [len(whoever(long)), long.strip("x")],
            "sum": await ctx.agent("sum"),
        }

    return outer


def opened(place: Path, team: Team, number: int = 2, files: WorkflowFiles | None = None) -> Rig:
    rig = Rig(place, team, files=files, limits=WorkflowLimits(concurrency=4))
    rig.register(edition(number))
    rig.register(inner, name="inner")
    return rig


async def finished_run(place: Path, files: WorkflowFiles | None = None) -> WorkflowResult:
    """A run of two attempts: in the first one some agents failed, for the second one its script was edited."""
    first = Workers("a", lambda prompt: prompt in ("work left 2", "sum"))
    earlier = await opened(place, first, 1, files).workflows.run_async(META["name"])
    assert earlier.status == "failed"  # by `sum`, that nobody caught
    result, _ = await gone_on(place, earlier.run_id, "b", files)
    assert result.status == "completed", result
    return result


async def gone_on(
    place: Path, run_id: str, life: str, files: WorkflowFiles | None = None, **more: Any
) -> tuple[WorkflowResult, Workers]:
    workers = Workers(life)
    result = await opened(place, workers, files=files).workflows.run_async(resume_from_run_id=run_id, **more)
    return result, workers


def journal_of(place: Path, run_id: str) -> Path:
    return place / ".a3s/workflow-runs" / f"{run_id}.journal.jsonl"


def recorded(journal: bytes, run_id: str) -> tuple[Counter[Asked], list[str]]:
    """(The turns that it has, the answers that it has)."""
    lines = journal.split(b"\n")[:-1]
    view = read_run_journal(lines, run_id)
    turns: Counter[Asked] = Counter()
    answers: list[str] = []
    for entry in view.entries.values():
        if entry.is_superseded:
            continue
        prompt = whoever(json.loads(bytes(entry.call))["prompt"])
        rounds = ROUNDS if prompt.startswith("work") else 0
        known = rounds + 1 if entry.is_answer else 0 if entry.has_ended else len(entry.turns)
        turns.update((prompt, turn) for turn in range(known))
        if entry.is_answer:
            assert entry.result is not None
            answers += re.findall(r"\|\w+\.\d+", bytes(entry.result.value).decode())
    return turns, answers


ALL: Counter[Asked] = Counter(
    [
        *(
            (f"work {side} {place}", turn)
            for side in ("left", "right")
            for place in (1, 2)
            for turn in range(ROUNDS + 1)
        ),
        *((f"check {place}: work {side} {place}", 0) for side in ("left", "right") for place in (1, 2)),
        *[("vote", 0)] * 3,
        ("long", 0),
        ("sum", 0),
    ]
)


def positions(journal: bytes, samples: int) -> list[int]:
    """The ends of all lines and what is next to them, and some more."""
    ends = [at + 1 for at, byte in enumerate(journal) if byte == 0x0A]
    near = {at + by for at in (0, *ends) for by in (-1, 0, 1)}
    drawn = random.Random(1).sample(range(len(journal)), min(samples, len(journal)))
    return sorted(at for at in {*near, *drawn} if 0 <= at <= len(journal))


def tags(value: object) -> set[str]:
    return set(re.findall(r"\|\w+\.\d+", encode_json(value).decode()))


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


# ---- a disk that refuses --------------------------------------------------------------------------------------------

KINDS: tuple[Change, ...] = (
    "create",
    "append",
    "put_blob",
    "write_snapshot",
    "write_output",
    "put_notice",
    "append_events",
)


class Refusing:
    """Refuses the `number`th change of a kind, or all from there on."""

    def __init__(self, kind: Change, number: int, *, stays: bool) -> None:
        self.kind = kind
        self.number = number
        self.stays = stays
        self.came = 0

    @property
    def has_refused(self) -> bool:
        return self.came >= self.number

    async def __call__(self, change: Change, run_id: str) -> None:
        if change == self.kind:
            self.came += 1
            if self.came == self.number or (self.stays and self.has_refused):
                raise LogWriteError(path=run_id, reason="No space left on device")


class Witness:
    """Wraps the context of a script: what is given to the script is in the journal by then."""

    def __init__(self, ctx: Any, files: MemoryRuns, *, swallows: bool) -> None:
        self._ctx = ctx
        self._swallows = swallows
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    async def agent(self, prompt: str, **options: Any) -> Any:
        try:
            value = await self._ctx.agent(prompt, **options)
        except Exception:
            if self._swallows:
                return "none"
            raise
        (run_id,) = await self._files.run_ids()
        journal = self._files.journal_bytes(run_id) or b""
        written = encode_json(value)
        assert written in journal or hashlib.sha256(written).hexdigest().encode() in journal, "it is not recorded"
        return value


async def refused_once(kind: Change, number: int, *, stays: bool, swallows: bool) -> bool:
    """True when the run came to that change; what follows is that it ends as it should, and can be gone on with."""
    disk = Refusing(kind, number, stays=stays)
    files = MemoryRuns(before=disk)
    workers = Workers("a", pace=1.0)
    rig = Rig(Path(), workers, files=files, limits=WorkflowLimits(concurrency=4), env=virtual_env())

    def witnessed(script: Script) -> Script:
        return lambda ctx, args: script(Witness(ctx, files, swallows=swallows), args)

    rig.register(witnessed(edition(2)))
    rig.register(witnessed(inner), name="inner")
    result: WorkflowResult | None = None
    code = "store_unwritable"
    try:
        launch = await rig.workflows.launch_async(META["name"], events=rig.events.append, notify=True)
    except WorkflowInputError as error:
        code = error.code
        assert rig.events == []
    else:
        result = await rig.workflows.wait_async(launch.run_id)
        notification = rig.notification()
        assert notification["status"] == result.status
        if (
            not disk.has_refused
            or kind == "append_events"
            or (result.status == "completed" and kind == "write_snapshot")
        ):
            assert (result.status, workers.turns) == ("completed", ALL)
        else:
            assert result.status == "failed"
            assert result.error is not None
            assert result.error.code == LogWriteError.code
            assert "No space left" in result.error.message
    assert code == "store_unwritable"
    calm = files.another_process()
    for run_id in await calm.run_ids():
        summary = await run_summary(calm, run_id)
        assert not summary.is_alive
        if summary.snapshot is None:
            continue
        if result is not None and not (stays and kind == "write_snapshot"):
            assert summary.status == result.status
        turns, _ = recorded(files.journal_bytes(run_id) or b"", run_id)
        again = Workers("b")
        other = opened(Path(), again, files=calm)
        if result is not None:
            (notice,) = await other.notices.pending()
            assert f"<status>{result.status}</status>" in notice.text
            assert "Traceback" not in notice.text
        whole = await other.workflows.run_async(resume_from_run_id=run_id, strict=True)
        assert (whole.status, again.turns) == ("completed", ALL - turns)
        (notice,) = await other.notices.pending()
        assert notice.id == f"{run_id}-2"
        assert "<status>completed</status>" in notice.text
    return disk.has_refused


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_is_refused_ends_the_run_as_failed_and_gives_nobody_its_value(
    kind: Change, stays: bool, swallows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for number in itertools.count(1):
        loop = VirtualLoop(number)
        try:
            has_refused = loop.run_until_complete(refused_once(kind, number, stays=stays, swallows=swallows))
            assert loop.unhandled == []
        finally:
            loop.wind_down()
        if not has_refused:
            break
    print(f"{number - 1} places of {kind}")
    assert number > 1
    assert [record for record in caplog.records if record.exc_info] == []


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
        print(f"{len(view.entries)} entries, {len(journal) / 2**20:.0f} MiB: {took:.2f} s of CPU, {grown / 2**20:.0f} MiB")
        assert len(view.unclaimed()) == LONG
        assert view.usage.total_tokens == LONG * TOKENS
        del read, view
        again, workers = await gone_on(tmp_path, first.run_id, "b")
        assert (again.status, workers.turns, again.counts.unclaimed) == ("completed", ALL, LONG)
        assert again.total_usage.total_tokens == LONG * TOKENS + again.usage.total_tokens
        assert Path(opened(tmp_path, Team()).files.directory, f"{first.run_id}.json").stat().st_size < 10_000

    asyncio.run(main())
