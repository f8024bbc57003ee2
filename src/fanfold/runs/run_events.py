"""RunEvents: what one run told, kept within limits, and passed on to whoever listens."""

from collections import deque
from collections.abc import Iterable
from itertools import islice

import msgspec

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.record import JsonObject
from fanfold.contracts.runs import RunEventPage, SessionRetentionLimits
from fanfold.env import Clock
from fanfold.foreign import described
from fanfold.kernel.plain_text import is_plain, plain
from fanfold.protocols import EventSink

MAX_PAGE = 10_000
MAX_JOINED_CHARS = 64 * 1024
"""Of one text; a longer one is several events, so that the limits hold for it too."""
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
        self._joined_chars = 0
        self._last_ms = 0
        self.count = 0

    def __call__(self, item: AgentEvent) -> None:
        if item.type in _JOINED and isinstance(item.text, str):
            self._join(item, item.text)
            return
        told = self._record(item)
        if self._listener is not None:
            self._listener(told)

    def end(self, last: AgentEvent) -> None:
        """Keep and tell the event by which the run ends. Those that come after it are kept, and nobody hears them."""
        listener, self._listener = self._listener, None
        told = self._record(last)
        if listener is not None:
            listener(told)

    def __len__(self) -> int:
        """Events that are kept."""
        return len(self._kept)

    def drop(self, number: int) -> None:
        """Keep the oldest `number` of them no longer."""
        for _ in range(min(number, len(self._kept))):
            self._bytes -= len(self._kept.popleft())

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
        events = [_decoder.decode(each) for each in islice(self._kept, begin - self.first, begin - self.first + limit)]
        last = begin + len(events) - 1
        return RunEventPage(
            events=events,
            first_available_sequence=self.first,
            latest_sequence_exclusive=self.count,
            next_after_sequence=last if events else after,
            retention_gap=wanted < self.first,
            has_more=last + 1 < self.count if events else False,
        )

    def saved(self, last: AgentEvent | None = None) -> tuple[int, list[bytes]]:
        """The sequence of the first kept event, and all of them as JSON without a newline; `last` is the one that comes
        next, and is not kept yet."""
        self._close_delta()
        kept = list(self._kept)
        if last is not None:
            kept.append(_encoded(AgentEvent(type=last.type, payload=last.payload, metadata=self._metadata(None))))
        return self.first, kept

    def restore(self, first: int, events: Iterable[bytes], last_ms: int) -> None:
        """Take up the events of a run that was saved; the limits hold for them too."""
        self.count = first
        self._last_ms = last_ms
        for each in events:
            self._store(each)

    # ---- inside ----

    def _record(self, item: AgentEvent) -> AgentEvent:
        if self._open is not None:
            self._close_delta()
        told = AgentEvent(type=item.type, payload=item.payload, metadata=self._metadata(item.metadata))
        self._store(_encoded(told))
        return told

    def _join(self, item: AgentEvent, text: str) -> None:
        if self._open is None or self._open.type != item.type:
            self._close_delta()
            self._open = AgentEvent(type=item.type, payload={}, metadata=self._metadata(None))
        told = AgentEvent(type=item.type, payload=item.payload, metadata=self._open.metadata)
        self._pieces.append(text)
        self._joined_chars += len(text)
        if self._joined_chars >= MAX_JOINED_CHARS:
            self._close_delta()
        if self._listener is not None:
            self._listener(told)

    def _close_delta(self) -> None:
        if self._open is None:
            return
        opened, self._open = self._open, None
        text, self._pieces, self._joined_chars = "".join(self._pieces), [], 0
        self._store(_encoded(AgentEvent(type=opened.type, payload={"text": text}, metadata=opened.metadata)))

    def _metadata(self, more: JsonObject | None) -> JsonObject:
        # Time never goes backwards within a run, whatever the wall clock does.
        self._last_ms = max(self._last_ms, self._clock.now_ms())
        own: JsonObject = {
            "run_id": self._run_id,
            "session_id": self._session_id,
            "sequence": self.count,
            "timestamp_ms": self._last_ms,
        }
        return own if more is None else {**more, **own}

    def _store(self, data: bytes) -> None:
        self.count += 1
        kept, limits = self._kept, self._limits
        kept.append(data)
        self._bytes += len(data)
        if limits.unbounded:
            return
        while kept and (len(kept) > limits.max_events_per_run or self._bytes > limits.max_event_bytes_per_run):
            self._bytes -= len(kept.popleft())


def is_sound(item: AgentEvent) -> bool:
    """It is an event as it should be: a tool may tell anything."""
    return (
        type(item) is AgentEvent
        and type(item.type) is str
        and type(item.payload) is dict
        and (item.metadata is None or type(item.metadata) is dict)
        and is_plain(item.type)
    )


def _encoded(told: AgentEvent) -> bytes:
    try:
        return _encoder.encode(told)
    except Exception as error:  # noqa: BLE001  what is in a tool's own event may not be JSON, nor have a `repr`
        metadata = told.metadata or {}
        own: JsonObject = {name: metadata[name] for name in ("run_id", "session_id", "sequence", "timestamp_ms")}
        stand_in: JsonObject = {"not_recorded": plain(described(error))}
        return _encoder.encode(AgentEvent(type=told.type, payload=stand_in, metadata=own))
