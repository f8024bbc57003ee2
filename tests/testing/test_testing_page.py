"""The programs of docs/testing.md run as they stand."""

import re
from pathlib import Path

import pytest

from fanfold.testing import Cassette

pytest_plugins = ["pytester"]
LOADED = Cassette
"""Before pytester copies `sys.modules`, so that its runs share what is loaded."""
PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
RECORDED = """
import pytest
from fanfold.testing import ScriptedModel

@pytest.fixture
def cassette_model():
    return ScriptedModel(["It is Oslo."])
"""


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "fanfold.testing.pytest_plugin", *args)


def test_the_tests_of_the_testing_page_pass(pytester: pytest.Pytester) -> None:
    weather, goals, conftest, capital, crashes, replays = programs()
    pytester.makepyfile(test_weather=weather, test_goals=goals, test_capital=capital)
    pytester.makepyfile(test_crashes=crashes, test_replays=replays)
    pytester.makeconftest(RECORDED)
    run(pytester, "--fanfold-record", "test_capital.py").assert_outcomes(passed=1)
    pytester.makeconftest(conftest)
    run(pytester).assert_outcomes(passed=6)


def test_the_page_names_every_fixture_and_option(pytester: pytest.Pytester) -> None:
    page = PAGE.read_text()
    listed = run(pytester, "--fixtures", "-q").outlines
    ours = [line.split(" ")[0] for line in listed if "fanfold/testing/pytest_plugin.py" in line]
    assert len(ours) == 7
    assert [name for name in ours if f"`{name}" not in page and f"def {name}" not in page] == []
    for option in ("--fanfold-record", "--fanfold-cassettes"):
        assert option in page
        assert option in run(pytester, "--help").stdout.str()
