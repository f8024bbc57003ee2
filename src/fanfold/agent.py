"""Agent: the composition root, which picks adapters, and the registry of live sessions.

Adapters (configuration, stores, tools) are imported where they are first needed, so that `import fanfold` stays light.
"""

import asyncio
import concurrent.futures
import functools
import importlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from fanfold.contracts.agents import AgentDefinition, WorkerAgentSpec
from fanfold.contracts.saved import SavedSession
from fanfold.contracts.settings import Settings
from fanfold.delegation.builtin_agents import find_agent
from fanfold.delegation.worker_agents import WorkerLike, parse_worker, worker_definition
from fanfold.env import HostEnv
from fanfold.errors import ConfigError, LifecycleError, SessionClosedError, SessionNotFoundError, UsageError
from fanfold.models import Models
from fanfold.nearest import did_you_mean
from fanfold.options import SessionOptions, parse_host_env
from fanfold.portal import Portal, blocking, on_loop
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
EXIT_SECONDS = 5.0
"""How long the interpreter's exit waits for agents that nobody closed."""
_NOT_CLOSED = "an Agent was not closed; use `with Agent.create(...)` or `async with await Agent.create_async(...)`"


class Agent:
    """Configuration, model clients and live sessions. Make it with `Agent.create` or `await Agent.create_async`.

    It is a context manager, sync and async. One that is dropped open warns, and its connections, models and logs are
    closed as far as its loop still runs.
    """

    _in_threads: ClassVar["weakref.WeakSet[Agent]"] = weakref.WeakSet()
    """Those with a loop thread of their own, which the exit ends."""

    def __init__(
        self,
        portal: Portal,
        settings: Settings,
        *,
        models: Mapping[str, ModelClient],
        tools: Mapping[str, Tool],
        agents: Mapping[str, AgentDefinition],
        host_env: HostEnv,
        open_log: OpenLog | None = None,
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
        self._closing = Closing(portal)
        self._unclosed = weakref.finalize(
            self, _abandon, portal, self._servers.close, self._models.close, self._logs.close
        )
        if portal.owns_thread:
            _close_forgotten_at_exit()
            self._in_threads.add(self)

    @classmethod
    async def create_async(
        cls,
        config_source: str | Path | None = None,
        *,
        models: Mapping[str, ModelClient] | None = None,
        tools: Mapping[str, Tool] | None = None,
        agents: Mapping[str, AgentDefinition] | None = None,
        host_env: HostEnv | None = None,
        open_log: OpenLog | None = None,
    ) -> Self:
        """An agent on the running loop.

        Args:
            config_source: path of an `agent.acl` or `agent.toml`, inline ACL text, or None for the discovery order of
                the configuration docs.
            models: clients of your own by reference (`provider/model-id`); without a configuration the first one is
                the default model.
            tools: tools of your own by name, beside the built-in ones.
            agents: roles of your own by name, beside the built-in ones.
            open_log: where the sessions of a workspace keep their facts; JSONL files below it unless given.

        Raises:
            ConfigError: with every fault of the configuration.
        """
        return cls._create(Portal.of_running_loop(), config_source, models, tools, agents, host_env, open_log)

    @classmethod
    def create(
        cls,
        config_source: str | Path | None = None,
        *,
        models: Mapping[str, ModelClient] | None = None,
        tools: Mapping[str, Tool] | None = None,
        agents: Mapping[str, AgentDefinition] | None = None,
        host_env: HostEnv | None = None,
        open_log: OpenLog | None = None,
    ) -> Self:
        """An agent on a background loop of its own, for blocking code and notebooks. Arguments as `create_async`."""
        portal = Portal.in_new_thread("fanfold-agent")
        try:
            return cls._create(portal, config_source, models, tools, agents, host_env, open_log)
        except BaseException:
            portal.stop()
            portal.join()
            raise

    @classmethod
    def _create(
        cls,
        portal: Portal,
        config_source: str | Path | None,
        models: Mapping[str, ModelClient] | None,
        tools: Mapping[str, Tool] | None,
        agents: Mapping[str, AgentDefinition] | None,
        host_env: HostEnv | None,
        open_log: OpenLog | None,
    ) -> Self:
        if config_source is None and models:
            settings = Settings(default_model=next(iter(models)), source="models given in code")
        else:
            from fanfold.config.discovery import load

            settings = load(config_source, start=Path.cwd(), environ=os.environ)
        return cls(
            portal,
            settings,
            models=models or {},
            tools=tools or {},
            agents=agents or {},
            host_env=parse_host_env(host_env) or HostEnv(),
            open_log=open_log,
        )

    @property
    def settings(self) -> Settings:
        return self._settings

    # ---- sessions ----

    @on_loop
    async def session_async(
        self, /, workspace: str | Path, options: SessionOptions | None = None, **overrides: Any
    ) -> Session:
        """A session on `workspace`, an existing directory. `overrides` are options that win over `options`.

        With `session_id` set, an existing log of that id is taken up where it stands.

        Raises:
            UsageError: no such workspace, an unknown option, or the id is already live in this agent.
            ConfigError: the model is unknown or its key is missing.
            SessionBusyError: another process runs that thread just now.
        """
        return await self._opened(workspace, _chosen(options, overrides))

    session = blocking(session_async)

    @on_loop
    async def resume_session_async(
        self,
        /,
        session_id: str,
        options: SessionOptions | None = None,
        *,
        workspace: str | Path | None = None,
        **overrides: Any,
    ) -> Session:
        """The session of that id as it was last saved, on this node or another one: conversation, runs, children,
        tags and options; options that are given here win over saved ones.

        Its own log wins over the saved facts if it contains them; one that went another way is set aside. What lives in
        a process is not saved: guards, hooks, commands, agents that were registered and servers of `add_mcp`.

        Args:
            workspace: where to work, when it is not the folder of before.

        Raises:
            UsageError: no `session_store` is given, the session is live in this agent, or its folder is not there.
            SessionNotFoundError: nothing was saved under that id. Nothing is created then.
        """
        self._ensure_open()
        chosen = _chosen(options, {**overrides, "session_id": session_id})
        if chosen.session_store is None:
            raise _invalid("session_store", "resume_session requires a configured session store")
        saved = await SessionSaves(chosen.session_store, session_id).load()
        if saved is None:
            raise SessionNotFoundError(session_id=session_id)
        is_model_given = chosen.model is not None
        chosen = chosen.filled({**own_options(saved), **saved.tags.given()})
        try:
            session = await self._opened(_place_of(saved) if workspace is None else workspace, chosen, saved.role)
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

    resume_session = blocking(resume_session_async)

    @on_loop
    async def session_for_agent_async(
        self,
        /,
        workspace: str | Path,
        agent_name: str,
        agent_dirs: Sequence[str] | None = None,
        options: SessionOptions | None = None,
        **overrides: Any,
    ) -> Session:
        """A session whose own agent is the one of that name: its prompt, its tools, its permissions within the
        session's, its rounds and its model. Looked for among the built-in agents and those in `agent_dirs` (seed 002).

        Raises:
            UsageError: there is none of that name.
        """
        known = self._workplaces.own_agents(tuple(agent_dirs or ()), self._tools)
        role = find_agent(agent_name, known)
        if role is None:
            raise UsageError(f"agent '{agent_name}' not found{did_you_mean(agent_name, known)}")
        return await self._opened(workspace, _chosen(options, overrides), role)

    session_for_agent = blocking(session_for_agent_async)

    @on_loop
    async def session_for_worker_async(
        self,
        /,
        workspace: str | Path,
        worker: WorkerAgentSpec | Mapping[str, Any],
        options: SessionOptions | None = None,
        **overrides: Any,
    ) -> Session:
        """Likewise for an agent that is given by value."""
        role = worker_definition(parse_worker(worker))
        return await self._opened(workspace, _chosen(options, overrides), role)

    session_for_worker = blocking(session_for_worker_async)

    async def _opened(
        self, workspace: str | Path, options: SessionOptions, role: AgentDefinition | None = None
    ) -> Session:
        self._ensure_open()
        session_id = self._env_of(options).ids.new_id() if options.session_id is None else options.session_id
        if session_id in self._sessions or session_id in self._opening:
            raise _invalid("session_id", f"session '{session_id}' is already live or being built")
        place = self._workplaces.at(_directory(workspace))
        self._opening.add(session_id)
        try:
            servers = await self._servers.started(place.workspace.root)
            self._ensure_open()
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

    def list_sessions(self) -> list[str]:
        """Ids of the live sessions, sorted."""
        return sorted(each.key for each in self._sessions.valuerefs() if each() is not None)  # from any thread

    @on_loop
    async def close_session_async(self, session_id: str) -> bool:
        """Close one session; True only when this call closed it."""
        session = self._sessions.get(session_id)
        if session is None or session.is_closed():
            return False
        await session.close_async()
        return True

    close_session = blocking(close_session_async)

    # ---- end ----

    async def close_async(self) -> None:
        """Close every session, every connection and model. A second call does nothing, nor does one that comes when
        the agent's loop has ended.

        It waits for runs that take their time to stop, without a limit: their tools may hold what only they can let go.
        What comes of a call from within a run is told at `Session.close_async`.
        """
        await self._closing.wait(self._shut_down)
        self._unclosed.detach()
        if self.portal.owns_thread and not self.portal.is_current():
            await asyncio.to_thread(self.portal.join)

    def close(self) -> None:
        """Blocking form of `close_async`."""
        self._closing.block(self._shut_down)
        self._unclosed.detach()
        self.portal.join()

    async def _shut_down(self) -> None:
        self._unclosed.detach()
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

    def is_closed(self) -> bool:
        return self._closing.is_begun

    def _ensure_open(self) -> None:
        if self._closing.is_begun:
            raise SessionClosedError(session_id="<agent-closed>")

    @classmethod
    def _close_forgotten(cls) -> None:
        """Close the agents that are open at exit in order, with a warning, and without hanging the exit."""
        agents = [agent for agent in cls._in_threads if agent.portal.is_of_this_process()]
        is_forgotten = not all(agent.is_closed() for agent in agents)
        ends = [end.future for agent in agents if (end := agent._closing.submit(agent._shut_down)) is not None]
        _, running = concurrent.futures.wait(ends, EXIT_SECONDS)
        for agent in agents:
            agent._unclosed.detach()
        if is_forgotten:
            warnings.warn(_NOT_CLOSED, ResourceWarning, stacklevel=1)
        if running:
            what = (
                f"a run did not stop within {EXIT_SECONDS:g} s of the exit and was left behind; its log can be resumed"
            )
            warnings.warn(what, RuntimeWarning, stacklevel=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close_async()


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _chosen(options: Any, overrides: dict[str, Any]) -> SessionOptions:
    if not isinstance(options, SessionOptions | None):
        raise _invalid("options", f"it must be SessionOptions, got {type(options).__name__}")
    given = options or SessionOptions()
    workers = overrides.get("worker_agents") or given.worker_agents
    if isinstance(workers, list | tuple):  # where a kind may be an alias
        overrides = {**overrides, "worker_agents": tuple(map(parse_worker, cast("list[WorkerLike]", workers)))}
    chosen = given.merged(**overrides)
    if chosen.session_id == "":
        raise _invalid("session_id", "it is empty; leave it out for a new id")
    return chosen


def _directory(workspace: Any) -> Path:
    try:
        if workspace != "":  # which as a path would be the current folder
            return Path(workspace)
    except TypeError:
        pass
    raise _invalid("workspace", f"it must be the path of a folder, got {workspace!r}")


def _place_of(saved: SavedSession) -> str:
    if Path(saved.workspace).is_dir():
        return saved.workspace
    raise _invalid(
        "workspace",
        f"the folder of session '{saved.session_id}', {saved.workspace}, is not here; "
        "say where it is to work: resume_session(..., workspace=...)",
    )


def _invalid(argument: str, why: str) -> UsageError:
    return UsageError(f"Invalid session configuration for '{argument}': {why}")


def _open_log(root: Path) -> FactLog:
    from fanfold.stores.jsonl import JsonlFactLog

    return JsonlFactLog(root / LOG_DIRECTORY)


def _abandon(portal: Portal, *parts: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """What is left to do for an agent that was dropped open. It has no runs: a run holds its session and agent."""

    async def close() -> None:
        try:
            await close_all(parts)
        finally:
            portal.stop()

    if not portal.is_of_this_process():
        return
    try:
        portal.submit(close())
    except LifecycleError:
        pass  # its loop has ended, and with it whatever could be closed in order
    warnings.warn(_NOT_CLOSED, ResourceWarning, stacklevel=1)


@functools.cache
def _close_forgotten_at_exit() -> None:
    # `atexit` would come too late: by then the thread pools are gone that the logs sync with. This is the hook by which
    # `concurrent.futures` ends its pools; hooks run newest first, so its module has to be loaded before ours is set.
    importlib.import_module("concurrent.futures.thread")
    threading._register_atexit(Agent._close_forgotten)  # type: ignore[attr-defined]  # pyright: ignore
