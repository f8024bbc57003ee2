"""EventStream: one run's events for `async for` and `for`, ended when the run has really stopped."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Self

import msgspec

from fanfold.contracts.events import AgentEvent, AgentResult, event
from fanfold.contracts.record import JsonObject
from fanfold.errors import LifecycleError, RunCancelledError
from fanfold.portal import Portal
from fanfold.runs.operations import cancel_once
from fanfold.runs.runs import Run

MAX_APART = 1_024
"""Beyond so many waiting events the pieces of one text are joined."""
MAX_WAITING = 10_000
"""Beyond it the oldest ones are left out; the reader is told how many (`events_left_out`) and finds them, as far as
they are kept, in the run's record."""
_JOINED = ("text_delta", "reasoning_delta")


class _Pieces(msgspec.Struct):
    """Deltas of one text that wait together."""

    type: str
    texts: list[str]
    metadata: JsonObject | None

    def event(self) -> AgentEvent:
        return AgentEvent(type=self.type, payload={"text": "".join(self.texts)}, metadata=self.metadata)


class EventBuffer:
    """Between a run that must not wait and a reader that may be slow: filled on the session's loop, read anywhere."""

    def __init__(self) -> None:
        self._events: deque[AgentEvent | _Pieces] = deque()
        self._left_out = 0
        self._lock = threading.Lock()
        self._arrived = asyncio.Event()
        self.is_ended = False

    def put(self, item: AgentEvent) -> None:
        with self._lock:
            self._keep(item)
        self._arrived.set()

    def _keep(self, item: AgentEvent) -> None:
        kept: AgentEvent | _Pieces = item
        if len(self._events) >= MAX_APART and item.type in _JOINED and isinstance(item.text, str):
            last = self._events[-1]
            if isinstance(last, _Pieces) and (last.type, last.metadata) == (item.type, item.metadata):
                last.texts.append(item.text)
                return
            kept = _Pieces(item.type, [item.text], item.metadata)
        if len(self._events) >= MAX_WAITING:
            self._events.popleft()
            self._left_out += 1
        self._events.append(kept)

    def end(self) -> None:
        """What is there by now is all."""
        self.is_ended = True
        self._arrived.set()

    @property
    def is_filled(self) -> bool:
        return bool(self._events)

    async def arrived(self) -> None:
        """Return when there is something to take, or when nothing will come any more."""
        while not self._events and not self.is_ended:
            self._arrived.clear()
            await self._arrived.wait()

    def take(self) -> AgentEvent | None:
        """The oldest event, if there is one now."""
        with self._lock:
            if self._left_out:
                count, self._left_out = self._left_out, 0
                return event("events_left_out", count=count)
            item = self._events.popleft() if self._events else None
        return item.event() if isinstance(item, _Pieces) else item


class EventStream:
    """The events of one run, its terminal one (`agent_end` or `error`) last.

    The terminal event comes only after the session is free again, so the next operation may start at once.
    Leaving early: `close` (or the `with` block) cuts the run off, to be resumed; a stream that is merely dropped lets
    it finish.
    """

    def __init__(self, portal: Portal, session_id: str, buffer: EventBuffer, run: Run) -> None:
        self._portal = portal
        self._session_id = session_id
        self._buffer = buffer
        self._run_id = run.id
        self._task = run.task
        # Behind the run's own callback, by which it tells its last event.
        self._task.add_done_callback(lambda _: buffer.end())

    @property
    def run_id(self) -> str:
        return self._run_id

    @property
    def portal(self) -> Portal:
        return self._portal

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        return self

    async def __anext__(self) -> AgentEvent:
        while (item := self._buffer.take()) is None:
            if self._is_read_out():
                raise StopAsyncIteration
            await self._portal.run(self._buffer.arrived())
        return item

    def __iter__(self) -> Iterator[AgentEvent]:
        return self

    def __next__(self) -> AgentEvent:
        while (item := self._buffer.take()) is None:
            if self._is_read_out():
                raise StopIteration
            self._wait()
        return item

    def _is_read_out(self) -> bool:
        return self._buffer.is_ended and not self._buffer.is_filled

    def _wait(self) -> None:
        try:
            self._portal.call(self._buffer.arrived(), "next")
        except LifecycleError:
            if not self._buffer.is_ended:  # otherwise the loop has ended after the run, and all is there
                raise

    async def result_async(self) -> AgentResult:
        """The run's result, without reading the rest of its events. Raises what `send` would have raised."""
        return self._outcome() if self._task.done() else await self._portal.run(self._awaited())

    def result(self) -> AgentResult:
        return self._outcome() if self._task.done() else self._portal.call(self._awaited(), "result")

    async def _awaited(self) -> AgentResult:
        await asyncio.wait({self._task})
        return self._outcome()

    def _outcome(self) -> AgentResult:
        if self._task.cancelled():
            raise RunCancelledError(session_id=self._session_id)
        return self._task.result()

    async def close_async(self) -> None:
        if not self._buffer.is_ended:
            await self._portal.run(self._cut_off())

    def close(self) -> None:
        if not self._buffer.is_ended:
            self._portal.call(self._cut_off(), "close")

    async def _cut_off(self) -> None:
        if not self._task.done():
            cancel_once(self._task)
            await asyncio.wait({self._task})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close_async()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
