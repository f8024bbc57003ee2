"""A project with workflows, a model that a test can hold up, and runs whose events have come to pass."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fanfold.config.workflow_files import WorkflowFolder
from fanfold.workflow.scripts import text_sha
from tests.cli.conftest import Ended
from tests.support.chat_server import Answer, Http, Json, Say

Fanfold = Callable[..., Ended]

TEAM = """
META = {
    "name": "team",
    "description": "Asks about each area, then for the sum",
    "phases": ["Ask", "Sum"],
    "args_schema": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "areas": {"type": "array", "items": {"type": "string"}, "description": "What to ask about"},
            "depth": {"type": "integer"},
        },
    },
}


async def team(ctx, args):
    ctx.phase("Ask")
    areas = args.get("areas", ["a", "b", "c"])
    found = await ctx.parallel([
        lambda area=area: ctx.agent(f"ask about {area}", label=f"ask:{area}", agent_type="answer") for area in areas
    ])
    ctx.phase("Sum")
    return {"sum": await ctx.agent(f"sum {found}", label="sum", agent_type="answer"), "depth": args.get("depth")}
"""


class Model:
    """Says its prompt in capitals. What has a word of `held` in it is kept waiting until it is let go; what has one of
    `broken` is cut off by a filter."""

    def __init__(self, *, held: str = "", broken: str = "") -> None:
        self.held = held
        self.broken = broken
        self.prompts: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, asked: Json) -> Answer:
        prompt = str(asked["messages"][-1]["content"])
        with self._lock:
            self.prompts.append(prompt)
        if self.held and self.held in prompt:
            return Http(then="hang")
        if self.broken and self.broken in prompt:
            return Say("half", stop="content_filter")
        return Say(prompt.upper())


def write_script(workspace: Path, text: str, name: str = "team") -> Path:
    path = workspace / ".a3s" / "workflows" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def approve(workspace: Path, path: Path) -> None:
    """As a person has done who keeps no state elsewhere than below the workspace's own `home`."""
    folder = WorkflowFolder(workspace, {"XDG_STATE_HOME": str(workspace / "home" / ".local" / "state")})
    folder.approve(str(path), text_sha(path.read_text(encoding="utf-8")))


def ready_script(workspace: Path, text: str = TEAM, name: str = "team") -> Path:
    path = write_script(workspace, text, name)
    approve(workspace, path)
    return path


def runs_of(fanfold: Fanfold) -> list[dict[str, Any]]:
    """Newest first."""
    found: list[dict[str, Any]] = json.loads(fanfold("runs", "list", "--json").out)["runs"]
    return found


def only_run(fanfold: Fanfold) -> str:
    [run] = runs_of(fanfold)
    return str(run["run_id"])


def until(fanfold: Fanfold, run: str | None = None, **statuses: int) -> dict[str, Any]:
    """`runs show` of the run, of the only one unless given, once so many of its agents stand so."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = runs_of(fanfold) if run is None else [{"run_id": run}]
        if found:
            shown: dict[str, Any] = json.loads(fanfold("runs", "show", found[0]["run_id"], "--json").out)
            seen = [each["status"] for each in shown["agents"]]
            if all(seen.count(status) == count for status, count in statuses.items()):
                return shown
        time.sleep(0.02)
    raise AssertionError(f"never came to {statuses}")
