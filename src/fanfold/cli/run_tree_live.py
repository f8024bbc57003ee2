"""The live tree of a workflow run on a terminal."""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from fanfold.cli.console import Console
from fanfold.cli.run_tree import line_of, notice_text, wall_ms
from fanfold.cli.run_tree_rows import frame
from fanfold.cli.run_tree_state import RunTree
from fanfold.contracts.events import AgentEvent

_SECONDS_PER_FRAME = 1 / 6
_MOST_LINES = 200
"""Printed above the tree at once; a script that logs faster than anybody reads loses the oldest of them here."""


class LiveRun:
    """Redraws a few times a second while something changes, else once a second for its clocks.

    The id of the run, logs and failures are printed above the tree and stay there, as its last frame does.
    """

    def __init__(self, console: Console, tree: RunTree, now_ms: Callable[[], int] = wall_ms) -> None:
        self._console = console
        self._tree = tree
        self._now_ms = now_ms
        rich = RichConsole(file=console.err, no_color=not console.has_colour, highlight=False)
        self._live = Live(self, console=rich, auto_refresh=False, redirect_stdout=False)
        self._lines: list[str] = []
        """Not printed yet."""
        self._drawn = (-1, 0)
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
        self._print()
        self._live.stop()
        if self._tree.notice is not None:
            self._console.say(notice_text({**self._tree.notice, "error": None}))  # told after it

    def event(self, item: AgentEvent, /) -> None:
        changes = self._tree.changes
        row = self._tree.observe(item, self._now_ms())
        is_news = item.type == "task_started" or (row is not None and row.status == "failed")
        if self._tree.changes != changes and (
            is_news or item.payload.get("type") in ("workflow_log", "workflow_failure", "workflow_waiting")
        ):
            self._lines.append(line_of(item, row) or "")

    async def _draw(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_PER_FRAME)
            self.tick()

    def tick(self) -> None:
        """Draw, if a frame would differ from the last one."""
        state = (self._tree.changes, self._now_ms() // 1000)
        if state != self._drawn:
            self._drawn = state
            self._print()
            self._live.refresh()

    def _print(self) -> None:
        lost = len(self._lines) - _MOST_LINES
        if lost > 0:
            self._lines[:lost] = [f"… {lost} lines are not shown"]
        if self._lines:
            lines, self._lines = self._lines, []
            self._live.console.print(Text("\n".join(lines)))

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        # One row is left to the cursor, and two columns to the ^C that a terminal writes where it stands: were it to
        # wrap there, the next frame would begin a line too low.
        width = max(1, options.max_width - len("^C"))
        for line in frame(self._tree, width, max(1, console.size.height - 1), self._now_ms()):
            for text, style in line:
                yield Segment(text, _STYLES[style])
            yield Segment.line()


_STYLES = {name: Style.parse(name) for name in ("", "bold", "dim", "red", "yellow", "green", "cyan")}
