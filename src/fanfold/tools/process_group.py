"""A child process with all its descendants in its group: heard while it runs, gone when it is over.

POSIX only. A process that moves itself into another session leaves the group; only a sandbox holds those.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

GRACE_SECONDS = 0.5
"""Between SIGTERM and SIGKILL."""
_DRAIN_SECONDS = 1.0
"""For the rest of the output of a dead group: only a process outside of it can keep the pipe open longer."""


class _Listener(asyncio.Protocol):
    def __init__(self, hear: Callable[[bytes], None]) -> None:
        self._hear = hear
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._hear(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


async def run_group(
    argv: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    timeout_ms: int,
    hear: Callable[[bytes], None],
    errors: BinaryIO | None = None,
) -> int | None:
    """The exit code (negative: the signal that ended it), None if `timeout_ms` passed first.

    `hear` gets stdout and stderr as one stream, in pieces, or stdout alone where stderr has the file `errors`; stdin
    is empty. What is left of the group when the first process ends, at a timeout or at cancellation, is killed before
    this returns.

    Raises:
        OSError: it could not be started.
    """
    listener = _Listener(hear)
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb", 0) as writer:
        reader = os.fdopen(read_end, "rb", 0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: listener, reader)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer if errors is None else errors,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            transport.close()
            raise
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        try:
            await _end(process)
            async with asyncio.timeout(_DRAIN_SECONDS):
                await listener.closed.wait()
        except TimeoutError:
            pass  # somebody outside of the group keeps the pipe open; we have heard enough
        finally:
            transport.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        if process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
    except TimeoutError:
        pass  # it does not want to: SIGKILL below
    finally:
        # In `finally`, so that a second cancellation during the grace cannot skip it.
        _signal(process.pid, signal.SIGKILL)
    await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass  # nobody is left in it
