"""What it costs to call a fan-out again of which all steps but a failing one are finished: one is run, the others are
answered from the journal.

`bare JSONL` is the least that a script would do with the same outcomes: it reads a file of `{"key", "value"}` lines,
parses them with the standard library's JSON, takes the SHA-256 of each spec's JSON and looks it up. Nothing is checked,
locked, sealed or synced there, and there are no tasks. fanfold's side records the failing step anew, one sync and those
of its lease.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.costs import Cost, Variant, in_turns
from benchmarks.opened import durable_session
from benchmarks.stub_model import StubModel
from benchmarks.table import Row, ratio_row
from benchmarks.workload import answers, outputs, specs
from fanfold import AgentStepSpec, Session

FEW, MANY = 1_000, 10_000
AT_ONCE = 64
REPETITIONS = 9
FAILING = AgentStepSpec(task_id="failing", agent="nobody", prompt="fail")
WHAT = "resume of a finished fan-out"


async def measure() -> list[Row]:
    async with durable_session(StubModel(), AT_ONCE) as (session, directory):
        costs: dict[str, list[Cost]] = {}
        for count in (FEW, MANY):  # one after the other: what the large ones leave behind slows the small ones down
            ours, bare = await _both(session, directory / f"bare-{count}.jsonl", count)
            costs |= await in_turns({f"ours {count}": ours, f"bare {count}": bare}, REPETITIONS)
    against_bare = [
        ratio_row(
            f"{WHAT}, {count:,} steps, per step, wall",
            costs[f"ours {count}"],
            costs[f"bare {count}"],
            "bare JSONL",
            per=(count, count),
            limit=3,
            aim=2,
            by_wall=True,
        )
        for count in (FEW, MANY)
    ]
    growth = ratio_row(
        f"{WHAT}, growth {FEW:,} to {MANY:,} steps, all of it, wall",
        costs[f"ours {MANY}"],
        costs[f"ours {FEW}"],
        f"at {FEW:,} steps",
        per=(1, 1),
        limit=11,
        by_wall=True,
    )
    return [*against_bare, growth]


async def _both(session: Session, path: Path, count: int) -> tuple[Variant, Variant]:
    """A resume of `count` finished steps by fanfold, and the same from a bare file."""
    asked = specs(count)
    expected = answers(asked)
    plain: list[dict[str, Any]] = [msgspec.to_builtins(spec) for spec in asked]

    async def ours() -> None:
        *outcomes, failed = await session.parallel_resumable_async([*asked, FAILING], f"benchmark-{count}")
        assert not failed.success
        assert outputs(outcomes) == expected

    async def bare() -> None:
        assert [outcome["output"] for outcome in _bare(path, plain)] == expected

    *outcomes, _ = await session.parallel_resumable_async([*asked, FAILING], f"benchmark-{count}")
    lines = [
        json.dumps({"key": _key(spec), "value": outcome.to_dict()}, separators=(",", ":"))
        for spec, outcome in zip(plain, outcomes, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ours, bare


def _bare(path: Path, specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {}
    with path.open("rb") as file:
        for line in file:
            record = json.loads(line)
            known[record["key"]] = record["value"]
    return [known[_key(spec)] for spec in specs]


def _key(spec: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
