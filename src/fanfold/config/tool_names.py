"""Names of tools as definitions of agents write them, in our spelling and in that of Claude Code (notes 7.1)."""

from collections.abc import Collection, Mapping

import msgspec

from fanfold.contracts.policy import split_rule
from fanfold.errors import ConfigError

BUILTIN_TOOLS = frozenset(
    ("read", "write", "edit", "ls", "search", "bash", "git", "web_fetch", "update_plan", "ask_user", "task")
)
_OURS: Mapping[str, str] = {
    **{name: name for name in BUILTIN_TOOLS},
    **dict.fromkeys(("multiedit", "multi_edit"), "edit"),
    **dict.fromkeys(("grep", "glob"), "search"),
    "webfetch": "web_fetch",
    "websearch": "web_search",
    "todowrite": "update_plan",
    "askuserquestion": "ask_user",
    "agent": "task",
}
"""By the name in lower case."""
_SEARCH_MODES = frozenset(("grep", "glob"))
"""To a rule they are `search` in that mode, which is less than the tool."""
_PATH_TOOLS = frozenset(("read", "write", "edit", "ls"))


class ToolRule(msgspec.Struct, frozen=True):
    """One entry of a list of tools."""

    tool: str
    """The tool, or a pattern of several, as the list of an agent's tools has it."""
    rule: str
    """What the entry is as a rule of a permission policy."""
    is_known: bool
    has_pattern: bool


def parse_tool_rule(text: str, tool_names: Collection[str] = ()) -> ToolRule:
    """The entry `text`, such as `Read`, `Bash(git push *)` or `mcp__github__*`; `tool_names` are known as they are.

    Raises:
        ConfigError: it is no rule, or one whose pattern no tool of ours has.
    """
    name, pattern = split_rule(text)
    tool = name if name in tool_names else _OURS.get(name.lower(), name)
    spelled = name.lower() if tool == "search" and name.lower() in _SEARCH_MODES else tool
    is_wild = "*" in tool or "?" in tool
    is_known = is_wild or tool in BUILTIN_TOOLS or tool in tool_names or tool.startswith("mcp__")
    if tool.startswith("mcp__") and tool.count("__") == 1 and not is_wild:
        tool = f"{tool}__*"  # all tools of that server
    if pattern is None:
        return ToolRule(tool, spelled, is_known, has_pattern=False)
    if tool == "web_fetch" and pattern.startswith("domain:"):
        raise ConfigError(f"{text!r}: a pattern `domain:` is not known here; name web_fetch without one")
    if tool in _PATH_TOOLS:
        pattern = pattern.removeprefix("./")  # the paths that it is compared with have none
    return ToolRule(tool, f"{spelled}({pattern})", is_known, has_pattern=True)


def split_list(text: str) -> list[str]:
    """The entries of a comma list; a comma within brackets belongs to its entry."""
    entries, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            entries.append("")
        else:
            entries[-1] += character
    return [entry.strip() for entry in entries if entry.strip()]
