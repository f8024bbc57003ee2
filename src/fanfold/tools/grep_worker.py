"""Matches lines with Python's `re`, as a process of its own: nothing but killing it stops a pattern that
backtracks.

Run as a script with only the standard library. Reads one JSON job from stdin; writes `<file index> <number>`
lines, the number being that of a matching line (1-based) or, with `counts`, how many lines of the file match.
Exit code 2: the pattern is wrong, stderr says how.
"""

import json
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

SNIFFED_BYTES = 8_192


def matches(job: dict[str, Any], pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    for index, name in enumerate(job["files"]):
        try:
            numbers = _lines(name, pattern, job["per_file"])
        except OSError:  # unreadable or gone since the walk: nothing to find in it
            continue
        if job["counts"]:
            numbers = [len(numbers)] if numbers else []
        for number in numbers:
            yield index, number


def _lines(name: str, pattern: re.Pattern[str], most: int) -> list[int]:
    found: list[int] = []
    with open(name, "rb") as file:
        if b"\0" in file.read(SNIFFED_BYTES):
            return found
        file.seek(0)
        for number, line in enumerate(file, 1):
            if pattern.search(line.removesuffix(b"\n").decode("utf-8", "replace")):
                found.append(number)
                if len(found) == most:
                    break
    return found


def main() -> int:
    job = json.load(sys.stdin)
    # Python warns of sets that a later version will read otherwise; ripgrep reads them so already.
    warnings.simplefilter("error", FutureWarning)
    try:
        pattern = re.compile(job["query"], 0 if job["case_sensitive"] else re.IGNORECASE)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        sys.stderr.write(str(error))
        return 2
    for found, (index, number) in enumerate(matches(job, pattern), 1):
        sys.stdout.write(f"{index} {number}\n")
        if found == job["enough"]:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
