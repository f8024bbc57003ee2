"""Laws of worker agents: what they leave out comes from the built-in agent of their kind."""

from typing import Any

import pytest

from fanfold.contracts.agents import AgentDefinition, WorkerAgentSpec, WorkerKind
from fanfold.contracts.messages import ToolSpec
from fanfold.contracts.policy import PermissionPolicy
from fanfold.delegation.builtin_agents import ALIASES, BUILTIN_AGENTS, find_agent
from fanfold.delegation.worker_agents import as_definition, parse_worker, worker_definition
from fanfold.errors import ConfigError
from fanfold.kernel.permissions import decide_permission, visible_tools
from fanfold.kernel.worker_kinds import parse_kind


def tool(name: str, *, is_read_only: bool = False) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={}, is_read_only=is_read_only)


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        ("read_only", "explore"),
        ("planner", "plan"),
        ("implementer", "general"),
        ("verifier", "verification"),
        ("reviewer", "review"),
    ],
)
def test_a_worker_is_the_built_in_agent_of_its_kind_under_its_own_name(kind: WorkerKind, base: str) -> None:
    made, built_in = worker_definition(WorkerAgentSpec(name="w", kind=kind)), BUILTIN_AGENTS[base]
    assert made.name == "w"
    for field in set(AgentDefinition.__struct_fields__) - {"name"}:
        assert getattr(made, field) == getattr(built_in, field)


def test_what_a_worker_says_wins_over_its_kind() -> None:
    policy = PermissionPolicy(allow=("read",), default_decision="deny")
    spec = WorkerAgentSpec(
        name="w",
        description="d",
        kind="reviewer",
        prompt="p",
        permissions=policy,
        tools=("read",),
        model="a/b",
        max_steps=2,
        confirmation_inheritance="deny_on_ask",
        hidden=True,
    )
    assert as_definition(spec) == AgentDefinition(
        name="w",
        description="d",
        prompt="p",
        tools=("read",),
        permissions=policy,
        model="a/b",
        max_steps=2,
        confirmation_inheritance="deny_on_ask",
        is_hidden=True,
    )


def test_a_custom_worker_may_use_everything_and_asks_for_all_of_it() -> None:
    made = worker_definition(WorkerAgentSpec(name="w"))
    assert (made.tools, made.max_steps, made.prompt) == (("*",), 30, "")
    specs = (tool("read", is_read_only=True), tool("bash"), tool("mcp__a__b"))
    assert visible_tools(made.permissions, specs) == specs
    assert {decide_permission(made.permissions, spec, {})[0] for spec in specs} == {"ask"}


def test_a_definition_stays_what_it_is() -> None:
    assert as_definition(BUILTIN_AGENTS["plan"]) is BUILTIN_AGENTS["plan"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("read_only", "read_only"),
        ("readonly", "read_only"),
        ("read-only", "read_only"),
        ("explore", "read_only"),
        ("Scanner", "read_only"),
        ("plan", "planner"),
        ("implementation", "implementer"),
        ("general", "implementer"),
        ("executor", "implementer"),
        ("verification", "verifier"),
        ("verify", "verifier"),
        ("tester", "verifier"),
        ("review", "reviewer"),
        ("code-review", "reviewer"),
        ("code_reviewer", "reviewer"),
        (" custom ", "custom"),
    ],
)
def test_kinds_are_known_by_their_aliases(text: str, kind: str) -> None:
    assert parse_kind(text) == kind
    assert parse_worker({"name": "w", "kind": text}).kind == kind


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"name": "w", "kind": "scaner"}, "unknown worker agent kind 'scaner'; did you mean 'scanner'?"),
        ({"name": "w", "tols": []}, "worker agent: unknown key 'tols'; did you mean 'tools'?"),
        ({"kind": "custom"}, "worker agent: Object missing required field `name`"),
        ({"name": " "}, "worker agent: name: it must not be blank"),
        ({"name": "w", "max_steps": "5"}, "worker agent: max_steps: Expected `int"),
        ({"name": "w", "kind": 5}, "worker agent: kind: "),
        ("scanner", "worker agent: it must be a WorkerAgentSpec or a mapping, got str"),
    ],
)
def test_a_worker_that_cannot_be_meant_so_is_refused(source: Any, says: str) -> None:
    with pytest.raises(ConfigError, match="agent") as caught:
        parse_worker(source)
    assert caught.value.problems[0].startswith(says)


def test_a_worker_given_as_a_spec_or_with_nulls_is_itself() -> None:
    spec = WorkerAgentSpec(name="w", kind="planner", permissions=PermissionPolicy(deny=("bash",)))
    assert parse_worker(spec) == spec
    assert parse_worker({"name": "w", "prompt": None, "tools": ["read"]}) == WorkerAgentSpec(name="w", tools=("read",))


def test_built_in_agents_that_only_look_may_fetch_but_not_change() -> None:
    for name in ("explore", "review", "verification"):
        built_in = BUILTIN_AGENTS[name]
        assert "web_fetch" in built_in.tools
        assert decide_permission(built_in.permissions, tool("web_fetch"), {"url": "https://x.org"})[0] == "allow"
        for denied in ("write", "edit", "git", "task", "mcp__a__b"):
            assert decide_permission(built_in.permissions, tool(denied), {})[0] == "deny"
    assert {"git", "web_fetch", "mcp__*"} <= set(BUILTIN_AGENTS["general"].tools)
    assert "web_fetch" not in BUILTIN_AGENTS["plan"].tools


def test_no_built_in_agent_has_the_tool_that_delegates() -> None:
    assert not any("task" in built_in.tools or "*" in built_in.tools for built_in in BUILTIN_AGENTS.values())


def test_an_alias_finds_its_agent_but_a_name_comes_first() -> None:
    assert all(find_agent(alias) is BUILTIN_AGENTS[name] for alias, name in ALIASES.items())
    own = AgentDefinition(name="reviewer", description="d")
    assert find_agent("reviewer", {**BUILTIN_AGENTS, "reviewer": own}) is own


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("find . -name '*.py'", "allow"),
        ("cat a.py", "allow"),
        ("find . -delete", "deny"),
        ("find .\t-delete", "deny"),
        ("find . -execdir rm {} +", "deny"),
        ("find . -okdir rm {} +", "deny"),
        ("find . -fprintf out x", "deny"),
        ("find . -fprint0 out", "deny"),
        ("find . -fls out", "deny"),
        ("find . -d{elete,epth}", "deny"),
        ("ls; rm a", "deny"),
    ],
)
def test_the_agent_that_explores_changes_nothing(command: str, decision: str) -> None:
    bash = ToolSpec(name="bash", description="", parameters={})
    assert decide_permission(BUILTIN_AGENTS["explore"].permissions, bash, {"command": command})[0] == decision
