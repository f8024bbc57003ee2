"""The permission gate: deny, then allow, then ask, then the default (decisions 5.2, notes 9.1).

A rule is `tool` (any arguments) or `tool(pattern)`. Tool names compare without case; `*` and `?` in them are
wild, `mcp__server` means every tool of exactly that server, `grep` and `glob` mean `search` in that mode. A
pattern is `*` (everything), `text:*` (a prefix), or a glob of `kernel.globs`; back-slashes count as `/`.

Paths are judged one by one and as they really are, so `./a/../b`, links and lists of files do not slip past a
rule. Commands are text, and text can be disguised: a deny rule for `bash` keeps honest mistakes away, it is
the sandbox that holds.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import cast

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import ToolSpec
from fanfold.contracts.policy import Decision, PermissionPolicy, split_rule
from fanfold.contracts.record import JsonObject
from fanfold.kernel.globs import compile_glob
from fanfold.kernel.url import normal_url, url_pattern
from fanfold.nearest import did_you_mean

_SEARCH_MODES = ("grep", "glob")
_PATH_TOOLS = ("read", "write", "edit")
_READ = ToolSpec(name="read", description="", parameters={}, is_read_only=True)
_STRICTNESS: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}

_OPERATORS = r"[;&|<>()`\n\r]"
"""What joins, nests or redirects commands. In quotes they count too: not to allow only means to ask."""
_HIDING = r"\$[\[{']"
"""Expansions whose result bash evaluates again (`${x@P}`, `$[...]`) or that spell characters by number
(`$'\\x28'`)."""
_BRACES = r"\{[^{}]*(?:,|\.\.)"
"""One word that becomes several: `-d{elete,epth}`."""
_BLANKS = r"[ \t]+"
_EMPTY = r"\$(?:[0-9@*#?$!-]|[A-Za-z_]\w*)"
"""What may well expand to nothing: `-de$1lete`."""
_LEADING = re.compile(
    r"(?:(?:then|do|else|elif|if|while|until|time|exec|command|builtin|env|nohup|sudo|eval|!|\{|\w+=\S*)\s+)+"
)
_QUOTING = str.maketrans("", "", "\"'\\")


class Rule(msgspec.Struct, frozen=True):
    text: str
    tool: str
    pattern: str | None
    """None: any arguments."""

    @property
    def covers_everything(self) -> bool:
        return self.pattern in (None, "*", "**")

    def names(self, tool: str) -> bool:
        name = tool.lower()
        is_server = self.tool.startswith("mcp__") and self.tool.count("__") == 1
        return compile_glob(self.tool).matches(name) or (is_server and name.startswith(self.tool + "__"))

    def matches(self, text: str) -> bool:
        if self.pattern is None or self.covers_everything:
            return True
        text, pattern = text.replace("\\", "/"), self.pattern.replace("\\", "/")
        if pattern.endswith(":*"):
            return text.startswith(pattern[:-2])
        return compile_glob(pattern).matches(text)


@lru_cache(maxsize=1024)
def parse_rule(text: str) -> Rule:
    """Raises ConfigError for what is no rule."""
    name, pattern = split_rule(text)
    tool = name.lower()
    if tool in _SEARCH_MODES:
        return Rule(text, "search", f"{tool} {'**' if pattern in (None, '*') else pattern}")
    if tool == "web_fetch" and pattern is not None:
        return Rule(text, tool, url_pattern(pattern))
    return Rule(text, tool, pattern)


def normal_path(path: str) -> str:
    """`path` without `.`, empty and undone segments; says nothing about links."""
    kept: list[str] = []
    for part in path.replace("\\", "/").split("/"):
        if part == ".." and kept and kept[-1] != "..":
            kept.pop()
        elif part not in ("", "."):
            kept.append(part)
    return ("/" if path.startswith(("/", "\\")) else "") + "/".join(kept) or "."


def matched_text(tool_name: str, args: JsonObject) -> str:
    """What a rule's pattern is compared with; of a `read` of several files all paths, a line each."""
    return "\n".join(_texts(tool_name.lower(), args))


