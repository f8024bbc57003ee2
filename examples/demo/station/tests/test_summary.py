"""Tests of the daily summary."""

from datetime import datetime

import pytest
from station.reading import Reading
from station.summary import summarise


def at(hour: int, temperature: float, wind_speed: float = 0.0) -> Reading:
    return Reading(datetime(2024, 5, 1, hour), temperature, 50.0, wind_speed)


def test_extremes_and_mean() -> None:
    summary = summarise([at(6, 4.0, 2.0), at(12, 14.0, 9.0), at(18, 9.0)])
    assert (summary.coldest, summary.warmest) == (4.0, 14.0)
    assert summary.mean_temperature == 9.0
    assert summary.strongest_wind == 9.0


def test_a_day_without_readings_is_an_error() -> None:
    with pytest.raises(ValueError, match="without readings"):
        summarise([])
