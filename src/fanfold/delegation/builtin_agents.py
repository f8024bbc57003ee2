"""The agents that every session knows, and the aliases by which they are also called (notes 5.4 and 7.3)."""

from collections.abc import Mapping

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.policy import PermissionPolicy

_READ = ("read", "search", "ls")
_LOOK_ONLY = PermissionPolicy(
    allow=(
        *("read", "search", "ls", "web_fetch", "update_plan"),
        *(f"bash({command} *)" for command in ("ls", "cat", "head", "tail", "find", "wc")),
        *(f"bash({command})" for command in ("ls", "pwd")),
    ),
    deny=tuple(f"bash(* -{action}*)" for action in ("delete", "exec", "ok", "fprint", "fls")),
    default_decision="deny",
)
_CHECK = PermissionPolicy(allow=("read", "search", "ls", "bash", "web_fetch", "update_plan"), default_decision="deny")

BUILTIN_AGENTS: Mapping[str, AgentDefinition] = {
    each.name: each
    for each in (
        AgentDefinition(
            name="explore",
            description="Finds its way through files, fast and read-only.",
            prompt="You explore a workspace and change nothing. Search first, then read only what matters. "
            "Report what you found with the paths where it stands.",
            tools=(*_READ, "bash", "web_fetch", "update_plan"),
            permissions=_LOOK_ONLY,
            max_steps=20,
        ),
        AgentDefinition(
            name="plan",
            description="Writes an implementation plan, read-only.",
            prompt="You plan a change and make none. Read what the change touches, then give numbered steps, each "
            "with its files, its risk and how to check it.",
            tools=(*_READ, "update_plan"),
            permissions=PermissionPolicy(allow=(*_READ, "update_plan"), default_decision="deny"),
            max_steps=30,
        ),
        AgentDefinition(
            name="general",
            description="Does a whole task with every tool of the workspace.",
            tools=(*_READ, "write", "edit", "bash", "git", "web_fetch", "mcp__*", "update_plan"),
            max_steps=50,
        ),
        AgentDefinition(
            name="review",
            description="Reviews code, findings first, read-only.",
            prompt="You review and change nothing. Give findings first, worst first, each with its place, why it is "
            "wrong, and an input that shows it. Say so when there is nothing to find.",
            tools=(*_READ, "bash", "web_fetch", "update_plan"),
            permissions=_CHECK,
            max_steps=25,
        ),
        AgentDefinition(
            name="verification",
            description="Tries to refute a claim by reproducing it.",
            prompt="You check a claim by trying to break it, and change no file. Reproduce it with commands, say what "
            "you ran and saw, and end with: holds, does not hold, or cannot tell.",
            tools=(*_READ, "bash", "web_fetch", "update_plan"),
            permissions=_CHECK,
            max_steps=30,
        ),
        AgentDefinition(
            name="answer",
            description="Answers from its prompt alone, without tools: the agent for many small questions.",
            max_steps=1,
        ),
    )
}

ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("general-purpose", "general_purpose", "generalpurpose"), "general"),
    **dict.fromkeys(("verify", "verifier"), "verification"),
    **dict.fromkeys(("code-review", "code_reviewer", "reviewer"), "review"),
}


def find_agent(name: str, known: Mapping[str, AgentDefinition] = BUILTIN_AGENTS) -> AgentDefinition | None:
    """The agent of that name, else of that alias, else None."""
    return known.get(name) or known.get(ALIASES.get(name, ""))
