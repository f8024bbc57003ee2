import csv
from collections.abc import Iterable
from pathlib import Path

from station.reading import Reading

COLUMNS = ("time", "temperature_c", "humidity_percent", "wind_m_s")


def write_csv(readings: Iterable[Reading], path: Path) -> int:
    """Write one row per reading, oldest first, and return how many there were."""
    rows = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for reading in sorted(readings):
            writer.writerow([reading.taken_at.isoformat(), reading.temperature, reading.humidity, reading.wind_speed])
            rows += 1
    return rows
