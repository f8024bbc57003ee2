"""A workspace with something outside of it, and a way to call a tool as the loop does."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from fanfold.contracts.events import AgentEvent
from fanfold.contracts.messages import ToolOutput
from fanfold.protocols import Tool, ToolScope
from fanfold.tools.workspace import Workspace

Call = Callable[..., ToolOutput]


def scope_for(events: list[AgentEvent]) -> ToolScope:
    return ToolScope(session_id="s-1", call_id="c-1", idempotency_key="k-1", emit=events.append)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """`ws` is the root; beside it lie `outside/secret.txt` and, inside, links that lead there."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret\n")
    root = tmp_path / "ws"
    root.mkdir()
    return Workspace(root)


@pytest.fixture
def link_out(workspace: Workspace) -> Path:
    link = workspace.root / "way_out"
    link.symlink_to(workspace.root.parent / "outside")
    return link


@pytest.fixture
def call() -> Call:
    def run(tool: Tool, **args: Any) -> ToolOutput:
        jsonschema_rs.validate(tool.spec.parameters, args)
        return asyncio.run(tool.run(args, scope_for([])))

    return run


@pytest.fixture
def events() -> list[AgentEvent]:
    return []


@pytest.fixture
def scope(events: list[AgentEvent]) -> ToolScope:
    return scope_for(events)


@pytest.fixture
def processes_with() -> Callable[[str], list[int]]:
    """Ids of the living processes whose command line holds a text."""

    def find(text: str) -> list[int]:
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and int(entry.name) != os.getpid():
                    line = (entry / "cmdline").read_bytes()
                    if text.encode() in line:
                        found.append(int(entry.name))
            except OSError:
                continue  # it ended while we looked
        return found

    return find