def decide_permission(
    policy: PermissionPolicy,
    spec: ToolSpec,
    args: JsonObject,
    *,
    real_path: Callable[[str], str] = normal_path,
) -> tuple[Decision, str | None]:
    """The decision on one call and the rule that made it, None where no rule did.

    A call is denied or asked about when a rule matches any of its parts (paths of a `read`, commands of a
    `bash` line), as written or as `real_path` gives it; it is allowed when rules allow every part as it
    really is. With no matching rule a read-only tool is allowed where the default is to ask.

    Args:
        args: match the tool's schema.
        real_path: the workspace-relative path that a path argument really leads to (`Workspace.canonical`).
    """
    if not policy.enabled:
        return "allow", None
    by_default: Decision = policy.default_decision
    if by_default == "ask" and spec.is_read_only:
        by_default = "allow"
    if not (policy.deny or policy.allow or policy.ask):
        return by_default, None  # the usual case, and on the path of every tool call
    name = spec.name.lower()
    real = _texts(name, _with_real_paths(args, real_path))
    suspects = [piece for text in (*_texts(name, args), *real) for piece in pieces_of(name, text)]
    if rule := _first_match(_rules_for(name, policy.deny), suspects):
        return "deny", rule.text
    if rule := _allowing(name, _rules_for(name, policy.allow), real):
        return "allow", rule.text
    if rule := _first_match(_rules_for(name, policy.ask), suspects):
        return "ask", rule.text
    return by_default, None


def may_read(policy: PermissionPolicy, path: str) -> bool:
    """Whether a `read` of `path` passes without a question: only then may `search` show what is in it.

    Args:
        path: a file's real path, relative to the workspace.
    """
    is_open = policy.default_decision != "deny" and not _rules_for("read", (*policy.deny, *policy.ask))
    # The whole decision takes ten times as long, and is asked for up to a hundred thousand files.
    return is_open or decide_permission(policy, _READ, {"file_path": path})[0] == "allow"


def unknown_rules(policy: PermissionPolicy, tool_names: Iterable[str]) -> list[str]:
    """A warning for each rule that is about no tool, so that a slip of the pen is not taken for a locked door.

    Names with wildcards and those of MCP servers may fit tools that come later: nothing is said of them.
    """
    known = {name.lower() for name in tool_names}
    writable = [*known, *(_SEARCH_MODES if "search" in known else ())]
    return [
        f"permission rule '{text}' names no tool{did_you_mean(tool, writable)}"
        for text in (*policy.deny, *policy.allow, *policy.ask)
        if not re.search(r"[*?]|^mcp__", tool := parse_rule(text).tool) and tool not in known
    ]


