"""Simulated schedules in number, each with crashes: how many of them break a law (see `fanfold.testing.simulation`)."""

import asyncio
import time

from benchmarks.table import Row
from fanfold.testing.simulation import LawBrokenError, simulate

SCHEDULES = 10_000


async def measure() -> list[Row]:
    return await asyncio.to_thread(_measure)  # each schedule has an event loop of its own


def _measure() -> list[Row]:
    began = time.perf_counter()
    broken = crashes = calls = 0
    for seed in range(SCHEDULES):
        try:
            result = simulate(seed)
        except LawBrokenError:
            broken += 1
            continue
        crashes += result.crashes
        calls += result.calls
    seconds = time.perf_counter() - began
    return [
        Row(
            what=f"{SCHEDULES:,} simulated schedules, {crashes:,} crashes, {calls - SCHEDULES:,} restarts: laws broken",
            fanfold=f"{broken}",
            wall=f"{seconds:.0f} s",
            figure=broken,
            unit="",
            limit=0,
        )
    ]
