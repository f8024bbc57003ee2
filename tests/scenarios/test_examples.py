"""The examples and the README's program run as they stand."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fanfold.kernel.schema import compile_schema
from fanfold.orchestration.specs import parse_specs

ROOT = Path(__file__).parents[2]
PRINTED = {
    "hello.py": "Hello, log.\n['question 0', 'question 1', 'question 2']\n"
    "['shorter: about one', 'shorter: about two']\n",
    "own_executor.py": "{'fan': 'e29a7f31', 'out': '762069bc', 'fold': '255541b1'}\n",
    "own_tool_and_agent.py": "It rains in Bergen.\n[weather: rain in Bergen]\nIt rains in Bergen.\n",
    "resume_a_fan_out.py": "[True, False, True]\nsrc cached - recorded\n"
    "tests re-run - failed before: Task failed: LLM error: the server is down\ndocs cached - recorded\n"
    "['code', 'laws', 'words']\nmodel calls: 3 before, 1 after\nleft over: []\n",
    "resume_after_a_crash.py": "stopped: LLM error: the power went out\nresumed: An empty directory.\n"
    "model calls: 2 before, 1 after\n",
}


def run(program: str, directory: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_example_is_run_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_says(name: str, tmp_path: Path) -> None:
    assert run((ROOT / "examples" / name).read_text(), tmp_path) == PRINTED[name]


def test_the_program_of_the_readme_runs(tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    scripted = program.replace("from fanfold import Agent", "from tests.support.readme_agent import Agent")
    assert run(scripted, tmp_path) == "It is a project.\ndocs True None\nverdict True {'says_so': True}\n"


def test_the_programs_of_the_orchestration_page_run(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "orchestration.md").read_text(), re.DOTALL)
    assert len(programs) == 3
    printed = [
        run(program.replace("from fanfold import Agent, ", "from tests.support.readme_agent import Agent, "), tmp_path)
        for program in programs
    ]
    assert printed[0] == "parser.py True Parses. False\nupload.py True Uploads. False\n0\n"
    assert printed[1] == ""
    assert "consumed_tokens=30" in printed[2]
    assert "name='review', index=1, succeeded=1" in printed[2]
    assert list((tmp_path / ".a3s" / "sessions").rglob("*.jsonl")) == []


def test_the_programs_of_the_sessions_page_run(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sessions.md").read_text(), re.DOTALL)
    printed = [
        run(program.replace("from fanfold import Agent", "from tests.support.readme_agent import Agent"), tmp_path)
        for program in programs
    ]
    background = printed.pop(2).splitlines()
    assert background[0] == "It has begun."
    assert {"agent_start", "turn_end", "agent_end"} <= set(background)
    assert re.fullmatch(r"\['Have an agent .*', '<task_notification task-.*>'\]", background[-1])
    assert printed == [
        "It is a project. True stop\n",
        "accepted\nA README.\n",
        "It is a project.\n2 tenant-b completed\n",
        "It is a project. 1\n",
    ]


def test_the_sample_files_of_the_cli_page_can_be_used() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    schema, steps = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", page, re.DOTALL))
    assert not compile_schema(schema).validate({"purpose": "Tests.", "is_test": True})
    assert [spec.task_id for spec in parse_specs(steps)] == ["deps", "docs", "verdict"]
    [table] = re.findall(r"```csv\n(.*?)```", page, re.DOTALL)
    assert [list(row) for row in csv.DictReader(table.splitlines())] == [["id", "title", "body"]] * 2
