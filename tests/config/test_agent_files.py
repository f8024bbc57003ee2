"""Laws of agent definitions in files: what they mean, which are found, and that one bad file costs no other."""

import os
import time
from pathlib import Path

import pytest

from fanfold.config.agent_files import MAX_FILE_BYTES, AgentFiles, read_agents, standard_directories
from fanfold.config.agent_text import ParsedAgent, parse_agent
from fanfold.contracts.agents import AgentDefinition, WorkerAgentSpec
from fanfold.contracts.policy import PermissionPolicy
from fanfold.errors import ConfigError

LOOKUP = ("lookup",)


def markdown(front_matter: str, body: str = "") -> ParsedAgent:
    return parse_agent(f"---\n{front_matter}\n---\n{body}", "a.md", is_markdown=True, tool_names=LOOKUP)


def agent(front_matter: str, body: str = "") -> AgentDefinition:
    found = markdown(f"name: a\n{front_matter}", body).agent
    assert isinstance(found, AgentDefinition)
    return found


def worker(front_matter: str, body: str = "") -> WorkerAgentSpec:
    found = markdown(f"name: a\n{front_matter}", body).agent
    assert isinstance(found, WorkerAgentSpec)
    return found


def problems(text: str, *, is_markdown: bool = True) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_agent(text, "a.md", is_markdown=is_markdown)
    return caught.value.problems


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def named(name: str, description: str = "d") -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\nprompt of {name}\n"


# ---- what a file means ----------------------------------------------------------------------------------------------


def test_every_key_of_a_definition_is_read() -> None:
    text = """
name: auditor
description: |
  Audits things.
  --- not a fence
hidden: true
model: {provider: anthropic, model: claude-x}
max_steps: 7
confirmation_inheritance: deny_on_ask
tools: [read, lookup]
permissions:
  allow: [lookup]
  deny: ["bash(rm *)"]
  ask: [write]
  default: ask
"""
    assert markdown(text, "You audit.\n---\nThoroughly.\n").agent == AgentDefinition(
        name="auditor",
        description="Audits things.\n--- not a fence\n",
        prompt="You audit.\n---\nThoroughly.",
        tools=("read", "lookup"),
        permissions=PermissionPolicy(
            allow=("read", "lookup"), deny=("bash(rm *)",), ask=("write",), default_decision="ask"
        ),
        model="anthropic/claude-x",
        max_steps=7,
        confirmation_inheritance="deny_on_ask",
        is_hidden=True,
    )


def test_a_definition_that_says_little_inherits_all_tools_and_narrows_nothing() -> None:
    found = agent("tools:\nmodel: inherit")
    assert (found.tools, found.permissions) == (("*",), PermissionPolicy(default_decision="allow"))
    assert (found.model, found.max_steps, found.confirmation_inheritance) == (None, 50, "inherit_parent")


def test_a_yaml_file_is_a_definition_with_its_prompt_in_it() -> None:
    found = parse_agent("name: a\nprompt: Do it.\n", "a.yaml", is_markdown=False).agent
    assert found == agent("prompt: Do it.")


def test_a_prompt_in_the_front_matter_wins_over_the_text_below_and_says_so() -> None:
    parsed = markdown("name: a\nprompt: this", "not this")
    assert isinstance(parsed.agent, AgentDefinition)
    assert parsed.agent.prompt == "this"
    assert parsed.warnings == ("a.md:3:1: the text below the front matter is not used, for it has a prompt",)


@pytest.mark.parametrize("key", ["tools", "allowedTools", "allowed_tools"])
@pytest.mark.parametrize(
    "value", ["Read, Bash(git add, *)", "[Read, 'Bash(git add, *)']", "\n  - Read\n  - Bash(git add, *)"]
)
def test_claude_tools_allow_these_and_deny_the_rest(key: str, value: str) -> None:
    found = agent(f"{key}: {value}")
    assert found.tools == ("read", "bash")
    assert found.permissions == PermissionPolicy(allow=("read", "bash(git add, *)"), default_decision="deny")
    assert found.confirmation_inheritance == "inherit_parent"


