"""A fanfold agent on the fake server or on a model of its own, with a scratch directory as workspace."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.workload import AddTool
from fanfold import Agent, FileSessionStore, ModelClient, Session


@asynccontextmanager
async def agent_on(model: str | ModelClient) -> AsyncIterator[tuple[Agent, Path]]:
    """The agent and its workspace. `model`: the base URL of a server, or a client.

    The workspace lies under the current directory: its log is synced to a disk, where `/tmp` may be memory.
    """
    tools = {"add": AddTool()}
    with tempfile.TemporaryDirectory(prefix=".benchmark-", dir=Path.cwd()) as workspace:
        if isinstance(model, str):
            config = (
                f'default_model = "fake/fake"\nproviders "fake" {{\n  kind = "openai"\n  base_url = "{model}"\n}}\n'
            )
            made = await Agent.create_async(config, tools=tools)
        else:
            made = await Agent.create_async(models={"stub/stub": model}, tools=tools)
        async with made as agent:
            yield agent, Path(workspace)


@asynccontextmanager
async def durable_session(
    model: str | ModelClient, at_once: int, **options: Any
) -> AsyncIterator[tuple[Session, Path]]:
    """A session with a `session_store`, and the directory of that store."""
    async with agent_on(model) as (agent, workspace):
        directory = workspace / "store"
        store = FileSessionStore(directory)
        try:
            options = {"max_parallel_tasks": at_once, "session_store": store, **options}
            yield await agent.session_async(workspace, **options), directory
        finally:
            await store.close()
