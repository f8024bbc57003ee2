"""Command line of the weather station."""

import argparse
import sys
from datetime import date
from pathlib import Path

from station.alerts import warnings_for
from station.config import load_config
from station.export import write_csv
from station.parser import parse_lines
from station.storage import ReadingStore
from station.summary import summarise


def main() -> None:
    parser = argparse.ArgumentParser(prog="station")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("import", help="store the readings that come from standard input")
    for name in ("summary", "warnings", "export"):
        commands.add_parser(name).add_argument("day", type=date.fromisoformat)
    options = parser.parse_args()
    config = load_config()
    store = ReadingStore(config.database)
    if options.command == "import":
        print(store.add(parse_lines(sys.stdin)), "readings stored")
        return
    readings = store.of_day(options.day)
    if options.command == "summary":
        print(summarise(readings))
    elif options.command == "warnings":
        print(*warnings_for(readings, config), sep="\n")
    else:
        write_csv(readings, Path(f"{options.day}.csv"))


if __name__ == "__main__":
    main()
