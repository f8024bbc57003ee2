"""What all shipped workflows share: they can be launched by name, and their args are checked before anything runs."""

from typing import Any

import pytest

from fanfold.errors import WorkflowInputError
from fanfold.kernel.schema import compile_schema
from fanfold.kernel.workflow_meta import parse_args
from fanfold.workflow.registry import shipped_scripts
from fanfold.workflow.sandbox import check_inline
from tests.workflow.fake_ctx import check

NAMES = ("migrate", "review-changes", "triage")
FILE = {"path": "a.py", "status": "modified", "patch": "@@ -1 +1 @@\n-a\n+b\n"}


def test_three_workflows_are_shipped_and_say_what_they_take() -> None:
    shipped = shipped_scripts()
    assert tuple(sorted(shipped)) == NAMES
    for script in shipped.values():
        assert script.kind == "shipped"
        assert script.entry == script.meta.name.replace("-", "_")
        assert script.meta.when_to_use
        assert script.meta.phases
        assert script.meta.args_schema is not None


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_script_passes_the_check_of_inline_scripts(name: str) -> None:
    check(check_inline(shipped_scripts()[name].text or ""))


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_of_a_shipped_script_can_be_matched(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(shipped_scripts()[name].text or "", namespace)
    schemas = [value for key, value in namespace.items() if key.endswith("_SCHEMA")]
    for schema in schemas:
        compile_schema(schema)
        assert schema["additionalProperties"] is False


TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("review-changes", {}),
    ("review-changes", {"files": []}),
    ("review-changes", {"files": [FILE], "base": "main~2", "summary": "s", "min_severity": "high", "max_findings": 3}),
    ("review-changes", {"dimensions": ["security", {"name": "naming", "instructions": "Look at names."}]}),
    ("migrate", {"task": "rename f to g"}),
    ("migrate", {"task": "t", "sites": ["a.py"], "verify": False, "max_sites": 1}),
    ("migrate", {"task": "t", "find": "calls of f"}),
    ("triage", {"items": [], "categories": ["a", "b"]}),
    ("triage", {"items": ["x", {"id": 1}], "categories": [{"name": "a", "description": "d"}, "b"], "voters": 5}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("review-changes", {"file": []}),
    ("review-changes", {"files": [{"status": "modified"}]}),
    ("review-changes", {"files": [{**FILE, "diff": ""}]}),
    ("review-changes", {"base": "--output=x"}),
    ("review-changes", {"dimensions": []}),
    ("review-changes", {"dimensions": [" "]}),
    ("review-changes", {"dimensions": [{"name": "naming"}]}),
    ("review-changes", {"min_severity": "worst"}),
    ("review-changes", {"max_findings": 0}),
    ("migrate", {}),
    ("migrate", {"task": " "}),
    ("migrate", {"task": "t", "sites": []}),
    ("migrate", {"task": "t", "sites": ["a"], "find": "b"}),
    ("migrate", {"task": "t", "base": "main"}),
    ("triage", {"items": ["x"]}),
    ("triage", {"items": ["x"], "categories": ["only"]}),
    ("triage", {"items": [""], "categories": ["a", "b"]}),
    ("triage", {"items": [7], "categories": ["a", "b"]}),
    ("triage", {"items": ["x"], "categories": ["a", "b"], "voters": 0}),
]


@pytest.mark.parametrize(("name", "args"), TAKEN)
def test_good_args_are_taken(name: str, args: dict[str, Any]) -> None:
    assert parse_args(args, shipped_scripts()[name].meta, 1_048_576) == args


@pytest.mark.parametrize(("name", "args"), REFUSED)
def test_bad_args_are_refused_before_anything_runs(name: str, args: dict[str, Any]) -> None:
    with pytest.raises(WorkflowInputError) as caught:
        parse_args(args, shipped_scripts()[name].meta, 1_048_576)
    assert caught.value.code == "bad_args"
