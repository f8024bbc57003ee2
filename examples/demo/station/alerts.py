"""Decide which readings deserve a warning."""

from collections.abc import Iterable, Iterator

from station.config import Config
from station.reading import Reading


def frost_warning(reading: Reading, config: Config) -> str | None:
    if reading.temperature < config.frost_below:
        return f"frost: {reading.temperature:.1f} degrees at {reading.taken_at:%H:%M}"
    return None


def storm_warning(reading: Reading, config: Config) -> str | None:
    if reading.wind_speed > config.storm_above:
        return f"storm: {reading.wind_speed:.1f} m/s at {reading.taken_at:%H:%M}"
    return None


def warnings_for(readings: Iterable[Reading], config: Config) -> Iterator[str]:
    for reading in readings:
        for check in (frost_warning, storm_warning):
            message = check(reading, config)
            if message is not None:
                yield message
