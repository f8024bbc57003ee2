"""Workplaces: what sessions on one folder share: its tools, the agents that are defined in it, its MCP servers.

Adapters are imported where they are first needed.
"""

import asyncio
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from fanfold.contracts.agents import AgentDefinition, WorkerAgentSpec
from fanfold.contracts.messages import TASK, ToolSpec
from fanfold.contracts.settings import Settings
from fanfold.delegation.builtin_agents import BUILTIN_AGENTS
from fanfold.delegation.worker_agents import as_definition, parse_worker, worker_definition
from fanfold.errors import UsageError
from fanfold.protocols import StepFolders, Tool, WorkflowFiles

if TYPE_CHECKING:
    from fanfold.workflow.registry import ScriptFolder

MAX_REMEMBERED = 64


def parse_tools(given: object) -> dict[str, Tool]:
    """The tools that a host gives, by name.

    Raises:
        UsageError: one is none, or has another name in its spec, by which the permission rules would know it.
    """
    tools: dict[str, Tool] = {}
    for name, tool in _entries("tools", given):
        spec = getattr(tool, "spec", None)
        if not isinstance(spec, ToolSpec) or not callable(getattr(tool, "run", None)):
            raise UsageError(f"tools[{name!r}]: it is no Tool, which has a spec and a run: {type(tool).__name__}")
        if spec.name != name:
            raise UsageError(f"tools[{name!r}]: its spec has the name {spec.name!r}; both must be the same")
        tools[name] = cast("Tool", tool)
    return tools


def parse_agents(given: object) -> dict[str, AgentDefinition]:
    """The agents that a host gives, each by the name that it has there.

    Raises:
        UsageError: one is none, or has a field that cannot be meant so.
    """
    agents: dict[str, AgentDefinition] = {}
    for name, agent in _entries("agents", given):
        if isinstance(agent, WorkerAgentSpec):
            agents[name] = replace(worker_definition(parse_worker(agent)), name=name)
            continue
        if not isinstance(agent, AgentDefinition):
            raise UsageError(f"agents[{name!r}]: it is no AgentDefinition, but {type(agent).__name__}")
        try:
            agents[name] = msgspec.convert({**msgspec.structs.asdict(agent), "name": name}, AgentDefinition)
        except msgspec.ValidationError as error:
            raise UsageError(f"agents[{name!r}]: {error}") from None
    return agents


def _entries(argument: str, given: object) -> Iterable[tuple[str, object]]:
    if not isinstance(given, Mapping):
        raise UsageError(f"{argument} must be a mapping by name, got {type(given).__name__}")
    entries = cast("Mapping[object, object]", given)
    for name in entries:
        if not isinstance(name, str):
            raise UsageError(f"{argument}: a name must be text, got {name!r}")
    return cast("Mapping[str, object]", entries).items()


class Workplace:
    """One folder."""

    def __init__(self, directory: Path) -> None:
        from fanfold.tools.workspace import Workspace

        self.workspace = Workspace(directory)
        self._tools: dict[bool, Mapping[str, Tool]] = {}
        self._folders: dict[bool, StepFolders] = {}
        self._workflow_files: WorkflowFiles | None = None
        self._workflow_folder: ScriptFolder | None = None

    def tools(self, *, allow_unsandboxed_bash: bool) -> Mapping[str, Tool]:
        from fanfold.tools.toolset import builtin_tools

        if allow_unsandboxed_bash not in self._tools:
            made = builtin_tools(self.workspace, allow_unsandboxed_bash=allow_unsandboxed_bash)
            self._tools[allow_unsandboxed_bash] = made
        return self._tools[allow_unsandboxed_bash]

    def folders(self, *, allow_unsandboxed_bash: bool) -> StepFolders | None:
        """The worktrees of steps that have their own; None on a system where they cannot be."""
        if os.name != "posix":
            return None
        from fanfold.tools.worktree import Worktrees

        if allow_unsandboxed_bash not in self._folders:
            own = self.tools(allow_unsandboxed_bash=allow_unsandboxed_bash)
            made = Worktrees(self.workspace, own, allow_unsandboxed_bash=allow_unsandboxed_bash)
            self._folders[allow_unsandboxed_bash] = made
        return self._folders[allow_unsandboxed_bash]

    def workflow_files(self) -> WorkflowFiles:
        from fanfold.stores.run_files import open_run_files

        if self._workflow_files is None:
            self._workflow_files = open_run_files(self.workspace.root)
        return self._workflow_files

    def workflow_folder(self) -> "ScriptFolder":
        from fanfold.config.workflow_files import WorkflowFolder

        if self._workflow_folder is None:
            self._workflow_folder = WorkflowFolder(self.workspace.root, os.environ)
        return self._workflow_folder

    async def keep_text(self, text: str) -> str | None:
        """Where `read` finds the whole of a text that a model is shown a part of."""
        from fanfold.tools.artifacts import keep_text

        return await asyncio.to_thread(keep_text, self.workspace, TASK, text)


class Workplaces:
    def __init__(self, settings: Settings, agents: Mapping[str, AgentDefinition]) -> None:
        self._settings = settings
        self._given = agents
        self._places: dict[str, Workplace] = {}

    def at(self, directory: Path) -> Workplace:
        """Raises UsageError: there is no such folder."""
        name = str(directory)
        place = self._places.get(name)
        if place is None or not place.workspace.root.is_dir():
            place = self._places[name] = Workplace(directory)
            if len(self._places) > MAX_REMEMBERED:
                del self._places[next(iter(self._places))]
        return place

    def agents(self, place: Workplace, more: Sequence[str], tool_names: Collection[str]) -> dict[str, AgentDefinition]:
        """The agents that a session on `place` knows; of two with one name the later counts: built-in ones, those of
        the configuration's folders, of the user, of the workspace, of the code, and of the session's folders."""
        from fanfold.config.agent_files import standard_directories

        folders = [*map(Path, self._settings.agent_dirs), *standard_directories(place.workspace.root, os.environ)]
        found = {**BUILTIN_AGENTS, **read_agent_folders(folders, tool_names), **self._given}
        return found | read_agent_folders(map(Path, more), tool_names)

    def own_agents(self, more: Sequence[str], tool_names: Collection[str]) -> dict[str, AgentDefinition]:
        """Those that `session_for_agent` looks among: built in, of the code, and of the folders given (seed 002)."""
        return {**BUILTIN_AGENTS, **self._given, **read_agent_folders(map(Path, more), tool_names)}


def read_agent_folders(folders: Iterable[Path], tool_names: Collection[str]) -> dict[str, AgentDefinition]:
    paths = list(folders)
    if not paths:
        return {}
    from fanfold.config.agent_files import read_agents

    found = read_agents(paths, tool_names=tool_names)
    return {name: as_definition(agent) for name, agent in found.agents.items()}
