"""The first signal stops in order, the second at once, and a signal is never lost."""

import signal
import subprocess
import sys

import pytest

from fanfold.cli.stopping import run_until_stopped

PROGRAM = """
import asyncio
from fanfold.cli.endings import StoppedBySignal
from fanfold.cli.stopping import run_until_stopped

async def work():
    print("running", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("cleaning up", flush=True)
        {cleanup}

try:
    run_until_stopped(work())
except StoppedBySignal as stop:
    print("stopped by", stop.signal_number, flush=True)
"""


def begin(cleanup: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(cleanup=cleanup)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_work_clean_up(number: signal.Signals) -> None:
    process = begin("await asyncio.sleep(0)")
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert out.splitlines() == ["cleaning up", f"stopped by {int(number)}"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("cleanup", ["await asyncio.Event().wait()", "__import__('time').sleep(60)"])
def test_the_second_signal_ends_a_clean_up_that_hangs(number: signal.Signals, cleanup: str) -> None:
    process = begin(cleanup)
    process.send_signal(number)
    assert process.stdout is not None
    assert process.stdout.readline() == "cleaning up\n"
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 128 + number


def test_without_a_signal_the_result_is_given_back_and_the_handlers_are_as_before() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    async def work() -> int:
        return 7

    assert run_until_stopped(work()) == 7
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_an_error_of_the_work_is_its_own() -> None:
    async def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run_until_stopped(work())
