"""Rows of the one table: a cost of ours beside its baseline of the same run, with the limit it has to keep."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.costs import Cost

HEAD = "| what | fanfold | baseline | wall | figure | limit | aim | |\n|---|---|---|---|---|---|---|---|"
LEGEND = (
    "CPU (user + system) of the measured process, medians of interleaved repetitions; `wall` is fanfold / baseline. "
    "A figure with an `x` is the median of the ratios of the single repetitions, so that both sides of each ratio saw "
    "the same machine."
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

    def __str__(self) -> str:
        limits = (f"{value:g}{self.unit}" if value is not None else "" for value in (self.limit, self.aim))
        figure = f"{self.figure:.3g}{self.unit}"
        cells = (self.what, self.fanfold, self.baseline, self.wall, figure, *limits, self.verdict)
        return f"| {' | '.join(cells)} |"

    @property
    def verdict(self) -> str:
        if self.figure > self.limit:
            return "**missed**"
        return "aim met" if self.aim is not None and self.figure <= self.aim else "ok"


def ratio_row(
    what: str,
    ours: Sequence[Cost],
    theirs: Sequence[Cost],
    against: str,
    *,
    per: tuple[int, int],
    limit: float,
    aim: float | None = None,
) -> Row:
    """`ours` over `theirs` per unit of work; `per` is how many units one repetition did, of ours and of theirs."""
    mine, other = per
    ratios = [a.cpu_s / mine / (b.cpu_s / other) for a, b in zip(ours, theirs, strict=True)]
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
