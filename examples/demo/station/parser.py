"""Parse the lines that the sensor board writes to its serial port."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from station.reading import Reading

FIELDS = 4


class BadLine(ValueError):
    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")
        self.number = number


def parse_line(line: str, number: int = 1) -> Reading:
    """Read `2024-05-01T06:00:00;11.5;82;3.1`."""
    parts = line.strip().split(";")
    if len(parts) != FIELDS:
        raise BadLine(number, f"expected {FIELDS} fields, found {len(parts)}")
    try:
        taken_at = datetime.fromisoformat(parts[0])
        temperature, humidity, wind_speed = map(float, parts[1:])
        return Reading(taken_at, temperature, humidity, wind_speed)
    except ValueError as error:
        raise BadLine(number, str(error)) from error


def parse_lines(lines: Iterable[str]) -> Iterator[Reading]:
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            yield parse_line(line, number)
