"""A project with a workflow of which one agent wants an approval and another one an answer."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import ServerThread, configure
from tests.cli.workflow_project import ready_script
from tests.support.chat_server import Call, Json, Say

Serve = Callable[..., ServerThread]
TEAM = """
META = {"name": "team", "description": "Edits, and asks"}


async def team(ctx, args):
    return await ctx.parallel([
        lambda: ctx.agent("edit", label="edit:a"),
        lambda: ctx.agent("choose", label="the colour", agent_type="asker"),
    ])
"""


class Asking:
    """Writes a file where it is told to edit, asks a question where it is told to choose, and says what came of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, asked: Json) -> Say:
        newest = asked["messages"][-1]
        self.asked.append(newest["role"])
        if newest["role"] == "tool":
            return Say(f"it came to {newest['content']}")
        if "choose" in newest["content"]:
            question = {"question": "Which colour?\nOne only.", "options": ["red", "blue"]}
            return Say(calls=(Call("ask_user", json.dumps(question), "call_9"),))
        return Say(calls=(Call("write", '{"file_path": "made.txt", "content": "x"}', "call_7"),))


def ready_team(serve: Serve, workspace: Path) -> Asking:
    model = Asking()
    configure(workspace, serve(model))
    ready_script(workspace, TEAM)
    agents = workspace / ".a3s/agents"
    agents.mkdir()
    (agents / "asker.md").write_text("---\nname: asker\ndescription: asks\n---\nYou ask.\n")
    return model
