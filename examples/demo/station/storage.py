import sqlite3
from collections.abc import Iterable
from datetime import date, datetime
from pathlib import Path

from station.reading import Reading

SCHEMA = """
CREATE TABLE IF NOT EXISTS readings (
    taken_at TEXT PRIMARY KEY,
    temperature REAL NOT NULL,
    humidity REAL NOT NULL,
    wind_speed REAL NOT NULL
)
"""


class ReadingStore:
    """Keeps readings in a SQLite database; a reading of the same time is replaced."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path)
        self._connection.execute(SCHEMA)

    def add(self, readings: Iterable[Reading]) -> int:
        rows = [(r.taken_at.isoformat(), r.temperature, r.humidity, r.wind_speed) for r in readings]
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO readings VALUES (?, ?, ?, ?)", rows)
        return len(rows)

    def of_day(self, day: date) -> list[Reading]:
        query = "SELECT * FROM readings WHERE taken_at LIKE ? ORDER BY taken_at"
        rows = self._connection.execute(query, (f"{day.isoformat()}T%",))
        return [Reading(datetime.fromisoformat(taken_at), *values) for taken_at, *values in rows]

    def close(self) -> None:
        self._connection.close()
