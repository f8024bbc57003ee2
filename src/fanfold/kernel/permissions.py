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

import msgspec

from fanfold.contracts.codec import encode_json
from fanfold.contracts.messages import ToolSpec
from fanfold.contracts.policy import Decision, PermissionPolicy
from fanfold.contracts.record import JsonObject
from fanfold.errors import ConfigError
from fanfold.kernel.globs import compile_glob

_RULE = r"(?s)([^()\s]+)(?:\((.+)\))?"
_SEARCH_MODES = ("grep", "glob")
_PATH_TOOLS = ("read", "write", "edit")
_STRICTNESS: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}

_OPERATORS = r"[;&|<>()`\n\r]"
"""What joins, nests or redirects commands. In quotes they count too: not to allow only means to ask."""
_HIDING = r"\$[\[{']"
"""Expansions whose result bash evaluates again (`${x@P}`, `$[...]`) or that spell characters by number
(`$'\\x28'`)."""
_LEADING = r"(?:(?:then|do|else|elif|if|while|until|time|exec|command|builtin|env|nohup|sudo|eval|!|\{|\w+=\S*)\s+)+"
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
    """Raises ConfigError for what is no rule: a deny rule that is silently dropped would be an open door."""
    found = re.fullmatch(_RULE, text.strip())
    if found is None:
        raise ConfigError(f"permission rule {text!r} is neither `tool` nor `tool(pattern)`")
    tool, pattern = found[1].lower(), found[2]
    if tool in _SEARCH_MODES:
        return Rule(text, "search", f"{tool} {'**' if pattern in (None, '*') else pattern}")
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

    Raises:
        ConfigError: the policy holds a text that is no rule.
    """
    if not policy.enabled:
        return "allow", None
    name = spec.name.lower()
    real = _texts(name, _with_real_paths(args, real_path))
    suspects = [piece for text in (*_texts(name, args), *real) for piece in _pieces(name, text)]
    if rule := _first_match(_rules_for(name, policy.deny), suspects):
        return "deny", rule.text
    if rule := _allowing(name, _rules_for(name, policy.allow), real):
        return "allow", rule.text
    if rule := _first_match(_rules_for(name, policy.ask), suspects):
        return "ask", rule.text
    if policy.default_decision == "ask" and spec.is_read_only:
        return "allow", None
    return policy.default_decision, None


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


def _rules_for(name: str, rules: Iterable[str]) -> list[Rule]:
    return [rule for rule in map(parse_rule, rules) if rule.names(name)]


def _first_match(rules: list[Rule], texts: list[str]) -> Rule | None:
    return next((rule for rule in rules if any(map(rule.matches, texts))), None)


def _allowing(name: str, rules: list[Rule], texts: tuple[str, ...]) -> Rule | None:
    """The rule that allows the first text, if every text has one."""
    found = [next((rule for rule in rules if _may_allow(name, rule, text)), None) for text in texts]
    return found[0] if all(found) else None


def _may_allow(name: str, rule: Rule, text: str) -> bool:
    if rule.covers_everything:
        return True
    if name == "bash" and (re.search(_OPERATORS, text) or re.search(_HIDING, text)):
        return False
    return rule.matches(text)


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
    return (encode_json(args).decode(),)


def _listed_paths(args: JsonObject) -> list[str]:
    files: list[JsonObject] = args.get("files", [])
    return [str(each["path"]) for each in files]


def _with_real_paths(args: JsonObject, real_path: Callable[[str], str]) -> JsonObject:
    real: JsonObject = {key: real_path(str(args[key])) for key in ("file_path", "path") if key in args}
    listed = [{"path": real_path(path)} for path in _listed_paths(args)]
    return {**args, **real, "files": listed} if listed else {**args, **real}


def _pieces(name: str, text: str) -> Iterable[str]:
    """`text` and, of a command line, each command in it, also bare of quoting and of words before it."""
    yield text
    if name != "bash":
        return
    for spelling in (text, text.translate(_QUOTING)):
        for part in re.split(_OPERATORS, spelling):
            yield part.strip()
            yield re.sub(_LEADING, "", part.strip(), count=1)
