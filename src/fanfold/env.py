"""HostEnv: the one source of time, ids and randomness, so that a replay can be given the same ones."""

import asyncio
import itertools
import math
import os
import time
import uuid
from typing import Protocol

import msgspec


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back, for durations and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class IdGenerator(Protocol):
    def new_id(self) -> str: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Randomness(Protocol):
    """What jitter is made of; a seeded `random.Random` is one."""

    def random(self) -> float:
        """From 0 up to, not including, 1."""
        ...


class SystemRandomness:
    def random(self) -> float:
        return (int.from_bytes(os.urandom(7)) >> 3) * 2**-53  # all bits that a float between 0 and 1 has


class UuidIds:
    def new_id(self) -> str:
        return str(uuid.uuid4())


class SequentialIds:
    """`<prefix>-0`, `<prefix>-1`, ...: the same run order gives the same ids (seed 003)."""

    def __init__(self, prefix: str = "id") -> None:
        self._prefix = prefix
        self._numbers = itertools.count()

    def new_id(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"


class FixedClock:
    """A wall clock that stands still. Its durations are those of the waits that it was asked for, whatever they took;
    so they too are the same in each replay."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._slept_ms = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._now_ms + math.ceil(self._slept_ms)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._slept_ms += seconds * 1000


class HostEnv(msgspec.Struct, frozen=True):
    clock: Clock = msgspec.field(default_factory=SystemClock)
    ids: IdGenerator = msgspec.field(default_factory=UuidIds)
    random: Randomness = msgspec.field(default_factory=SystemRandomness)

    @classmethod
    def for_replay(cls, sequential_id_prefix: str | None = None, fixed_time_ms: int | None = None) -> "HostEnv":
        """The replay configuration of seed 003: what is None stays the system's. Make it anew for each replay."""
        return cls(
            SystemClock() if fixed_time_ms is None else FixedClock(fixed_time_ms),
            UuidIds() if sequential_id_prefix is None else SequentialIds(sequential_id_prefix),
        )
