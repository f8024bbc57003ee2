"""The programs of docs/workflows.md run as they stand: the script of a project, and the one that a host registers."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import ServerThread, configure
from tests.cli.workflow_project import Fanfold, ready_script
from tests.support.chat_server import Answer, Json, Say

PAGE = Path(__file__).parents[2] / "docs" / "workflows.md"
SCRIPT, PROGRAM = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def answer(asked: Json) -> Answer:
    prompt = str(asked["messages"][-1]["content"])
    if "Which names" in prompt:
        return Say(json.dumps({"names": ["x", "count"]}))
    if "Is the name" in prompt:
        return Say(json.dumps({"is_unclear": " x " in prompt}))
    return Say("files")


def test_the_script_does_what_its_description_says(
    fanfold: Fanfold, serve: Callable[..., ServerThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    configure(tmp_path, serve(answer))
    ready_script(tmp_path, SCRIPT, "audit")
    checked = fanfold("workflow", "validate", "audit")
    assert (checked.code, checked.err) == (0, "0 errors, 0 warnings\n")
    done = fanfold("workflow", "run", "audit", "--args", "areas=src", "--args", "areas=docs", "--budget", "200k")
    assert (done.code, json.loads(done.out)) == (0, {"src": ["x"], "docs": ["x"]})
    assert "log: 2 names are confirmed" in done.err


def test_the_program_registers_and_runs_one(serve: Callable[..., ServerThread], tmp_path: Path) -> None:
    configure(tmp_path, serve(answer))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=25, check=True
    )
    assert done.stdout.splitlines() == ["completed 2 {'src': 'files', 'docs': 'files'}", "completed"]