@pytest.mark.parametrize("key", ["disallowedTools", "disallowed-tools", "disallowed_tools"])
def test_claude_disallowed_tools_deny_these_and_allow_the_rest(key: str) -> None:
    found = agent(f"{key}: Write, Bash(rm *), Read(./.env)")
    assert found.tools == ("*",)
    assert found.permissions == PermissionPolicy(deny=("write", "bash(rm *)", "read(.env)"), default_decision="allow")


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("Read", "read"),
        ("Write", "write"),
        ("Edit", "edit"),
        ("MultiEdit", "edit"),
        ("Grep", "search"),
        ("Glob", "search"),
        ("LS", "ls"),
        ("Bash", "bash"),
        ("WebFetch", "web_fetch"),
        ("TodoWrite", "update_plan"),
        ("lookup", "lookup"),
        ("mcp__github__search", "mcp__github__search"),
        ("mcp__github", "mcp__github__*"),
        ("mcp__git*", "mcp__git*"),
    ],
)
def test_tools_are_known_by_the_names_of_claude_and_of_the_host(written: str, ours: str) -> None:
    parsed = markdown(f"name: a\ntools: {written}")
    assert isinstance(parsed.agent, AgentDefinition)
    assert (parsed.agent.tools, parsed.agent.permissions.allow) == ((ours,), (ours,))
    assert parsed.warnings == ()


def test_a_tool_that_nobody_knows_is_kept_with_a_warning() -> None:
    parsed = markdown("name: a\ntools: Read, NotebookRead")
    assert isinstance(parsed.agent, AgentDefinition)
    assert parsed.agent.tools == ("read", "NotebookRead")
    [warning] = parsed.warnings
    assert warning.startswith("a.md:3:1: tools: there is no tool 'NotebookRead' here")


@pytest.mark.parametrize("written", ["Task", "Task(explore)", "Agent", "task"])
def test_delegation_has_one_level_so_task_is_no_tool_of_an_agent(written: str) -> None:
    found = agent(f"tools: Read, {written}")
    assert (found.tools, found.permissions.allow) == (("read",), ("read",))


def test_no_tools_are_no_tools() -> None:
    assert agent("tools: []").tools == ()
    assert agent("tool_free: true").tools == ()


def test_a_rule_of_grep_stays_narrower_than_search() -> None:
    assert agent("permissions: {deny: [grep, 'Grep(secret*)', Read]}").permissions.deny == (
        "grep",
        "grep(secret*)",
        "read",
    )


def test_a_model_without_a_provider_leaves_the_sessions_own_with_a_warning() -> None:
    parsed = markdown("name: a\nmodel: sonnet")
    assert isinstance(parsed.agent, AgentDefinition)
    assert parsed.agent.model is None
    assert parsed.warnings == ("a.md:3:1: model 'sonnet' is no provider/model-id; the session's own model is used",)


def test_foreign_keys_that_change_nothing_are_no_error() -> None:
    parsed = markdown("name: a\ncolor: red\nskills: [x]\npermissionMode: default\nmaxTurns: 3")
    assert parsed.warnings == ("a.md:4:1: skills has no meaning here",)
    assert isinstance(parsed.agent, AgentDefinition)
    assert parsed.agent.max_steps == 3


# ---- workers --------------------------------------------------------------------------------------------------------


def test_a_file_with_a_kind_is_a_worker() -> None:
    found = worker("kind: scanner\ndescription: d\ntools: Read, Grep\nmax_steps: 3\nhidden: true", "Look.")
    assert found == WorkerAgentSpec(
        name="a", description="d", kind="read_only", prompt="Look.", tools=("read", "search"), max_steps=3, hidden=True
    )


def test_what_a_worker_does_not_say_is_left_to_its_kind() -> None:
    assert worker("kind: reviewer") == WorkerAgentSpec(name="a", kind="reviewer")


