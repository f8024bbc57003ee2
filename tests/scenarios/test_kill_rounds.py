"""Real processes, killed at each place of a run with two tool rounds, then gone on from here and on a second node."""

import asyncio
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.contracts.codec import decode_fact
from fanfold.contracts.facts import Fact, TextTurn, ToolResulted, ToolTurn
from tests.support.killed_run import ANSWER, ROUNDS, RUN
from tests.support.nodes import stored_checkpoint, workspace_facts
from tests.support.resumable_run import open_store

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills its children with a signal"),
    pytest.mark.timeout(120),
]
ROOT = Path(__file__).parents[2]
TOOL_KEYS = {f"s:1:{cycle}:call-1" for cycle in range(ROUNDS)}


class Lives:
    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed_run"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def live(self, folder: Path, store: Path, *, place: int = 0, what: str) -> int:
        """The exit status of one life."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(folder, store, place, what, file=self._server.stdin, flush=True)
        word, status = self._server.stdout.readline().split()
        assert word == "ended"
        return int(status)

    def close(self) -> None:
        self._server.communicate()


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    server = Lives()
    yield server
    server.close()


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode((folder / "result").read_bytes())
    return found


def counted(folder: Path, name: str) -> Counter[str]:
    path = folder / name
    return Counter(path.read_text().splitlines() if path.exists() else ())


def known_to_the_store(store_path: Path) -> list[Fact]:
    """The facts to which the checkpoint of the killed run leads, if it has one: also those that came after it."""

    async def look() -> list[Fact]:
        async with open_store(store_path) as store:
            found = await stored_checkpoint(store, RUN)
            return [] if found is None else [decode_fact(each) for each in await store.read(found.facts.log)]

    return asyncio.run(look())


def check(folder: Path, before: dict[str, Counter[str]], known: list[Fact], expected: dict[str, Any]) -> None:
    """What the life after a kill has done, given the facts that it could know."""
    found = result(folder)
    assert found["text"] == ANSWER
    assert found["history"] == expected["history"]
    assert (found["usage"], found["tool_calls_count"]) == (expected["usage"], expected["tool_calls_count"])
    turns = sum(isinstance(fact.payload, ToolTurn | TextTurn) for fact in known)
    results = sum(isinstance(fact.payload, ToolResulted) for fact in known)
    asked = counted(folder, "asked") - before["asked"]
    ran = counted(folder, "ran") - before["ran"]
    assert asked == Counter(str(number) for number in range(turns, ROUNDS + 1))  # recorded answers: never again
    assert ran == Counter(f"s:1:{cycle}:call-1" for cycle in range(results, ROUNDS))  # and recorded results
    assert set(counted(folder, "ran")) <= TOOL_KEYS


@pytest.mark.parametrize("kind", ["store", "store.sqlite"])
def test_whenever_a_run_is_killed_it_goes_on_here_and_on_a_node_that_has_only_the_store(
    tmp_path: Path, lives: Lives, kind: str
) -> None:
    whole = tmp_path / "whole"
    assert lives.live(whole, whole / kind, what="send") == 0
    expected = result(whole)
    places = expected["places"]
    killed: list[str] = []
    for number, place in enumerate(places, 1):
        here = tmp_path / f"{number}-here"
        assert lives.live(here, here / kind, place=number, what="send") == -9, place
        killed.append(place)
        there = tmp_path / f"{number}-there"
        there.mkdir()
        for path in here.glob(f"{kind}*"):
            copy = shutil.copytree if path.is_dir() else shutil.copyfile
            copy(path, there / path.name)

        recorded = workspace_facts(here)
        before = {name: counted(here, name) for name in ("asked", "ran")}
        assert lives.live(here, here / kind, what=RUN) == 0, place
        check(here, before, recorded, expected)

        shared = known_to_the_store(there / kind)
        assert shared == recorded[: len(shared)], place
        assert lives.live(there, there / kind, what=RUN) == 0, place
        check(there, {"asked": Counter(), "ran": Counter()}, shared, expected)
        total = counted(here, "ran")
        assert max(total.values()) <= 2, place  # at most once more than it was killed
    assert killed == places
    assert_every_point_of_a_round_is_among(places)


def assert_every_point_of_a_round_is_among(places: list[str]) -> None:
    """In this order, in each of the rounds."""
    order = [
        "before a call of the model",
        "after a call of the model",
        "before the append of model:",
        "after the append of model:",
        "before the tool put",
        "inside the tool put",
        "before the append of tool-result:",
        "after the append of tool-result:",
        "before the append to facts/s",
        "after the append to facts/s",
        "before the change of checkpoint/",
        "after the change of checkpoint/",
    ]
    found = [each for place in places for each in order if place.startswith(each)]
    assert found[: ROUNDS * len(order)] == order * ROUNDS, found
    assert places[-1].startswith("after the change of checkpoint/")  # which removes it
