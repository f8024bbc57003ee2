"""One measurement of the weather station."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, order=True)
class Reading:
    taken_at: datetime
    temperature: float  # degrees Celsius
    humidity: float  # percent
    wind_speed: float  # metres per second

    def __post_init__(self) -> None:
        if not -90 <= self.temperature <= 60:
            raise ValueError(f"impossible temperature: {self.temperature}")
        if not 0 <= self.humidity <= 100:
            raise ValueError(f"impossible humidity: {self.humidity}")
        if self.wind_speed < 0:
            raise ValueError(f"impossible wind speed: {self.wind_speed}")
