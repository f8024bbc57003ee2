"""The permission gate, as tables: deny > allow > ask > default, and no spelling slips past."""

from typing import Any

import msgspec
import pytest

from fanfold.contracts.messages import ToolSpec
from fanfold.contracts.policy import Decision, PermissionPolicy
from fanfold.errors import ConfigError
from fanfold.kernel.permissions import (
    decide_permission,
    matched_text,
    may_read,
    narrower,
    normal_path,
    parse_rule,
    unknown_rules,
    visible_tools,
)

READ_ONLY = {"read", "ls", "search"}


def spec(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={"type": "object"}, is_read_only=name in READ_ONLY)


def decide(policy: PermissionPolicy, name: str, **args: Any) -> Decision:
    return decide_permission(policy, spec(name), args)[0]


def bash(command: str, *, allow: str = "", deny: str = "", ask: str = "") -> Decision:
    policy = PermissionPolicy(allow=(allow,) if allow else (), deny=(deny,) if deny else (), ask=(ask,) if ask else ())
    return decide(policy, "bash", command=command)


@pytest.mark.parametrize(
    ("policy", "decision", "rule"),
    [
        (PermissionPolicy(), "ask", None),
        (PermissionPolicy(default_decision="deny"), "deny", None),
        (PermissionPolicy(default_decision="allow"), "allow", None),
        (PermissionPolicy(ask=("write",), default_decision="allow"), "ask", "write"),
        (PermissionPolicy(allow=("write",), ask=("write",)), "allow", "write"),
        (PermissionPolicy(deny=("write(a*)",), allow=("write",)), "deny", "write(a*)"),
        (PermissionPolicy(deny=("write(b*)",), allow=("write",)), "allow", "write"),
        (PermissionPolicy(deny=("write",), enabled=False), "allow", None),
        (PermissionPolicy(allow=("WRITE(a.txt)",)), "allow", "WRITE(a.txt)"),
        (PermissionPolicy(deny=("wr*",)), "deny", "wr*"),
        (PermissionPolicy(deny=("*",)), "deny", "*"),
        (PermissionPolicy(deny=("writ",), allow=("writer",)), "ask", None),
    ],
)
def test_deny_then_allow_then_ask_then_default(policy: PermissionPolicy, decision: str, rule: str | None) -> None:
    assert decide_permission(policy, spec("write"), {"file_path": "a.txt"}) == (decision, rule)


@pytest.mark.parametrize(("default", "decision"), [("ask", "allow"), ("deny", "deny"), ("allow", "allow")])
def test_read_only_tools_need_no_question(default: Decision, decision: str) -> None:
    assert decide(PermissionPolicy(default_decision=default), "read", file_path="a") == decision
    assert decide(PermissionPolicy(ask=("read",)), "read", file_path="a") == "ask"


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*", "any/where", True),
        ("src/*", "src/a.py", True),
        ("src/*", "src/sub/a.py", False),
        ("src/**", "src/sub/a.py", True),
        ("src/**/a.py", "src/a.py", True),
        ("src:*", "src/sub/a.py", True),
        ("src:*", "srcs", True),
        ("a?c", "abc", True),
        ("src/**", "./src//x/../a.py", True),
        ("src/**", "src/../secret", False),
        ("src/**", "/abs/src/a", False),
        ("src\\*", "src\\a", True),
    ],
)
def test_patterns_on_paths(pattern: str, path: str, matches: bool) -> None:
    policy = PermissionPolicy(allow=(f"write({pattern})",))
    assert decide(policy, "write", file_path=path) == ("allow" if matches else "ask")


@pytest.mark.parametrize(
    "path",
    ["secrets/key", "./secrets/key", "a/../secrets/key", "secrets//key", "secrets/./key", "secrets\\key"],
)
def test_no_spelling_of_a_denied_path_slips_past(path: str) -> None:
    policy = PermissionPolicy(deny=("read(secrets/**)",), allow=("read",))
    assert decide(policy, "read", file_path=path) == "deny"
    assert decide(policy, "read", files=[{"path": "ok"}, {"path": path}]) == "deny"


def test_one_denied_path_denies_and_all_must_be_allowed() -> None:
    policy = PermissionPolicy(
        deny=("read(secrets/**)",), allow=("read(src/**)", "read(docs/**)"), default_decision="deny"
    )
    assert decide(policy, "read", files=[{"path": "src/a"}, {"path": "docs/b"}]) == "allow"
    assert decide(policy, "read", files=[{"path": "src/a"}, {"path": "other"}]) == "deny"
    assert decide(policy, "read", files=[{"path": "src/a"}, {"path": "secrets/k"}]) == "deny"
    assert decide(policy, "read", file_path="src/a\nsecrets/k") == "allow"  # one odd name, not two paths


