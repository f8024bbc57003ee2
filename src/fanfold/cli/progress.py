"""Progress of a fan-out, drawn three ways from the same events: live, plain lines, JSON lines."""

import asyncio
import importlib.util
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from fanfold.cli.cells import cut, one_line
from fanfold.cli.console import Console
from fanfold.cli.results import Row
from fanfold.cli.tally import Tally, seconds_text, tokens_text
from fanfold.contracts.events import AgentEvent, event

_LONGEST_NAME = 60
_LONGEST_REASON = 120


class View(Protocol):
    """Watches a fan-out while its context is open."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def event(self, item: AgentEvent, /) -> None: ...

    def finish(self, row: Row) -> None: ...


def view_for(console: Console, tally: Tally, *, title: str, output: Literal["json", "jsonl"] | None) -> View:
    """The view that fits: JSON lines on request, else live on a terminal, else lines.

    Nothing when quiet; no lines beside a JSON document either, for then stderr is for one JSON error at most.
    """
    if output == "jsonl":
        return JsonLines(console, tally)
    if console.is_quiet or (output == "json" and not console.is_animated):
        return Silent(tally)
    if console.is_animated and importlib.util.find_spec("rich") is not None:
        from fanfold.cli.live import LiveView  # rich is an extra, and slow to import

        return LiveView(console, tally, title)
    return PlainLines(console, tally)


class Silent:
    """Counts, and shows nothing."""

    def __init__(self, tally: Tally, now: Callable[[], float] = time.monotonic) -> None:
        self._tally = tally
        self._now = now

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def event(self, item: AgentEvent, /) -> None:
        self._tally.observe(item, self._now())

    def finish(self, row: Row) -> None:
        self._tally.finish(row)


class JsonLines(Silent):
    """Each event as one line of JSON on stdout, flushed; a finished item as an event of type `item_end`.

    When stdout takes no more of them the work is cancelled, and the context ends with the OSError.
    """

    def __init__(self, console: Console, tally: Tally) -> None:
        super().__init__(tally)
        self._console = console
        self._work: asyncio.Task[Any] | None = None
        self._failure: OSError | None = None

    async def __aenter__(self) -> Self:
        self._work = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._failure is not None:
            raise self._failure from None

    def event(self, item: AgentEvent, /) -> None:
        super().event(item)
        self._write(item)

    def finish(self, row: Row) -> None:
        super().finish(row)
        self._write(event("item_end", **row.record(), is_cached=row.is_cached))

    def _write(self, item: AgentEvent) -> None:
        if self._failure is not None:
            return
        try:
            self._console.write_json(item.to_dict())
        except OSError as failure:
            # Not raised here: this is called by a step, which would take it for a failure of its own.
            self._failure = failure
            if self._work is not None:
                self._work.cancel()


class PlainLines(Silent):
    """One line per finished item: `[ 3/12] ok    src/a.py  412 tok  1.8s`."""

    def __init__(self, console: Console, tally: Tally) -> None:
        super().__init__(tally)
        self._console = console

    def finish(self, row: Row) -> None:
        super().finish(row)
        if not row.is_cached:  # the summary counts those; thousands of lines would say nothing new
            self._console.say(f"{self._position()} {_finished_text(row)}")

    def _position(self) -> str:
        total = str(self._tally.total)
        return f"[{self._tally.finished:>{len(total)}}/{total}]"


def _finished_text(row: Row) -> str:
    name = cut(one_line(row.item), _LONGEST_NAME)
    cost = f"{tokens_text(row.total_tokens)} tok  {seconds_text(row.seconds)}"
    if row.success:
        return f"ok    {name}  {cost}"
    return f"FAIL  {name}  {cost}  {cut(row.reason, _LONGEST_REASON)}"
