"""EventStream: one run's events for `async for` and `for`, ended when the run has really stopped."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Self

from fanfold.contracts.events import AgentEvent, AgentResult
from fanfold.errors import RunCancelledError
from fanfold.portal import Portal
from fanfold.session.runs import Run

MAX_WAITING_EVENTS = 1_024
"""Beyond it neighbouring text deltas are joined; no event is ever dropped."""


class EventBuffer:
    """Between a run that must not wait and a reader that may be slow. Lives on the session's loop."""

    def __init__(self) -> None:
        self._events: deque[AgentEvent] = deque()
        self._arrived = asyncio.Event()
        self._is_ended = False

    def put(self, item: AgentEvent) -> None:
        if len(self._events) >= MAX_WAITING_EVENTS and item.type == "text_delta":
            last = self._events[-1]
            if last.type == "text_delta":
                joined = {"text": last.payload["text"] + item.payload["text"]}
                self._events[-1] = AgentEvent(type="text_delta", payload=joined, metadata=last.metadata)
                return
        self._events.append(item)
        self._arrived.set()

    def end(self, terminal: AgentEvent) -> None:
        self._events.append(terminal)
        self._is_ended = True
        self._arrived.set()

    async def next(self) -> AgentEvent | None:
        """The next event; None after the last."""
        while not self._events:
            if self._is_ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()


class EventStream:
    """The events of one run, its terminal one (`agent_end` or `error`) last.

    The terminal event comes only after the session is free again, so the next operation may start at once.
    Leaving early: `close` (or the `with` block) cancels the run; a stream that is merely dropped lets it finish.
    """

    def __init__(self, portal: Portal, session_id: str, buffer: EventBuffer, run: Run) -> None:
        self._portal = portal
        self._session_id = session_id
        self._buffer = buffer
        self._run_id = run.id
        self._run = run.task
        # A done callback, for a run may be cancelled before its first step.
        self._run.add_done_callback(lambda _: buffer.end(run.terminal_event))

    @property
    def run_id(self) -> str:
        return self._run_id

    @property
    def portal(self) -> Portal:
        return self._portal

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        return self

    async def __anext__(self) -> AgentEvent:
        item = await self._portal.run(self._buffer.next())
        if item is None:
            raise StopAsyncIteration
        return item

    def __iter__(self) -> Iterator[AgentEvent]:
        return self

    def __next__(self) -> AgentEvent:
        item = self._portal.call(self._buffer.next(), "next")
        if item is None:
            raise StopIteration
        return item

    async def result_async(self) -> AgentResult:
        """The run's result, without reading the rest of its events. Raises what `send` would have raised."""
        return await self._portal.run(self._outcome())

    def result(self) -> AgentResult:
        return self._portal.call(self._outcome(), "result")

    async def _outcome(self) -> AgentResult:
        await asyncio.wait({self._run})
        if self._run.cancelled():
            raise RunCancelledError(session_id=self._session_id)
        return self._run.result()

    async def close_async(self) -> None:
        await self._portal.run(self._cancel())

    def close(self) -> None:
        self._portal.call(self._cancel(), "close")

    async def _cancel(self) -> None:
        self._run.cancel()
        await asyncio.wait({self._run})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close_async()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
