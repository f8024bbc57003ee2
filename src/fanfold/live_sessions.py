"""LiveSessions: the sessions of one agent, from their opening to its end, and what they share: models, servers, logs.

Adapters (stores, tools) are imported where they are first needed, so that `import fanfold` stays light.
"""

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.saved import SavedSession
from fanfold.contracts.settings import Settings
from fanfold.delegation.worker_agents import worker_definition
from fanfold.env import HostEnv
from fanfold.errors import ConfigError, SessionClosedError, SessionNotFoundError, UsageError
from fanfold.left_open import watch
from fanfold.models import Models
from fanfold.options import SessionOptions
from fanfold.portal import Portal
from fanfold.protocols import FactLog, ModelClient, Tool, ToolServer
from fanfold.servers import Servers, connect_given
from fanfold.session.assembly import Parts, assemble
from fanfold.session.closing import Closing, close_all, close_together
from fanfold.session.saved_session import own_options
from fanfold.session.saving import SessionSaves
from fanfold.session.session import Session
from fanfold.session.shared_logs import Lease, SharedLogs
from fanfold.workplaces import Workplace, Workplaces, parse_agents, parse_tools, read_agent_folders

LOG_DIRECTORY = Path(".a3s") / "effect-log"
OpenLog = Callable[[Path], FactLog]
"""The log for the sessions of the workspace at a folder."""