def test_a_workers_permissions_are_its_own() -> None:
    found = worker("kind: custom\npermissions: {allow: [read], default: deny}\nconfirmation_inheritance: auto_approve")
    assert found.permissions == PermissionPolicy(allow=("read",), default_decision="deny")
    assert found.confirmation_inheritance == "auto_approve"


def test_an_unknown_kind_is_named_with_the_nearest() -> None:
    text = named("a").replace("description", "kind").replace(": d", ": verifer")
    assert problems(text) == ("a.md:3:1: unknown worker agent kind 'verifer'; did you mean 'verifier'?",)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no front matter", "a.md: Invalid markdown format: missing YAML frontmatter"),
        ("---\nname: a\n", "a.md: Invalid markdown format: missing YAML frontmatter"),
        ("", "a.md: Invalid markdown format: missing YAML frontmatter"),
        ("---\ndescription: d\n---\n", "a.md:2:1: Agent name is required"),
        ("---\n---\n", "a.md:2: Agent name is required"),
        ("---\nname: '  '\n---\n", "a.md:2:1: Agent name is required"),
        ("---\nname: 5\n---\n", "a.md:2:7: name must be a string, found a whole number"),
        ("---\nname: a\ntols: []\n---\n", "a.md:3:1: unknown key 'tols'; did you mean 'tools'?"),
        ("---\nname: a\nhooks: {}\n---\n", "a.md:3:1: unknown key 'hooks'"),
        (
            "---\nname: a\npermissions:\n  alow: [x]\n---\n",
            "a.md:4:3: unknown key 'alow' in permissions; did you mean 'allow'?",
        ),
        ("---\nname: a\npermissionMode: plan\n---\n", "a.md:3:1: permissionMode: plan is not known here"),
        (
            "---\nname: a\ntools: a\nallowedTools: b\n---\n",
            "a.md:4:1: allowedTools and tools mean the same; keep one of them",
        ),
        ("---\nname: a\nname: b\n---\n", "a.md:3:1: name is given twice"),
        ("---\nname: a\ntools: 'Bash('\n---\n", "a.md:3:8: tools: permission rule 'Bash(' is neither"),
        ("---\nname: a\ntools: WebFetch(domain:x.org)\n---\n", "a.md:3:8: tools: 'WebFetch(domain:x.org)'"),
        ("---\nname: a\nmax_steps: 0\n---\n", "a.md:3:12: max_steps must be at least 1"),
        (
            "---\nname: a\ndescription: Use it: often\n---\n",
            "a.md:3:20: Failed to parse agent frontmatter: mapping values are not allowed here; a text that holds",
        ),
        ("---\nname: a\ntools: *\n---\n", "a.md:3:9: Failed to parse agent frontmatter: a text that begins with"),
        ("---\n- name\n---\n", "a.md:2:1: Failed to parse agent frontmatter must be a mapping"),
        ("---\nkind: custom\nname: a\ntools: Bash(git *)\n---\n", "a.md:4:1: of a worker's tools give the names"),
    ],
)
def test_a_fault_is_told_with_its_place(text: str, says: str) -> None:
    [problem] = problems(text)
    assert problem.startswith(says)


def test_all_faults_are_told_at_once() -> None:
    assert len(problems("---\nname: 1\nfoo: 2\nhidden: 3\n---\n")) == 3


