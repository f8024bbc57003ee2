"""Send readings to the weather server over HTTP."""

import json
import urllib.request
from collections.abc import Sequence

from station.reading import Reading
from station.retry import retry

BATCH = 100
TIMEOUT_SECONDS = 10


def upload(readings: Sequence[Reading], server: str, station: str) -> None:
    for start in range(0, len(readings), BATCH):
        batch = readings[start : start + BATCH]
        retry(lambda batch=batch: _post(batch, server, station))


def _post(batch: Sequence[Reading], server: str, station: str) -> None:
    body = {
        "station": station,
        "readings": [
            {"at": r.taken_at.isoformat(), "t": r.temperature, "h": r.humidity, "w": r.wind_speed} for r in batch
        ],
    }
    request = urllib.request.Request(
        f"{server}/v1/readings",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        response.read()