class LiveSessions:
    """A session that is open holds it, so that nothing is closed under it when its agent is dropped."""

    def __init__(
        self,
        portal: Portal,
        settings: Settings,
        *,
        models: Mapping[str, ModelClient],
        tools: Mapping[str, Tool],
        agents: Mapping[str, AgentDefinition],
        host_env: HostEnv,
        open_log: OpenLog | None,
    ) -> None:
        self.portal = portal
        self._settings = settings
        self._env = host_env
        self._tools = parse_tools(tools)
        self._workplaces = Workplaces(settings, parse_agents(agents))
        self._servers = Servers(settings.mcp_servers, host_env.clock)
        self._models = Models(models, settings.providers, host_env)
        self._logs = SharedLogs(open_log or _open_log)
        self._sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        self._opening: set[str] = set()
        """Ids of sessions that are being built: not listed, and nobody else's."""
        self.closing = Closing(portal)
        self.unclosed = watch(self, self._servers.close, self._models.close, self._logs.close)

    # ---- opening ----

    async def open(
        self, workspace: str | Path, options: SessionOptions, role: AgentDefinition | None = None
    ) -> Session:
        """A session on `workspace`, with its log taken up where the options name one.

        Raises:
            UsageError: no such workspace, or the id is already live or being built.
            ConfigError: the model is unknown or its key is missing.
            SessionBusyError: another process runs that thread just now.
        """
        self.ensure_open()
        session_id = self._env_of(options).ids.new_id() if options.session_id is None else options.session_id
        if session_id in self._sessions or session_id in self._opening:
            raise invalid("session_id", f"session '{session_id}' is already live or being built")
        place = self._workplaces.at(_directory(workspace))
        self._opening.add(session_id)
        try:
            servers = await self._servers.started(place.workspace.root)
            self.ensure_open()
            session = self._sessions[session_id] = self._build(place, servers, session_id, options, role)
        finally:
            self._opening.discard(session_id)
        try:
            if options.session_id is not None:
                await session.load()
        except BaseException:
            await session.close_async()
            raise
        return session

    async def resume(self, session_id: str, workspace: str | Path | None, options: SessionOptions) -> Session:
        """The session of that id as it was last saved.

        Raises:
            UsageError: no `session_store` is given, the session is live in this agent, or its folder is not there.
            SessionNotFoundError: nothing was saved under that id. Nothing is created then.
        """
        if options.session_store is None:
            raise invalid("session_store", "resume_session requires a configured session store")
        saved = await SessionSaves(options.session_store, session_id).load()
        if saved is None:
            raise SessionNotFoundError(session_id=session_id)
        is_model_given = options.model is not None
        options = options.filled({**own_options(saved), **saved.tags.given()})
        try:
            session = await self.open(_place_of(saved) if workspace is None else workspace, options, saved.role)
        except ConfigError as error:
            if is_model_given or error.hint is not None:
                raise
            error.hint = f"session '{session_id}' was saved with it; to change: resume_session(..., model=...)"
            raise
        try:
            await session.take_up()
        except BaseException:
            await session.close_async()
            raise
        return session

    def own_agents(self, folders: Sequence[str]) -> Mapping[str, AgentDefinition]:
        """Those that the host gave, and those in `folders`, by name. Raises as `Workplaces.own_agents`."""
        return self._workplaces.own_agents(tuple(folders), self._tools)

    def _build(
        self,
        place: Workplace,
        servers: Mapping[str, ToolServer],
        session_id: str,
        options: SessionOptions,
        role: AgentDefinition | None,
    ) -> Session:
        from fanfold.stores.memory import MemoryFactLog

        workspace, settings = place.workspace, self._settings
        allow_bash = options.allow_unsandboxed_bash
        unsandboxed = settings.allow_unsandboxed_bash if allow_bash is None else allow_bash
        agents = self._workplaces.agents(place, options.agent_dirs or (), self._tools)
        agents |= {worker.name: worker_definition(worker) for worker in options.worker_agents or ()}
        lease = self._logs.lease(workspace.root)
        return assemble(
            Parts(
                portal=self.portal,
                session_id=session_id,
                workspace=workspace.root,
                options=options,
                env=self._env_of(options),
                log=lease.log,
                resolve=self._models.resolve,
                model=options.model or (role.model if role else None) or settings.default_model,
                role=role,
                policy=options.permission_policy or settings.permissions,
                tools={**place.tools(allow_unsandboxed_bash=unsandboxed), **self._tools},
                servers=servers,
                agents=agents,
                real_path=workspace.canonical,
                folders=place.folders(allow_unsandboxed_bash=unsandboxed),
                new_child_log=MemoryFactLog,
                max_parallel_tasks=_first(options.max_parallel_tasks, settings.max_parallel_tasks) or 1,
                max_tool_rounds=_first(options.max_tool_rounds, settings.max_tool_rounds),
                connect=functools.partial(connect_given, root=workspace.root),
                read_agents=lambda path: read_agent_folders([Path(path)], self._tools),
                keep_text=place.keep_text,
                workflow_files=place.workflow_files,
                workflow_folder=place.workflow_folder,
                on_close=functools.partial(self._forget, lease),
                warnings=tuple(self._servers.warnings),
            )
        )

    def _env_of(self, options: SessionOptions) -> HostEnv:
        return options.host_env or self._env

    async def _forget(self, lease: Lease, session: Session) -> None:
        try:
            await self._logs.end(lease)
        finally:
            self._sessions.pop(session.session_id, None)

    # ---- those that live ----

    def ids(self) -> list[str]:
        """Sorted."""
        return sorted(each.key for each in self._sessions.valuerefs() if each() is not None)  # from any thread

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    # ---- end ----

    async def shut_down(self) -> None:
        self.unclosed.detach()
        sessions = [session.close_async for session in self._sessions.values()]
        try:
            await close_all(
                [
                    functools.partial(close_together, sessions),
                    self._servers.close,
                    self._models.close,
                    self._logs.close,
                ]
            )
        finally:
            self.portal.stop()

    def ensure_open(self) -> None:
        if self.closing.is_begun:
            raise SessionClosedError(session_id="<agent-closed>")


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _directory(workspace: Any) -> Path:
    try:
        if workspace != "":  # which as a path would be the current folder
            return Path(workspace)
    except TypeError:
        pass
    raise invalid("workspace", f"it must be the path of a folder, got {workspace!r}")


def _place_of(saved: SavedSession) -> str:
    if Path(saved.workspace).is_dir():
        return saved.workspace
    raise invalid(
        "workspace",
        f"the folder of session '{saved.session_id}', {saved.workspace}, is not here; "
        "say where it is to work: resume_session(..., workspace=...)",
    )


def invalid(argument: str, why: str) -> UsageError:
    return UsageError(f"Invalid session configuration for '{argument}': {why}")


def _open_log(root: Path) -> FactLog:
    from fanfold.stores.jsonl import JsonlFactLog

    return JsonlFactLog(root / LOG_DIRECTORY)
