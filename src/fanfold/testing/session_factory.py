"""SessionFactory: sessions for one test, each on an agent of its own, and at the end a look at what they left."""

import asyncio
import inspect
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from fanfold.agent import Agent
from fanfold.env import HostEnv
from fanfold.protocols import ModelClient, Tool
from fanfold.session.session import Session
from fanfold.testing.scripted import Script, ScriptedModel

MODEL = "scripted/model"
_OF_AGENT = frozenset(inspect.signature(Agent.create).parameters) - {"models"}
_TASK_SECONDS = 1.0
"""How long tasks may take to end when their session has closed."""
_THREAD_SECONDS = 5.0
_THREADS = "fanfold"
"""How the names of fanfold's own threads begin."""


class SessionFactory:
    """Call it for a session; `close` ends all of them.

    Each agent has a loop and thread of its own, so a session serves blocking tests (`session.send`) and async ones
    (`await session.send_async`) alike.
    """

    def __init__(self, workspace: Path, env: HostEnv) -> None:
        self._workspace = workspace
        self._env = env
        self._threads_before = set(threading.enumerate())
        self._agents: list[Agent] = []
        self._models: list[ScriptedModel] = []

    def __call__(
        self,
        script: Script | ModelClient,
        /,
        *,
        workspace: Path | None = None,
        tools: Iterable[Tool] | Mapping[str, Tool] = (),
        **options: Any,
    ) -> Session:
        """An open session whose model answers from `script`, or is `script` when that is a ModelClient.

        Args:
            workspace: the test's own temporary folder unless given.
            tools: tools of your own, beside the built-in ones.
            options: what `Agent.create` takes, and what `Agent.session` takes. `model` is also the name under which
                the model is known, `scripted/model` unless given.
        """
        of_agent = {name: value for name, value in options.items() if name in _OF_AGENT}
        of_session = {name: value for name, value in options.items() if name not in _OF_AGENT}
        reference: str = of_session.setdefault("model", MODEL)
        of_agent.setdefault("host_env", self._env)  # shared, for ids are to be different in all sessions of a test
        agent = Agent.create(models={reference: self._model(script)}, tools=_by_name(tools), **of_agent)
        self._agents.append(agent)
        return agent.session(workspace or self._workspace, **of_session)

    def _model(self, script: Script | ModelClient) -> ModelClient:
        given: Any = script
        model: ModelClient = given if hasattr(given, "generate") else ScriptedModel(given)
        if isinstance(model, ScriptedModel):
            self._models.append(model)
        return model

    def close(self) -> None:
        """Close all sessions and agents, newest first.

        Raises:
            AssertionError: a task, a thread or a model call of theirs goes on; it says which.
        """
        left = [what for agent in reversed(self._agents) for what in _closed(agent)]
        left += [f"{model.running} calls of a scripted model" for model in self._models if model.running]
        left += [f"thread {thread.name}" for thread in self._threads_left()]
        if left:
            raise AssertionError("left behind by agent_session: " + "; ".join(left))

    def _threads_left(self) -> list[threading.Thread]:
        new = [
            thread
            for thread in threading.enumerate()
            if thread not in self._threads_before and thread.name.startswith(_THREADS)
        ]
        deadline = time.monotonic() + _THREAD_SECONDS
        for thread in new:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread for thread in new if thread.is_alive()]


def _closed(agent: Agent) -> list[str]:
    """Close the agent; tells which tasks its sessions left on its loop."""
    if agent.is_closed():
        return []
    try:
        for session_id in agent.list_sessions():
            agent.close_session(session_id)
        return agent.portal.call(_tasks_left(), "close")
    finally:
        agent.close()


async def _tasks_left() -> list[str]:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, others = await asyncio.wait(others, timeout=_TASK_SECONDS)
    return sorted(f"task {getattr(task.get_coro(), '__qualname__', task.get_name())}" for task in others)


def _by_name(tools: Iterable[Tool] | Mapping[str, Tool]) -> Mapping[str, Tool]:
    if isinstance(tools, Mapping):
        return cast("Mapping[str, Tool]", tools)
    return {tool.spec.name: tool for tool in tools}
