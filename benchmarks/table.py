"""Rows of the one table: a cost of ours beside its baseline of the same run, with the limit it has to keep."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.costs import Cost

HEAD = "| what | fanfold | baseline | wall | figure | limit | aim | |\n|---|---|---|---|---|---|---|---|"
LEGEND = (
    "CPU (user + system) of the measured process, medians of interleaved repetitions; `wall` is fanfold / baseline. "
    "A figure with an `x` is the median of the ratios of the single repetitions, so that both sides of each ratio saw "
    "the same machine. A limit is the most that a figure may be, and with `>=` the least."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    fanfold: str
    baseline: str = "-"
    wall: str = "-"
    figure: float
    unit: str = "x"
    """Of `figure`, `limit` and `aim`."""
    limit: float
    aim: float | None = None
    is_floor: bool = False
    """The figure may not be below `limit`, rather than not above it."""

    def __str__(self) -> str:
        sign = ">= " if self.is_floor else ""
        limits = (f"{sign}{value:g}{self.unit}" if value is not None else "" for value in (self.limit, self.aim))
        figure = f"{self.figure:.3g}{self.unit}"
        cells = (self.what, self.fanfold, self.baseline, self.wall, figure, *limits, self.verdict)
        return f"| {' | '.join(cells)} |"

    @property
    def verdict(self) -> str:
        if not self._keeps(self.limit):
            return "**missed**"
        return "aim met" if self.aim is not None and self._keeps(self.aim) else "ok"

    def _keeps(self, bound: float) -> bool:
        return self.figure >= bound if self.is_floor else self.figure <= bound


def ratio_row(
    what: str,
    ours: Sequence[Cost],
    theirs: Sequence[Cost],
    against: str,
    *,
    per: tuple[int, int],
    limit: float,
    aim: float | None = None,
    by_wall: bool = False,
) -> Row:
    """`ours` over `theirs` per unit of work; `per` is how many units one repetition did, of ours and of theirs.

    `by_wall`: judged by the wall and not by the CPU, because a disk or a clock is waited for.
    """
    mine, other = per
    pairs = zip(ours, theirs, strict=True)
    ratios = [(a.wall_s / b.wall_s if by_wall else a.cpu_s / b.cpu_s) * other / mine for a, b in pairs]
    return Row(
        what=what,
        fanfold=_milliseconds([cost.cpu_s / mine for cost in ours]),
        baseline=f"{_milliseconds([cost.cpu_s / other for cost in theirs])} {against}",
        wall=" / ".join(
            _milliseconds([cost.wall_s / count for cost in costs]) for costs, count in ((ours, mine), (theirs, other))
        ),
        figure=statistics.median(ratios),
        limit=limit,
        aim=aim,
    )


def _milliseconds(seconds: Sequence[float]) -> str:
    return f"{1000 * statistics.median(seconds):.3g} ms"
