"""Run the benchmarks, each beside its baseline, and print one table.

python -m benchmarks [--write] [name ...]
"""

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import durable, fact_log, fan_out, latency, resume, sessions, simulation, start_up, tool_loop, workflows
from benchmarks.table import HEAD, LEGEND

RESULTS = Path(__file__).with_name("RESULTS.md")
MEASURED = {
    "fan_out": fan_out.measure,
    "tool_loop": tool_loop.measure,
    "start_up": start_up.measure,
    "fact_log": fact_log.measure,
    "durable": durable.measure,
    "resume": resume.measure,
    "latency": latency.measure,
    "sessions": sessions.measure,
    "simulation": simulation.measure,
    "workflows": workflows.measure,
}
WITH_TABLES_OF_THEIR_OWN = ("http_client",)
LIBRARIES = ("aiohttp", "msgspec", "openai")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    names = (*MEASURED, *WITH_TABLES_OF_THEIR_OWN)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which (default: all): {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help=f"also rewrite {RESULTS.name}")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(f"no benchmark '{unknown[0]}'; there are: {', '.join(names)}")
    report = _report([name for name in names if not options.names or name in options.names])
    print(report)
    if options.write:
        RESULTS.write_text(report + "\n", encoding="utf-8")


def _report(names: Iterable[str]) -> str:
    parts = [_heading()]
    rows = [str(row) for name in names if name in MEASURED for row in asyncio.run(MEASURED[name]())]
    if rows:
        parts += ["\n".join([HEAD, *rows]), LEGEND]
    parts += [_own_table(name) for name in names if name in WITH_TABLES_OF_THEIR_OWN]
    return "\n\n".join(parts)


def _own_table(name: str) -> str:
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return f"## {name}\n\n```text\n{printed}\n```"


def _heading() -> str:
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    return (
        f"# Benchmarks\n\n{time.strftime('%Y-%m-%d')}, `{command}`\n\n"
        f"{_processor()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}; "
        f"{', '.join([f'CPython {platform.python_version()}', *_versions()])}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _versions() -> Iterable[str]:
    for name in ("fanfold", *LIBRARIES):
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"no {name}"


if __name__ == "__main__":
    main()
