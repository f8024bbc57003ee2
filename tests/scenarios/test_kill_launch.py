"""A process that is killed anywhere within a launch: the tool call, made again, begins no second run."""

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fanfold.contracts.facts import ToolResulted, UserMessaged
from fanfold.stores.run_files import open_run_files
from fanfold.workflow.runs import all_runs
from tests.support.killed_launch import PLACES
from tests.support.open_session import facts_of

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills its children with a signal"),
    pytest.mark.timeout(120),
]
ROOT = Path(__file__).parents[2]
LEAST_PLACES = 10


class Program:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def live(self, workspace: Path, place: int, what: str) -> bool:
        """False when it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        workspace.mkdir(exist_ok=True)
        self._process.stdin.write(f"{workspace} {place} {what}\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline().split()
        assert said in (["ended", "0"], ["ended", "-9"]), said
        return said == ["ended", "0"]


@contextmanager
def started() -> Generator[Program]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_launch"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Program(process)
        process.communicate("")


async def check(workspace: Path) -> None:
    files = open_run_files(workspace)
    [run] = await all_runs(files)
    assert run.status == "completed"
    assert not await files.notices("s")
    facts = facts_of(workspace)
    [result] = [fact.payload for fact in facts if isinstance(fact.payload, ToolResulted)]
    assert result.ok, result.output
    assert run.run_id in result.output
    told = [fact.payload.text for fact in facts if isinstance(fact.payload, UserMessaged)]
    assert sum("<status>completed</status>" in text for text in told) == 1
    assert not any("<status>interrupted</status>" in text for text in told)  # the call, made again, has gone on with it
    asked = Counter((workspace / "asked").read_text().split("\n")[:-1])
    assert set(asked) == {f"look at {place}" for place in PLACES}


def checked(workspace: Path, places: object) -> None:
    try:
        asyncio.run(check(workspace))
    except BaseException as error:
        error.add_note(f"it was killed at {places}")
        raise


def test_wherever_a_launch_is_killed_the_call_that_is_made_again_goes_on_with_its_run(tmp_path: Path) -> None:
    place = 0
    with started() as program:
        for place in itertools.count(1):
            workspace = tmp_path / str(place)
            is_whole = program.live(workspace, place, "send")
            assert is_whole or program.live(workspace, 0, "resume")
            checked(workspace, place)
            if is_whole:
                break
    print(f"{place - 1} places")
    assert place > LEAST_PLACES


@pytest.mark.parametrize("first", [3, 9])
def test_so_it_is_when_those_that_make_it_again_are_killed_too(tmp_path: Path, first: int) -> None:
    with started() as program:
        assert not program.live(tmp_path, first, "send")
        lives = next(place for place in itertools.count(1) if program.live(tmp_path, place, "resume"))
    checked(tmp_path, f"{first}, and {lives - 1} times behind that")
    assert lives > 1
