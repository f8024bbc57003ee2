"""Records of worktrees: one holder at a time, and the last whole line counts."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fanfold.tools.worktree_record import MOST_BYTES, Claim, Record, record_path

pytestmark = pytest.mark.skipif(os.name != "posix", reason="worktrees need a POSIX system")
BASE = "a" * 40


def taken(folder: Path) -> Claim:
    claim = Claim.take(folder)
    assert claim is not None
    return claim


def test_one_has_it_at_a_time_though_each_removes_it_in_the_end(tmp_path: Path) -> None:
    holders: list[int] = []
    most: list[int] = []

    def hold(number: int) -> int:
        held = 0
        for _ in range(1_000):
            claim = Claim.take(tmp_path / "t")
            if claim is not None:
                holders.append(number)
                for _ in range(3):
                    time.sleep(0)  # so that the others get their turns
                    most.append(len(holders))
                holders.remove(number)
                claim.release()
                held += 1
        return held

    with ThreadPoolExecutor(8) as threads:
        held = list(threads.map(hold, range(8)))
    assert max(most) == 1
    assert sum(held) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_last_whole_line_counts(tmp_path: Path) -> None:
    claim = taken(tmp_path / "t")
    assert claim.last is None
    claim.write(Record(state="making", task_id="x" * MOST_BYTES, base=BASE))
    claim.write(Record(state="working", task_id="t", base=BASE, branch="fanfold/t"))
    claim.release()
    with record_path(tmp_path / "t").open("ab") as file:
        file.write(b'\n{"state":"ended","task_id"')
    claim = taken(tmp_path / "t")
    assert claim.last == Record(state="working", task_id="t", base=BASE, branch="fanfold/t")
    claim.write(Record(state="working", task_id="u", base=BASE))  # behind what is torn
    claim.release()
    claim = taken(tmp_path / "t")
    assert claim.last is not None
    assert claim.last.task_id == "u"
    claim.release()


@pytest.mark.parametrize(("key", "stays"), [("k", True), ("", False)])
def test_what_nobody_can_go_on_from_is_not_remembered(tmp_path: Path, key: str, *, stays: bool) -> None:
    claim = taken(tmp_path / "t")
    claim.write(Record(state="ended", task_id="t", base=BASE, key=key))
    claim.release()
    claim.release()
    assert record_path(tmp_path / "t").exists() == stays
