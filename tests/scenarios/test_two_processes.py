"""Two processes start the same workflow, 200 times: one wins, the other is told, and no step runs twice."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import IO

import pytest

from tests.support.rival import STEPS

ROOT = Path(__file__).parents[2]
TIMES = 200


def rival(store: Path, marks: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.rival", str(store), str(marks)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["store", "store.sqlite"])
def test_one_wins_and_the_other_is_told(tmp_path: Path, name: str) -> None:
    marks = tmp_path / "marks"
    rivals = [rival(tmp_path / name, marks) for _ in range(2)]
    wins: Counter[int] = Counter()
    for number in range(TIMES):
        for each in rivals:
            pipes(each)[0].write(f"start w{number}\n")
        said = [pipes(each)[1].readline().strip() for each in rivals]
        [winner] = [index for index in range(2) if said[index] == "running"]
        assert said[1 - winner].startswith(
            f"told workflow 'w{number}' is already active in process {rivals[winner].pid}"
        )
        pipes(rivals[winner])[0].write("release\n")
        assert pipes(rivals[winner])[1].readline() == "won\n"
        wins[winner] += 1
    for each in rivals:
        stdin, stdout = pipes(each)
        stdin.close()
        assert each.wait(timeout=20) == 0
        stdout.close()
    ran = Counter(marks.read_text().splitlines())
    assert len(ran) == TIMES * STEPS
    assert set(ran.values()) == {1}