def test_yaml_files_are_named_as_such() -> None:
    assert problems("a: [", is_markdown=False)[0].startswith("a.md:1:")
    assert "Failed to parse agent YAML: " in problems("a: [", is_markdown=False)[0]


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("name: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "aliases are not used here"),
        ("name: &a [*a]", "aliases are not used here"),
        (
            "name: !!python/object/apply:os.system ['exit 3']",
            "the tag 'tag:yaml.org,2002:python/object/apply:os.system'",
        ),
        ("!!python/object/apply:os.system ['exit 3']", "must be a mapping"),
        ("name: !!python/name:os.system", "the tag 'tag:yaml.org,2002:python/name:os.system'"),
        ("name: !foo x", "the tag '!foo'"),
        ("a: " + "[" * 100_000, "nested more than 16 deep"),
        ("a: " + "{a: " * 50_000, "nested more than 16 deep"),
        ("max_steps: " + "9" * 100_000, "this is no int"),
        ("max_steps: !!int x", "this is no int"),
        ("hidden: !!bool x", "neither true nor false"),
        ("name: a\x01", "special characters are not allowed"),
        ("1: x", "a key must be text"),
        ("name: a\n--- \nname: b", "expected a single document in the stream, but found another document"),
    ],
)
def test_dangerous_yaml_is_harmless(yaml: str, says: str) -> None:
    start = time.monotonic()
    assert says in problems(yaml, is_markdown=False)[0]
    assert time.monotonic() - start < 5


# ---- directories ----------------------------------------------------------------------------------------------------


def test_files_are_found_below_a_directory_in_a_fixed_order_and_later_ones_win(tmp_path: Path) -> None:
    write(tmp_path / "b.md", named("b"))
    write(tmp_path / "deep" / "er" / "c.YAML", "name: c\n")
    write(tmp_path / "deep" / "b.yml", "name: b\ndescription: later\n")
    write(tmp_path / "notes.txt", "no agent")
    found = read_agents([tmp_path])
    assert set(found.agents) == {"b", "c"}
    assert found.agents["b"].description == "later"
    assert found.sources["b"] == str(tmp_path / "deep" / "b.yml")
    [problem] = found.problems
    assert (problem.is_skipped, problem.path) == (False, str(tmp_path / "deep" / "b.yml"))
    assert "it replaces agent 'b' of" in problem.text


def test_a_later_directory_overrides_an_earlier_one_without_a_word(tmp_path: Path) -> None:
    write(tmp_path / "one" / "a.md", named("a", "first"))
    write(tmp_path / "two" / "a.md", named("a", "second"))
    found = read_agents([tmp_path / "one", tmp_path / "two"])
    assert (found.agents["a"].description, found.problems) == ("second", ())
    assert read_agents([tmp_path / "two", tmp_path / "one"]).agents["a"].description == "first"


def test_a_bad_file_is_told_and_logged_and_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "good.md", named("good"))
    bad = write(tmp_path / "bad.md", "---\nname: bad\nwhat: 1\n---\n")
    write(tmp_path / "README.md", "# no agent\n")
    found = read_agents([tmp_path])
    assert list(found.agents) == ["good"]
    assert [(each.path, each.is_skipped) for each in found.problems] == [
        (str(tmp_path / "README.md"), True),
        (str(bad), True),
    ]
    assert str(found.problems[1]).startswith(f"{bad}:3:1: unknown key 'what'")
    assert [record.getMessage() for record in caplog.records] == [f"{each.text} (skipped)" for each in found.problems]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def skipped(found: AgentFiles) -> list[str]:
    return [each.text.rpartition(": ")[2] for each in found.problems if each.is_skipped]


def test_a_file_is_read_up_to_a_size_and_as_utf_8(tmp_path: Path) -> None:
    write(tmp_path / "a.md", named("a") + "x" * (MAX_FILE_BYTES - len(named("a"))))
    write(tmp_path / "b.md", named("b") + "x" * MAX_FILE_BYTES)
    (tmp_path / "c.md").write_bytes(b"---\nname: \xff\n---\n")
    (tmp_path / "d.md").write_bytes(b"\xef\xbb\xbf---\r\nname: d\r\n---\r\none\r\ntwo\r\n")
    found = read_agents([tmp_path])
    assert set(found.agents) == {"a", "d"}
    assert found.agents["d"].prompt == "one\ntwo"
    assert skipped(found) == [f"it is larger than {MAX_FILE_BYTES:,} bytes", "not UTF-8 text; save it as UTF-8"]


