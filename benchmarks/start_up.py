"""What it costs to begin: imports and `fanfold --version` in fresh processes, and what is installed.

`import fanfold` alone loads next to nothing, for its names are imported when they are used; so the first use of `Agent`
is held to the same limit.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.costs import Cost
from benchmarks.distributions import core_distributions
from benchmarks.table import Row, ratio_row

REPETITIONS = 25
OURS = ("import fanfold", "from fanfold import Agent")
BARE_ASYNCIO = "import asyncio, collections.abc, contextlib, dataclasses, json, logging, pathlib, typing"
"""What an asyncio program without any library loads."""
_TIMED = (
    "import time; cpu, wall = time.process_time(), time.perf_counter()\n"
    "{}\n"
    "print(time.process_time() - cpu, time.perf_counter() - wall)"
)
"""One import statement alone, without the start of the interpreter."""


async def measure() -> list[Row]:
    costs: dict[str, list[Cost]] = {each: [] for each in (*OURS, BARE_ASYNCIO, "version")}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as cache:
        environment = _compiled_into(cache)
        for repetition in range(REPETITIONS + 1):
            found = {each: _statement(each, environment) for each in (*OURS, BARE_ASYNCIO)}
            found["version"] = _process([str(_script()), "--version"], environment)
            if repetition:  # The first round compiles.
                for each, cost in found.items():
                    costs[each].append(cost)
    return [
        *(
            ratio_row(f"`{each}`", costs[each], costs[BARE_ASYNCIO], "bare asyncio set", per=(1, 1), limit=1.5)
            for each in OURS
        ),
        _version_row(costs["version"]),
        _distributions_row(),
    ]


def _version_row(costs: Sequence[Cost]) -> Row:
    cpu, wall = (1000 * statistics.median(column) for column in zip(*((c.cpu_s, c.wall_s) for c in costs), strict=True))
    return Row(
        what="`fanfold --version`, the whole process",
        fanfold=f"{cpu:.3g} ms",
        wall=f"{wall:.3g} ms",
        figure=cpu,
        unit=" ms",
        limit=150,
    )


def _distributions_row() -> Row:
    count = len(core_distributions())
    return Row(what="distributions of the core", fanfold=f"{count}", figure=count, unit="", limit=15)


def _script() -> Path:
    return Path(sys.executable).with_name("fanfold")


def _compiled_into(cache: str) -> dict[str, str]:
    """An environment in which every module is found compiled, as installed ones are, whatever this one says of it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": cache}


def _statement(statement: str, environment: Mapping[str, str]) -> Cost:
    command = [sys.executable, "-c", _TIMED.format(statement)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    cpu, wall = done.stdout.split()
    return Cost(float(cpu), float(wall))


def _process(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    cpu, wall = _cpu_of_children(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return Cost(_cpu_of_children() - cpu, time.perf_counter() - wall)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