def visible_tools(policy: PermissionPolicy, specs: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """The tools that a model may be told about: not those denied whatever their arguments are, and with a
    default of deny only those that an allow or ask rule names. Being visible allows nothing."""
    if not policy.enabled:
        return tuple(specs)
    return tuple(spec for spec in specs if _is_visible(policy, spec.name.lower()))


def narrower(a: Decision, b: Decision) -> Decision:
    """The stricter of two decisions: a child's policy never widens its parent's."""
    return max(a, b, key=_STRICTNESS.__getitem__)


def _is_visible(policy: PermissionPolicy, name: str) -> bool:
    if any(rule.covers_everything for rule in _rules_for(name, policy.deny)):
        return False
    return policy.default_decision != "deny" or bool(_rules_for(name, (*policy.allow, *policy.ask)))


@lru_cache(maxsize=1024)
def _rules_for(name: str, rules: tuple[str, ...]) -> tuple[Rule, ...]:
    return tuple(rule for rule in map(parse_rule, rules) if rule.names(name))


def _first_match(rules: tuple[Rule, ...], texts: list[str]) -> Rule | None:
    return next((rule for rule in rules if any(map(rule.matches, texts))), None)


def _allowing(name: str, rules: tuple[Rule, ...], texts: tuple[str, ...]) -> Rule | None:
    """The rule that allows the first text, if every text has one."""
    found = [next((rule for rule in rules if _may_allow(name, rule, text)), None) for text in texts]
    return found[0] if all(found) else None


def _may_allow(name: str, rule: Rule, text: str) -> bool:
    if rule.covers_everything:
        return True
    if name == "bash" and (re.search(_OPERATORS, text) or re.search(_HIDING, text) or _has_braces(text)):
        return False
    return rule.matches(text)


def _has_braces(command: str) -> bool:
    if '"' not in command and "\\" not in command:  # then it is plain where a quote begins, and nothing expands in it
        command = re.sub(r"'[^']*'", "''", command)
    return re.search(_BRACES, command) is not None


def _texts(name: str, args: JsonObject) -> tuple[str, ...]:
    """The texts of one call, at least one; every one of them must be allowed for the call to be."""
    if name == "bash":
        return (str(args.get("command", "")),)
    if name in _PATH_TOOLS:
        single = [str(args["file_path"])] if "file_path" in args else []
        return tuple(single + _listed_paths(args)) or ("",)
    if name == "search":
        return (" ".join(str(args[key]) for key in ("mode", "query", "path") if key in args),)
    if name == "ls":
        return (str(args.get("path", ".")),)
    if name == "workflow":
        return (_workflow(args),)
    if name == "web_fetch":
        return (normal_url(str(args.get("url", ""))),)
    if name == "git":
        return (" ".join(str(args[key]) for key in ("command", "ref", "target", "path") if key in args),)
    return (encode_json(args).decode(),)


def _workflow(args: JsonObject) -> str:
    """Its name, also of a run that is to be gone on with; `inline` for a script of no name."""
    run_id = str(args.get("resume_from_run_id", ""))
    if "name" not in args and run_id.startswith("wf_"):
        return run_id.removeprefix("wf_").rpartition("_")[0]
    return str(args.get("name", "inline"))


def _files(args: JsonObject) -> list[object]:
    """What stands under `files`, which other tools than ours may mean otherwise."""
    files = args.get("files")
    return cast("list[object]", files) if isinstance(files, list) else []


def _path_of(file: object) -> str | None:
    path = cast("JsonObject", file).get("path") if isinstance(file, dict) else None
    return path if isinstance(path, str) else None


def _listed_paths(args: JsonObject) -> list[str]:
    return [path for each in _files(args) if (path := _path_of(each)) is not None]


def _with_real_paths(args: JsonObject, real_path: Callable[[str], str]) -> JsonObject:
    real: JsonObject = {key: real_path(args[key]) for key in ("file_path", "path") if isinstance(args.get(key), str)}
    if _listed_paths(args):
        real["files"] = [_with_real_path(each, real_path) for each in _files(args)]
    return {**args, **real}


def _with_real_path(file: object, real_path: Callable[[str], str]) -> object:
    path = _path_of(file)
    return file if path is None else {**cast("JsonObject", file), "path": real_path(path)}


def pieces_of(name: str, text: str) -> Iterable[str]:
    """`text` and, of a command line, each command in it, also bare of quoting and of words before it."""
    yield text
    if name != "bash":
        return
    spellings = (text, text.translate(_QUOTING), re.sub(_EMPTY, "", text).translate(_QUOTING))
    for spelling in dict.fromkeys((text, *(re.sub(_BLANKS, " ", each) for each in spellings))):
        for part in re.split(_OPERATORS, spelling):
            command = part.strip()
            yield command
            # From its beginning only: to look for such words everywhere takes time by the square of the length.
            if leading := _LEADING.match(command):
                yield command[leading.end() :]
