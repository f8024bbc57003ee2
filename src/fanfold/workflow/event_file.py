"""EventFile: the event stream of a run on its way into its file, for those who follow it from elsewhere.

It is no record: what a crash takes from it is lost, and a file that cannot be written is left alone. The run never
waits for it. What is left out is counted, and told right before the end, which never is.
"""

import asyncio

from fanfold.contracts.codec import encode_json
from fanfold.contracts.events import AgentEvent, event
from fanfold.errors import StorageError
from fanfold.foreign import logger
from fanfold.portal import start_kept
from fanfold.protocols import HeldRun

FLUSH_SECONDS = 0.1
MAX_WAITING = 10_000
"""Events that wait to be written; further ones of a slow disk are left out and counted."""
LAST = "task_notification"


class EventFile:
    def __init__(self, held: HeldRun) -> None:
        self._held = held
        self._waiting: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_broken = False
        self._is_closed = False
        self._left_out = 0

    def __call__(self, item: AgentEvent) -> None:
        if self._is_closed or self._is_broken:
            return
        if item.type == LAST:
            if self._left_out:
                self._keep(event("events_left_out", count=self._left_out))
        elif len(self._waiting) >= MAX_WAITING:
            self._left_out += 1
            return
        self._keep(item)

    def _keep(self, item: AgentEvent) -> None:
        try:
            # Now, and not a batch at once: the collector would look at each waiting event again and again.
            self._waiting.append(encode_json(item))
        except (TypeError, ValueError, RecursionError):  # of somebody else's event, which this run only passes on
            self._left_out += 1
            return
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._writing is None or self._writing.done():
            self._writing = start_kept(self._write())
        else:  # one at a time, or their order would be chance
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._begin)

    async def _write(self) -> None:
        told, self._waiting = self._waiting, []
        if not told or self._is_broken:
            return
        try:
            await self._held.append_events(told)
        except StorageError as error:
            self._is_broken = True
            logger.warning("the events of run %s are not written any more: %s", self._held.run_id, error)

    async def close(self) -> None:
        """Return when all that was told is written; what is told from now on is left out."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await asyncio.wait({self._writing})
        await self._write()
