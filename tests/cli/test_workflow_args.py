"""Arguments as they are typed: text, unless the workflow wants something else there."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from fanfold.cli.workflow_args import parse_arguments
from fanfold.errors import UsageError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "is_deep": {"type": "boolean"},
        "files": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "number"}},
        "name": {"type": "string"},
        "either": {"type": ["integer", "string"]},
        "level": {"enum": [1, 2]},
        "word": {"enum": ["low", "high"]},
        "one": {"const": 1},
        "choice": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "loose": {"anyOf": [{"type": "integer"}, {"$ref": "#/x"}]},
        "more": {"type": "object"},
        "anything": {},
    },
}


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("n=3", 3),
        ("is_deep=true", True),
        ("name=3", "3"),
        ("name=", ""),
        ("name=a=b", "a=b"),
        ("either=3", "3"),
        ("level=2", 2),
        ("word=low", "low"),
        ("one=1", 1),
        ("choice=null", None),
        ("choice=4", 4),
        ("loose=4", "4"),
        ("anything=4", "4"),
        ("unknown=4", "4"),
        ('more={"a": 1}', {"a": 1}),
        ("files=a.py", ["a.py"]),
        ("sizes=1.5", [1.5]),
        ('files=["a.py", "b.py"]', ["a.py", "b.py"]),
    ],
)
def test_a_value_is_what_the_schema_wants_there(typed: str, value: Any) -> None:
    assert parse_arguments([typed], SCHEMA) == {typed.partition("=")[0]: value}


def test_without_a_schema_each_value_is_text() -> None:
    assert parse_arguments(["n=3", "b=true"], None) == {"n": "3", "b": "true"}


def test_nothing_typed_is_nothing_given() -> None:
    assert parse_arguments([], SCHEMA) is None
    assert parse_arguments(["{}"], SCHEMA) == {}


def test_a_key_of_a_list_may_be_repeated() -> None:
    assert parse_arguments(["files=a", "sizes=1", "files=b", "sizes=2"], SCHEMA) == {
        "files": ["a", "b"],
        "sizes": [1, 2],
    }


def test_later_ones_win_over_a_file_and_an_object(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('\ufeff{"n": 1, "files": ["x"], "name": "f"}', encoding="utf-8")
    typed = [f"@{tmp_path / 'a.json'}", '{"n": 2}', "files=y"]
    assert parse_arguments(typed, SCHEMA) == {"n": 2, "files": ["y"], "name": "f"}


def test_stdin_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"n": 7}')))
    assert parse_arguments(["@-"], SCHEMA) == {"n": 7}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["n=abc"], "--args n: 'abc' is no integer"),
        (["n=1", "n=2"], "--args n: it is given twice"),
        (["is_deep=yes"], "--args is_deep: 'yes' is no boolean"),
        (["sizes=x"], "--args sizes: 'x' is no number"),
        (["more=x"], "--args more: 'x' is no object"),
        (["choice=x"], "'x' is no integer or null"),
        (["abc"], "--args abc: give key=value, @file.json or a JSON object"),
        (["=1"], "give key=value"),
        (["{1}"], "--args: it is no JSON object"),
        (["{" * 5000], "--args: it is no JSON object"),
        (["@gone.json"], "cannot read gone.json: No such file"),
    ],
)
def test_what_is_no_argument_is_refused_by_name(typed: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_arguments(typed, SCHEMA)
    assert message in str(refused.value)


def test_a_file_that_holds_a_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(UsageError, match="it is no JSON object"):
        parse_arguments([f"@{tmp_path / 'a.json'}"], None)
