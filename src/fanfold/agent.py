"""Agent: what a host makes and asks for sessions; the facade of the composition root.

The configuration is imported where it is first needed, so that `import fanfold` stays light.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

from fanfold.contracts.agents import AgentDefinition, WorkerAgentSpec
from fanfold.contracts.settings import Settings
from fanfold.delegation.builtin_agents import find_agent
from fanfold.delegation.worker_agents import WorkerLike, parse_worker, worker_definition
from fanfold.env import HostEnv
from fanfold.errors import UsageError
from fanfold.live_sessions import LiveSessions, OpenLog, invalid
from fanfold.nearest import did_you_mean
from fanfold.options import SessionOptions, parse_host_env
from fanfold.portal import Portal, blocking, on_loop
from fanfold.protocols import ModelClient, Tool
from fanfold.session.session import Session


class Agent:
    """Configuration, model clients and live sessions. Make it with `Agent.create` or `await Agent.create_async`.

    It is a context manager, sync and async. One that is dropped open warns, and its connections, models and logs are
    closed as far as its loop still runs.
    """

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
        self._sessions = LiveSessions(
            portal, settings, models=models, tools=tools, agents=agents, host_env=host_env, open_log=open_log
        )

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
        return await self._sessions.open(workspace, _chosen(options, overrides))

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
        self._sessions.ensure_open()
        chosen = _chosen(options, {**overrides, "session_id": session_id})
        return await self._sessions.resume(session_id, workspace, chosen)

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
        known = self._sessions.own_agents(agent_dirs or ())
        role = find_agent(agent_name, known)
        if role is None:
            raise UsageError(f"agent '{agent_name}' not found{did_you_mean(agent_name, known)}")
        return await self._sessions.open(workspace, _chosen(options, overrides), role)

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
        return await self._sessions.open(workspace, _chosen(options, overrides), role)

    session_for_worker = blocking(session_for_worker_async)

    def list_sessions(self) -> list[str]:
        """Ids of the live sessions, sorted."""
        return self._sessions.ids()

    @on_loop
    async def close_session_async(self, session_id: str) -> bool:
        """Close one session; True only when this call closed it."""
        session = self._sessions.find(session_id)
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
        await self._sessions.closing.wait(self._sessions.shut_down)
        self._sessions.unclosed.detach()
        if self.portal.owns_thread and not self.portal.is_current():
            await asyncio.to_thread(self.portal.join)

    def close(self) -> None:
        """Blocking form of `close_async`."""
        self._sessions.closing.block(self._sessions.shut_down)
        self._sessions.unclosed.detach()
        self.portal.join()

    def is_closed(self) -> bool:
        return self._sessions.closing.is_begun

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close_async()


def _chosen(options: Any, overrides: dict[str, Any]) -> SessionOptions:
    if not isinstance(options, SessionOptions | None):
        raise invalid("options", f"it must be SessionOptions, got {type(options).__name__}")
    given = options or SessionOptions()
    workers = overrides.get("worker_agents") or given.worker_agents
    if isinstance(workers, list | tuple):  # where a kind may be an alias
        overrides = {**overrides, "worker_agents": tuple(map(parse_worker, cast("list[WorkerLike]", workers)))}
    chosen = given.merged(**overrides)
    if chosen.session_id == "":
        raise invalid("session_id", "it is empty; leave it out for a new id")
    return chosen