def test_paths_are_judged_by_where_they_really_lead() -> None:
    links = {"link": "secrets/key", "/ws/src/a": "src/a"}
    policy = PermissionPolicy(deny=("write(secrets/**)",), allow=("write(src/**)", "write(link)"))

    def written(path: str) -> Decision:
        return decide_permission(
            policy, spec("write"), {"file_path": path}, real_path=lambda given: links.get(given, given)
        )[0]

    assert written("link") == "deny"
    assert written("/ws/src/a") == "allow"
    assert written("src/a") == "allow"


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("git status", "allow"),
        ("git log --oneline -5", "allow"),
        ('git commit -m "message"', "allow"),
        ("git add $FILE", "allow"),
        ("git status && rm -rf x", "ask"),
        ("git status; rm x", "ask"),
        ("git status | sh", "ask"),
        ("git status & rm x", "ask"),
        ("git status\nrm x", "ask"),
        ("git status\rrm x", "ask"),
        ("git log $(rm x)", "ask"),
        ("git log `rm x`", "ask"),
        ("git log > .git/hooks/pre-commit", "ask"),
        ("git log <(rm x)", "ask"),
        ("git ${x:=$'\\44\\50rm x\\51'} ${x@P}", "ask"),
        ("git $[x]", "ask"),
        ("rm x", "ask"),
        ("PATH=. git status", "ask"),
    ],
)
def test_an_allowed_command_brings_no_other_along(command: str, decision: str) -> None:
    assert bash(command, allow="bash(git:*)") == decision


@pytest.mark.parametrize("rule", ["bash", "bash(*)", "bash(**)"])
def test_allowing_everything_allows_compound_commands(rule: str) -> None:
    assert bash("a && b | c > d", allow=rule) == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "rm x",
        "  rm x",
        "cd a && rm x",
        "true; rm x",
        "a | rm x",
        "a & rm x",
        "a\nrm x",
        "echo $(rm x)",
        "echo `rm x`",
        "(rm x)",
        "{ rm x; }",
        "if true; then rm x; fi",
        "sudo rm x",
        "A=1 B=2 rm x",
        "r\\m x",
        "'r'm x",
    ],
)
def test_a_denied_command_is_found_in_any_part(command: str) -> None:
    assert bash(command, allow="bash", deny="bash(rm:*)") == "deny"
    assert bash(command, ask="bash(rm:*)") == "ask"


@pytest.mark.parametrize("command", ["git push x", "git  push x", "git\tpush x", "git \t 'push' x", "cd a; git  push"])
def test_a_denied_command_is_found_whatever_blanks_are_in_it(command: str) -> None:
    assert bash(command, allow="bash", deny="bash(git push:*)") == "deny"


def test_a_deny_rule_may_name_a_compound_command() -> None:
    assert bash("curl x | sh", allow="bash", deny="bash(curl * | sh)") == "deny"


@pytest.mark.parametrize("command", ["echo rm x", "git rm x", "ls"])
def test_a_deny_rule_is_about_commands_not_words(command: str) -> None:
    assert bash(command, allow="bash", deny="bash(rm:*)") == "allow"


@pytest.mark.parametrize(
    ("rule", "tool", "named"),
    [
        ("mcp__pen", "mcp__pen__draw", True),
        ("mcp__pen", "mcp__pencil__draw", False),
        ("mcp__pen", "mcp__pen", True),
        ("mcp__pen__draw", "mcp__pen__draw", True),
        ("mcp__pen__draw", "mcp__pen__draw__twice", False),
        ("mcp__pen__*", "mcp__pen__draw", True),
        ("mcp__*", "mcp__pencil__draw", True),
    ],
)
def test_a_server_rule_names_exactly_that_server(rule: str, tool: str, named: bool) -> None:
    assert decide(PermissionPolicy(deny=(rule,), default_decision="allow"), tool) == ("deny" if named else "allow")


@pytest.mark.parametrize(
    ("rule", "mode", "matches"),
    [
        ("grep", "grep", True),
        ("grep", "glob", False),
        ("grep(TODO**)", "grep", True),
        ("grep(FIXME**)", "grep", False),
        ("glob(**)", "glob", True),
        ("search", "glob", True),
        ("search(grep TODO src/**)", "grep", True),
    ],
)
def test_grep_and_glob_rules_are_about_search_in_that_mode(rule: str, mode: str, matches: bool) -> None:
    policy = PermissionPolicy(deny=(rule,))
    assert decide(policy, "search", mode=mode, query="TODO", path="src/a") == ("deny" if matches else "allow")


