"""The live view on a terminal: a header, the budget, and one row for each step that runs."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from fanfold.cli.cells import cut, one_line, pad
from fanfold.cli.console import Console
from fanfold.cli.results import Row
from fanfold.cli.safe_text import printable
from fanfold.cli.tally import RunningStep, Tally, seconds_text, tokens_text
from fanfold.contracts.events import AgentEvent

_SECONDS_PER_FRAME = 1 / 6
_BAR_CELLS = 24
_LINES_OF_HEADER = 4
_COST_CELLS = 20
_AGENT_CELLS = 12


class LiveView:
    """Redraws a few times a second, cheaply for any number of items: only those that run have a row."""

    def __init__(self, console: Console, tally: Tally, title: str, now: Callable[[], float] = time.monotonic) -> None:
        self._tally = tally
        self._title = title
        self._now = now
        self._started_s = now()
        rich = RichConsole(file=console.err, no_color=not console.has_colour, highlight=False)
        self._live = Live(self, console=rich, auto_refresh=False, transient=True, redirect_stdout=False)
        self._drawing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._live.start(refresh=True)
        self._drawing = asyncio.create_task(self._draw())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._drawing
        self._live.stop()

    async def _draw(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_PER_FRAME)
            self._live.refresh()

    def event(self, item: AgentEvent, /) -> None:
        self._tally.observe(item, self._now())

    def finish(self, row: Row) -> None:
        self._tally.finish(row)

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, console.size.height
        yield self._header(width)
        if self._tally.limit_tokens is not None:
            yield self._budget(self._tally.limit_tokens)
        running = list(self._tally.running.values())
        room = max(1, height - _LINES_OF_HEADER)
        for step in running[:room]:
            yield self._row(step, width)
        if len(running) > room:
            yield Text(f"  … and {len(running) - room} more", style="dim")

    def _header(self, width: int) -> Text:
        tally = self._tally
        counts = [
            f"{tally.finished}/{tally.total}",
            f"{len(tally.running)} running",
            f"{tally.queued} queued",
        ]
        if tally.from_journal:
            counts.insert(1, f"{tally.from_journal} from the journal")
        spent = f"{tokens_text(tally.total_tokens)} tok · {seconds_text(self._now() - self._started_s)}"
        line = Text(f"{self._title} ", style="bold", no_wrap=True, overflow="ellipsis", end="")
        line.append(" · ".join(counts), style="default not bold")
        if tally.failed:
            line.append(f" · {tally.failed} failed", style="red")
        line.append(f" · {spent}\n", style="dim not bold")
        line.truncate(width, overflow="ellipsis")
        return line

    def _budget(self, limit_tokens: int) -> Text:
        spent = self._tally.total_tokens
        filled = min(_BAR_CELLS, _BAR_CELLS * spent // max(1, limit_tokens))
        style = "red" if spent >= limit_tokens else "yellow" if spent >= limit_tokens * 0.8 else "green"
        line = Text("  budget ")
        line.append("█" * filled, style=style)
        line.append("░" * (_BAR_CELLS - filled), style="dim")
        line.append(f" {tokens_text(spent)} / {tokens_text(limit_tokens)}")
        return line

    def _row(self, step: RunningStep, width: int) -> Text:
        cost = f"{tokens_text(step.total_tokens)} tok  {seconds_text(self._now() - step.started_s)}"
        room = max(8, width - _AGENT_CELLS - _COST_CELLS - 6)
        name = pad(cut(one_line(printable(step.name)), room), room)
        line = Text(f"  {name}  ", no_wrap=True)
        line.append(pad(cut(step.agent, _AGENT_CELLS), _AGENT_CELLS), style="cyan")
        line.append(pad(cost, _COST_CELLS, to_right=True), style="dim")
        return line
