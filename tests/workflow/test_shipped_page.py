"""docs/shipped-workflows.md: its program runs, and its tables name what there is and nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest

import fanfold
from fanfold.cli.review import command
from fanfold.testing import ScriptedModel, as_json
from fanfold.workflow.registry import shipped_scripts
from fanfold.workflow.shipped.review_changes import DIMENSIONS
from tests.workflow.fake_ctx import FakeHost, played

PAGE = (Path(__file__).parents[2] / "docs" / "shipped-workflows.md").read_text(encoding="utf-8")
ELSEWHERE = {
    "model",
    "concurrency",
    "budget",
    "wait",
    "allow_failures",
    "config",
    "workspace",
    "quiet",
    "no_color",
    "no_input",
}


class ScriptedAgent(fanfold.Agent):
    @classmethod
    def create(cls, config_source: Any = None, **more: Any) -> "ScriptedAgent":
        answer = as_json({"reason": "it fails", "category": "bug"})
        return super().create(models={"scripted/model": ScriptedModel(lambda request: answer)}, **more)


def names_in(part: str) -> set[str]:
    """What the first column of its tables has in code marks."""
    rows = re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w-]+)[^`]*`", row)}


def test_the_program_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(program.replace("from fanfold import Agent", ""), {"Agent": ScriptedAgent})
    assert capsys.readouterr().out == (
        "completed 6\nLogin fails since Monday bug\n{'id': 18, 'body': 'Could you add dark mode?'} bug\n"
    )


@pytest.mark.parametrize("name", ["review-changes", "migrate", "triage"])
def test_the_page_names_all_args(name: str) -> None:
    [part] = re.findall(rf"^## {name}.*?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    table = part[part.index("| Arg |") :]
    schema = shipped_scripts()[name].meta.args_schema
    assert schema is not None
    assert names_in(table) == set(schema["properties"])


def test_the_page_names_all_options_of_the_command() -> None:
    table = PAGE[PAGE.index("| Option |") : PAGE.index("| Arg |")]
    assert names_in(table) == {"PATH"} | {
        max(each.opts, key=len) if each.opts[0].startswith("-") else "PATH"
        for each in command.params
        if each.name not in ELSEWHERE
    }
    assert all(f"`{name}`" in table for name in DIMENSIONS)


def test_the_page_names_all_that_a_review_gives() -> None:
    value = played("review-changes", {"files": []}, FakeHost(lambda asked: None))
    assert all(f"`{name}`" in PAGE for name in value)