@pytest.mark.skipif(os.name == "nt", reason="links and pipes of POSIX")
def test_links_stay_within_their_directory_and_nothing_else_is_opened(tmp_path: Path) -> None:
    inside, outside = tmp_path / "agents", tmp_path / "outside"
    write(inside / "a.md", named("a"))
    write(outside / "b.md", named("b"))
    (inside / "again.md").symlink_to(inside / "a.md")
    (inside / "file.md").symlink_to(outside / "b.md")
    (inside / "folder").symlink_to(outside)
    (inside / "gone.md").symlink_to(inside / "nowhere.md")
    os.mkfifo(inside / "pipe.md")
    found = read_agents([inside])
    assert set(found.agents) == {"a"}
    assert skipped(found) == [
        f"the link leads out of {inside}",
        f"the link leads out of {inside}",
        "No such file or directory",
        "it is not a regular file",
    ]
    linked = tmp_path / "link"
    linked.symlink_to(inside)
    assert set(read_agents([linked]).agents) == {"a"}


def test_a_directory_that_is_none_is_told(tmp_path: Path) -> None:
    file = write(tmp_path / "a.md", named("a"))
    found = read_agents([tmp_path / "nowhere", file])
    assert skipped(found) == ["there is no such directory", "it is not a directory"]


def test_the_standard_places_go_from_the_home_to_the_workspace(tmp_path: Path) -> None:
    home, workspace = tmp_path / "home", tmp_path / "work"
    for root in (home, workspace):
        for place in (".claude", ".a3s"):
            write(root / place / "agents" / "a.md", named("a", f"{root.name} {place}"))
    environ = {"HOME": str(home)}
    found = standard_directories(workspace, environ)
    assert [each.relative_to(tmp_path).as_posix() for each in found] == [
        "home/.claude/agents",
        "home/.a3s/agents",
        "work/.claude/agents",
        "work/.a3s/agents",
    ]
    assert read_agents(found).agents["a"].description == "work .a3s"
    assert standard_directories(tmp_path / "empty", {}) == []
    assert len(standard_directories(home, environ)) == 2


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX")
def test_a_circle_of_links_costs_no_other_file(tmp_path: Path) -> None:
    write(tmp_path / "a.md", named("a"))
    (tmp_path / "b.md").symlink_to(tmp_path / "b.md")
    (tmp_path / "c").symlink_to(tmp_path / "d")
    (tmp_path / "d").symlink_to(tmp_path / "c")
    found = read_agents([tmp_path])
    assert set(found.agents) == {"a"}
    assert "the link leads in a circle" in skipped(found)


@pytest.mark.parametrize("text", ['description: "x\\ud800"', 'prompt: "\\0"', 'tools: ["\\ud800"]', '"\\ud800": x'])
def test_escapes_that_spell_no_text_are_refused(text: str) -> None:
    assert "holds a NUL character or a lone surrogate" in problems(f"name: a\n{text}", is_markdown=False)[0]


def test_a_nul_below_the_front_matter_is_refused() -> None:
    assert "it holds a NUL character" in problems("---\nname: a\n---\nbo\0dy", is_markdown=True)[0]


@pytest.mark.parametrize(
    "text",
    ["tools: [" + "a," * 100_000 + "]", "tools: " + "a," * 100_000, "".join(f"k{at}: 1\n" for at in range(20_000))],
)
def test_a_definition_of_thousands_of_entries_is_refused_at_once(text: str) -> None:
    start = time.monotonic()
    assert "more than 2,000" in problems(f"name: a\n{text}", is_markdown=False)[0]
    assert time.monotonic() - start < 2


def test_a_file_does_not_flood_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.md", "---\nname: a\ntools: " + ",".join(f"t{at}" for at in range(1_000)) + "\n---\n")
    found = read_agents([tmp_path])
    assert set(found.agents) == {"a"}
    assert len(found.problems) == len(caplog.records) == 51
    assert found.problems[-1].text.endswith("... and 950 more")