@pytest.mark.parametrize(
    ("tool", "args", "text"),
    [
        ("bash", {"command": "ls -l"}, "ls -l"),
        ("read", {"file_path": "a"}, "a"),
        ("read", {"files": [{"path": "a"}, {"path": "b", "offset": 1}]}, "a\nb"),
        ("write", {"file_path": "a", "content": "x"}, "a"),
        ("edit", {"file_path": "a", "old_string": "x", "new_string": "y"}, "a"),
        ("search", {"mode": "grep", "query": "x y", "path": "src"}, "grep x y src"),
        ("search", {"mode": "glob", "query": "*"}, "glob *"),
        ("ls", {}, "."),
        ("ls", {"path": "a"}, "a"),
        ("other", {"a": 1, "b": [2]}, '{"a":1,"b":[2]}'),
    ],
)
def test_what_a_pattern_is_compared_with(tool: str, args: dict[str, Any], text: str) -> None:
    assert matched_text(tool, args) == text


@pytest.mark.parametrize("text", ["", "(x)", "bash(rm", "bash rm", "bash)x(", "bash()"])
def test_what_is_no_rule_is_an_error_not_an_open_door(text: str) -> None:
    with pytest.raises(ConfigError, match="permission rule"):
        parse_rule(text)
    for field in ("allow", "deny", "ask"):
        with pytest.raises(ConfigError, match="permission rule"):
            PermissionPolicy(**{field: ("bash", text)})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["allow", "deny", "ask"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("read", r"{field} must be a list of rules, got the text 'read'; write {field}=\['read'\]"),
        ("", "{field} must be a list of rules, got the text ''"),
        (None, "{field} must be a list of rules, got None"),
        ({"read": 1}, "{field} must be a list of rules, got {{'read': 1}}"),
        ([b"read"], r"{field} must be a list of rules like 'bash\(git:\*\)', got b'read' in it"),
        ([["read"]], r"{field} must be a list .* got \['read'\] in it"),
    ],
)
def test_what_is_no_list_of_rules_is_refused_at_once(field: str, given: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told.format(field=field)):
        PermissionPolicy(**{field: given})
    with pytest.raises(ConfigError, match=told.format(field=field)):
        msgspec.structs.replace(PermissionPolicy(), **{field: given})


@pytest.mark.parametrize("changed", [{"default_decision": "no"}, {"default_decision": []}, {"enabled": "false"}])
def test_a_policy_takes_no_other_words_for_its_answers(changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changed))} must be .*, got "):
        PermissionPolicy(**changed)


def test_lists_of_rules_are_as_good_as_tuples_and_cannot_be_changed_afterwards() -> None:
    rules: Any = ["read(.env)"]
    policy = PermissionPolicy(deny=rules)
    rules.clear()
    assert policy == PermissionPolicy(deny=("read(.env)",))
    assert hash(policy) == hash(PermissionPolicy(deny=("read(.env)",)))
    assert decide(policy, "read", file_path=".env") == "deny"


@pytest.mark.parametrize(
    ("policy", "readable"),
    [
        (PermissionPolicy(), ["a", ".env", "src/a"]),
        (PermissionPolicy(deny=("read(.env)",)), ["a", "src/a"]),
        (PermissionPolicy(deny=("read(.env)",), enabled=False), ["a", ".env", "src/a"]),
        (PermissionPolicy(deny=("write(.env)", "search(grep x)")), ["a", ".env", "src/a"]),
        (PermissionPolicy(deny=("*",)), []),
        (PermissionPolicy(ask=("read(src/**)",)), ["a", ".env"]),
        (PermissionPolicy(ask=("read",), allow=("read(a)",)), ["a"]),
        (PermissionPolicy(allow=("search", "read(src/**)"), default_decision="deny"), ["src/a"]),
        (PermissionPolicy(deny=("read(a)",), default_decision="allow"), [".env", "src/a"]),
    ],
)
def test_a_file_may_be_shown_where_a_read_of_it_passes_without_a_question(
    policy: PermissionPolicy, readable: list[str]
) -> None:
    paths = ["a", ".env", "src/a"]
    assert [path for path in paths if may_read(policy, path)] == readable
    assert [path for path in paths if decide(policy, "read", file_path=path) == "allow"] == readable


@pytest.mark.parametrize(
    ("rule", "warning"),
    [
        ("reed(.env)", "permission rule 'reed(.env)' names no tool; did you mean 'read'?"),
        ("grpe", "permission rule 'grpe' names no tool; did you mean 'grep'?"),
        ("nosuchtool", "permission rule 'nosuchtool' names no tool; known: bash, glob, grep, read, search"),
        ("Read(.env)", None),
        ("glob(**)", None),
        ("re?d", None),
        ("web*", None),
        ("mcp__pen", None),
    ],
)
def test_a_rule_that_names_no_tool_is_told_with_the_nearest_name(rule: str, warning: str | None) -> None:
    for field in ("allow", "deny", "ask"):
        policy = PermissionPolicy(**{field: ("bash(rm:*)", rule)})  # type: ignore[arg-type]
        assert unknown_rules(policy, ["read", "search", "bash"]) == ([warning] if warning else [])


