"""Call something again when it fails."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def retry(
    call: Callable[[], T],
    *,
    attempts: int = 5,
    first_wait: float = 0.5,
    longest_wait: float = 30.0,
    on: tuple[type[Exception], ...] = (OSError,),
) -> T:
    """Waits double after each failure and are spread at random."""
    wait = first_wait
    for attempt in range(1, attempts + 1):
        try:
            return call()
        except on:
            if attempt == attempts:
                raise
        time.sleep(wait * random.uniform(0.5, 1.5))
        wait = min(2 * wait, longest_wait)
    raise ValueError("attempts must be at least 1")
