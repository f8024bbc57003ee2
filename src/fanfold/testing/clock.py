"""ManualClock: time that passes only when somebody sleeps or says so."""

import asyncio


class ManualClock:
    """`sleep` moves the time on, notes the wait in `sleeps`, lets other tasks run, and returns at once."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._passed_ms = 0
        self.sleeps: list[float] = []
        """Seconds of each sleep, in order."""

    def now_ms(self) -> int:
        return self._start_ms + self._passed_ms

    def monotonic_ms(self) -> int:
        return self._passed_ms

    def advance(self, seconds: float) -> None:
        self._passed_ms += round(seconds * 1000)

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)
