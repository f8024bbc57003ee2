"""RunEvents: what one run told, kept within limits, and passed on to whoever listens."""

from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunEventPage, SessionRetentionLimits
from fanfold.env import Clock
from fanfold.protocols import EventSink

MAX_PAGE = 10_000
_JOINED = ("text_delta", "reasoning_delta")
_encoder = msgspec.json.Encoder(enc_hook=repr)
_decoder = msgspec.json.Decoder(AgentEvent)


class RunEvents:
    """An EventSink. Each event gets `{run_id, session_id, sequence, timestamp_ms}` as its metadata.

    Neighbouring text deltas are one event of the record; on their way to the listener they carry its sequence. Events
    are kept as JSON: it is the smallest form, its size is known, and nobody can change what was told.
    """

    def __init__(
        self,
        run_id: str,
        session_id: str,
        clock: Clock,
        limits: SessionRetentionLimits,
        listener: EventSink | None = None,
    ) -> None:
        self._run_id = run_id
        self._session_id = session_id
        self._clock = clock
        self._limits = limits
        self._listener = listener
        self._kept: deque[bytes] = deque()
        self._bytes = 0
        self._open: AgentEvent | None = None
        """Of the deltas that are being joined: the first one."""
        self._pieces: list[str] = []
        self._last_ms = 0
        self.count = 0

    def __call__(self, item: AgentEvent) -> None:
        if item.type in _JOINED:
            self._join(item)
            return
        told = self.record(item)
        if self._listener is not None:
            self._listener(told)

    def record(self, item: AgentEvent) -> AgentEvent:
        """Keep it, and give it back as it is kept; the listener is not told."""
        if self._open is not None:
            self._close_delta()
        told = AgentEvent(type=item.type, payload=item.payload, metadata=self._metadata(item.metadata))
        self._keep(told)
        return told

    @property
    def updated_ms(self) -> int:
        """Of the last event."""
        return self._last_ms

    @property
    def first(self) -> int:
        """The sequence of the oldest event that is kept; `count` when none is."""
        return self.count - len(self._kept)

    def all(self) -> list[AgentEvent]:
        """Every event that is kept, oldest first."""
        self._close_delta()
        return [_decoder.decode(each) for each in self._kept]

    def page(self, after: int | None, limit: int) -> RunEventPage:
        self._close_delta()
        wanted = 0 if after is None else after + 1
        begin = max(wanted, self.first)
        events = [_decoder.decode(self._kept[at - self.first]) for at in range(begin, min(begin + limit, self.count))]
        last = begin + len(events) - 1
        return RunEventPage(
            events=events,
            first_available_sequence=self.first,
            latest_sequence_exclusive=self.count,
            next_after_sequence=last if events else after,
            retention_gap=wanted < self.first,
            has_more=last + 1 < self.count if events else False,
        )

    def saved(self) -> tuple[int, list[bytes]]:
        """The sequence of the first kept event, and all of them as JSON without a newline."""
        self._close_delta()
        return self.first, list(self._kept)

    def restore(self, first: int, events: Iterable[bytes], last_ms: int) -> None:
        """Take up the events of a run that was saved; the limits hold for them too."""
        self.count = first
        self._last_ms = last_ms
        for each in events:
            self._store(each)

    # ---- inside ----

    def _join(self, item: AgentEvent) -> None:
        if self._open is None or self._open.type != item.type:
            self._close_delta()
            self._open = AgentEvent(type=item.type, payload={}, metadata=self._metadata(None))
        self._pieces.append(item.payload["text"])
        if self._listener is not None:
            self._listener(AgentEvent(type=item.type, payload=item.payload, metadata=self._open.metadata))

    def _close_delta(self) -> None:
        if self._open is None:
            return
        opened, self._open = self._open, None
        text, self._pieces = "".join(self._pieces), []
        self._keep(AgentEvent(type=opened.type, payload={"text": text}, metadata=opened.metadata))

    def _metadata(self, more: JsonObject | None) -> JsonObject:
        # Time never goes backwards within a run, whatever the wall clock does.
        self._last_ms = max(self._last_ms, self._clock.now_ms())
        own: dict[str, Any] = {
            "run_id": self._run_id,
            "session_id": self._session_id,
            "sequence": self.count,
            "timestamp_ms": self._last_ms,
        }
        return own if more is None else {**more, **own}

    def _keep(self, told: AgentEvent) -> None:
        try:
            data = _encoder.encode(told)
        except (TypeError, ValueError, RecursionError) as error:  # a tool's own event, which may hold anything
            stand_in: JsonObject = {"not_recorded": str(error)}
            data = _encoder.encode(AgentEvent(type=told.type, payload=stand_in, metadata=told.metadata))
        self._store(data)

    def _store(self, data: bytes) -> None:
        self.count += 1
        kept, limits = self._kept, self._limits
        kept.append(data)
        self._bytes += len(data)
        if limits.unbounded:
            return
        while kept and (len(kept) > limits.max_events_per_run or self._bytes > limits.max_event_bytes_per_run):
            self._bytes -= len(kept.popleft())
