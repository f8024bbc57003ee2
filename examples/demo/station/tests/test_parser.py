"""Tests of the parser of sensor lines."""

from datetime import datetime

import pytest
from station.parser import BadLine, parse_line, parse_lines


def test_a_whole_line() -> None:
    reading = parse_line("2024-05-01T06:00:00;11.5;82;3.1")
    assert reading.taken_at == datetime(2024, 5, 1, 6)
    assert reading.humidity == 82


def test_a_missing_field_names_the_line() -> None:
    with pytest.raises(BadLine, match="line 7: expected 4 fields, found 3"):
        parse_line("2024-05-01T06:00:00;11.5;82", number=7)


def test_an_impossible_value_is_refused() -> None:
    with pytest.raises(BadLine, match="impossible humidity"):
        parse_line("2024-05-01T06:00:00;11.5;182;3.1")


def test_comments_and_empty_lines_are_skipped() -> None:
    assert list(parse_lines(["# started", "", "  "])) == []
