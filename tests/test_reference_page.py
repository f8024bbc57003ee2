"""docs/reference.md names what there is, with its keys, and nothing else."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import fanfold
from fanfold import errors
from fanfold.contracts.event_types import EVENT_TYPES
from fanfold.contracts.governance import BLOCKING_EVENTS
from fanfold.contracts.messages import ToolSpec
from fanfold.contracts.policy import PermissionPolicy
from fanfold.delegation.builtin_agents import ALIASES, BUILTIN_AGENTS
from fanfold.delegation.task_request import task_spec
from fanfold.governance.hooks import HOOK_EVENTS
from fanfold.kernel.hook_answer import MODIFIABLE
from fanfold.kernel.permissions import decide_permission
from fanfold.options import SessionOptions
from fanfold.tools.toolset import builtin_tools
from fanfold.tools.workspace import Workspace
from fanfold.workflow.tool import workflow_spec

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
SENDERS = {"event", "tell", "_emit", "_tell", "emit", "ask_hooks", "fire"}
DICTS: Mapping[str, Any] = {
    "permission_policy": {"allow": ["ls"]},
    "confirmation_policy": {"enabled": False},
    "retention_limits": {"unbounded": True},
    "host_env": {"fixed_time_ms": 1},
    "worker_agents": [{"name": "scout", "kind": "read_only"}],
    "auto_delegation": {"enabled": True},
    "workflow_limits": {"concurrency": 2},
}
"""A value in dicts for each option that takes them."""


def rows(section: str) -> dict[str, list[str]]:
    """The rows of the section's table: the name in the first cell, and the other cells."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({cells[0] for cells in split}) == len(split)
    return {cells[0].strip("`"): cells[1:] for cells in split}


def named(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def keywords_told() -> Iterator[tuple[str, str]]:
    """Each key that the source gives by keyword to an event or a hook whose name stands beside it."""
    for path in Path(fanfold.__file__).parent.rglob("*.py"):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in SENDERS:
                yield from ((str(node.args[0].value), each.arg) for each in node.keywords if each.arg is not None)


def test_every_event_is_on_the_page_in_its_order() -> None:
    assert list(rows("Events")) == list(EVENT_TYPES)


def test_every_hook_is_on_the_page_with_what_it_may_do() -> None:
    points = rows("Hooks")
    assert list(points) == list(HOOK_EVENTS)
    assert {name for name, cells in points.items() if cells[1] == "yes"} == BLOCKING_EVENTS
    assert {name: named(cells[2]) for name, cells in points.items() if named(cells[2])} == {
        name: list(keys) for name, keys in MODIFIABLE.items()
    }


def test_every_key_that_the_source_tells_by_keyword_is_in_its_row() -> None:
    page = {name: named(cells[0]) for section in ("Events", "Hooks") for name, cells in rows(section).items()}
    told = [(name, key) for name, key in keywords_told() if name in page]
    assert len(told) > 100
    assert [(name, key) for name, key in told if key not in page[name]] == []


def specs(root: Path) -> dict[str, ToolSpec]:
    tools = builtin_tools(Workspace(root), allow_unsandboxed_bash=False)
    directing = {"task": task_spec(""), "Workflow": workflow_spec((), takes_inline=True)}
    return {name: tool.spec for name, tool in tools.items()} | directing


def arguments(schema: Any) -> Iterator[tuple[str, bool]]:
    """The arguments of a tool, those within its lists too, and whether each is required."""
    for name, of_one in schema.get("properties", {}).items():
        yield name, name in schema.get("required", ())
        yield from arguments(of_one.get("items", {}))


def test_every_tool_is_on_the_page_with_its_arguments(tmp_path: Path) -> None:
    page = rows("Tools")
    found = specs(tmp_path)
    assert list(page) == list(found)
    for name, spec in found.items():
        listed = list(arguments(spec.parameters))
        assert set(named(page[name][0])) == {argument for argument, _ in listed}, name
        required = {argument for argument, is_required in listed if is_required}
        assert required <= set(re.findall(r"\*\*`(\w+)`\*\*", page[name][0])), name
        decision, _ = decide_permission(PermissionPolicy(), spec, {}, real_path=str)
        assert page[name][2].split(";")[0] == ("yes" if decision == "ask" else "no"), name


def test_every_option_is_on_the_page() -> None:
    assert list(rows("Session options")) == list(SessionOptions.__struct_fields__)


def test_the_options_that_take_dicts_are_marked_and_take_them() -> None:
    marked = [name for name, cells in rows("Session options").items() if cells[0].endswith("or dict")]
    assert sorted(marked) == sorted(DICTS)
    for name, value in DICTS.items():
        merged = getattr(SessionOptions().merged(**{name: value}), name)
        assert type(merged[0] if isinstance(merged, tuple) else merged).__name__ in named(
            rows("Session options")[name][0]
        )


@pytest.mark.parametrize("name", BUILTIN_AGENTS)
def test_a_built_in_agent_is_on_the_page(name: str) -> None:
    agent, [tools, _, rounds, aliases] = BUILTIN_AGENTS[name], rows("Agents")[name]
    assert named(tools) == list(agent.tools)
    assert int(rounds) == agent.max_steps
    assert named(aliases) == [alias for alias, stands_for in ALIASES.items() if stands_for == name]


def test_every_error_is_on_the_page_with_its_code() -> None:
    classes = [
        each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.FanfoldError)
    ]
    assert {name: [named(cell)[0] for cell in cells[:2]] for name, cells in rows("Errors").items()} == {
        each.__name__: [each.code, each.__mro__[1].__name__] for each in classes
    }
