"""Python programs of a few lines that a test runs in a process of their own, with a limit of time."""

import subprocess
import sys


def run_script(script: str, *args: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", script, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
