"""What it costs that each step of a fan-out is synced to the disk before it counts.

Time is compared with `session.parallel` on the same session, then with other durable runtimes (see `peers`; their rows
are left out where they are not installed). Each durable run begins a new workflow and removes its journal at the end,
which is counted too. Then what is written: syncs are counted as the interpreter asks for them, all of them, those of
the lease and of the removal too, also with steps that take their time, of which fewer end together; bytes are all of
the store's directory after a run with one failure, which keeps its journal.

Growth is measured in processes of their own, of which one runs the large fan-out and one only makes as many specs and
outcomes; the difference of their peaks of resident memory is what the journal needs. (Syncs and peaks: on Linux.)
"""

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import peers
from benchmarks.costs import Variant, in_turns
from benchmarks.latency import STEP_MS, slow_model
from benchmarks.opened import durable_session
from benchmarks.stub_model import StubModel
from benchmarks.table import Row, ratio_row
from benchmarks.workload import answer, answers, outputs, specs
from fanfold import AgentStepSpec, Session, StepOutcome
from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import Usage
from fanfold.contracts.steps import child_session_id

STEPS = 1_000
MANY_STEPS = 100_000
AT_ONCE = 64
SPECS = specs(STEPS)
ANSWERS = answers(SPECS)
"""Known beforehand: to check outcomes is not what is timed."""
REPETITIONS = 15
SLOW_REPETITIONS = 5
WITH_PEERS = 3
LEAST_RATIOS = {"dbos": 15, "langgraph": 4}
WHAT = f"durable fan-out on a stub model, {AT_ONCE} at once"
_JOB = "benchmarks.durable"


async def measure() -> list[Row]:
    async with durable_session(StubModel(), AT_ONCE) as (session, directory):
        durable = _durable(session, ANSWERS)
        rows = [await _against_plain(session, durable), *await _against_peers(durable)]
        rows += [await _syncs(durable, WHAT, REPETITIONS), await _bytes(session, directory)]
    return [*rows, await _syncs_of_slow_steps(), *_growth()]


def _durable(session: Session, expected: Sequence[str]) -> Variant:
    async def run() -> None:
        assert outputs(await session.parallel_resumable_async(SPECS, "benchmark")) == expected

    return run


async def _against_plain(session: Session, durable: Variant) -> Row:
    async def plain() -> None:
        assert outputs(await session.parallel_async(SPECS)) == ANSWERS

    costs = await in_turns({"durable": durable, "plain": plain}, REPETITIONS)
    what, per = f"{WHAT}, per step, wall", (STEPS, STEPS)
    return ratio_row(what, costs["durable"], costs["plain"], "without a journal", per=per, limit=1.3, by_wall=True)


async def _against_peers(durable: Variant) -> list[Row]:
    return [row for peer, least in LEAST_RATIOS.items() if (row := await _against_peer(durable, peer, least))]


async def _against_peer(durable: Variant, peer: str, least: float) -> Row | None:
    ours: list[float] = []
    theirs: list[float] = []
    version = ""
    for _ in range(WITH_PEERS):
        with tempfile.TemporaryDirectory(prefix=".peer-", dir=Path.cwd()) as directory:
            found = peers.durable_fan_out(peer, STEPS, AT_ONCE, Path(directory))
        if found is None:
            print(f"{peer} is not installed in {peers.INTERPRETER} (see FANFOLD_BENCH_PYTHON): its row is left out")
            return None
        seconds, version = found
        theirs.append(seconds)
        ours.append(await _seconds(durable))
    rates = [f"{STEPS / statistics.median(seconds):,.0f} steps/s" for seconds in (ours, theirs)]
    return Row(
        what=f"{WHAT}, steps per second",
        fanfold=rates[0],
        baseline=f"{rates[1]} {peer} {version}, SQLite",
        wall=" / ".join(f"{statistics.median(seconds):.3g} s" for seconds in (ours, theirs)),
        figure=statistics.median([other / mine for mine, other in zip(ours, theirs, strict=True)]),
        limit=least,
        is_floor=True,
    )


async def _seconds(run: Variant) -> float:
    """The median of a few runs: one of ours is short beside one of a peer's."""
    return statistics.median([cost.wall_s for cost in (await in_turns({"it": run}, WITH_PEERS))["it"]])


async def _syncs_of_slow_steps() -> Row:
    async with durable_session(slow_model(), AT_ONCE) as (session, _):
        what = f"durable fan-out on a scripted model, steps of {STEP_MS} ms, {AT_ONCE} at once"
        return await _syncs(_durable(session, [spec.prompt for spec in SPECS]), what, SLOW_REPETITIONS)


