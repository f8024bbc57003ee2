"""Summarise the readings of one day."""

from collections.abc import Sequence
from dataclasses import dataclass

from station.reading import Reading


@dataclass(frozen=True)
class DaySummary:
    count: int
    coldest: float
    warmest: float
    mean_temperature: float
    strongest_wind: float


def summarise(readings: Sequence[Reading]) -> DaySummary:
    if not readings:
        raise ValueError("a day without readings has no summary")
    temperatures = [reading.temperature for reading in readings]
    return DaySummary(
        count=len(readings),
        coldest=min(temperatures),
        warmest=max(temperatures),
        mean_temperature=sum(temperatures) / len(temperatures),
        strongest_wind=max(reading.wind_speed for reading in readings),
    )
