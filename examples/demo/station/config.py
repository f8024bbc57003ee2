import tomllib
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PATH = Path("station.toml")


@dataclass(frozen=True)
class Config:
    station: str
    database: Path
    server: str | None = None
    frost_below: float = 0.0
    storm_above: float = 17.0


def load_config(path: Path = DEFAULT_PATH) -> Config:
    with path.open("rb") as file:
        table = tomllib.load(file)
    unknown = set(table) - set(Config.__dataclass_fields__)
    if unknown:
        raise ValueError(f"{path}: unknown settings: {', '.join(sorted(unknown))}")
    table["database"] = path.parent / table["database"]
    return Config(**table)
