"""Agent: the composition root, which picks adapters, and the registry of live sessions.

Adapters (configuration, stores, tools) are imported where they are first needed, so that `import fanfold` stays light.
"""

import importlib
import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fanfold.contracts.agents import AgentDefinition
from fanfold.contracts.settings import Settings
from fanfold.env import HostEnv
from fanfold.errors import SessionClosedError, UsageError
from fanfold.models import Models
from fanfold.options import SessionOptions
from fanfold.portal import Portal, blocking, on_loop
from fanfold.protocols import FactLog, ModelClient, Tool
from fanfold.session.builtin_agents import BUILTIN_AGENTS
from fanfold.session.session import Session
from fanfold.session.setup import Composer

LOG_DIRECTORY = Path(".a3s") / "effect-log"


class Agent:
    """Configuration, model clients and live sessions. Make it with `Agent.create` or `await Agent.create_async`."""

    def __init__(
        self,
        portal: Portal,
        settings: Settings,
        *,
        models: Mapping[str, ModelClient],
        tools: Mapping[str, Tool],
        agents: Mapping[str, AgentDefinition],
        host_env: HostEnv,
    ) -> None:
        self.portal = portal
        self._settings = settings
        self._env = host_env
        self._tools = tools
        self._agents = {**BUILTIN_AGENTS, **agents}
        self._models = Models(models, settings.providers, host_env)
        self._logs: dict[Path, FactLog] = {}
        self._sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        self._being_built: set[str] = set()
        self._is_closed = False

    @classmethod
    async def create_async(
        cls,
        config_source: str | Path | None = None,
        *,
        models: Mapping[str, ModelClient] | None = None,
        tools: Mapping[str, Tool] | None = None,
        agents: Mapping[str, AgentDefinition] | None = None,
        host_env: HostEnv | None = None,
    ) -> Self:
        """An agent on the running loop.

        Args:
            config_source: path of an `agent.acl` or `agent.toml`, inline ACL text, or None for the discovery order of
                the configuration docs.
            models: clients of your own by reference (`provider/model-id`); without a configuration the first one is
                the default model.
            tools: tools of your own by name, beside the built-in ones.
            agents: roles of your own by name, beside the built-in ones.

        Raises:
            ConfigError: with every fault of the configuration.
        """
        return cls._create(Portal.of_running_loop(), config_source, models, tools, agents, host_env)

    @classmethod
    def create(
        cls,
        config_source: str | Path | None = None,
        *,
        models: Mapping[str, ModelClient] | None = None,
        tools: Mapping[str, Tool] | None = None,
        agents: Mapping[str, AgentDefinition] | None = None,
        host_env: HostEnv | None = None,
    ) -> Self:
        """An agent on a background loop of its own, for blocking code and notebooks. Arguments as `create_async`."""
        portal = Portal.in_new_thread("fanfold-agent")
        try:
            agent = cls._create(portal, config_source, models, tools, agents, host_env)
        except BaseException:
            portal.stop()
            raise
        _close_at_exit(agent)
        return agent

    @classmethod
    def _create(
        cls,
        portal: Portal,
        config_source: str | Path | None,
        models: Mapping[str, ModelClient] | None,
        tools: Mapping[str, Tool] | None,
        agents: Mapping[str, AgentDefinition] | None,
        host_env: HostEnv | None,
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
            host_env=host_env or HostEnv(),
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
        self._ensure_open()
        chosen = (options or SessionOptions()).merged(**overrides)
        session_id = chosen.session_id or self._env_of(chosen).ids.new_id()
        self._reserve(session_id)
        try:
            session = self._build(Path(workspace), session_id, chosen)
            if chosen.session_id is not None:
                await session.load()
            self._ensure_open()
        finally:
            self._being_built.discard(session_id)
        self._sessions[session_id] = session
        return session

    session = blocking(session_async)

    def _reserve(self, session_id: str) -> None:
        if session_id in self._sessions or session_id in self._being_built:
            raise UsageError(
                f"Invalid session configuration for 'session_id': session '{session_id}' is already live or being built"
            )
        self._being_built.add(session_id)

    def _build(self, directory: Path, session_id: str, options: SessionOptions) -> Session:
        from fanfold.stores.memory import MemoryFactLog
        from fanfold.tools.toolset import builtin_tools
        from fanfold.tools.workspace import Workspace

        workspace = Workspace(directory)
        settings = self._settings
        allow_bash = options.allow_unsandboxed_bash
        unsandboxed = settings.allow_unsandboxed_bash if allow_bash is None else allow_bash
        tools = {**builtin_tools(workspace, allow_unsandboxed_bash=unsandboxed), **self._tools}
        composer = Composer(
            resolve=self._models.resolve,
            model=options.model or settings.default_model,
            tools=tools,
            real_path=workspace.canonical,
            policy=options.permission_policy or settings.permissions,
            options=options,
            max_tool_rounds=_first(options.max_tool_rounds, settings.max_tool_rounds),
        )
        composer.ensure_model()
        return Session(
            portal=self.portal,
            session_id=session_id,
            workspace=workspace.root,
            options=options,
            env=self._env_of(options),
            log=self._log(workspace.root),
            composer=composer,
            agents=self._agents,
            new_child_log=MemoryFactLog,
            max_parallel_tasks=_first(options.max_parallel_tasks, settings.max_parallel_tasks) or 1,
            on_close=self._forget,
        )

    def _env_of(self, options: SessionOptions) -> HostEnv:
        return options.host_env or self._env

    def _log(self, root: Path) -> FactLog:
        directory = root / LOG_DIRECTORY
        if directory not in self._logs:
            from fanfold.stores.jsonl import JsonlFactLog

            self._logs[directory] = JsonlFactLog(directory)
        return self._logs[directory]

    def _forget(self, session: Session) -> None:
        self._sessions.pop(session.session_id, None)

    def list_sessions(self) -> list[str]:
        """Ids of the live sessions, sorted."""
        return sorted(self._sessions)

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

    @on_loop
    async def _shut_down(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for session in list(self._sessions.values()):
            await session.close_async()
        await self._models.close()
        for log in self._logs.values():
            await log.close()

    async def close_async(self) -> None:
        """Close every session, every connection and model. A second call does nothing."""
        await self._shut_down()
        if not self.portal.is_current():
            self.portal.stop()

    def close(self) -> None:
        """Blocking form of `close_async`."""
        if self._is_closed:
            return
        self.portal.call(self._shut_down(), "close")
        self.portal.stop()

    def is_closed(self) -> bool:
        return self._is_closed

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise SessionClosedError(session_id="<agent-closed>")

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


def _close_at_exit(agent: Agent) -> None:
    """Close a forgotten agent in order when the interpreter ends, with a warning, without hanging."""
    reference = weakref.ref(agent)

    def close() -> None:
        forgotten = reference()
        if forgotten is not None and not forgotten.is_closed():
            warnings.warn("an Agent was not closed; use `with Agent.create(...)`", ResourceWarning, stacklevel=1)
            forgotten.close()

    # `atexit` would come too late: by then the thread pools are gone that the logs sync with. This is the hook by which
    # `concurrent.futures` ends its pools; hooks run newest first, so its module has to be loaded before ours is set.
    importlib.import_module("concurrent.futures.thread")
    threading._register_atexit(close)  # type: ignore[attr-defined]  # pyright: ignore