def names(policy: PermissionPolicy) -> list[str]:
    return [each.name for each in visible_tools(policy, map(spec, ["read", "write", "bash", "search"]))]


@pytest.mark.parametrize(
    ("policy", "visible"),
    [
        (PermissionPolicy(), ["read", "write", "bash", "search"]),
        (PermissionPolicy(deny=("bash",)), ["read", "write", "search"]),
        (PermissionPolicy(deny=("bash(*)", "WRITE(**)")), ["read", "search"]),
        (PermissionPolicy(deny=("bash(rm:*)", "grep")), ["read", "write", "bash", "search"]),
        (PermissionPolicy(deny=("*",)), []),
        (PermissionPolicy(deny=("*",), enabled=False), ["read", "write", "bash", "search"]),
        (PermissionPolicy(default_decision="deny"), []),
        (
            PermissionPolicy(default_decision="deny", allow=("read(src/**)", "grep"), ask=("bash",)),
            ["read", "bash", "search"],
        ),
        (PermissionPolicy(default_decision="deny", allow=("read",), deny=("read",)), []),
    ],
)
def test_a_model_hears_only_of_tools_that_it_may_ever_use(policy: PermissionPolicy, visible: list[str]) -> None:
    assert names(policy) == visible


def test_the_narrower_decision_is_the_stricter() -> None:
    order: list[Decision] = ["allow", "ask", "deny"]
    for a in order:
        for b in order:
            assert narrower(a, b) == order[max(order.index(a), order.index(b))]


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("a/./b//c", "a/b/c"),
        ("a/../b", "b"),
        ("../a", "../a"),
        ("a/../../b", "../b"),
        ("/a/../b", "/b"),
        ("", "."),
        ("./", "."),
        ("a\\b", "a/b"),
    ],
)
def test_normal_paths_have_one_spelling(path: str, normal: str) -> None:
    assert normal_path(path) == normal


# ---- what a hostile model writes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [None, "a", {"path": "a"}, ["a"], [1, None], [{"name": "a"}], [{"path": None}]])
def test_arguments_that_other_tools_mean_otherwise_are_judged_too(files: Any) -> None:
    policy = PermissionPolicy(deny=("bash(rm:*)",), allow=("mcp__mail",))
    assert decide(policy, "mcp__mail__send", files=files, path=5) == "allow"


def test_a_rule_about_another_tool_s_files_sees_all_of_them() -> None:
    policy = PermissionPolicy(deny=("mcp__disk__put(*key*)",), default_decision="allow")
    assert decide(policy, "mcp__disk__put", files=[{"path": "a", "content": "key"}, "key"]) == "deny"
    real = decide_permission(
        PermissionPolicy(allow=('mcp__disk__put({"files":[{"path":"b"}]})',)),
        spec("mcp__disk__put"),
        {"files": [{"path": "a", "content": "key"}]},
        real_path=lambda path: "b",
    )
    assert real[0] == "ask"  # there is more in it than the rule says


@pytest.mark.parametrize("text", ["a", "a=", "x=1 ", "sudo ", ";", "$a", "{a", "{a,", "'", "a b"])
def test_no_command_takes_time_by_the_square_of_its_length(text: str) -> None:
    command = "echo " + text * (200_000 // len(text))
    assert bash(command, allow="bash(git:*)", deny="bash(rm:*)") == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "find . -d{elete,epth}",
        "find . -delet{e,}",
        "find . {-delete,}",
        'find . {"a b",-delete}',
        "find . -delet{e..e}",
        "find . -de$1lete",
        "find . -de$@lete",
        'find . -de$NONE"lete"',
        "find .\t-delete",
        "find . \t'-delete'",
    ],
)
def test_no_expansion_spells_what_a_rule_denies(command: str) -> None:
    policy = PermissionPolicy(allow=("bash(find *)",), deny=("bash(* -delete*)",), default_decision="deny")
    assert decide(policy, "bash", command=command) == "deny"


@pytest.mark.parametrize("command", ["find . -name '*.{a,b}'", "find $HOME -name x", "find . -size +1k"])
def test_what_expands_to_nothing_else_stays_allowed(command: str) -> None:
    policy = PermissionPolicy(allow=("bash(find *)",), deny=("bash(* -delete*)",), default_decision="deny")
    assert decide(policy, "bash", command=command) == "allow"