async def _syncs(durable: Variant, what: str, repetitions: int) -> Row:
    counts: list[int] = []
    for _ in range(repetitions):
        with _counted_syncs() as count:
            await durable()
        counts.append(count())
    return Row(
        what=f"{what}, syncs per step, the most of {repetitions} runs",
        fanfold=f"{max(counts)} syncs",
        baseline=f"{STEPS} steps",
        figure=max(counts) / STEPS,
        unit="",
        limit=1 / 8,
    )


@contextmanager
def _counted_syncs() -> Iterator[Callable[[], int]]:
    """How many syncs this process has asked for since."""
    real = {name: getattr(os, name) for name in ("fdatasync", "fsync")}
    asked: list[int] = []

    def counting(sync: Callable[[int], None]) -> Callable[[int], None]:
        def counted(fd: int) -> None:
            asked.append(fd)
            sync(fd)

        return counted

    for name, sync in real.items():
        setattr(os, name, counting(sync))
    try:
        yield lambda: len(asked)
    finally:
        for name, sync in real.items():
            setattr(os, name, sync)


async def _bytes(session: Session, directory: Path) -> Row:
    failing = AgentStepSpec(task_id="failing", agent="nobody", prompt="fail")
    outcomes = await session.parallel_resumable_async([*SPECS, failing], "kept")
    assert outputs(outcomes[:-1]) == ANSWERS
    written = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    answered = sum(len(encode_json(outcome)) for outcome in outcomes)
    return Row(
        what=f"{WHAT}, bytes on disk",
        fanfold=f"{written / len(outcomes):.0f} B a step",
        baseline=f"{answered / len(outcomes):.0f} B of the outcome's JSON",
        figure=written / answered,
        limit=1.5,
    )


# ---- growth ----


def _growth() -> list[Row]:
    durable, outcomes = (_in_process_of_its_own(job) for job in ("durable", "outcomes"))
    few, many = (durable[name] * 1e3 for name in ("few_s", "many_s"))
    mb = [found["peak_bytes"] / 1e6 for found in (durable, outcomes)]
    return [
        Row(
            what=f"{WHAT}, growth {STEPS:,} to {MANY_STEPS:,} steps, per step, wall",
            fanfold=f"{many:.3g} ms",
            baseline=f"{few:.3g} ms at {STEPS:,}",
            wall=f"{many:.3g} ms / {few:.3g} ms",
            figure=many / few,
            limit=1.3,
        ),
        Row(
            what=f"{WHAT}, {MANY_STEPS:,} steps, peak memory beyond specs and outcomes, per step",
            fanfold=f"{mb[0]:.0f} MB",
            baseline=f"{mb[1]:.0f} MB, specs and outcomes alone",
            figure=(mb[0] - mb[1]) * 1e6 / MANY_STEPS,
            unit=" B",
            limit=1_000,
        ),
    ]


def _in_process_of_its_own(job: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-m", _JOB, job], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


async def _report(job: str) -> None:
    """Run the large fan-out between small ones, or only make what it would be given and answer."""
    async with durable_session(StubModel(), AT_ONCE) as (session, _):

        async def per_step(asked: Sequence[AgentStepSpec]) -> tuple[float, Sequence[StepOutcome]]:
            gc.collect()
            started = time.perf_counter()
            outcomes = await session.parallel_resumable_async(asked, "benchmark")
            return (time.perf_counter() - started) / len(asked), outcomes

        async def small() -> list[float]:
            return [(await per_step(SPECS))[0] for _ in range(REPETITIONS)]

        few = (await small())[1:]
        asked = specs(MANY_STEPS)
        many, outcomes = await per_step(asked) if job == "durable" else (0.0, [_made(spec) for spec in asked])
        peak = _peak_bytes()
        assert outputs(outcomes) == answers(asked)
        few += await small()
    print(json.dumps({"few_s": statistics.median(few), "many_s": many, "peak_bytes": peak}))


def _made(spec: AgentStepSpec) -> StepOutcome:
    usage = Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15)
    return StepOutcome(
        task_id=spec.task_id,
        session_id=child_session_id(spec.task_id),
        agent=spec.agent,
        output=answer(spec.prompt),
        success=True,
        usage=usage,
        duration_ms=0,
    )


def _peak_bytes() -> int:
    # Not `getrusage`: there a process begins with the peak of the one that started it.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    asyncio.run(_report(sys.argv[1]))
