"""What a job costs: CPU and wall seconds of several variants, repeated in turns."""

import gc
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

Variant = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    """User and system time of this process, all its threads; a server is another process."""
    wall_s: float


async def in_turns(variants: Mapping[str, Variant], repetitions: int) -> dict[str, list[Cost]]:
    """The costs of each variant, by repetition: A B C, A B C, ..., for a shared machine has its moods.

    A first round is thrown away: it opens connections and fills caches.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in variants}
    for repetition in range(repetitions + 1):
        for name, run in variants.items():
            cost = await _cost(run)
            if repetition:
                costs[name].append(cost)
    return costs


async def _cost(run: Variant) -> Cost:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    await run()
    return Cost(time.process_time() - cpu, time.perf_counter() - wall)
